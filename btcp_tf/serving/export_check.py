"""Checks that an exported model answers like the Keras model it was made from."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import special

from btcp_tf import thresholds
from btcp_tf.core import arrays
from btcp_tf.data import named_inputs
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import ABOUT_FILE, COLUMN, SIGNATURE
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods.recalibration import SAME, Map, logit_of
from btcp_tf.networks import classifiers, deciding, models
from btcp_tf.networks.mcp import mcp_logit_of_probs
from btcp_tf.serving import fresh_answers, signatures
from btcp_tf.serving.signatures import BATCH, IMAGES, Blueprint
from btcp_tf.serving.stored_variables import stored_text
from btcp_tf.thresholds import Threshold

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Where TensorFlow Serving looks for requests to answer before a version goes live."""

TOLERANCE = 1e-3
"""Largest accepted difference between logit(u) of the SavedModel and of Keras, and between the
logits of probabilities, from `RESOLUTION` on."""

RESOLUTION = 1e-6
"""Differences that do not count between probabilities, which other classes' rounding moves, nor
between u of an estimator whose u is made of no logit."""

_BEYOND = 1e4
"""Beyond every logit of MCP."""

_CHECK_SECONDS = 600

_waiting: list[subprocess.Popen] = []
"""Processes that were started before they had anything to do: none or one."""


@contextlib.contextmanager
def early_process() -> Iterator[None]:
    """Within this context the process of the next `check` is already there.

    A process loads TensorFlow for some seconds, while the caller computes or draws.
    """
    # Whoever cannot start it now has work to do all the same; `check` tries again.
    with contextlib.suppress(OSError):
        _waiting.append(_start())
    try:
        yield
    finally:
        while _waiting:
            process = _waiting.pop()
            process.kill()
            process.communicate()


def _ready_process() -> subprocess.Popen:
    """The one that waits, if it still lives; else a new one."""
    if _waiting and (process := _waiting.pop()).poll() is None:
        return process
    return _start()


def _start() -> subprocess.Popen:
    """A process that waits for what `fresh_answers.main` is to do."""
    # This process may hold all memory of the GPUs, and they round differently from a CPU.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(
        [sys.executable, "-I", fresh_answers.__file__, json.dumps(sys.path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def _warmup_inputs(path: Path) -> dict[str, tf.Tensor]:
    """Inputs, by name, of the largest request that `_write_warmup` wrote."""
    from tensorflow_serving.apis import prediction_log_pb2

    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    if not records:
        raise ValueError(f"{path}: expected requests, received none")
    log = prediction_log_pb2.PredictionLog.FromString(records[-1])
    inputs = log.predict_log.request.inputs
    return {name: tf.constant(tf.make_ndarray(inputs[name])) for name in inputs}


def check(
    blueprint: Blueprint,
    directory: Path,
    sample_images: Inputs,
    calibration: tuple[Inputs, Predictions] | None,
) -> None:
    """Checks a SavedModel in a fresh process, see `saved_model.export`.

    Args:
      blueprint: What the directory was written from.
      directory: The SavedModel.
      sample_images: `[m, ...]` in the model's type, m > 0; several inputs by name.
      calibration: Inputs in the model's type, and the rows that the threshold was chosen on.

    Raises:
      RuntimeError: If its answers are not those of the Keras model, or it accepts other calibration
        rows than those with u < tau.
    """
    sizes = sorted({0, 1, named_inputs.count(sample_images)})
    inputs, rows = calibration or (None, None)
    scale = getattr(blueprint.intake, "scale", (1.0, 0.0))
    asked = with_groups(blueprint, sample_images)
    by_group, like = bool(blueprint.group_input), deciding.own_inputs(blueprint.model)
    groups = np.char.decode(asked[blueprint.group_input], "utf-8") if by_group else None
    by = None if rows is None else rows.by
    answers = _fresh_answers(
        directory,
        asked,
        sizes,
        scale,
        None if inputs is None else with_groups(blueprint, inputs, by),
    )
    known = list(signatures.signatures(like, blueprint.intake))
    wanted = {"2/about/json": np.array(2 * [blueprint.about.encode()])}
    own = deciding.asked(
        blueprint.model, sample_images, asked[blueprint.group_input] if by_group else None
    )
    for size, answer in _keras_answers(blueprint, own, sizes).items():
        for signature in known:
            # Whether it decides by its own u, whose last digits may differ.
            by = None if groups is None else groups[:size]
            names = thresholds.names_of_rows(blueprint.threshold, answer["predicted"], by)
            limits = blueprint.threshold.limits(names)
            u = answers.get(f"{size}/{signature}/uncertainty", np.zeros(len(limits), np.float32))
            decided = answer | {"accept": u.astype(np.float64) < limits}
            wanted |= {f"{size}/{signature}/{name}": value for name, value in decided.items()}
    if rows is not None:
        u = rows.uncertainty[COLUMN].astype(np.float64)
        names = thresholds.names_of_rows(blueprint.threshold, rows.predicted, rows.by)
        answer = {
            "predicted": rows.predicted,
            "uncertainty": u.astype(np.float32),
            # By u in all its digits, on which the threshold was chosen.
            "accept": u < blueprint.threshold.limits(names),
        }
        # Files hold whole pixels alone, which float inputs need not be.
        exact = known if getattr(like, "dtype", "") == "uint8" else [SIGNATURE]
        for signature in exact:
            wanted |= {f"calibration/{signature}/{name}": x for name, x in answer.items()}
    with_logit = "logit" in models.with_logit(blueprint.model).output
    if differences := _differences(answers, wanted, with_logit):
        raise RuntimeError(
            "export: expected a SavedModel that answers like the Keras model, received "
            + "; ".join(differences)
        )


def with_groups(blueprint: Blueprint, inputs: Inputs, groups: np.ndarray | None = None) -> Inputs:
    """Inputs, and the group of each as bytes, by name, where the thresholds are by group; else the
    inputs alone.

    Args:
      blueprint: What the SavedModel is written from.
      inputs: `[n, ...]` in the model's type; several by name.
      groups: `[n]`; None: all groups in turns, and one that there is not.
    """
    if not blueprint.group_input:
        return inputs
    if groups is None:
        known = np.array([*(signatures.groups_of(blueprint.threshold) or ()), ""])
        groups = np.resize(known, named_inputs.count(inputs))
    own = {name or IMAGES: one for name, one in named_inputs.items(inputs)}
    names = np.char.encode(np.asarray(groups).astype(str), "utf-8")
    return {**own, blueprint.group_input: names}


def _fresh_answers(
    directory: Path,
    sample_images: Inputs,
    sizes: Sequence[int],
    scale: tuple[float, float],
    rows: Inputs | None,
) -> dict[str, np.ndarray]:
    """What a SavedModel answers in a process without this package, see `fresh_answers.main`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        none = named_inputs.take(sample_images, slice(0))
        for kind, inputs in (("images", sample_images), ("rows", none if rows is None else rows)):
            for number, (_, array) in enumerate(named_inputs.items(inputs)):
                # A file for each: those of an npz file cannot be mapped into memory.
                np.save(folder / f"{kind}{number}.npy", array)
        arguments = {
            "directory": str(directory),
            "folder": scratch,
            "names": [name or IMAGES for name, _ in named_inputs.items(sample_images)],
            "sizes": sizes,
            "scale": scale,
            "batch_size": BATCH,
        }
        seconds = _CHECK_SECONDS + (0 if rows is None else named_inputs.count(rows))
        with _ready_process() as process:
            try:
                _, errors = process.communicate(json.dumps(arguments), timeout=seconds)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise RuntimeError(
                    f"export: expected answers of a fresh process, received none within {seconds} s"
                ) from error
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise RuntimeError(
                "export: expected a SavedModel that answers in a fresh process without btcp_tf, "
                f"received exit status {process.returncode} and\n{errors[-2000:]}"
            )
        # Now: the folder goes.
        return dict(arrays.read_npz(folder / fresh_answers.ANSWERS))


def _keras_answers(
    blueprint: Blueprint, inputs: Inputs, sizes: Sequence[int]
) -> dict[int, dict[str, np.ndarray]]:
    """Answers of the Keras model to the first inputs, by their number."""
    spec = named_inputs.each(
        lambda one, like: tf.TensorSpec((None, *one.shape[1:]), like.dtype),
        inputs,
        classifiers.named_tensors(blueprint.model),
    )

    @tf.function(input_signature=[spec], jit_compile=False)
    def outputs_on_cpu(inputs: Any) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            return blueprint.model(inputs, training=False)

    names = np.array([name.encode() for name in blueprint.class_names])
    wanted = {}
    for size in sizes:
        first = named_inputs.take(inputs, slice(max(size, 1)))
        outputs = outputs_on_cpu(named_inputs.each(tf.constant, first))
        probs = outputs["probs"].numpy()[:size].astype(np.float32)
        predicted = probs.argmax(axis=-1).astype(np.int64)
        wanted[size] = {
            "predicted": predicted,
            "class_name": names[predicted],
            "probs": probs,
            "uncertainty": outputs["uncertainty"].numpy()[:size, 0].astype(np.float32),
        }
        if "second_opinion" in outputs:
            mean = outputs["second_opinion"].numpy()[:size].astype(np.float32)
            wanted[size]["second_opinion"] = mean.argmax(axis=-1).astype(np.int64)
            wanted[size]["second_probability"] = mean.max(axis=-1)
    return wanted


def _differences(
    answers: dict[str, np.ndarray], wanted: dict[str, np.ndarray], with_logit: bool = False
) -> list[str]:
    """A line for each answer that differs.

    Args:
      answers: By "<which inputs>/<signature>/<answer>".
      wanted: The same.
      with_logit: Whether u is made of a logit, so that a small u is right to all of its digits.
    """
    if answers.keys() != wanted.keys():
        return [f"the answers {sorted(answers)} in place of {sorted(wanted)}"]
    lines = []
    for key, want in wanted.items():
        size, signature, name = key.split("/")
        which = "of the calibration rows" if size == "calibration" else f"of a batch of {size}"
        got, where = answers[key], f"{signature}: {name} {which}"
        # Text is as wide as the longest of it.
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
    """Whether logits of float32 p agree within `TOLERANCE`, as far as the digits of p tell them.

    `small`: whether a small p is exact to all of its digits. dp / dlogit(p) is p (1 - p).
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
    """ValueError where a SavedModel would accept other calibration rows than those with u < tau,
    because one of the two has only the digits of float32.

    Args:
      source: The version directory.
      threshold: The new threshold.
      held_out: Predictions files by name.
      by_logit: Whether the model compares logits.
    """
    rows = held_out.get("calibration")
    if rows is None:
        return
    taus = threshold.limits(thresholds.names_of_rows(threshold, rows.predicted, rows.by))
    u = rows.uncertainty[COLUMN].astype(np.float64)
    # MCP of 0.1.0 is 1 - max(probs), which is rounded as numbers near 1 are.
    rounded_mcp = not by_logit and _method(source) == "mcp"
    if not rounded_mcp and by_logit != (u == u.astype(np.float32)).all():
        return  # Both have the same digits.
    digits = np.finfo(np.float32)
    rounding = RESOLUTION if rounded_mcp else 4 * float(digits.eps) * u + float(digits.tiny)
    near = int(np.sum(np.abs(u - taus) <= rounding))
    if near and by_logit:
        raise ValueError(
            f"{source}: expected calibration rows as exact as this model decides, received u in "
            f"single precision, {near} of them nearer to tau than that tells apart "
            f"({threshold.accepts}); the rows that the model brings along have all digits"
        )
    if near:
        raise ValueError(
            f"{source}: expected a threshold that this model can hold, which compares u in single "
            f"precision, received {threshold.accepts} with {near} calibration rows nearer to tau "
            "than that tells apart; export the run or the judge again"
        )


def _method(source: Path) -> str:
    about = exported.read_about(source).get("uncertainty")
    return str(about.get("method", "")) if isinstance(about, Mapping) else ""


def compare(
    source: Path, changed: Path, threshold: Threshold, about: str, change: Map = SAME
) -> None:
    """Raises RuntimeError unless two versions answer alike but for their decision and what
    `change` makes of u."""
    old, new = (tf.saved_model.load(str(path)).signatures for path in (source, changed))
    # The graph is a copy: `about` of models of version 0.1.0 has no input here either.
    answer = new["about"]
    ask = {name: tf.constant(["?"]) for name in answer.structured_input_signature[1]}
    if np.ravel(answer(**ask)["json"].numpy())[0].decode() != about:
        raise RuntimeError(f"export: expected the new threshold in {ABOUT_FILE}, received the old")
    inputs = _warmup_inputs(source / WARMUP_FILE)
    batch = f"{named_inputs.count(inputs)}/{SIGNATURE}/"
    wanted, answers = (
        {batch + name: x.numpy() for name, x in signature[SIGNATURE](**inputs).items()}
        for signature in (old, new)
    )
    # Rounded to the side of tau that it is on.
    u = answers[f"{batch}uncertainty"].astype(np.float64)
    group_input = json.loads(about).get(exported.GROUP_INPUT)
    by = np.array(stored_text(inputs[group_input].numpy())) if group_input else None
    names = thresholds.names_of_rows(threshold, answers[f"{batch}predicted"], by)
    wanted[f"{batch}accept"] = u < threshold.limits(names)
    if change != SAME:
        before, probs = (wanted[f"{batch}{name}"] for name in ("uncertainty", "probs"))
        low, high = _changed(before, probs, change)
        wanted[f"{batch}uncertainty"] = u.clip(low, high).astype(np.float32)
    if differences := _differences(answers, wanted, with_logit=True):
        raise RuntimeError(
            "export: expected the answers of the version that was copied, received others: "
            + "; ".join(differences)
        )


def _changed(u: np.ndarray, probs: np.ndarray, change: Map) -> tuple[np.ndarray, np.ndarray]:
    """Between which u a change of logit(u) leads, as far as the digits of float32 tell.

    Args:
      u: Before it, float32 `[n]`.
      probs: float32 `[n, k]`.
      change: Grows with logit(u) and MCP's.
    """
    digits = np.finfo(np.float32)
    u = u.astype(np.float64)
    rounding = 4 * float(digits.eps) * u + float(digits.tiny)
    z = mcp_logit_of_probs(probs.clip(float(digits.tiny)))
    # Below it float32 holds no probability, or only its first digits.
    unknown = z < np.log(float(digits.tiny)) + 5
    ends = (
        (u - rounding, np.where(unknown, -_BEYOND, z - TOLERANCE)),
        (u + rounding, z + TOLERANCE),
    )
    low, high = (special.expit(change(logit_of(u.clip(0, 1)), z)) for u, z in ends)
    return low, high
