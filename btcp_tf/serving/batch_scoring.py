"""Scores folders and arrays of any size into one file, and resumes after an interruption."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import btcp_tf
from btcp_tf import metrics, thresholds
from btcp_tf.core import files, interrupt, json_files, progress, wording
from btcp_tf.core.config import MAX_PIXELS, PILLOWS_LIMIT
from btcp_tf.core.progress import Bar
from btcp_tf.core.wording import NO_ROOM, shape_text
from btcp_tf.decisions import drift, exported
from btcp_tf.decisions.exported import ABOUT_FILE
from btcp_tf.evaluation import predictions
from btcp_tf.serving import answers, records, row_log
from btcp_tf.serving.expectation import Expectation, Expecting
from btcp_tf.serving.inputs import Batch, Inputs, as_text, check_place, open_inputs
from btcp_tf.serving.records import Record
from btcp_tf.serving.row_log import RowLog
from btcp_tf.serving.scorer import MAX_BATCH, Scorer
from btcp_tf.thresholds import GROUP, GroupThreshold, Threshold

SOME_PROBLEMS = 3
"""Exit status where every input was read, but some have no answer."""

_LONGEST_NAME = 240

_LOG = "rows.jsonl"

_FINAL = "scores"


@dataclasses.dataclass
class Summary:
    """Counts of the rows in a finished file of scores."""

    inputs: int = 0
    accepted: int = 0
    problems: int = 0
    """Inputs without an answer."""
    first_problems: list[str] = dataclasses.field(default_factory=list)
    """Name and reason of the first five of them."""
    labeled: int | None = None
    """Answers with a true class; None if labels were not asked for."""
    errors: int = 0
    """Wrong answers among `labeled`."""
    accepted_labeled: int = 0
    """Accepted answers among `labeled`."""
    accepted_errors: int = 0
    """Wrong answers among `accepted_labeled`."""
    shut: dict[str, int] = dataclasses.field(default_factory=dict)
    """Where thresholds are by group, answers in groups of which nothing is accepted, of the first
    hundred of these."""
    expectation: Expectation | None = None
    """How many answers are wrong by u alone; None: an earlier version wrote the file."""

    def add(self, rows: Sequence[Record], threshold: Threshold) -> None:
        """Counts further rows, decided by a threshold."""
        bad = [row for row in rows if row["problem"]]
        answered = [row for row in rows if not row["problem"]]
        self.inputs += len(rows)
        if isinstance(threshold, GroupThreshold) and threshold.by == GROUP:
            taus = {name: part.tau for name, part in threshold.parts.items()}
            for name in (row[answers.GROUP] for row in answered):
                if taus.get(name) is None and (name in self.shut or len(self.shut) < 100):
                    self.shut[name] = self.shut.get(name, 0) + 1
        self.accepted += sum(row["accept"] for row in answered)
        self.problems += len(bad)
        room = 5 - len(self.first_problems)
        self.first_problems += [f"{row['input']} ({row['problem']})" for row in bad[:room]]
        if self.labeled is not None:
            labeled = [row for row in answered if row["labels"] is not None]
            wrong = [row for row in labeled if row["predicted"] != row["labels"]]
            self.labeled += len(labeled)
            self.errors += len(wrong)
            self.accepted_labeled += sum(row["accept"] for row in labeled)
            self.accepted_errors += sum(row["accept"] for row in wrong)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What is scored, with which model, into which file."""

    directory: Path
    """The version directory of the model."""
    about: Mapping[str, Any]
    """Content of the model's `btcp_tf.json`."""
    place: Path
    """Where the inputs are."""
    output: Path
    key: str
    labels: bool
    batch_size: int
    max_pixels: int
    verbose: int

    @property
    def threshold(self) -> Threshold:
        """What the model accepts."""
        return thresholds.from_json(self.about["threshold"])

    def say(self, line: str) -> None:
        progress.say(line, self.verbose)

    def inputs(self) -> Inputs:
        class_names = self.about["class_names"] if self.labels else None
        kinds = {name: one["dtype"] for name, one in (self.about.get("inputs") or {}).items()}
        group = self.about.get(exported.GROUP_INPUT) or ""
        return open_inputs(
            self.place,
            key=self.key,
            class_names=class_names,
            names=[*kinds],
            numeric=[name for name, kind in kinds.items() if kind != "string"],
            group=group,
        )

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        """Everything that decides the content of the file, as JSON values."""
        return {
            "model": _model_fingerprint(self.directory),
            "input": inputs.fingerprint,
            "inputs": inputs.count,
            "key": inputs.key,
            "labels": self.labels,
            "true_classes": inputs.label_fingerprint,
            "batch_size": self.batch_size,
            "max_pixels": self.max_pixels,
            "format": self.output.suffix.lower(),
            "versions": {"btcp_tf": btcp_tf.__version__, "tensorflow": _version("tensorflow")},
        }


def score(
    model: str | os.PathLike,
    input: str | os.PathLike,
    output: str | os.PathLike,
    *,
    key: str = "",
    labels: bool = False,
    batch_size: int = 256,
    max_pixels: int = MAX_PIXELS,
    verbose: int = 1,
) -> Summary:
    """Scores all inputs and writes a file of scores.

    Progress is kept in the folder `<output>.partial`: after an interruption the same command
    resumes there. If the same command has written the file already, nothing is changed.

    Args:
      model: A version directory of a SavedModel, or the folder of its versions, of which the
        highest is taken.
      input: A folder, an npz, npy or CSV file, see `inputs.open_inputs`.
      output: The file to write, .csv, .jsonl or .parquet.
      key: Array of an npz file; "": `x_test`, `images` or `x`. Or column of a CSV file; "": the
        only one.
      labels: Whether to add the true classes, see `inputs.open_inputs`.
      batch_size: Inputs that the model answers at once, from 1 to 1,000,000. Two or three batches
        are in memory.
      max_pixels: An image file of more is not decoded, and has no answer; at most 178,956,970.
      verbose: 0 prints problems alone; 1 also each step, the result, and on a terminal a bar;
        2 no bar.

    Raises:
      FileNotFoundError: If the model or the input is not there.
      ValueError: If the arguments do not fit one another, or another command wrote what is at
        `output`.
      RuntimeError: If another process is writing `output`, or the input changed meanwhile.
      OSError: If the disk is full; progress is kept.
    """
    output = files.as_path("output", output).expanduser()
    place = files.as_path("input", input).expanduser()
    check_settings(place, output, key, labels, batch_size, max_pixels)
    directory = exported.newest(model)
    about = exported.read_about(directory)
    job = _Job(directory, about, place, output, key, labels, batch_size, max_pixels, verbose)
    job.say(f"reading {place}")
    inputs = job.inputs()
    settings = job.settings(inputs)
    if os.path.lexists(output):
        return _finished(job, settings)
    # Before any row is answered: rows of a damaged file must not stand when a whole one takes its
    # place.
    inputs.verify()
    with _working_folder(output) as folder:
        # The process that held the folder may have finished by now.
        if os.path.lexists(output):
            return _finished(job, settings)
        log = RowLog(folder / _LOG, settings)
        if log.damaged:
            print(
                f"{log.path}: expected the progress of this command, received rows that are "
                f"damaged or of another version; the first {log.done:,} are valid and kept, the "
                "others are scored again",
                file=sys.stderr,
            )
        if log.done < inputs.count:
            _score_rest(job, inputs, log)
        now = job.inputs()
        if (now.fingerprint, now.label_fingerprint) != (
            inputs.fingerprint,
            inputs.label_fingerprint,
        ):
            raise RuntimeError(f"input: expected it unchanged, received {place}, which has changed")
        summary = _publish(job, settings, inputs.order, log, folder)
    _report(job, summary)
    return summary


def check_settings(
    place: Path, output: Path, key: str, labels: bool, batch_size: Any, max_pixels: Any
) -> None:
    """ValueError unless the settings are in range and fit one another; nothing is read for it."""
    metrics.whole_number(
        "batch_size", batch_size, f"a whole number from 1 to {MAX_BATCH}", 1, MAX_BATCH
    )
    limit = f"a whole number from 1 to {PILLOWS_LIMIT:,}"
    metrics.whole_number("max_pixels", max_pixels, limit, 1, PILLOWS_LIMIT)
    records.writer_for(output)
    # Longer ones would fail at the end only, when names beside it are too long for a file system
    # (255 bytes).
    if (length := len(os.fsencode(output.name))) > _LONGEST_NAME:
        raise ValueError(
            f"output: expected a name of at most {_LONGEST_NAME} bytes, received {length}"
        )
    check_place(place, key, labels)
    if place.is_dir() and output.resolve().is_relative_to(place.resolve()):
        raise ValueError(
            f"output: expected a file outside of the input folder, received {output}, which would "
            "be an input itself"
        )


def _score_rest(job: _Job, inputs: Inputs, log: RowLog) -> None:
    """Answers the inputs whose rows are not in the log, and adds them."""
    job.say(f"loading {job.directory}")
    scorer = Scorer(job.directory, job.max_pixels)
    converted = ""
    if inputs.named:
        scorer.check_named(inputs.what, inputs.named)
    elif inputs.dtype is None:
        scorer.check_files(inputs.what)
        converted = "files of another size or number of channels"
    elif scorer.check(inputs.what, inputs.dtype, inputs.shape):
        converted = f"images of shape {shape_text(inputs.shape)}"
    if converted:
        job.say(f"{inputs.what}: {converted} are converted to {shape_text(scorer.shape)}")
    if inputs.note:
        job.say(f"{inputs.what}: {inputs.note}")
    if log.done:
        job.say(f"resuming after {log.done:,} of {inputs.count:,} inputs")
    batches = inputs.batches(log.done, job.batch_size)

    def following() -> Batch | None:
        batch = next(batches, None)
        return None if batch is None else scorer.prepare(batch)

    title = f"scoring {inputs.count:,} inputs"
    bar = Bar(title, inputs.count, shown=job.verbose == 1)
    if job.verbose > 1:
        job.say(title)
    try:
        with ThreadPoolExecutor(1) as reader, interrupt.by_step():
            # The next batch is read while the model answers this one.
            ahead = reader.submit(following)
            while (batch := ahead.result()) is not None:
                ahead = reader.submit(following)
                log.append(records.records(scorer.answer(batch)))
                bar.update(min(log.done, inputs.count))
                interrupt.step_done()
    except MemoryError as error:
        raise MemoryError(
            f"batch_size: expected a batch for which there is memory, received {job.batch_size:,} "
            f"inputs at once ({wording.one_line(error)}); progress is kept under this batch size: "
            "name a smaller one and another --output"
        ) from error
    if log.done != inputs.count:
        raise RuntimeError(f"input: expected {inputs.count:,} inputs, received {log.done:,} by now")


def _publish(
    job: _Job, settings: Mapping[str, Any], order: str, log: RowLog, folder: Path
) -> Summary:
    """Writes the file of scores and what it is of; both appear whole or not at all."""
    summary = Summary(labeled=0 if job.labels else None)
    expecting = Expecting(job.directory, job.about)

    def counted() -> Iterator[list[Record]]:
        for rows in log.batches():
            summary.add(rows, job.threshold)
            expecting.add(rows)
            yield rows

    job.say(f"writing {job.output}")
    final = folder / f"{_FINAL}{job.output.suffix}"
    write = records.writer_for(job.output)
    columns = [*next(log.batches())[0]]
    write(final, counted(), len(job.about["class_names"]), columns)
    summary.expectation = expecting.expectation()
    with open(final, "rb") as written:
        os.fsync(written.fileno())
    # First, since a file of scores without it would be refused as another command's.
    content = {
        "command": settings,
        "paths": {
            name: as_text(os.fspath(path))
            for name, path in (("model", job.directory), ("input", job.place))
        },
        # Null, too, where each predicted class has its own.
        "tau": job.threshold.tau,
        # Of two versions of a model u may differ by them alone.
        "recalibrations": job.about.get("recalibrations") or [],
        predictions.DECIDE_ONLY: bool(job.about.get(predictions.DECIDE_ONLY)),
        "order": order,
        "summary": summary,
        "sha256": files.sha256(final),
    }
    json_files.write(predictions.about_file(job.output), content, indent=1)
    if os.path.lexists(job.output):
        raise ValueError(
            f"output: expected a new file, received {job.output}, which exists by now; name "
            "another --output"
        )
    os.replace(final, job.output)
    return summary


@contextlib.contextmanager
def _working_folder(output: Path) -> Iterator[Path]:
    """Holds the folder of the progress, `<output>.partial`, for this process alone.

    It is removed when the output is there, or when not one batch was finished.

    Raises:
      OSError: If there is no room for what is written inside.
    """
    folder = output.with_name(f"{output.name}.partial")
    with files.folder_lock(folder, "output"):
        try:
            yield folder
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise OSError(
                f"output: expected room on the disk for {output}, received none "
                f"({os.strerror(error.errno)}); progress is kept in {folder}: free some space and "
                "run the same command again to resume"
            ) from error
        finally:
            log = folder / _LOG
            with contextlib.suppress(OSError):
                (folder / f"{_FINAL}{output.suffix}").unlink(missing_ok=True)
                if os.path.lexists(output) or not log.exists() or not log.stat().st_size:
                    log.unlink(missing_ok=True)
                    (folder / ".lock").unlink(missing_ok=True)
                    folder.rmdir()


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "unknown"


def _model_fingerprint(directory: Path) -> str:
    """A hash that changes with the network, its weights or its `btcp_tf.json`."""
    digest = hashlib.sha256()
    others = [path for name in ("variables", "assets") for path in (directory / name).glob("*")]
    for path in (directory / "saved_model.pb", *sorted(others), directory / ABOUT_FILE):
        digest.update(path.name.encode() + b"\0" + bytes.fromhex(files.sha256(path)))
    return digest.hexdigest()


def _finished(job: _Job, settings: Mapping[str, Any]) -> Summary:
    """The summary of a file of scores that is there; ValueError unless this command wrote it."""
    output = job.output
    expected = f"output: expected a new file, or one that this command wrote, received {output}, "
    remedy = "; name another --output, or move that file away"
    if not output.is_file():
        raise ValueError(f"{expected}which is no file; name another --output")
    try:
        content = json_files.parse(predictions.about_file(output).read_text(encoding="utf-8"))
        saved, sha256, summary = content["command"], content["sha256"], content["summary"]
        expectation = Expectation.from_json(summary.pop("expectation", None))
        summary = Summary(**summary, expectation=expectation)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{expected}which exists and comes from elsewhere{remedy}") from None
    if differences := row_log.changes(settings, saved):
        raise ValueError(f"{expected}which is of another command: now with {differences}{remedy}")
    if files.sha256(output) != sha256:
        raise ValueError(f"{expected}which was changed since{remedy}")
    job.say(f"{output} is finished already; nothing is changed.")
    _report(job, summary)
    return summary


def _report(job: _Job, summary: Summary) -> None:
    """Prints a summary: problems on stderr, the rest on stdout."""
    if summary.problems:
        more = summary.problems - len(summary.first_problems)
        print(
            f"{summary.problems:,} of {summary.inputs:,} inputs have no answer: "
            + ", ".join(map(wording.one_line, summary.first_problems))
            + (f" and {more:,} more" if more else ""),
            file=sys.stderr,
        )
    scored = summary.inputs - summary.problems
    share = f" ({summary.accepted / scored:.1%})" if scored else ""
    threshold = job.threshold
    rule = threshold.accepts if threshold.tau is None else f"u < {threshold.tau:.6g}"
    if threshold.accepts_nothing:
        rule = "its threshold accepts nothing"
    job.say(
        f"{job.output}: {scored:,} scored, {summary.accepted:,} accepted{share}, {rule}; "
        f"{summary.problems:,} without an answer"
    )
    if summary.shut:
        named = ", ".join(f"{wording.one_line(name)} ({n:,})" for name, n in summary.shut.items())
        job.say(f"nothing is accepted of groups without a threshold: {named}")
    if summary.expectation is not None:
        for line in summary.expectation.lines():
            job.say(line)
    if summary.labeled is not None:
        some = "" if summary.labeled == scored else " that have a label"
        accepted = _error_rate(summary.accepted_errors, summary.accepted_labeled)
        job.say(f"all answers{some}: {_error_rate(summary.errors, summary.labeled)}")
        job.say(f"accepted ones{some}: {accepted}")


def _error_rate(errors: int, rows: int) -> str:
    if not rows:
        return "none, hence no error rate"
    interval = wording.interval_text(drift.clopper_pearson(errors, rows))
    share = 100 * errors / rows
    return f"{errors:,} of {rows:,} wrong, {share:.2f} %, exact 95 % interval {interval}"
