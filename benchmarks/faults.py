"""What becomes of work that is killed, has no room, or is given damaged and hostile files.

    python -m benchmarks.faults [--short]

A run on digits is carried out once; it is what everything is compared with. Then each command is

- killed at random moments (SIGKILL, or SIGTERM every other time) and started again,
- given less room on the disk than it needs, and started again with enough,
- given folders that it may not write to,
- given its own files cut, changed or emptied, and files that claim to hold gigabytes;

and every reader is given thousands of files that were changed at random. `same`: the same bytes as
without the fault. `clear`: one line that names the file or the setting, and the bytes again once
the fault is gone. `read`: nothing was found wrong. `unclear`, `hung` and `lost` are faults of the
program: the exit status is 1 then.
"""

import collections
import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import common, hostile, mutations

VERDICTS = ("same", "read", "clear", "unclear", "hung", "lost")

GOOD = ("same", "read", "clear")

Outcome = tuple[str, str]
"""A verdict and what was said."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tensorflow"])

TRAINING = [
    "--dataset=digits",
    "--max_train_images=300",
    "--classifier_epochs=4",
    "--estimator_epochs=3",
    "--finetune_epochs=2",
    "--bootstrap_draws=20",
    "--verbose=0",
]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a process may do."""

    file_size: int = 0
    """Bytes of a file, as if the disk were full then; 0: any."""
    as_nobody: bool = False
    """Whether it may write where everybody may alone."""


@dataclasses.dataclass(frozen=True)
class End:
    """How a command ended."""

    status: int
    errors: str
    seconds: float
    mib: float = 0.0
    """Memory that it took beyond that of a process that has loaded TensorFlow."""

    @property
    def outcome(self) -> Outcome:
        """Of a command that was given what it cannot take."""
        # Without what TensorFlow's own log says of it before.
        lines = [line for line in self.errors.splitlines() if not _LOG.match(line)]
        told = lines[-1][:300] if lines else ""
        if self.status in (0, 3):
            return "read", told
        is_clear = self.status in (1, 2) and len(lines) == 1 and told.startswith("error: ")
        return ("clear" if is_clear else "unclear"), f"status {self.status}: {told}"


_LOG = re.compile(r"[IWE]\d{4} |\t|\s*$")

Command = tuple[str, list[str]]
"""A module of the package and its arguments."""


def _carry_out(command: Command, folder: Path, limits: Limits) -> None:
    """In the new process; `folder`: for what it says, and what it took."""
    import importlib

    out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(os.open(folder / "errors", os.O_WRONLY | os.O_CREAT), 2)
    took = os.open(folder / "mib", os.O_WRONLY | os.O_CREAT)
    os.setpgid(0, 0)
    from btcp_tf.core import interrupt

    interrupt.watch()
    module = importlib.import_module(f"btcp_tf.{command[0]}")
    if limits.as_nobody and os.geteuid() == 0:
        os.seteuid(65534)
    if limits.file_size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, resource.RLIM_INFINITY))
    status, before = 1, common.peak_mib()
    try:
        status = module.main(command[1])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # A traceback, as of a process of its own.
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
    sys.stderr.flush()
    os.write(took, f"{common.peak_mib() - before}".encode())
    os._exit(status)


def carry_out(
    command: Command,
    limits: Limits = Limits(),
    kill: tuple[float, int] | None = None,
    patience: float = 600.0,
) -> End:
    """Carries out a command in a process of its own; `kill`: after so many seconds, by a signal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = _SERVER.Process(target=_carry_out, args=(command, folder, limits))
        start = time.monotonic()
        process.start()
        process.join(patience if kill is None else kill[0])
        if process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL if kill is None else kill[1])
            process.join(patience)
        # Whoever checks an export is in a process below.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        texts = [folder / name for name in ("errors", "mib")]
        errors, mib = (path.read_text(errors="replace") if path.exists() else "" for path in texts)
        return End(process.exitcode, errors, time.monotonic() - start, float(mib or 0))


@dataclasses.dataclass(frozen=True)
class Task:
    """A command that leaves the same files, however often it is begun."""

    name: str
    command: Command
    before: Path
    """A folder with what is there before it."""
    folder: Path
    """Where that is copied to, and the command works."""
    results: tuple[str, ...]
    """What it leaves, as patterns below the folder."""

    def reset(self) -> None:
        """Everything as before the command."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)

    def digest(self) -> dict[str, str]:
        """Names and check sums of what it leaves."""
        found = [path for pattern in self.results for path in self.folder.glob(pattern)]
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(found)
        }


@dataclasses.dataclass(frozen=True)
class Reference:
    """A task that was carried out without a fault."""

    task: Task
    digest: dict[str, str]
    seconds: float

    @classmethod
    def of(cls, task: Task) -> "Reference":
        task.reset()
        end = carry_out(task.command)
        if end.status or not task.digest():
            sys.exit(f"error: {task.name}: expected status 0, received {end}")
        return cls(task, task.digest(), end.seconds)

    def again(self, told: str) -> Outcome:
        """What the same command makes of what is there."""
        end = carry_out(self.task.command)
        if end.status == 0 and self.task.digest() == self.digest:
            return "same", told
        changed = {
            name for name, mark in self.digest.items() if self.task.digest().get(name) != mark
        }
        return "lost", f"{told}; then status {end.status}, {end.errors.strip()[-200:]}, {changed}"


def kills(reference: Reference, count: int, chance: random.Random) -> Iterator[Outcome]:
    """Kills a task at random moments, and lets it go on."""
    for number in range(count):
        reference.task.reset()
        after = chance.uniform(0.02, 1.0) * reference.seconds
        sign = (signal.SIGKILL, signal.SIGTERM)[number % 2]
        end = carry_out(reference.task.command, kill=(after, sign))
        told = f"{sign.name} after {after:.1f} s, status {end.status}"
        lines = end.errors.strip().splitlines()
        fits = sign != signal.SIGTERM or end.status == 0 or (end.status == 143 and len(lines) == 1)
        yield reference.again(told) if fits else ("unclear", f"{told}: {end.errors[-300:]}")


def full_disks(reference: Reference, count: int, chance: random.Random) -> Iterator[Outcome]:
    """Ends the room on the disk at random sizes of a file."""
    for _ in range(count):
        reference.task.reset()
        size = int(2 ** chance.uniform(5, 19))
        end = carry_out(reference.task.command, Limits(file_size=size))
        told = f"{size:,} bytes a file, {end.outcome[1]}"
        if end.outcome[0] == "unclear":
            yield "unclear", told
            continue
        verdict, told = reference.again(told)
        yield ("clear" if verdict == "same" and end.status else verdict), told


def read_only(reference: Reference) -> Iterator[Outcome]:
    """Gives the task a folder that it may not write to."""
    reference.task.reset()
    for path in (reference.task.folder, *reference.task.folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    end = carry_out(reference.task.command, Limits(as_nobody=True))
    for path in (reference.task.folder, *reference.task.folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    verdict, told = end.outcome
    # What needs to write nothing may succeed.
    yield (verdict, told) if verdict != "clear" else ("clear", reference.again(told)[1])


def damaged(
    reference: Reference, patterns: Sequence[str], count: int, chance: random.Random
) -> Iterator[Outcome]:
    """Damages one of the files that the task finds, at random."""
    for _ in range(count):
        reference.task.reset()
        found = [path for pattern in patterns for path in reference.task.folder.glob(pattern)]
        path = chance.choice(sorted(path for path in found if path.is_file()))
        content = path.read_bytes()
        changed = chance.choice(
            [b"", content[: len(content) // 2], mutations.mutated(content, chance)]
        )
        path.write_bytes(changed)
        end = carry_out(reference.task.command, patience=120)
        verdict, told = end.outcome
        told = f"{path.relative_to(reference.task.folder)}: {told}"
        if end.status == -signal.SIGKILL:
            verdict = "hung"
        if verdict == "read":
            verdict = "same" if reference.task.digest() == reference.digest else "read"
        yield verdict, told


def hostile_files(folder: Path, model: Path) -> Iterator[tuple[str, Command]]:
    """Commands that are given files which claim to hold gigabytes."""
    place = folder / "photos"
    place.mkdir()
    (place / "1.png").write_bytes(hostile.png(9_000, 9_000))
    (place / "2.jpg").write_bytes(hostile.jpeg(65_000, 65_000))
    output = f"--output={folder / 'scores.csv'}"
    yield "pictures", ("predict", [f"--model={model}", f"--input={place}", output])
    others = {"labels": np.arange(9) % 2, "predicted": np.zeros(9, int)}
    hostile.npz(folder / "x.npz", 2**30 + 2**24, zipfile.ZIP_DEFLATED, **others)
    yield "npz", ("predict", [f"--model={model}", f"--input={folder / 'x.npz'}", output])
    shutil.copy(folder / "x.npz", folder / "predictions.npz")
    yield "predictions", ("report", [str(folder / "predictions.npz")])
    nested = folder / "nested" / "results.json"
    nested.parent.mkdir()
    nested.write_bytes(b'{"rows": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    yield "nested JSON", ("report", [str(nested.parent)])
    yield "a long flag", ("report", [f"--{'x' * 1500}"])
    pipe = folder / "pipe.csv"
    os.mkfifo(pipe)
    yield "a pipe", ("report", [str(pipe)])


LARGEST = 1024.0
"""MiB that a command may take of a file of some kilobytes."""


def in_memory(command: Command) -> Outcome:
    """Carries out a command that must not take what its files claim to hold."""
    end = carry_out(command, patience=120)
    verdict, told = end.outcome
    told = f"{told} ({end.mib:,.0f} MiB)"
    if end.status == -signal.SIGKILL:
        return "hung", told
    return ("unclear" if end.mib > LARGEST else verdict), told


def prepare(folder: Path, names: Collection[str]) -> dict[str, Reference]:
    """The tasks of these names, each carried out once without a fault, and `main`."""
    nothing, work = folder / "nothing", folder / "work"
    nothing.mkdir()
    places = [f"--output_dir={work}/run", f"--export_dir={work}/models"]
    run_results = ("run/results.json", "run/predictions*.npz", "run/decision.json")
    main = Reference.of(Task("main", ("main", [*TRAINING, *places]), nothing, work, run_results))
    shutil.copytree(work, folder / "finished")
    before_export = folder / "before_export"
    shutil.copytree(work, before_export)
    shutil.rmtree(before_export / "models")
    for name in ("finished.json", "publication.json"):
        (before_export / "run" / name).unlink()
    random_ = np.random.default_rng(0)
    scored = folder / "to_be_scored"
    shutil.copytree(work / "models", scored / "models")
    np.savez(scored / "x.npz", x=random_.integers(0, 17, (3000, 8, 8, 1)).astype(np.uint8) * 15)
    model = next((scored / "models").glob("*/1")).relative_to(scored)
    predict = [f"--model={work / model}", f"--input={work}/x.npz", "--batch_size=8"]
    predict += [f"--output={work}/scores.csv", "--verbose=0"]
    found = {"main": main}
    for task in (
        Task("export", ("main", [*TRAINING, *places]), before_export, work, run_results),
        Task("predict", ("predict", predict), scored, work, ("scores.csv",)),
        Task(
            "report", ("report", [f"{work}/run"]), folder / "finished", work, ("run/report.html",)
        ),
    ):
        if task.name in names:
            found[task.name] = Reference.of(task)
    return found


def study(folder: Path) -> Reference:
    """A study of two runs."""
    work = folder / "study"
    words = [*TRAINING, "--seeds=2", "--noablation", "--noshift", "--ood=", "--method=mcp,btcp"]
    words += ["--finetune_method=", f"--output_dir={work}/study"]
    results = ("study/results.json", "study/*/results.json", "study/*/predictions*.npz")
    return Reference.of(Task("study", ("study", words), folder / "nothing", work, results))


@dataclasses.dataclass
class Table:
    """How often each verdict was given."""

    rows: dict[str, collections.Counter] = dataclasses.field(default_factory=dict)
    only: str = ""
    """How the kinds begin that are tried; "": all are."""
    has_faults: bool = False

    def add(self, what: str, outcomes: Iterator[Outcome]) -> None:
        if not what.startswith(self.only):
            return
        start, counts = time.monotonic(), collections.Counter[str]()
        for verdict, told in outcomes:
            counts[verdict] += 1
            if verdict not in GOOD:
                self.has_faults = True
                print(f"{verdict}: {told}"[:500], flush=True)
        self.rows[what] = counts
        seconds = time.monotonic() - start
        print(f"{what:34}" + _cells(counts) + f"{seconds:8.0f} s", flush=True)

    def show(self) -> None:
        total = sum(self.rows.values(), collections.Counter())
        print(f"{'all':34}{_cells(total)}")


def _cells(counts: collections.Counter) -> str:
    numbers = [sum(counts.values()), *(counts[verdict] for verdict in VERDICTS)]
    return "".join(f"{number:9,}" for number in numbers)


def try_all(folder: Path, table: Table, *, short: bool, seed: int) -> None:
    """Tries everything; `short`: in about a minute."""
    chance = random.Random(seed)
    # 50 in all.
    plan = {"main": 12, "export": 8, "predict": 14, "report": 6, "study": 10}
    if short:
        plan = {"main": 1, "predict": 3, "report": 1}
    found = prepare(folder, plan)
    if "study" in plan:
        found["study"] = study(folder)
    for name, count in plan.items():
        table.add(f"kills: {name}", kills(found[name], count, chance))
    disks: dict[str, int] = {"predict": 3} if short else {"main": 8, "predict": 12, "report": 8}
    for name, count in disks.items():
        table.add(f"full disk: {name}", full_disks(found[name], count, chance))
    for name in ("predict",) if short else ("main", "predict", "report"):
        table.add(f"read-only folder: {name}", read_only(found[name]))
    patterns = {
        "predict": ["x.npz", "models/*/1/**/*"],
        "report": ["run/*.json", "run/*.npz", "run/*.cfg", "run/*.csv", "run/figures/*.npz"],
        "export": ["run/*.json", "run/checkpoints/*", "run/flags.cfg"],
    }
    for name in ("predict",) if short else patterns:
        outcomes = damaged(found[name], patterns[name], 3 if short else 40, chance)
        table.add(f"damaged: {name}", outcomes)
    finished = folder / "finished"
    model = next((finished / "models").glob("*/1"))
    for name, command in hostile_files(folder, model):
        table.add(f"hostile: {name}", map(in_memory, [command]))
    work = found["predict"].task
    work.reset()
    scores = folder / "fuzzed" / "scores.csv"
    scores.parent.mkdir()
    carry_out(("predict", [*work.command[1][:-2], f"--output={scores}"]))
    (folder / "good").mkdir()
    count = 40 if short else 2000
    kinds = [*mutations.run_files(finished / "run", model, scores)]
    kinds += mutations.other_files(folder / "good")
    for loader in kinds:
        table.add(f"fuzzed: {loader.name}", mutations.fuzz(loader, folder, count, seed))


def main() -> int:
    parser = common.parser("faults", __doc__)
    parser.add_argument("--short", action="store_true", help="about a minute, for CI")
    parser.add_argument("--seed", type=int, default=0, help="of moments, sizes and changes")
    parser.add_argument("--only", default="", help="kinds that begin so, such as fuzzed")
    arguments = parser.parse_args()
    table = Table(only=arguments.only)
    heads = ("tried", *VERDICTS)
    print(f"{'':34}" + "".join(f"{head:>9}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        try_all(place, table, short=arguments.short, seed=arguments.seed)
    table.show()
    return int(table.has_faults)


if __name__ == "__main__":
    sys.exit(main())
