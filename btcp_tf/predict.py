"""Scores any number of images, rows of numbers, or texts, with an exported SavedModel.

python -m btcp_tf.predict --model=saved_models/fashion_mnist --input=photos --output=scores.csv

Inputs are read, answered and written batch by batch, so that memory does not grow with their
number. Progress is kept in the folder `<output>.partial`; run the same command again to resume. The
file itself appears once, whole, with `<output>.about.json` beside it, which says which model, input
and settings it is of. Importing this module does not import TensorFlow.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from btcp_tf.core import command, keras_setup
from btcp_tf.core.command import UsageError
from btcp_tf.core.config import MAX_PIXELS
from btcp_tf.serving import batch_scoring
from btcp_tf.serving.batch_scoring import SOME_PROBLEMS, score
from btcp_tf.serving.scorer import Scorer

__all__ = ["Scorer", "main", "score"]

USAGE = (
    "python -m btcp_tf.predict --model=DIR --input=DIR_OR_FILE --output=FILE [--SETTING=VALUE ...]"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and scores; returns the exit status.

    0: all inputs have an answer. 3: the file is there, but some have none. 1: an error. 2: the
    command line is wrong, or names a file of a kind that is not read or written. 130: Ctrl-C.
    143: SIGTERM.

    Args:
      argv: The arguments behind the program's name; None takes those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if leftovers:
            raise UsageError(f"expected --SETTING=VALUE, received the word {leftovers[0]!r}")
        keras_setup.check()
        values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
        for name in ("model", "input", "output"):
            if not values[name]:
                raise UsageError(f"{name}: expected --{name}=PATH, received none")
        # Not Path's own, which fails where there is no such user.
        place, output = (Path(os.path.expanduser(values[name])) for name in ("input", "output"))
        batch_scoring.check_settings(
            place,
            output,
            *(values[name] for name in ("key", "labels", "batch_size", "max_pixels")),
        )

    def action() -> int:
        return SOME_PROBLEMS if score(**values).problems else 0

    return command.carry_out(action, values["verbose"])


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    for name, help in (
        (
            "model",
            "A SavedModel of btcp_tf: its version folder, or that of its versions. It is a "
            "program: name none that you would not run.",
        ),
        ("input", "A folder of PNG, JPEG or BMP files, an .npz, .npy or .csv file."),
        ("output", "The file to write: .csv, .jsonl or .parquet. It must not be there yet."),
        ("key", "Array of an .npz file, or column of a .csv file; empty: x_test, images or x."),
    ):
        flags.DEFINE_string(name, "", help, flag_values=flag_values)
    flags.DEFINE_boolean(
        "labels",
        False,
        "Add the true class of each input: the name of its folder, or y_test, labels or y of the "
        "file; and say at the end how many answers are wrong.",
        flag_values=flag_values,
    )
    # Their ranges are those of the settings of a run with these names.
    for name, default, help in (
        ("batch_size", 256, "Inputs that the model answers at once."),
        (
            "max_pixels",
            MAX_PIXELS,
            "Pixels of an image file; a larger one has no answer.",
        ),
        ("verbose", 1, "0: problems and errors alone. 2: no bar."),
    ):
        flags.DEFINE_integer(name, default, help, flag_values=flag_values)
    return flag_values


if __name__ == "__main__":
    sys.exit(main())
