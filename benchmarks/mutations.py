"""Files of every kind that the package reads, changed at random, and what their readers say."""

import contextlib
import dataclasses
import io
import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf.core import command, wording

_WORDS = (
    *(b"0", b"-1", b"1e309", b"nan", b"NaN", b"null", b"[]", b"{}", b'""', b"true", b"\0"),
    *(b"99999999999999999999", b"../../etc/passwd", b"\xff\xfe", b"\n", b",", b"%s", b"=1+1"),
    b"[" * 50_000,
)
"""What stands in files of all kinds, and harms some readers."""


def mutated(content: bytes, chance: random.Random) -> bytes:
    """A copy with one to three changes: bits, bytes, cuts, repeats, words."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(changed) + 1)
        end = min(len(changed), start + int(2 ** chance.uniform(0, 10)))
        kind = chance.randrange(6)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[start:end] = chance.randbytes(end - start)
        elif kind == 2:
            del changed[start:end]
        elif kind == 3:
            changed[start:start] = changed[start:end]
        elif kind == 4:
            changed[start:start] = chance.choice(_WORDS)
        else:
            del changed[start:]
    return bytes(changed)


@dataclasses.dataclass(frozen=True)
class Loader:
    """One kind of file and what reads it."""

    name: str
    file: Path
    """A good one."""
    read: Callable[[Path], Any]


def run_files(run: Path, model: Path, scores: Path) -> Iterator[Loader]:
    """Those of a finished run, of its SavedModel's version and of a CSV file of scores."""
    from btcp_tf.decisions import decision_file, exported
    from btcp_tf.decisions import scores as decision_scores
    from btcp_tf.evaluation import predictions, results
    from btcp_tf.experiment import publish, settings
    from btcp_tf.training import checkpoints

    def in_folder(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        return lambda file: read(file.parent)

    def flags(file: Path) -> Any:
        with contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                return settings.parse([f"--flagfile={file}"])
            except SystemExit as end:
                raise ValueError(told.getvalue().strip()) from end

    yield Loader("flags.cfg", run / "flags.cfg", flags)
    yield Loader("results.json", run / "results.json", results.load_rows)
    yield Loader("decision.json", run / "decision.json", in_folder(decision_file.load_decision))
    yield Loader("finished.json", run / "finished.json", in_folder(publish.read_finished))
    yield Loader("predictions.npz", run / "predictions.npz", predictions.load_predictions)
    yield Loader("scores.csv", scores, decision_scores.load_scores)
    yield Loader("scores.csv, as predictions", scores, predictions.load_answers)
    about = model / exported.ABOUT_FILE
    yield Loader("SavedModel: about", about, lambda file: exported.read_about(file.parent.parent))
    checkpoint = run / "checkpoints" / "btcp.npz"
    yield Loader("checkpoint", checkpoint, lambda file: checkpoints.read_checkpoint(file, "btcp"))


def other_files(folder: Path) -> Iterator[Loader]:
    """Files that people bring, made here."""
    import keras
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    from btcp_tf import scores_fit
    from btcp_tf.data import datasets, folders
    from btcp_tf.evaluation import predictions
    from btcp_tf.networks import classifiers
    from btcp_tf.serving import inputs

    random_ = np.random.default_rng(0)
    pixels = random_.integers(0, 256, (40, 6, 5, 3)).astype(np.uint8)
    for kind in ("png", "jpeg", "bmp"):
        Image.fromarray(pixels[0]).save(folder / f"picture.{kind}")

        def picture(file: Path) -> Any:
            found, reason = folders.read_image(file, (4, 4, 1))
            if found is None:
                raise ValueError(f"{file}: {reason}")

        yield Loader(f"picture.{kind}", folder / f"picture.{kind}", picture)
    labels = np.arange(40) % 2
    np.savez(
        folder / "data.npz",
        x_train=pixels,
        y_train=labels,
        x_test=pixels[:10],
        y_test=labels[:10],
        class_names=np.array(["cat", "dog"]),
    )
    yield Loader("data.npz", folder / "data.npz", lambda file: datasets.load("npz", str(file)))

    def to_the_end(file: Path) -> None:
        found = inputs.open_inputs(file)
        found.verify()
        for _ in found.batches(0, 16):
            pass

    yield Loader("data.npz, as inputs", folder / "data.npz", to_the_end)
    (folder / "texts.csv").write_text("text\n" + "".join(f'"a, {n}"\n' for n in range(40)))
    yield Loader("texts.csv", folder / "texts.csv", to_the_end)
    u = random_.random(40)
    lines = [f'{{"labels": {n % 2}, "predicted": 0, "u": {u[n]}}}\n' for n in range(40)]
    (folder / "scores.jsonl").write_text("".join(lines))
    yield Loader("scores.jsonl", folder / "scores.jsonl", predictions.load_predictions)
    table = pyarrow.table({"labels": labels, "predicted": labels * 0, "u": u})
    parquet.write_table(table, folder / "scores.parquet")
    yield Loader("scores.parquet", folder / "scores.parquet", predictions.load_predictions)
    fit = scores_fit.fit_scores(random_.normal(size=(300, 3)), np.arange(300) % 3, verbose=0)
    fit.save(folder / "fit.json")
    yield Loader("fit_scores", folder / "fit.json", scores_fit.load_scores)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("keras", "h5"):
            model.save(folder / f"model.{kind}")
            yield Loader(f"model.{kind}", folder / f"model.{kind}", classifiers.load)


def verdict(loader: Loader, file: Path) -> tuple[str, str]:
    """("read" | "clear" | "unclear", what was said) of a file of a loader's kind."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.read(file)
    except Exception as error:
        told = wording.one_line(error)
        # A line that names the file or the setting, of an error that a command makes one line of.
        says_what = file.name in told or str(file.parent) in told or ": expected" in told
        kind = "clear" if command.is_expected(error) and says_what else "unclear"
        return kind, f"{type(error).__name__}: {told}"
    return "read", ""


def fuzz(loader: Loader, folder: Path, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Verdicts of so many changed copies, as of `verdict`; also ("unclear", "…") of one that ends
    the process, and ("hung", "") of one that is not read within `PATIENCE`.

    Args:
      loader: What is tried.
      folder: For the copies, one after the other in one place.
      count: Number of copies.
      seed: Of the changes.
    """
    done = 0
    while done < count:
        ours, theirs = _FORK.Pipe(duplex=False)
        arguments = (loader, folder, range(done, count), seed, theirs)
        worker = _FORK.Process(target=_verdicts, args=arguments, daemon=True)
        worker.start()
        theirs.close()
        while done < count:
            if not ours.poll(PATIENCE):
                yield "hung", ""
            else:
                try:
                    yield ours.recv()
                except EOFError:
                    worker.join()
                    yield "unclear", f"the process ended with {worker.exitcode}"
                else:
                    done += 1
                    continue
            done += 1
            break
        worker.kill()
        worker.join()


PATIENCE = 20.0
"""Seconds that the reader of a small file has."""

_FORK = multiprocessing.get_context("fork")


def _verdicts(loader: Loader, folder: Path, numbers: range, seed: int, answers: Connection) -> None:
    """Sends the verdicts of the copies of these numbers; in a process of its own."""
    content = loader.file.read_bytes()
    file = folder / "changed" / loader.file.parent.name / loader.file.name
    file.parent.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        file.write_bytes(mutated(content, random.Random(f"{loader.name} {seed} {number}")))
        answers.send(verdict(loader, file))
