"""Whether u is continuous, and the same wherever it is computed.

    python -m benchmarks.continuity MODEL.keras DATA.npz [--array=images] [--rows=256]
    python -m benchmarks.continuity RUN [--rows=256]

MODEL.keras is a file of `Judge.save`, DATA.npz holds inputs as the classifier takes them. Of a RUN,
the residual estimator is fitted to its frozen classifier, and its calibration images are the
inputs.

Jumps: lines between inputs are cut into 64 parts. Where logit(u) changes most within a part, the
part is halved 14 times, each time keeping the half with the larger change, to a millionth of the
line. What then is left of the change is a jump, or all that float32 resolves. Lines go between
random inputs; between nearest ones; from an input to a crop of it; and from inputs, and from an
image of one gray level to another, to an empty one. Where the predicted class changes, jumps are
expected, and counted apart.

Answers: the same rows alone and in batches of 2, 64 and 256, on 1 and 2 threads, with oneDNN and
without, each in a process of its own, and as an exported SavedModel: the largest difference in
logit(u) from the first of these, apart from rows whose predicted class rounding decides.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import common

if TYPE_CHECKING:
    import keras

BATCHES = (1, 2, 64, 256)
PARTS = 64
HALVINGS = 14

Answer = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Inputs `[n, ...]` → logit(u) `[n]` and predicted classes `[n]`."""


def main() -> None:
    parser = common.parser("continuity", __doc__)
    parser.add_argument("model", type=Path, help="MODEL.keras or RUN")
    parser.add_argument("data", type=Path, nargs="?", help="DATA.npz, with MODEL.keras")
    parser.add_argument("--array", default="x", help="name of the inputs in DATA.npz")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--lines", type=int, default=40, help="of each kind")
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answers:
        write_answers(arguments.model, arguments.data, arguments.answers)
        return
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model.is_dir():
            path = Path(folder, "run.keras")
            inputs = save_run(arguments.model, path)
        else:
            path = arguments.model
            with np.load(arguments.data) as data:
                inputs = data[arguments.array]
        print_jumps(path, inputs, arguments.lines)
        print_answers(path, inputs[: arguments.rows], Path(folder))


def save_run(run: Path, path: Path) -> np.ndarray:
    """Writes the run's classifier with its residual estimator; returns calibration images."""
    from benchmarks import evidence
    from btcp_tf.evaluation.keys import CLASSIFIER

    scorer, dataset, _ = evidence.scorer_of(run)
    with scorer.exported_model(CLASSIFIER, "residual") as model:
        model.save(path)
    print(f"{run}: {scorer.reference.facts['residual']}", flush=True)
    return dataset.calibration.images


def read(path: Path) -> "keras.Model":
    import keras

    from btcp_tf import judge

    assert judge  # Which knows the layers of the file.
    return keras.models.load_model(path)


def answer_of(model: "keras.Model") -> Answer:
    """logit(u) before u is rounded to float32, also between whole-numbered inputs."""
    import keras

    from btcp_tf.methods import residual_fit
    from btcp_tf.methods.residual_fit import EVIDENCE, Seen
    from btcp_tf.training.inference import Inference

    names = [layer.name for layer in model.layers]
    encoder: Any = model.get_layer("encoder")
    x = keras.Input(encoder.input_shape[1:])
    if encoder.inputs[0].dtype != "float32":
        encoder = keras.models.clone_model(encoder, input_tensors=x)
        encoder.set_weights(model.get_layer("encoder").get_weights())
    features = encoder(x)
    logits = model.get_layer("ends")(features)[0]
    view = model.get_layer("view")(x) if "view" in names else None
    seen: Any = Seen(features, logits, view)
    parts = [model.get_layer("mcp_logit")(logits)] + [
        model.get_layer(name)(*residual_fit.evidence_inputs(name, seen))
        for name in EVIDENCE
        if name in names
    ]
    a, b, *h = (w.astype(np.float64) for w in model.get_layer("residual").get_weights())
    slopes = np.concatenate([[a], *(column[:, 0] for column in h)])
    infer = Inference(keras.Model(x, [logits, *parts]), 256)

    def answer(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, *read = infer(inputs.astype(np.float32))
        return np.hstack(read) @ slopes + b, logits.argmax(axis=1)

    return answer


def lines(inputs: np.ndarray, count: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Kind, starts and ends `[n, ...]` of lines."""
    random = np.random.default_rng(0)
    inputs = inputs[: max(count, 2000)].astype(np.float32)
    some = inputs[random.permutation(len(inputs))[:count]]
    yield "random inputs", some, some[::-1]
    flat = inputs.reshape(len(inputs), -1)
    apart = np.square(flat[:, None, :64] - flat[None, :count, :64]).sum(axis=2)
    near = flat[:count], flat[np.argsort(apart, axis=0)[1]]
    yield "near inputs", *(rows.reshape(-1, *inputs.shape[1:]) for rows in near)
    empty = np.zeros_like(some)
    yield "inputs and zeros", some, empty
    if inputs.ndim > 2:
        crops = np.pad(some[:, 1:, 1:], [(0, 0), (0, 1), (0, 1), *[(0, 0)] * (some.ndim - 3)])
        yield "inputs and crops", some, crops
        grays = np.linspace(inputs.min(), inputs.max(), len(some), dtype=np.float32)
        grays = empty + grays.reshape(-1, *[1] * (some.ndim - 1))
        yield "one gray level and another", grays, grays[::-1]
        # A single pixel.
        dots = grays.copy()
        dots[:, some.shape[1] // 2, some.shape[2] // 2] = inputs.max()
        yield "one gray level and a dot", grays, dots


def jumps(answer: Answer, starts: np.ndarray, ends: np.ndarray) -> tuple[float, float]:
    """The largest jumps of logit(u): with the same predicted class, and where it changes.

    Args:
      answer: Of the model.
      starts: `[n, ...]`.
      ends: Of the same shape.
    """
    n = len(starts)

    def at(line: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t = t.reshape(-1, *[1] * (starts.ndim - 1))
        return answer((starts[line] * (1 - t) + ends[line] * t).astype(np.float32))

    line, t = np.repeat(np.arange(n), PARTS + 1), np.tile(np.linspace(0, 1, PARTS + 1), n)
    logit, predicted = (values.reshape(n, -1) for values in at(line, t))
    changes = np.diff(logit, axis=1)
    other = np.diff(predicted, axis=1) != 0
    # Of each line the parts of the largest changes, with another class and without.
    parts = [
        np.argsort(np.where(mask, -np.abs(changes), np.inf), axis=1)[:, :2]
        for mask in (other, ~other)
    ]
    part = np.concatenate(parts, axis=1).ravel()
    line = np.repeat(np.arange(n), 4)
    ts = [part / PARTS, (part + 1) / PARTS]
    found = [[values[line, part + end] for values in (logit, predicted)] for end in (0, 1)]
    for _ in range(HALVINGS):
        middle = (ts[0] + ts[1]) / 2
        between = at(line, middle)
        change = [np.abs(between[0] - end[0]) for end in found]
        other = np.array([between[1] != end[1] for end in found])
        # Towards the change of class where there is one, else to where it is steeper.
        first = np.where(other.any(axis=0), other[0], change[0] > change[1])
        for end, keep in ((0, first), (1, ~first)):
            ts[end] = np.where(keep, ts[end], middle)
            found[end] = [
                np.where(keep, *values) for values in zip(found[end], between, strict=True)
            ]
    left = np.abs(found[0][0] - found[1][0])
    other = found[0][1] != found[1][1]
    return float(left[~other].max(initial=0)), float(left[other].max(initial=0))


def print_jumps(path: Path, inputs: np.ndarray, count: int) -> None:
    answer = answer_of(read(path))
    rows = [
        (kind, str(len(starts)), *(f"{jump:.2g}" for jump in jumps(answer, starts, ends)))
        for kind, starts, ends in lines(inputs, count)
    ]
    common.print_table(("jumps of logit(u) between", "lines", "same class", "other class"), rows)


def write_answers(path: Path, data: Path, out: Path) -> None:
    """logit(u) and predicted classes of the rows of an `.npy` file, by batch size."""
    import tensorflow as tf

    rows, found = np.load(data), {}
    if path.suffix == ".keras":
        model = read(path)

        def call(batch: Any) -> Any:
            return model(batch, training=False)
    else:
        loaded = tf.saved_model.load(path)
        call = loaded.signatures["serving_default"]
    function = tf.function(
        lambda batch: call(batch),
        input_signature=[tf.TensorSpec((None, *rows.shape[1:]), rows.dtype)],
    )
    for size in BATCHES:
        parts = [function(rows[start : start + size]) for start in range(0, len(rows), size)]
        u = np.concatenate([part["uncertainty"].numpy().ravel() for part in parts])
        probs = np.concatenate([part["probs"].numpy() for part in parts])
        # Beyond, float32 has no more digits of 1 − u.
        u = u.astype(np.float64).clip(1e-30, 1 - 1e-3)
        found[f"logit{size}"] = np.log(u / (1 - u))
        found[f"predicted{size}"] = probs.argmax(axis=1)
    np.savez(out, **found)


def print_answers(path: Path, rows: np.ndarray, folder: Path) -> None:
    from btcp_tf import thresholds
    from btcp_tf.serving.saved_model import export

    np.save(folder / "rows.npy", rows)
    model = read(path)
    names = [str(number) for number in range(model.output["probs"].shape[1])]
    served = export(model, folder, "served", names, rows[:8], threshold=thresholds.DEFAULT)
    settings = [
        (kind, what, threads, onednn)
        for kind, what in (("Keras", path), ("SavedModel", served))
        for threads in (1, 2)
        for onednn in (1, 0)
    ]
    table, first = [], None
    for kind, what, threads, onednn in settings:
        environment = dict(os.environ)
        environment |= {"TF_ENABLE_ONEDNN_OPTS": str(onednn), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment |= {f"TF_NUM_{kind}OP_THREADS": str(threads) for kind in ("INTRA", "INTER")}
        out = folder / "answers.npz"
        command = [sys.executable, "-m", "benchmarks.continuity", what, folder / "rows.npy"]
        command += [f"--answers={out}"]
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        with np.load(out) as found:
            answers = {name: found[name] for name in found.files}
        if first is None:
            first = answers["logit1"], answers["predicted1"]
        cells = []
        for size in BATCHES:
            same = answers[f"predicted{size}"] == first[1]
            cells.append(f"{np.abs(answers[f'logit{size}'] - first[0])[same].max():.2g}")
        threads_word = "1 thread" if threads == 1 else f"{threads} threads"
        table.append((f"{kind}, {threads_word}, oneDNN {'on' if onednn else 'off'}", *cells))
    header = ("logit(u) differs by at most", "alone", *(f"batch of {n}" for n in BATCHES[1:]))
    common.print_table(header, table)


if __name__ == "__main__":
    main()
