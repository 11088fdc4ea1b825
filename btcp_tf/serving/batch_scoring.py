"""Scores folders and arrays of any size into one file, and resumes after an interruption."""

import contextlib
import dataclasses
import errno
import hashlib
import importlib.metadata
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import btcp_tf
from btcp_tf import metrics
from btcp_tf.core import config, files, json_files, wording
from btcp_tf.core.progress import Bar
from btcp_tf.decisions import drift, exported
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.evaluation import predictions
from btcp_tf.serving import records
from btcp_tf.serving.inputs import Batch, Inputs, as_text, check_ending, open_inputs
from btcp_tf.serving.records import Record
from btcp_tf.serving.scorer import MAX_BATCH, Scorer, shape_text

SOME_PROBLEMS = 3
"""Exit status where every input was read, but some have no answer."""

_LONGEST_NAME = 240


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
    output = files.as_path("output", output).expanduser()
    place = files.as_path("input", input).expanduser()
    check_settings(place, output, key, labels, batch_size)
    writer = records.writer_for(output)
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
        json_files.write(
            predictions.about_file(output),
            {
                "command": settings,
                "paths": {
                    "model": as_text(os.fspath(directory)),
                    "input": as_text(os.fspath(place)),
                },
                "tau": tau,
                "order": inputs.order,
                "summary": summary,
                "sha256": sha256,
            },
            indent=1,
        )
        if os.path.lexists(output):
            raise ValueError(f"output: expected a new file, received {output}, which exists by now")
        os.replace(final, output)
    _tell(output, summary, tau, verbose)
    return summary


def check_settings(place: Path, output: Path, key: str, labels: bool, batch_size: Any) -> None:
    """ValueError unless the settings are in range and fit one another; nothing is read for it."""
    metrics.whole_number(
        "batch_size", batch_size, f"a whole number from 1 to {MAX_BATCH}", 1, MAX_BATCH
    )
    records.ending_of(output)
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
        note = f"images of shape {shape_text(inputs.shape)}"
    if verbose:
        if rows.done:
            print(f"going on after {rows.done:,} of {inputs.count:,} inputs")
        if note:
            print(f"{inputs.what}: {note} are converted to {shape_text(scorer.shape)}")
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
            rows.append(records.records(scorer.answer(batch)))
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
        self._head = records.lines([{"command": settings}])
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
            for done, part in (*parts, (self.done, records.lines(rows))):
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
    with files.folder_lock(folder, "output"):
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
    for path in (directory / "saved_model.pb", *sorted(others), directory / ABOUT_FILE):
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
        return f"{name} {config.to_word(now)} in place of {config.to_word(then)}"

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
        content = json.loads(predictions.about_file(output).read_text(encoding="utf-8"))
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
            + ", ".join(map(wording.one_line, summary.first_problems))
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
