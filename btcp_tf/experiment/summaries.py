"""TensorBoard files of one run: curves, histograms, images, text and HParams."""

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_api

from btcp_tf.reporting.pictures import sheet

HISTOGRAM_BUCKETS = 50


class Summaries:
    """Writes what `tensorboard --logdir` shows of one run.

    A file is created with the first summary, and each summary is on disk when its
    method returns. A resumed run writes to a new file of the same folder; TensorBoard's
    default loader keeps the last value of a tag and step, so an epoch that ran twice
    shows once.

    Args:
      folder: `<run>/tensorboard`. HParams go to `final` below it, a TensorBoard run
        of its own: otherwise each curve would be a column of the HParams table.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self._folder = Path(folder)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def epoch(
        self,
        stage: str,
        row: Mapping[str, Any],
        histograms: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Writes one epoch of one stage.

        Args:
          stage: Such as "btcp"; the tags are `<stage>/<name>`.
          row: A row of the history; `epoch` is the step. Its other numbers are
            written as scalars. Words, None, NaN and infinity are left out.
          histograms: Values of any shape by name, such as `u_validation`.
        """
        step = int(row["epoch"])
        with self._writer().as_default(step):
            for name, value in row.items():
                if name != "epoch" and _is_finite_number(value):
                    tf.summary.scalar(f"{stage}/{name}", float(value))
            for name, values in (histograms or {}).items():
                values = np.asarray(values)
                values = values[np.isfinite(values)]
                tf.summary.histogram(f"{stage}/{name}", values, buckets=HISTOGRAM_BUCKETS)
        self._writer().flush()

    def images(
        self,
        tag: str,
        images: np.ndarray,
        captions: Sequence[str],
        marked: Sequence[bool] | np.ndarray = (),
        *,
        columns: int = 4,
    ) -> None:
        """Writes images with a caption each as one sheet, in reading order.

        Args:
          tag: Name of the sheet.
          images: uint8 `[n, height, width, 1 or 3]`, n at least 1. They are brought to one
            width, small ones without smoothing.
          captions: n texts; line breaks are kept, and lines that are too long cut.
          marked: For each image, whether it gets a frame; empty: none does.
          columns: Images in a row.

        Raises:
          ValueError: If the numbers differ, or there is no image.
        """
        if not len(images) or len(images) != len(captions):
            raise ValueError(
                "images: expected at least one image and a caption for each, "
                f"received {len(images)} images and {len(captions)} captions"
            )
        with self._writer().as_default(0):
            grid = sheet(images, captions, marked, columns=columns)
            tf.summary.image(tag, grid[np.newaxis])
        self._writer().flush()

    def text(self, tag: str, markdown: str) -> None:
        """Writes a text, such as the run's notes."""
        with self._writer().as_default(0):
            tf.summary.text(tag, markdown)
        self._writer().flush()

    def hparams(
        self, trial: str, settings: Mapping[str, str], metrics: Mapping[str, float]
    ) -> None:
        """Writes one row of the HParams table.

        Args:
          trial: Its name.
          settings: Text of the command line by name. Numbers in it are written as numbers, so
            that the table sorts and filters by size.
          metrics: Final metrics by name, such as `btcp/auroc`; the tags are
            `final/<name>`. None, NaN and infinity are left out.
        """
        with self._writer("final").as_default(0):
            hparams_api.hparams({name: _typed(word) for name, word in settings.items()}, trial)
            for name, value in metrics.items():
                if _is_finite_number(value):
                    tf.summary.scalar(f"final/{name}", float(value))
        self._writer("final").flush()

    def close(self) -> None:
        """Closes the files; a later summary opens new ones."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _writer(self, below: str = "") -> tf.summary.SummaryWriter:
        if below not in self._writers:
            self._writers[below] = tf.summary.create_file_writer(str(self._folder / below))
        return self._writers[below]


def _is_finite_number(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _typed(word: str) -> bool | float | str:
    if word in ("true", "false"):
        return word == "true"
    try:
        number = float(word)
    except ValueError:
        return word
    return number if math.isfinite(number) else word
