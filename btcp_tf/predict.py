"""Scores any number of images, or rows of numbers, with an exported SavedModel.

python -m btcp_tf.predict --model=saved_models/fashion_mnist --input=photos --output=scores.csv

Inputs are read, answered and written batch by batch, so that memory does not grow with their
number. What is done stands in the folder `<output>.partial`, from which a killed command goes on;
the file itself appears once, whole, with `<output>.about.json` beside it: which model, input and
settings it is of. Importing this module does not import TensorFlow.
"""

import contextlib
import dataclasses
import errno
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

import btcp_tf
from btcp_tf import command, data, drift, evaluation, exported, keras_setup, metrics
from btcp_tf.checks import InputRange
from btcp_tf.config import to_word
from btcp_tf.exported import SIGNATURE
from btcp_tf.files import as_path, atomic_path, folder_lock
from btcp_tf.inputs import UNLABELED, Batch, Inputs, as_text, check_ending, open_inputs
from btcp_tf.progress import Bar

USAGE = (
    "python -m btcp_tf.predict --model=DIR --input=DIR_OR_FILE --output=FILE [--SETTING=VALUE ...]"
)

ANSWERS = {
    "predicted": "int64",
    "class_name": "string",
    "probs": "float32",
    "uncertainty": "float32",
    "accept": "bool",
}
"""What a model answers, and in which type."""

SOME_PROBLEMS = 3
"""Exit status where every input was read, but some have no answer."""

_MAX_BATCH = 1_000_000
_LONGEST_NAME = 240


# Answers ----------------------------------------------------------------------------------------


class Scorer:
    """Answers batches with a SavedModel; an actor of Ray Data's `map_batches` as it stands.

        rows.map_batches(predict.Scorer, fn_constructor_args=(model,), batch_size=256, ...)

    A batch is a dict of arrays of n rows: `images`, numbers as the model takes them or uint8 images
    that `data.convert` brings to its size and channels (and `data.scaled` to its scale, for a model
    of float images whose scale is known); or `files`, paths of image files, as
    `data.read_image`. Other entries pass through. The answer has them, and `predicted` int64 `[n]`,
    `class_name` `[n]`, `probs` float32 `[n, k]`, `uncertainty` float32 `[n]` in [0, 1], `accept`
    bool `[n]`, and `problem` `[n]`: "", or why the row has no answer, which then is -1, "", NaN,
    NaN and False. Pickled, it is the path of its model, and is loaded again where it arrives.
    """

    def __init__(self, model: str | os.PathLike) -> None:
        """Loads a model.

        Args:
          model: See `exported.newest`.

        Raises:
          FileNotFoundError: If there is no model, or one of somebody else.
          ValueError: If it does not answer as this package's models do.
        """
        self.directory = exported.newest(model)
        about = exported.read_about(self.directory)
        self.class_names: list[str] = about["class_names"]
        self._range, self._pixels = _intake(self.directory, about)
        with command.hidden_stderr():
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            import tensorflow as tf

            try:
                self._loaded = tf.saved_model.load(os.fspath(self.directory))
            # Not only TensorFlow's own: a damaged model can raise nearly anything.
            except Exception as error:
                raise ValueError(
                    f"model: expected a SavedModel that TensorFlow loads, received "
                    f"{self.directory}: {command.one_line(error)}"
                ) from error
        found = ", ".join(self._loaded.signatures) or "none"
        if SIGNATURE not in self._loaded.signatures:
            raise ValueError(
                f"{self.directory}: expected the signature {SIGNATURE}, received {found}"
            )
        self._signature = self._loaded.signatures[SIGNATURE]
        inputs = self._signature.structured_input_signature[1]
        answers = {
            name: spec.dtype.name for name, spec in self._signature.structured_outputs.items()
        }
        if set(inputs) != {"images"} or not ANSWERS.items() <= answers.items():
            raise ValueError(
                f"{self.directory}: expected images in and {_words(ANSWERS)} out, received "
                f"{', '.join(inputs)} in and {_words(answers)} out; export the model again with "
                "this version of btcp_tf"
            )
        spec = inputs["images"]
        classes = self._signature.structured_outputs["probs"].shape[-1]
        if spec.shape.rank is None or classes not in (None, len(self.class_names)):
            raise ValueError(
                f"{self.directory}: expected inputs of a known rank and {len(self.class_names)} "
                f"classes, received {spec.shape} and {classes}"
            )
        self.dtype = np.dtype(spec.dtype.as_numpy_dtype)
        self.shape: tuple[int | None, ...] = tuple(spec.shape[1:])
        self._readers: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Scorer, (os.fspath(self.directory),)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> Batch:
        return self.answer(self.prepare(batch))

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels that images can be converted to; None: none can."""
        if (self.dtype != np.uint8 and not self._pixels) or not data.are_image_sizes(self.shape):
            return None
        height, width, channels = self.shape
        assert height and width and channels
        return height, width, channels

    def check(self, what: str, dtype: np.dtype, shape: Sequence[int]) -> bool:
        """Whether inputs of this type and shape (of one input) have to be converted to be taken.

        Raises:
          ValueError: If they are not taken at all; the message begins with `what`.
        """
        wanted, fits = self.shape, len(shape) == len(self.shape)
        fits = fits and all(a in (None, b) for a, b in zip(wanted, shape, strict=True))
        is_scaled = self._pixels not in (None, "0_255") and dtype == np.uint8
        if fits and _keeps_kind(dtype, self.dtype) and not is_scaled:
            return False
        if self.image_shape and dtype == np.uint8 and all(shape):
            if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)):
                return True
        size = ["any" if size is None else size for size in wanted]
        images = ", or uint8 images of any size" if self.image_shape else ""
        raise ValueError(
            f"{what}: expected {self.dtype} of shape {_shape(size)} for each input{images}; "
            f"received {dtype} of shape {_shape(shape)}"
        )

    def check_files(self, what: str) -> None:
        """Raises a ValueError that begins with `what` unless the model takes image files."""
        if self.image_shape is None:
            size = ["any" if size is None else size for size in self.shape]
            raise ValueError(
                f"{what}: expected a model of gray or color images of one size, in uint8 or with a "
                f"known scale of its pixels (Judge.export(pixels=...)), for image files, received "
                f"one of {self.dtype} of shape {_shape(size)}"
            )

    def prepare(self, batch: Mapping[str, np.ndarray]) -> Batch:
        """A batch with `images` as the model takes them, and `problem`; touches no TensorFlow.

        Raises:
          ValueError: If the inputs do not fit the model.
        """
        if not isinstance(batch, Mapping):
            raise ValueError(f"batch: expected arrays by name, received {type(batch).__name__}")
        for name in ("images", "files"):
            if name in batch and not np.ndim(batch[name]):
                received = type(batch[name]).__name__
                raise ValueError(f"{name}: expected an array [n, ...], received {received}")
        rest = {name: column for name, column in batch.items() if name not in ("images", "files")}
        if "files" in batch:
            self.check_files("files")
            shape = self.image_shape
            assert shape is not None
            files = batch["files"]
            images = np.zeros((len(files), *shape), np.uint8)

            def read(row: int) -> str:
                pixels, reason = data.read_image(files[row], shape)
                if pixels is not None:
                    images[row] = pixels
                return reason

            # Pillow decodes without holding the interpreter.
            if self._readers is None:
                self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
            problem = np.array(list(self._readers.map(read, range(len(files)))), object)
            images = self._scaled(images)
        elif "images" in batch:
            images = np.asarray(batch["images"])
            problem = np.full(len(images), "", object)
            if self.check("images", images.dtype, images.shape[1:]):
                assert self.image_shape is not None
                images = self._scaled(data.convert(images, self.image_shape))
            else:
                images, problem = _meant(images, self.dtype, self._range)
        else:
            raise ValueError(
                f"batch: expected images or files, received {', '.join(batch) or 'none'}"
            )
        return rest | {"images": images, "problem": problem}

    def _scaled(self, images: np.ndarray) -> np.ndarray:
        """uint8 images of the model's size, in its type."""
        if self._pixels is None:
            return images
        return data.scaled(images, self._pixels).astype(self.dtype, copy=False)

    def answer(self, prepared: Mapping[str, np.ndarray]) -> Batch:
        """The model's answers to a batch from `prepare`."""
        rest = {name: column for name, column in prepared.items() if name != "images"}
        n, k = len(prepared["images"]), len(self.class_names)
        problem = np.array(prepared["problem"], object)
        found: Batch = {
            "predicted": np.full(n, -1, np.int64),
            "class_name": np.full(n, "", object),
            "probs": np.full((n, k), np.nan, np.float32),
            "uncertainty": np.full(n, np.nan, np.float32),
            "accept": np.zeros(n, bool),
        }
        # Rows with a problem go through the model as blank ones: batches of always the same size
        # need memory once.
        if (problem == "").any():
            import tensorflow as tf

            answers = self._signature(images=tf.constant(prepared["images"]))
            told = {name: answers[name].numpy() for name in ANSWERS}
            finite = np.isfinite(told["probs"]).all(axis=1) & np.isfinite(told["uncertainty"])
            problem[(problem == "") & ~finite] = "the model's answer is not finite"
            told["class_name"] = np.array(
                [name.decode("utf-8") for name in told["class_name"]], object
            )
            good = problem == ""
            for name, column in found.items():
                column[good] = told[name][good]
        return rest | found | {"problem": problem}


def _words(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in types.items()) or "nothing"


def _shape(sizes: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _keeps_kind(dtype: np.dtype, wanted: np.dtype) -> bool:
    """Whether numbers of one type mean the same in the other, but for digits of a float."""
    if wanted.kind == "f":
        return dtype.kind in "iuf"
    return dtype.kind == wanted.kind and np.can_cast(dtype, wanted, "safe")


def _intake(directory: Path, about: Mapping[str, Any]) -> tuple[InputRange | None, str | None]:
    """The range of the inputs that the estimator was fitted on, and the scale of pixels, as far as
    the model tells; models of version 0.1.0 tell neither."""
    try:
        seen, pixels = InputRange.from_json(about.get("input_range")), about.get("pixels")
        if pixels not in (None, *data.PIXELS):
            raise ValueError(f"pixels is {pixels!r}")
    except ValueError as error:
        raise ValueError(
            f"{directory}: expected what btcp_tf writes about a model, received what cannot be "
            f"read ({error})"
        ) from None
    return seen, pixels


def _meant(
    rows: np.ndarray, dtype: np.dtype, seen: InputRange | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in a type, and what is wrong in those that cannot be meant: NaN, infinity, or numbers
    far from those that the estimator was fitted on. In their place stand harmless ones."""
    problem = np.full(len(rows), "", object)
    if dtype.kind != "f" and seen is None:
        return rows.astype(dtype, copy=False), problem
    # A number too large for the type becomes infinite, which is looked for next.
    with np.errstate(over="ignore"):
        taken = rows.astype(dtype)
    flat = taken.reshape(len(taken), -1)
    blank = 0.0 if seen is None else seen.low
    bad = ~np.isfinite(flat)
    for row in np.flatnonzero(bad.any(axis=1)):
        entry = int(np.flatnonzero(bad[row])[0])
        problem[row] = f"expected finite numbers, received {flat[row, entry]} as number {entry}"
        flat[row] = blank
    if seen is not None:
        expected = f"expected numbers like those of fit, {seen.words}, received"
        for row in np.flatnonzero(seen.far(flat, rows.dtype.kind)):
            problem[row] = f"{expected} {seen.farthest(flat[row]):.6g}"
        for row in seen.all_flat(flat):
            problem[row] = f"{expected} {flat[row].min():.6g} to {flat[row].max():.6g}"
        flat[problem != ""] = blank
    return flat.reshape(taken.shape), problem


# Files of scores -------------------------------------------------------------------------------

Record = dict[str, Any]
"""One row of scores, columns in order; None: empty."""


def records(batch: Mapping[str, np.ndarray]) -> list[Record]:
    """Rows of a file of scores from a `Scorer`'s answer that has `input`, perhaps `labels`.

    A label that is `UNLABELED` is left empty.

    Numbers keep the value of their single precision, digit for digit, so that whoever reads an
    uncertainty compares the same number with tau as the model did.
    """
    names = [name for name in ("input", "labels", *ANSWERS, "problem") if name in batch]
    columns = [batch[name].tolist() for name in names]
    rows = []
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        if row.get("labels") == UNLABELED:
            row["labels"] = None
        row["problem"] = _plain(row["problem"]) or None
        if row["problem"]:
            row |= dict.fromkeys(ANSWERS)
        rows.append(row)
    return rows


def _plain(text: str) -> str:
    """One line that every encoding of Unicode can hold."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode("utf-8").split())


def write(path: str | os.PathLike, batches: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes a file of scores from a `Scorer`'s answers; it appears whole or not at all.

    Args:
      path: Its ending, .csv, .jsonl or .parquet, is the format. Must not exist.
      batches: See `records`; of at least one batch, all with the same columns.

    Raises:
      ValueError: If the ending is another one, or there is no batch.
      FileExistsError: If there is a file already.
    """
    path = as_path("path", path).expanduser()
    writer = _writer(path)
    if os.path.lexists(path):
        raise FileExistsError(f"output: expected a new file, received {path}, which exists")
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise ValueError("batches: expected at least one, received none")
    chunks = (records(batch) for batch in itertools.chain([first], rest))
    with atomic_path(path) as temporary:
        writer(temporary, chunks, first["probs"].shape[1], "labels" in first)


_Writer = Callable[[Path, Iterable[list[Record]], int, bool], None]
"""(path, rows in pieces, number of classes, whether there are labels)."""


def _write_csv(path: Path, chunks: Iterable[list[Record]], classes: int, labeled: bool) -> None:
    head = ["input", *(["labels"] if labeled else []), "predicted", "class_name"]
    head += [f"probs_{number}" for number in range(classes)]
    head += ["uncertainty", "accept", "problem"]
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(",".join(head) + "\n")
        for chunk in chunks:
            for row in chunk:
                probs = row["probs"] or [None] * classes
                values = [*(row | {"probs": None}).values()]
                place = list(row).index("probs")
                values[place : place + 1] = probs
                file.write(",".join(map(_csv_word, values)) + "\n")


def _csv_word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    # Not csv.writer, which before Python 3.13 leaves a lone carriage return without quotes.
    quoted = any(letter in value for letter in ',"\r\n') or value != value.strip()
    return '"' + value.replace('"', '""') + '"' if quoted else value


def _write_jsonl(path: Path, chunks: Iterable[list[Record]], classes: int, labeled: bool) -> None:
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(_lines(chunk))


def _lines(rows: Iterable[Record]) -> bytes:
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    return text.encode("utf-8")


def _write_parquet(path: Path, chunks: Iterable[list[Record]], classes: int, labeled: bool) -> None:
    import pyarrow
    import pyarrow.parquet

    types = {
        "input": pyarrow.string(),
        **({"labels": pyarrow.int64()} if labeled else {}),
        "predicted": pyarrow.int64(),
        "class_name": pyarrow.string(),
        "probs": pyarrow.list_(pyarrow.float32()),
        "uncertainty": pyarrow.float32(),
        "accept": pyarrow.bool_(),
        "problem": pyarrow.string(),
    }
    schema = pyarrow.schema(list(types.items()))
    # A row group is in memory at once: at most 16 MB of probabilities.
    group_rows = min(16_384, max(1, 2**22 // classes))
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        tables, rows = [], 0
        for chunk in chunks:
            tables.append(pyarrow.Table.from_pylist(chunk, schema=schema))
            rows += len(chunk)
            if rows >= group_rows:
                writer.write_table(pyarrow.concat_tables(tables), row_group_size=rows)
                tables, rows = [], 0
        if rows:
            writer.write_table(pyarrow.concat_tables(tables), row_group_size=rows)


_FORMATS: dict[str, _Writer] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def _ending(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in _FORMATS:
        raise ValueError(
            f"output: expected a file that ends in {', '.join(_FORMATS)}, received {str(path)!r}"
        )
    return ending


def _writer(path: Path) -> _Writer:
    ending = _ending(path)
    if ending == ".parquet":
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise ValueError(
                "output: expected pyarrow for a .parquet file, received none; "
                "pip install pyarrow, or btcp_tf[parquet], brings it"
            ) from None
    return _FORMATS[ending]


# The command -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Summary:
    """What became of the inputs of a finished file of scores."""

    inputs: int
    accepted: int
    problems: int
    first_problems: tuple[str, ...]
    """Name and reason of the first of them."""
    labeled: int | None = None
    """Answers with a true class; None: none was asked for."""
    errors: int = 0
    """Wrong ones among `labeled`."""
    accepted_labeled: int = 0
    """Accepted ones among `labeled`."""
    accepted_errors: int = 0
    """Wrong ones among `accepted_labeled`."""


def score(
    model: str | os.PathLike,
    input: str | os.PathLike,
    output: str | os.PathLike,
    *,
    key: str = "",
    labels: bool = False,
    batch_size: int = 256,
    verbose: int = 1,
) -> Summary:
    """Scores all inputs and writes the file of scores, or what is left of it to do.

    Args:
      model: See `exported.newest`.
      input: A folder, npz or npy file, see `inputs.open_inputs`.
      output: The file, see `write`. If the same model, input and settings have written it already,
        nothing is changed.
      key: Array of an npz file.
      labels: Adds the true classes, see `inputs.open_inputs`.
      batch_size: Inputs that are in memory at once, twice or three times over; from 1 to 1,000,000.
      verbose: 0 prints nothing but problems; 1 also what was done, and on a terminal a bar; 2 no
        bar.

    Raises:
      FileNotFoundError: If model or input are not there.
      ValueError: If the arguments do not fit one another, or what an earlier command left at
        `output` is not of this one.
      RuntimeError: If another process is writing `output`, or the input changed meanwhile.
      OSError: If the disk is full; what is done is kept.
    """
    output = as_path("output", output).expanduser()
    place = as_path("input", input).expanduser()
    _check_settings(place, output, key, labels, batch_size)
    writer = _writer(output)
    directory = exported.newest(model)
    about = exported.read_about(directory)

    def look() -> Inputs:
        return open_inputs(place, key=key, class_names=about["class_names"] if labels else None)

    inputs = look()
    settings = {
        "model": _model_fingerprint(directory),
        "input": inputs.fingerprint,
        "inputs": inputs.count,
        "key": inputs.key,
        "labels": labels,
        "true_classes": inputs.label_fingerprint,
        "batch_size": batch_size,
        "format": output.suffix.lower(),
        "versions": {name: _version(name) for name in ("btcp_tf", "tensorflow")},
    }
    tau = (about.get("threshold") or {}).get("tau")
    if os.path.lexists(output):
        return _finished(output, settings, tau, verbose)
    # Now: rows of a damaged file must not stand when a whole one takes its place.
    inputs.verify()
    with _working_folder(output) as folder:
        if os.path.lexists(output):  # By now: whoever held the folder has finished.
            return _finished(output, settings, tau, verbose)
        rows = _Rows(folder / _ROWS, settings)
        if rows.damaged:
            print(
                f"{rows.path}: expected the rows that were done whole, received damaged ones; "
                f"the first {rows.done:,} are sound and kept, the others are scored again",
                file=sys.stderr,
            )
        if rows.done < inputs.count:
            _score_rest(directory, inputs, rows, batch_size, verbose)
        then, now = ((x.fingerprint, x.label_fingerprint) for x in (inputs, look()))
        if now != then:
            raise RuntimeError(f"input: expected it unchanged, received {place}, which has changed")
        tally = _Tally(labels)
        final = folder / f"{_FINAL}{output.suffix}"
        writer(final, tally.counted(rows.saved()), len(about["class_names"]), labels)
        summary = tally.summary()
        with open(final, "rb") as written:
            os.fsync(written.fileno())
            sha256 = hashlib.file_digest(written, "sha256").hexdigest()
        # Before the file itself, which must not be there without it: it is known by it.
        with atomic_path(evaluation.about_file(output)) as temporary:
            content = {
                "command": settings,
                "paths": {
                    "model": as_text(os.fspath(directory)),
                    "input": as_text(os.fspath(place)),
                },
                "tau": tau,
                "order": inputs.order,
                "summary": dataclasses.asdict(summary),
                "sha256": sha256,
            }
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if os.path.lexists(output):
            raise ValueError(f"output: expected a new file, received {output}, which exists by now")
        os.replace(final, output)
    _tell(output, summary, tau, verbose)
    return summary


def _check_settings(place: Path, output: Path, key: str, labels: bool, batch_size: Any) -> None:
    """ValueError unless the settings are in range and fit one another; nothing is read for it."""
    metrics.whole_number(
        "batch_size", batch_size, f"a whole number from 1 to {_MAX_BATCH}", 1, _MAX_BATCH
    )
    _ending(output)
    # Not at the end, when names beside it turn out too long for a folder (255 bytes).
    if (length := len(os.fsencode(output.name))) > _LONGEST_NAME:
        raise ValueError(
            f"output: expected a name of at most {_LONGEST_NAME} bytes, received {length}"
        )
    check_ending(place)
    if place.is_dir() and output.resolve().is_relative_to(place.resolve()):
        raise ValueError(
            f"output: expected a file outside of the input folder, received {output}, which would "
            "be an input itself"
        )
    is_array = place.is_file() and place.suffix.lower() == ".npy"
    if key and (is_array or place.is_dir()):
        raise ValueError(f"key: expected it with an npz file, received it with {place}")
    if labels and is_array:
        raise ValueError(
            f"labels: expected them with a folder or an npz file, received them with {place}, "
            "which holds one array"
        )


def _score_rest(
    directory: Path,
    inputs: Inputs,
    rows: "_Rows",
    batch_size: int,
    verbose: int,
) -> None:
    """Appends the rows that are not done."""
    scorer = Scorer(directory)
    note = ""
    if inputs.dtype is None:
        scorer.check_files(inputs.what)
        note = "files of another size or number of channels"
    elif scorer.check(inputs.what, inputs.dtype, inputs.shape):
        note = f"images of shape {_shape(inputs.shape)}"
    if verbose:
        if rows.done:
            print(f"going on after {rows.done:,} of {inputs.count:,} inputs")
        if note:
            print(f"{inputs.what}: {note} are converted to {_shape(scorer.shape)}")
        if inputs.note:
            print(f"{inputs.what}: {inputs.note}")
    batches = inputs.batches(rows.done, batch_size)

    def following() -> Batch | None:
        batch = next(batches, None)
        return None if batch is None else scorer.prepare(batch)

    bar = Bar(f"{inputs.count:,} inputs", inputs.count, shown=verbose == 1, still=False)
    with ThreadPoolExecutor(1) as reader:
        # The next batch is read while the model answers this one.
        ahead = reader.submit(following)
        while (batch := ahead.result()) is not None:
            ahead = reader.submit(following)
            rows.append(records(scorer.answer(batch)))
            bar.update(min(rows.done, inputs.count))
    if rows.done != inputs.count:
        raise RuntimeError(
            f"input: expected {inputs.count:,} inputs, received {rows.done:,} by now"
        )


class _Rows:
    """The rows that are done, in a file that a kill may cut and a disk may damage at any place.

    Its first line is the command, then come the rows of batch after batch. Behind each of these
    parts a line holds the number of rows and the check sum of all that stands before it: what is
    sound ends with the last such line that is right.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Takes up what an earlier command left there, if any, and cuts off what is not sound.

        A part without its check sum at the end is what a kill leaves. The model may round otherwise
        in a batch of another size, so a batch counts as a whole or not at all.

        Raises:
          ValueError: If it was another command.
        """
        self.path = path
        self.done = 0
        """Rows that are sound."""
        self.damaged = False
        """Whether some were not, although no kill had cut them."""
        self._head = _lines([{"command": settings}])
        self._digest = hashlib.sha256()
        if not path.exists():
            return
        head, size = self._read()
        if size and (differences := _differences(settings, json.loads(head)["command"])):
            raise ValueError(
                f"output: expected the command that began {path.parent}, received one with "
                f"{differences}; another --output begins anew, and so does this one once that "
                "folder is deleted"
            )
        os.truncate(path, size)

    def _read(self) -> tuple[bytes, int]:
        """The first line, and the number of bytes that are sound."""
        digest, rows, sound = hashlib.sha256(), -1, 0  # The first line is no row.
        first, size = b"", 0
        with open(self.path, "rb") as file:
            for line in file:
                is_check = line.startswith(_CHECK)
                if is_check and line != _check(rows, digest):
                    self.damaged = True
                    break
                first, size = first or line, size + len(line)
                digest.update(line)
                if is_check:
                    self.done, self._digest, sound = rows, digest.copy(), size
                else:
                    rows += 1
        self.damaged |= bool(size) and not sound
        return first, sound

    def append(self, rows: Sequence[Record]) -> None:
        """Adds the rows of a batch."""
        with open(self.path, "ab") as file:
            parts = [] if file.tell() else [(0, self._head)]
            self.done += len(rows)
            for done, part in (*parts, (self.done, _lines(rows))):
                self._digest.update(part)
                check = _check(done, self._digest)
                self._digest.update(check)
                file.write(part)
                file.write(check)

    def saved(self) -> Iterator[list[Record]]:
        """All rows, in pieces."""
        with open(self.path, encoding="utf-8", newline="\n") as file:
            next(file)
            start = _CHECK.decode()
            rows = (line for line in file if not line.startswith(start))
            while chunk := list(itertools.islice(rows, 1024)):
                yield [json.loads(line) for line in chunk]


_CHECK = b'{"done": '
"""How a check sum's line begins, and no row's: its first entry is `input`."""


def _check(rows: int, digest: Any) -> bytes:
    return _CHECK + f'{rows}, "sha256": "{digest.hexdigest()}"}}\n'.encode()


_ROWS = "rows.jsonl"
_FINAL = "scores"


@contextlib.contextmanager
def _working_folder(output: Path) -> Iterator[Path]:
    """Holds the folder beside `output` that has the rows that are done, for this process alone.

    It is removed when the file is there, or when not one row was done.

    Raises:
      OSError: If there is no room for what is written inside.
    """
    folder = output.with_name(f"{output.name}.partial")
    with folder_lock(folder, "output"):
        try:
            yield folder
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise OSError(
                f"output: expected room on the disk for {output}, received none "
                f"({os.strerror(error.errno)}); what is done is kept, and once there is room the "
                "same command goes on from there"
            ) from error
        finally:
            rows = folder / _ROWS
            with contextlib.suppress(OSError):
                (folder / f"{_FINAL}{output.suffix}").unlink(missing_ok=True)
                if os.path.lexists(output) or not rows.exists() or not rows.stat().st_size:
                    rows.unlink(missing_ok=True)
                    (folder / ".lock").unlink(missing_ok=True)
                    folder.rmdir()


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _version(package: str) -> str:
    if package == "btcp_tf":
        return btcp_tf.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _model_fingerprint(directory: Path) -> str:
    """Another one where the network, its weights or what it says of itself have changed."""
    digest = hashlib.sha256()
    others = [path for name in ("variables", "assets") for path in (directory / name).glob("*")]
    for path in (directory / "saved_model.pb", *sorted(others), directory / exported.ABOUT_FILE):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(path.name.encode() + b"\0" + content)
    return digest.hexdigest()


def _differences(settings: Mapping[str, Any], saved: Any) -> str:
    """In what a command differs from the one that left something; "": in nothing."""
    if not isinstance(saved, dict):
        return "something else"
    words = {
        "model": "another model",
        "input": "another or a changed input",
        "true_classes": "other labels in the input",
    }
    changed = [name for name in settings if settings[name] != saved.get(name)]
    # Whoever has the one has the other, too.
    for name, other in (("input", "inputs"), ("labels", "true_classes")):
        if name in changed and other in changed:
            changed.remove(other)

    def told(name: str) -> str:
        now, then = settings[name], saved.get(name)
        if name in words:
            return words[name]
        if isinstance(now, dict) and isinstance(then, dict):
            return ", ".join(
                f"{part} {now[part]} in place of {then.get(part)}"
                for part in now
                if now[part] != then.get(part)
            )
        return f"{name} {to_word(now)} in place of {to_word(then)}"

    return ", ".join(map(told, changed))


class _Tally:
    """Counts rows on their way into a file."""

    def __init__(self, labels: bool) -> None:
        self._inputs = self._accepted = self._problems = 0
        self._first: list[str] = []
        self._labels = labels
        # Answers with a label and wrong ones among them: all, and the accepted ones.
        self._all, self._kept = [0, 0], [0, 0]

    def counted(self, chunks: Iterable[list[Record]]) -> Iterator[list[Record]]:
        for chunk in chunks:
            self._inputs += len(chunk)
            self._accepted += sum(row["accept"] is True for row in chunk)
            bad = [row for row in chunk if row["problem"]]
            self._problems += len(bad)
            some = bad[: 5 - len(self._first)]
            self._first += [f"{row['input']} ({row['problem']})" for row in some]
            for row in chunk:
                if row.get("labels") is None or row["problem"]:
                    continue
                for counts in (self._all, self._kept) if row["accept"] else (self._all,):
                    counts[0] += 1
                    counts[1] += row["predicted"] != row["labels"]
            yield chunk

    def summary(self) -> Summary:
        found = Summary(self._inputs, self._accepted, self._problems, tuple(self._first))
        if not self._labels:
            return found
        return dataclasses.replace(
            found,
            labeled=self._all[0],
            errors=self._all[1],
            accepted_labeled=self._kept[0],
            accepted_errors=self._kept[1],
        )


def _finished(
    output: Path, settings: Mapping[str, Any], tau: float | None, verbose: int
) -> Summary:
    """What the file that is there says of itself, if this command has written it.

    Raises:
      ValueError: If it has not.
    """
    told = f"output: expected a new file, or one that this command wrote, received {output}, which"
    if not output.is_file():
        raise ValueError(f"{told} is no file")
    try:
        content = json.loads(evaluation.about_file(output).read_text(encoding="utf-8"))
        saved, sha256, found = content["command"], content["sha256"], content["summary"]
        summary = Summary(**(found | {"first_problems": tuple(found["first_problems"])}))
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{told} exists and comes from elsewhere") from None
    if differences := _differences(settings, saved):
        raise ValueError(f"{told} is of another command: now with {differences}")
    with open(output, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ValueError(f"{told} was changed since")
    if verbose:
        print(f"{output} is finished already; nothing is changed.")
    _tell(output, summary, tau, verbose)
    return summary


def _tell(output: Path, summary: Summary, tau: float | None, verbose: int) -> None:
    if summary.problems:
        more = summary.problems - len(summary.first_problems)
        print(
            f"{summary.problems:,} of {summary.inputs:,} inputs have no answer: "
            + ", ".join(map(_on_one_line, summary.first_problems))
            + (f" and {more:,} more" if more else ""),
            file=sys.stderr,
        )
    if verbose:
        scored = summary.inputs - summary.problems
        share = f" ({summary.accepted / scored:.1%})" if scored else ""
        rule = "its threshold accepts nothing" if tau is None else f"u < {tau:.6g}"
        print(
            f"{output}: {scored:,} scored, {summary.accepted:,} accepted{share}, {rule}; "
            f"{summary.problems:,} without an answer",
            flush=True,
        )
        if summary.labeled is not None:
            some = "" if summary.labeled == scored else " that have a label"
            for what, errors, rows in (
                (f"all answers{some}", summary.errors, summary.labeled),
                (f"accepted ones{some}", summary.accepted_errors, summary.accepted_labeled),
            ):
                print(f"{what}: {_error_rate(errors, rows)}", flush=True)


def _error_rate(errors: int, rows: int) -> str:
    if not rows:
        return "none, hence no error rate"
    low, high = drift.clopper_pearson(errors, rows)
    return (
        f"{errors:,} of {rows:,} wrong, {100 * errors / rows:.2f} %, "
        f"exact 95 % interval [{100 * low:.2f}, {100 * high:.2f}]"
    )


def _on_one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and scores; returns the exit status.

    0: all inputs have an answer. 3: the file is there, but some have none. 1: an error. 2: the
    command line is wrong, or names a file of a kind that is not read or written. 130: Ctrl-C.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    flag_values = _define_flags()
    with command.reading(argv, flag_values, USAGE) as leftovers:
        if leftovers:
            raise command.UsageError(
                f"expected --SETTING=VALUE, received the word {leftovers[0]!r}"
            )
        keras_setup.check()
        values: dict[str, Any] = {name: flag_values[name].value for name in flag_values}
        for name in ("model", "input", "output"):
            if not values[name]:
                raise command.UsageError(f"{name}: expected --{name}=PATH, received none")
        # Not Path's own, which fails where there is no such user.
        place, output = (Path(os.path.expanduser(values[name])) for name in ("input", "output"))
        _check_settings(place, output, *(values[name] for name in ("key", "labels", "batch_size")))

    def action() -> int:
        return SOME_PROBLEMS if score(**values).problems else 0

    return command.carry_out(action, values["verbose"])


def _define_flags() -> flags.FlagValues:
    flag_values = flags.FlagValues()
    for name, help in (
        ("model", "A SavedModel of btcp_tf: its version folder, or that of its versions."),
        ("input", "A folder of PNG, JPEG or BMP files, an .npz or an .npy file."),
        ("output", "The file to write: .csv, .jsonl or .parquet. It must not be there yet."),
        ("key", "Array of an .npz file; empty: x_test, images or x."),
    ):
        flags.DEFINE_string(name, "", help, flag_values=flag_values)
    flags.DEFINE_boolean(
        "labels",
        False,
        "Add the true class of each input: the name of its folder, or y_test, labels or y of the "
        ".npz file; and say at the end how many answers are wrong.",
        flag_values=flag_values,
    )
    # Their ranges are those of the settings of a run with these names.
    for name, default, help in (
        ("batch_size", 256, "Inputs that the model answers at once."),
        ("verbose", 1, "0: problems and errors alone. 2: no bar."),
    ):
        flags.DEFINE_integer(name, default, help, flag_values=flag_values)
    return flag_values


if __name__ == "__main__":
    sys.exit(main())
