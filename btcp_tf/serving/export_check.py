"""Checks that an exported model answers like the Keras model it was made from."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import ABOUT_FILE, COLUMN, SIGNATURE
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.networks import models
from btcp_tf.serving import signatures
from btcp_tf.serving.signatures import BATCH, Intake
from btcp_tf.thresholds import Threshold

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Where TensorFlow Serving looks for requests to answer before a version goes live."""

TOLERANCE = 1e-3
"""Largest accepted difference between logit(u) of the SavedModel and of Keras, and between the
logits of probabilities, from `RESOLUTION` on."""

RESOLUTION = 1e-6
"""Differences that do not count between probabilities, which other classes' rounding moves, nor
between u of an estimator whose u is made of no logit."""

_CHECK_SECONDS = 600

# Runs with `python -I -c`. It sees the modules that this process sees, but not
# this package, so that a SavedModel that needs it cannot pass.
_CHECK_SCRIPT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
sys.modules["btcp_tf"] = None
import numpy as np
import tensorflow as tf
signatures = tf.saved_model.load(sys.argv[2]).signatures
images = np.load(sys.argv[3])
asked = tf.constant(["", "?"])
found = {"2/about/json": signatures["about"](ask=asked)["json"].numpy().astype("S")}
scale, offset = json.loads(sys.argv[6])
def files(images):
    pixels = np.rint((images - offset) / scale).astype(np.uint8)
    # An empty list would be one of floats.
    return tf.constant([tf.io.encode_png(image).numpy() for image in pixels], tf.string)
inputs = {
    "serving_default": lambda images: {"images": tf.constant(images)},
    "serving_float": lambda images: {"images": tf.constant(images, tf.float32)},
    "serving_bytes": lambda images: {"image_bytes": files(images)},
}
for size in json.loads(sys.argv[4]):
    for signature in sorted(set(inputs) & set(signatures)):
        answers = signatures[signature](**inputs[signature](images[:size]))
        for name, value in answers.items():
            value = value.numpy()
            found[f"{size}/{signature}/{name}"] = value.astype("S") if value.dtype == "O" else value
rows = np.load(sys.argv[7], mmap_mode="r") if sys.argv[7] else images[:0]
batch = int(sys.argv[8])
exact = set(inputs) if images.dtype == np.uint8 else {"serving_default"}
for signature in sorted(exact & set(signatures)) if len(rows) else ():
    parts = {name: [] for name in ("predicted", "uncertainty", "accept")}
    for start in range(0, len(rows), batch):
        answers = signatures[signature](**inputs[signature](np.array(rows[start : start + batch])))
        for name, part in parts.items():
            part.append(answers[name].numpy())
    found |= {f"calibration/{signature}/{name}": np.concatenate(p) for name, p in parts.items()}
np.savez(sys.argv[5], **found)
"""


def _warmup_inputs(path: Path) -> tf.Tensor:
    """The most inputs that a request of `_write_warmup` holds: such as the model was made for."""
    from tensorflow_serving.apis import prediction_log_pb2

    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    if not records:
        raise ValueError(f"{path}: expected requests, received none")
    log = prediction_log_pb2.PredictionLog.FromString(records[-1])
    return tf.constant(tf.make_ndarray(log.predict_log.request.inputs["images"]))


def check(
    model: keras.Model,
    directory: Path,
    class_names: Sequence[str],
    threshold: Threshold,
    about: str,
    sample_images: np.ndarray,
    intake: Intake,
    calibration_inputs: np.ndarray | None,
    rows: Predictions | None,
) -> None:
    """Raises RuntimeError unless the directory answers like `model` in a fresh process, and accepts
    what u < tau accepts of the calibration rows."""
    sizes = sorted({0, 1, len(sample_images)})
    found = _fresh_answers(directory, sample_images, sizes, intake.scale, calibration_inputs)
    with_logit = "logit" in models.with_logit(model).output
    wanted = {"2/about/json": np.array(2 * [about.encode()])}
    for size, answer in _keras_answers(model, class_names, sample_images, sizes).items():
        for signature in signatures.signatures(model, intake):
            # Whether it decided by its own u, which may differ in the last digits.
            u = found.get(f"{size}/{signature}/uncertainty", np.zeros(0, np.float32))
            accept = u.astype(np.float64) < signatures.limit_of(threshold)
            wanted |= {
                f"{size}/{signature}/{name}": value
                for name, value in {**answer, "accept": accept}.items()
            }
    if calibration_inputs is not None and rows is not None:
        u = rows.uncertainty[COLUMN]
        answer = {
            "predicted": rows.predicted,
            "uncertainty": u.astype(np.float32),
            # Of u in all its digits: what the threshold was chosen on.
            "accept": u.astype(np.float64) < signatures.limit_of(threshold),
        }
        wanted |= {
            f"calibration/{signature}/{name}": value
            for signature in signatures.signatures(model, intake)
            if signature in _exact_signatures(model)
            for name, value in answer.items()
        }
    differences = _differences(found, wanted, with_logit)
    if differences:
        raise RuntimeError(
            "export: expected a SavedModel that answers like the Keras model, received "
            + "; ".join(differences)
        )


def _exact_signatures(model: keras.Model) -> tuple[str, ...]:
    """Signatures that take any input of the model as it is. Files hold whole pixels alone, which
    float inputs need not be."""
    of_pixels = (SIGNATURE, "serving_float", "serving_bytes")
    return of_pixels if model.input.dtype == "uint8" else (SIGNATURE,)


def _fresh_answers(
    directory: Path,
    sample_images: np.ndarray,
    sizes: Sequence[int],
    scale: tuple[float, float],
    rows: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """What a SavedModel answers in a process without this package.

    Returns:
      "<size>/<signature>/<answer>" for the first images, and "calibration/<signature>/<answer>" for
      `rows`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        images, answers = os.path.join(scratch, "images.npy"), os.path.join(scratch, "answers.npz")
        np.save(images, sample_images)
        more = ""
        if rows is not None:
            more = os.path.join(scratch, "rows.npy")
            np.save(more, rows)
        arguments = (json.dumps(sys.path), str(directory), images, json.dumps(sizes), answers)
        # This process may hold all memory of the GPUs, and they round differently from a CPU.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        seconds = _CHECK_SECONDS + (0 if rows is None else len(rows))
        try:
            subprocess.run(
                [
                    *(sys.executable, "-I", "-c", _CHECK_SCRIPT, *arguments),
                    *(json.dumps(scale), more, str(BATCH)),
                ],
                env=environment,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(
                "export: expected a SavedModel that answers in a fresh process without btcp_tf, "
                f"received exit status {error.returncode} and\n{error.stderr[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"export: expected answers of a fresh process, received none within {seconds} s"
            ) from error
        with np.load(answers) as loaded:
            return dict(loaded)


def _keras_answers(
    model: keras.Model, class_names: Sequence[str], images: np.ndarray, sizes: Sequence[int]
) -> dict[int, dict[str, np.ndarray]]:
    images_spec = tf.TensorSpec((None, *images.shape[1:]), images.dtype)

    @tf.function(input_signature=[images_spec], jit_compile=False)
    def outputs_on_cpu(images: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            return model(images, training=False)

    names = np.array([name.encode() for name in class_names])
    wanted = {}
    for size in sizes:
        outputs = outputs_on_cpu(tf.constant(images[: max(size, 1)]))
        probs = outputs["probs"].numpy()[:size].astype(np.float32)
        predicted = probs.argmax(axis=-1).astype(np.int64)
        wanted[size] = {
            "predicted": predicted,
            "class_name": names[predicted],
            "probs": probs,
            "uncertainty": outputs["uncertainty"].numpy()[:size, 0].astype(np.float32),
        }
    return wanted


def _differences(
    found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], with_logit: bool = False
) -> list[str]:
    """What differs, in words, one line for each answer; empty where nothing does.

    Args:
      found: By "<which inputs>/<signature>/<answer>".
      wanted: The same.
      with_logit: Whether u is made of a logit, so that a small u is right to all of its digits.
    """
    if found.keys() != wanted.keys():
        return [f"the answers {sorted(found)} in place of {sorted(wanted)}"]
    lines = []
    for key, want in wanted.items():
        size, signature, name = key.split("/")
        which = "of the calibration rows" if size == "calibration" else f"of a batch of {size}"
        got, where = found[key], f"{signature}: {name} {which}"
        # Words are as wide as the longest of them.
        same_kind = got.dtype == want.dtype or got.dtype.kind == want.dtype.kind == "S"
        if not same_kind or got.shape != want.shape:
            lines.append(f"{where}: {got.dtype} {got.shape} in place of {want.dtype} {want.shape}")
        elif want.dtype.kind != "f":
            if (got != want).any():
                lines.append(f"{where}: {np.count_nonzero(got != want)} others")
        else:
            bad = ~_close(got, want, with_logit and name == "uncertainty")
            if bad.any():
                lines.append(
                    f"{where}: {np.count_nonzero(bad)} values, the first {got[bad][0]:.9g} "
                    f"in place of {want[bad][0]:.9g}"
                )
    return lines


def _close(got: np.ndarray, want: np.ndarray, small: bool) -> np.ndarray:
    """Whether logits of float32 p agree within `TOLERANCE`, as far as the digits of p tell.

    The derivative of p is p (1 - p).
    """
    got, want = got.astype(np.float64), want.astype(np.float64)
    # Digits of float32 below, at and above 1/2; a small p has more of them.
    digits = np.finfo(np.float32)
    resolution = 4 * float(digits.eps) * want + float(digits.tiny) if small else RESOLUTION
    # NaN is not close to anything.
    return np.abs(got - want) <= TOLERANCE * want * (1 - want) + resolution


def check_digits(
    source: Path, threshold: Threshold, held_out: Mapping[str, Predictions], by_logit: bool
) -> None:
    """ValueError where the model cannot accept what u < tau accepts of the calibration rows, since
    one of the two has no more than the digits of float32."""
    rows, tau = held_out.get("calibration"), threshold.tau
    if rows is None or tau is None:
        return
    u = rows.uncertainty[COLUMN].astype(np.float64)
    # MCP of 0.1.0 is 1 - max(probs), which is rounded as numbers near 1 are.
    rounded_mcp = not by_logit and _method(source) == "mcp"
    if not rounded_mcp and by_logit != (u == u.astype(np.float32)).all():
        return  # Both have the same digits.
    digits = np.finfo(np.float32)
    rounding = RESOLUTION if rounded_mcp else 4 * float(digits.eps) * u + float(digits.tiny)
    near = int(np.sum(np.abs(u - tau) <= rounding))
    if near and by_logit:
        raise ValueError(
            f"{source}: expected calibration rows as exact as this model decides, received u in "
            f"single precision, {near} of them nearer to tau {tau:.6g} than that tells apart; the "
            "rows that the model brings along have all digits"
        )
    if near:
        raise ValueError(
            f"{source}: expected a threshold that this model can hold, which compares u in single "
            f"precision, received tau {tau:.6g} with {near} calibration rows nearer to it than "
            "that tells apart; export the run or the judge again"
        )


def _method(source: Path) -> str:
    about = exported.read_about(source).get("uncertainty")
    return str(about.get("method", "")) if isinstance(about, Mapping) else ""


def compare(source: Path, changed: Path, threshold: Threshold, about: str) -> None:
    """Raises RuntimeError unless two versions answer alike but for their decision."""
    old, new = (tf.saved_model.load(str(path)).signatures for path in (source, changed))
    # The graph is a copy: where `about` of the source takes nothing, as it once did, it does here.
    told = new["about"]
    asked = {name: tf.constant(["?"]) for name in told.structured_input_signature[1]}
    if np.ravel(told(**asked)["json"].numpy())[0].decode() != about:
        raise RuntimeError(f"export: expected the new threshold in {ABOUT_FILE}, received the old")
    images = _warmup_inputs(source / WARMUP_FILE)
    wanted, found = (
        {name: value.numpy() for name, value in s[SIGNATURE](images=images).items()}
        for s in (old, new)
    )
    u = found["uncertainty"].astype(np.float64)
    if (
        (wanted["predicted"] != found["predicted"]).any()
        # It is rounded to the side of tau that it is on.
        or not _close(found["uncertainty"], wanted["uncertainty"], True).all()
        or (found["accept"] != (u < signatures.limit_of(threshold))).any()
    ):
        raise RuntimeError(
            "export: expected the answers of the version that was copied, received others"
        )
