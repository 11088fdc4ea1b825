"""SavedModels that decide: written, checked in a fresh process, then published under a number.

A version directory gets its number only when it is complete and has answered like the Keras model
in a process that cannot import this package. There it must also accept, of the rows that its
threshold was chosen on, just those with u < tau. The threshold is a variable of the model, and so
is what later labels make of u: `with_threshold` makes a version with others, and needs neither the
Keras model nor its data.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import btcp_tf
from btcp_tf import metrics, thresholds
from btcp_tf.core import files, json_files, wording
from btcp_tf.core.progress import say
from btcp_tf.core.warning import warn
from btcp_tf.core.wording import shape_text
from btcp_tf.data import input_checks, named_inputs
from btcp_tf.data.input_checks import Ranges
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.decisions import exported, recalibrated
from btcp_tf.decisions.exported import ABOUT_FILE, COLUMN, SIGNATURE
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods.recalibration import SAME, Map, Recalibration
from btcp_tf.networks import deciding
from btcp_tf.networks.classifiers import named_tensors
from btcp_tf.serving import answers, export_check, publishing, signatures
from btcp_tf.serving.export_check import WARMUP_FILE
from btcp_tf.serving.inputs import RESERVED
from btcp_tf.serving.publishing import PUBLICATION
from btcp_tf.serving.signatures import (
    ABOUT,
    GROUPS,
    IMAGES,
    LIMITS,
    RECALIBRATION,
    TAU,
    Blueprint,
    Intake,
)
from btcp_tf.serving.stored_variables import StoredVariables, stored_text
from btcp_tf.thresholds import GROUP, PREDICTED, GroupThreshold, Threshold

# Not a number, hence no version to TF Serving; hidden, hence no clutter to people.
_TEMPORARY_PREFIX = ".export-"


def export(
    model: keras.Model,
    root: str | os.PathLike,
    name: str,
    class_names: Sequence[str],
    sample_images: Inputs,
    *,
    threshold: Threshold,
    held_out: Mapping[str, Predictions] | None = None,
    calibration_inputs: Inputs | None = None,
    about: Mapping[str, Any] | None = None,
    input_range: Ranges = None,
    pixels: str | None = None,
    decide_only: bool = False,
    group_input: str = "",
    verbose: int = 0,
) -> Path:
    """Writes `<root>/<name>/<n>/`, a SavedModel that TF Serving and plain TensorFlow load.

    Signatures, for any number n of inputs from 0 on:

    - `serving_default` takes `images` `[n, ...]` as the model does: uint8 pixels `[n, height,
      width, channels]` for the networks trained here, text for a model of strings. A model of
      several inputs takes them by their names. NaN and infinity fail the request, and so do numbers
      that are too far from `input_range`;
    - `serving_float`, of uint8 models: `images` float32 of the same shape, from 0 to 255. They are
      rounded to whole numbers; NaN fails the request, and so does another scale: all from 0 to 1,
      or beyond 0 to 255 by more than 255;
    - `serving_bytes`, of uint8 models of gray or color images and of those with `pixels`:
      `image_bytes` `[n]`, JPEG or PNG files of 8 bits a channel, read as `data.read_image` does.
      Another file, such as an animation, fails the request;
    - `about` takes `ask` `[n]`, any text, and answers `json` `[n]`, each the content of
      `assets.extra/btcp_tf.json`. A server's REST refuses what has no input, and a server that puts
      requests together what does not answer one row for each.

    The first three answer `predicted` int64 `[n]`, `class_name` `[n]`, `probs` float32 `[n, k]`,
    `uncertainty` float32 `[n]` in [0, 1] and `accept` bool `[n]`: whether u is below the threshold,
    or below that of the predicted class or of the group (`thresholds.GroupThreshold`). Where
    thresholds are by group, all three also take `group_input` `[n]`, the name of each row's group
    as text; of one that the threshold does not know nothing is accepted.
    Where u is made of a logit (see `networks.with_logit`), the logits are compared: float32 has one
    u for many answers of an accurate classifier. The `uncertainty` beside it is rounded to the side
    of the threshold that it is on, so that `accept` is `uncertainty < tau`, in float64, for those
    who have these answers alone.

    In `assets.extra` are `btcp_tf.json`: `class_names`, `image_shape` (of several inputs null, and
    beside it `inputs`: `dtype` and `shape` by name), `threshold` (the fields of
    `thresholds.Threshold`), where it is by group `group_input`, `calibration` (metrics of those
    rows), `versions`, `git` (the commit of this package's checkout, null without one), where
    they are known `input_range` (its fields) and
    `pixels`, and `about`, NaN and infinity being null; each of
    `held_out` as a predictions file; and requests to warm up TensorFlow Serving.

    Before the directory gets its number, a fresh process without `btcp_tf`
    loads it and answers for no image, the first and all of `sample_images`, on
    the CPU; its answers must equal those of `model` (floats to `TOLERANCE`). By
    each signature it also answers for all of `calibration_inputs`, and must accept
    those that `held_out["calibration"]` accepts: u < tau, row by row.

    Args:
      model: Functional model from images, or other numbers, `[n, ...]` to
        `probs` `[n, k]` and `uncertainty` `[n, 1]`. May live under a
        distribution strategy; the SavedModel does not.
      root: Export root; made where it is missing.
      name: Directory below `root`, such as the data set's name.
      class_names: The k names, in the order of `probs`.
      sample_images: `[m, ...]` in the model's type, m > 0; several inputs by name.
      threshold: What is accepted; nothing where its `tau` is None.
      held_out: "calibration", the rows that the threshold was chosen on, and perhaps "validation",
        each with u of the model as its column `COLUMN`, in float64 as `served` answers it, and
        with looks MCP's beside it.
      calibration_inputs: The inputs of the rows of "calibration", in their order and in the model's
        type. None: they are not available, and the decision is checked on `sample_images` alone.
      about: Further JSON values for readers of the model.
      input_range: Range of the inputs that the estimator was fitted on, for models of floats: those
        that are too far from it are refused. None refuses none.
      pixels: Name of the scale, of `data.PIXELS`, on which a model of float images
        `[height, width, 1 or 3]` expects pixels; it gets `serving_bytes` then. None: unknown.
      decide_only: Whether looks are left out that cannot change `accept`, see
        `networks.deciding`. `btcp_tf.json` says so, and `with_threshold` refuses the version. Of
        `held_out` it keeps "calibration" alone, with u as it answers it, and that only where
        `calibration_inputs` are known.
      group_input: Name of the input with the group of each row, where the threshold is by group,
        such as "site"; "": group.
      verbose: 1 says what is done, which takes some seconds, 0 is silent.

    Returns:
      The new version directory. Its number is one above the largest that
      exists, 1 for the first; a version that exists is never touched. A warning says if that one
      promises an error rate that the new one does not, see `publishing.lost_promise`.

    Raises:
      ValueError: If the arguments do not fit the model or each other.
      RuntimeError: If the check fails, with what differed; nothing is left behind.
    """
    held_out = held_out or {}
    class_names, _ = wording.class_names(class_names, "class_names")
    sample_images = signatures.in_own_type(model, sample_images)
    if calibration_inputs is not None:
        calibration_inputs = signatures.in_own_type(model, calibration_inputs)
    _validate(model, name, class_names, sample_images)
    groups = signatures.groups_of(threshold)
    if groups is None and group_input:
        raise ValueError(
            "group_input: expected only with a threshold by group, received "
            f"{group_input!r} with another one; leave it out, or choose the threshold with "
            "select_threshold(..., by=groups) first"
        )
    if groups is not None:
        group_input = _checked_name(group_input or GROUP, model, held_out)
    calibration, served = _calibration(held_out, calibration_inputs), model
    if decide_only:
        served, calibration = _deciding(model, threshold, calibration, groups or ())
        if held_out and calibration is None:
            warn(
                "decide_only: without the inputs of the calibration rows the SavedModel keeps none "
                "of these, as its own u of them is not known, and monitor cannot compare with it; "
                "export in the process that chooses the threshold on an array"
            )
        held_out = {} if calibration is None else {"calibration": calibration[1]}
    intake = Intake.of_all(model, sample_images, input_range, pixels)
    if isinstance(intake, Intake):
        sample_images = intake.with_whole_pixels(sample_images)
    facts = {
        "class_names": class_names,
        **_shapes(model),
        **_decision(threshold, held_out),
        "versions": {
            "btcp_tf": btcp_tf.__version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "git": _git_hash(),
        **({} if input_range is None else {"input_range": input_checks.to_json(input_range)}),
        **({} if pixels is None else {"pixels": pixels}),
        **({exported.DECIDE_ONLY: True} if decide_only else {}),
        **({exported.GROUP_INPUT: group_input} if group_input else {}),
    }
    text = _json_text({**(about or {}), **facts})
    blueprint = Blueprint(served, class_names, threshold, text, intake, group_input)
    folder = files.as_path("root", files.as_path("root", root) / name)
    rows = (
        f", which answers {len(calibration[1].predicted):,} calibration rows" if calibration else ""
    )
    say(f"writing a SavedModel to {folder}, checked in a fresh process{rows}", verbose)
    with _temporary_directory(folder) as temporary:
        signatures.write(blueprint, temporary)
        _write_extra(temporary, text, held_out)
        warmup = export_check.with_groups(blueprint, sample_images)
        _write_warmup(temporary / WARMUP_FILE, name, warmup)
        export_check.check(blueprint, temporary, sample_images, calibration)
        _warn_of_lost_promise(folder, threshold)
        return _publish(temporary, folder)


def with_threshold(
    source: str | os.PathLike,
    threshold: Threshold,
    held_out: Mapping[str, Predictions] | None = None,
    folder: str | os.PathLike | None = None,
    learned: Recalibration | None = None,
) -> Path:
    """Publishes the same model with another threshold, and perhaps another u, as the next version.

    The graph and the weights are copied as they are. Before it gets its number, the new version is
    loaded and compared with its source.

    Args:
      source: A version directory that `export` wrote.
      threshold: The new threshold.
      held_out: Predictions files to put in the place of the source's, by name, with u as the new
        version answers it. Others stay, with the new u; without it, where that is not known.
      folder: Where the numbered versions are; made where it is missing. None: beside the source.
      learned: What becomes of u, after what the source has made of it. None: u stays.

    Returns:
      The new version directory. A warning says if the newest in `folder` promises an error rate
      that this one does not.

    Raises:
      FileNotFoundError, ValueError: If `source` is no such directory, was exported with
        `decide_only`, or its u cannot be changed, see `check_recalibrates`.
      RuntimeError: If the new version does not answer as it should; nothing is left behind.
    """
    source = Path(source)
    content = exported.read_about(source)
    exported.check_answers_u(source, content)
    check_holds(source, getattr(threshold, "by", ""))
    kept, change = exported.read_held_out(source), SAME
    if learned is not None:
        check_recalibrates(source)
        change = learned.map
        content["recalibrations"] = [*content.get("recalibrations", ()), learned.entry]
    changed = {name: recalibrated.apply(rows, change) for name, rows in kept.items()}
    held_out = {name: rows for name, rows in changed.items() if rows} | dict(held_out or {})
    folder = source.parent if folder is None else Path(folder)
    with _temporary_directory(folder) as temporary:
        _copy(source, temporary)
        # It holds a hash of the former variables.
        (temporary / "fingerprint.pb").unlink(missing_ok=True)
        # Not this version, but its source was published by a run.
        content.pop(PUBLICATION, None)
        text = _json_text({**content, **_decision(threshold, held_out)})
        stored = StoredVariables(temporary)
        by_logit = LIMITS in stored
        compared = LIMITS if by_logit else TAU
        # As those of earlier versions have it.
        one_for_all = stored.read(compared).ndim == int(by_logit)
        values: dict[str, Any] = {ABOUT: text}
        groups = None
        if GROUPS in stored:
            own = signatures.groups_of(threshold)
            values[GROUPS] = groups = stored_text(stored.read(GROUPS)) if own is None else own
        export_check.check_digits(source, threshold, held_out, by_logit)
        limits = signatures.limits_of(threshold, len(content["class_names"]), by_logit, groups)
        values[compared] = limits[0] if one_for_all else limits
        if learned is not None:
            before = Map(*map(float, stored.read(RECALIBRATION)))
            values[RECALIBRATION] = list(change.after(before))
        stored.assign(values)
        for name in kept.keys() - held_out.keys():
            (temporary / ABOUT_FILE).with_name(f"{name}.npz").unlink()
        _write_extra(temporary, text, held_out)
        export_check.compare(source, temporary, threshold, text, change)
        _warn_of_lost_promise(folder, threshold)
        return _publish(temporary, folder)


def check_holds(source: Path, by: str) -> None:
    """ValueError unless a version directory can hold thresholds of this kind.

    Args:
      source: The version directory.
      by: `PREDICTED` or `GROUP`: it is by these; "": it is one for all answers.
    """
    stored = StoredVariables(source)
    knows_groups = GROUPS in stored
    if by == GROUP and not knows_groups:
        raise ValueError(
            f"{source}: expected a model whose inputs tell the group of each row, received one "
            "without; export a judge whose threshold is by group (select_threshold(..., by=groups))"
        )
    if by == PREDICTED and knows_groups:
        raise ValueError(
            f"{source}: expected a model with one threshold, or one for each predicted class, "
            "received one whose thresholds are by group; choose one for all answers, or choose by "
            "predicted class in the judge and export it again"
        )
    by_logit = LIMITS in stored
    # As those of earlier versions have it.
    if by and stored.read(LIMITS if by_logit else TAU).ndim == int(by_logit):
        raise ValueError(
            f"{source}: expected a model that holds a threshold for each predicted class, received "
            "one of an earlier version, which holds one for all; export the run or the judge again"
        )


def _checked_name(group_input: Any, model: keras.Model, held_out: Mapping[str, Predictions]) -> str:
    """The name of the input with the groups; ValueError if it can be none."""
    taken = {name or IMAGES for name, _ in named_inputs.items(named_tensors(model))}
    taken |= {"image_bytes", *RESERVED}
    if (
        not isinstance(group_input, str)
        or group_input in taken
        or group_input.startswith("_")
        or named_inputs.unservable({group_input: None})
    ):
        raise ValueError(
            "group_input: expected a name of ASCII letters, digits and _, which does not begin "
            f"with _, and that neither inputs nor answers have, received {group_input!r}"
        )
    if any(rows.by is None for rows in held_out.values()):
        raise ValueError(
            "threshold: expected the group of each calibration row, received a threshold by group "
            "that an earlier version chose, which did not keep them; choose it again with "
            "select_threshold(..., by=groups)"
        )
    return group_input


def check_recalibrates(source: Path) -> None:
    """ValueError unless u of a version directory can be changed after its export."""
    stored = StoredVariables(source)
    if RECALIBRATION in stored:
        return
    about = exported.read_about(source).get("uncertainty") or {}
    method = str(about.get("method", ""))
    if LIMITS in stored or method.partition("_")[0] in ("", "mcp", "residual"):
        raise ValueError(
            f"{source}: expected a model that has a place for a recalibration, received one that "
            "an earlier version exported; export its run or its judge again, or recalibrate the "
            "judge (Judge.recalibrate) and export that"
        )
    raise ValueError(
        f"{source}: expected u that is made of a logit, as that of MCP and of the residual "
        f"estimator is, received u of {method}, which is what its estimator was trained to give; "
        "choose another threshold alone"
    )


def _copy(source: Path, directory: Path) -> None:
    """Copies a directory's content; OSError with the reason of the first file that fails."""
    try:
        shutil.copytree(source, directory, dirs_exist_ok=True)
    except shutil.Error as error:
        _, target, reason = error.args[0][0]
        # Without the paths, of which one is gone by then.
        raise OSError(
            f"export: expected room for a copy of {source} in {directory.parent}, received for "
            f"{os.path.relpath(target, directory)}: {reason.partition(': ')[0]}"
        ) from None


def _validate(
    model: keras.Model, name: str, class_names: Sequence[str], sample_images: Inputs
) -> None:
    if not name or name in (".", "..") or Path(name).name != name:
        raise ValueError(f"name: expected one directory name, received {name!r}")
    if not isinstance(model.output, Mapping) or set(model.output) - {"second_opinion"} != {
        "probs",
        "uncertainty",
    }:
        raise ValueError(
            f"model: expected the outputs probs and uncertainty by name, received {model.output}"
        )
    if tf.distribute.has_strategy():
        raise ValueError("export: expected a call outside of strategy.scope(), received one inside")
    classes = model.output["probs"].shape[-1]
    if len(class_names) != classes:
        raise ValueError(f"class_names: expected {classes} names, received {len(class_names)}")
    like = named_tensors(model)
    if taken := RESERVED & (like.keys() if isinstance(like, dict) else set()):
        raise ValueError(
            f"model: expected inputs of other names than those of answers, received "
            f"{', '.join(sorted(taken))}; name the input layers otherwise"
        )
    if wrong := named_inputs.unservable(like):
        raise ValueError(
            "model: expected inputs whose names are of ASCII letters, digits and _, received "
            f"{', '.join(map(repr, wrong))}; name the input layers, or the keys of their "
            "dictionary, otherwise"
        )
    for key, sample in named_inputs.items(sample_images):
        one = like if key is None else like[key]
        shape, dtype = tuple(one.shape[1:]), one.dtype
        fits = sample.ndim and answers.fits(sample.shape[1:], shape)
        same_type = sample.dtype == dtype or dtype == "string" and sample.dtype.kind == "S"
        if not same_type or not fits or not len(sample):
            raise ValueError(
                f"{named_inputs.place('sample_images', key)}: expected at least one {dtype} image "
                f"of shape {shape_text(shape)}, received {sample.dtype} {list(sample.shape)}"
            )


def _shapes(model: keras.Model) -> dict[str, Any]:
    """The entries `image_shape` and, of several inputs, `inputs` of `btcp_tf.json`."""
    like = named_tensors(model)
    if not isinstance(like, dict):
        return {"image_shape": like.shape[1:]}
    inputs = {name: {"dtype": one.dtype, "shape": one.shape[1:]} for name, one in like.items()}
    return {"image_shape": None, "inputs": inputs}


def _calibration(
    held_out: Mapping[str, Predictions], inputs: Inputs | None
) -> tuple[Inputs, Predictions] | None:
    """The inputs and rows of the calibration set, where both are known."""
    if inputs is None:
        return None
    rows = held_out.get("calibration")
    if rows is None or len(rows.predicted) != named_inputs.count(inputs):
        received = "none" if rows is None else str(len(rows.predicted))
        raise ValueError(
            f"calibration_inputs: expected an input for each calibration row, received "
            f"{named_inputs.count(inputs)} inputs for {received} rows"
        )
    return named_inputs.each(np.asarray, inputs), rows


def _deciding(
    model: keras.Model,
    threshold: Threshold,
    calibration: tuple[Inputs, Predictions] | None,
    groups: Sequence[str],
) -> tuple[keras.Model, tuple[Inputs, Predictions] | None]:
    """The model of `networks.deciding`, and the calibration rows with u as it answers them."""
    classes = model.output["probs"].shape[1]
    limits = signatures.limits_of(threshold, classes, True, groups or None)[:, 0]
    model = deciding.decide_only(model, limits.tolist(), groups)
    if calibration is None:
        return model, None
    inputs, rows = calibration
    names = None if rows.by is None else np.char.encode(rows.by.astype(str), "utf-8")
    _, u = signatures.served(model, deciding.asked(model, inputs, names))
    taus = threshold.limits(thresholds.names_of_rows(threshold, rows.predicted, rows.by))
    if others := int(((u < taus) != (rows.uncertainty[COLUMN] < taus)).sum()):
        raise RuntimeError(
            "export: expected the same decisions with decide_only, received others about "
            f"{others} calibration rows"
        )
    return model, (inputs, dataclasses.replace(rows, uncertainty={COLUMN: u}))


def _decision(threshold: Threshold, held_out: Mapping[str, Predictions]) -> dict[str, Any]:
    """The entries `threshold`, `calibration` and `held_out` of `btcp_tf.json`."""
    digests = {name: exported.digest(rows) for name, rows in held_out.items()}
    entries = {
        "threshold": dataclasses.asdict(threshold),
        "calibration": None,
        exported.HELD_OUT: digests,
    }
    rows = held_out.get("calibration")
    if rows is not None and rows.labels is not None:
        is_error = rows.is_error
        # A metric without the class that it needs is null; no warning about it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            u = rows.uncertainty[COLUMN]
            values = metrics.evaluate_all(is_error, u, tau=threshold.tau or 0.0)
            if isinstance(threshold, GroupThreshold):
                # What depends on the decisions, from these: none of the others hang on tau.
                names = thresholds.names_of_rows(threshold, rows.predicted, rows.by)
                rejected = (~(u < threshold.limits(names))).astype(np.float64)
                table = metrics.DECISION_METRICS
                values |= metrics.evaluate_all(is_error, rejected, tau=0.5, table=table)
        entries["calibration"] = {"n": len(is_error), "errors": int(is_error.sum()), **values}
    return entries


def _json_text(content: Mapping[str, Any]) -> str:
    try:
        return json_files.to_text(content, indent=2)
    except TypeError as error:
        raise ValueError(f"about: expected what JSON can hold, received: {error}") from None


def _git_hash() -> str | None:
    """Commit of the checkout that this package is in, with "+" where files were changed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _write_extra(directory: Path, about: str, held_out: Mapping[str, Predictions]) -> None:
    path = directory / ABOUT_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(about, encoding="utf-8")
    for name, rows in held_out.items():
        predictions.save_predictions(
            path.parent / f"{name}.npz",
            # The probabilities of all rows would be as large as a small model.
            dataclasses.replace(
                rows,
                probs=None,
                uncertainty={
                    column: rows.uncertainty[column]
                    for column in (COLUMN, predictions.REFERENCE)
                    if column in rows.uncertainty
                },
            ),
        )


def _write_warmup(path: Path, name: str, inputs: Inputs) -> None:
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

    with tf.io.TFRecordWriter(str(path)) as writer:
        for size in sorted({1, named_inputs.count(inputs)}):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = SIGNATURE
            for key, one in named_inputs.items(inputs):
                request.inputs[key or IMAGES].CopyFrom(tf.make_tensor_proto(one[:size]))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())


@contextlib.contextmanager
def _temporary_directory(folder: Path) -> Iterator[Path]:
    """Yields a new directory in `folder`; removes it unless it was renamed by then.

    Also sweeps away what killed exports left. A live export holds a lock on its
    directory; one younger than the sweep's limit may not have taken it yet.
    """
    files.check_folder("export", folder)
    for leftover in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        # One that is published meanwhile is gone under this name.
        with contextlib.suppress(OSError), files.locked(leftover) as held:
            if held and time.time() - leftover.stat().st_mtime > 5:
                shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder / f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        with contextlib.ExitStack() as lock:
            # Where the file system has no locks, only the time protects it from being swept away.
            with contextlib.suppress(OSError):
                lock.enter_context(files.locked(temporary))
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _warn_of_lost_promise(folder: Path, threshold: Threshold) -> None:
    """Warns if the version that a server takes from now on promises less than the one before."""
    if lost := publishing.lost_promise(folder, threshold):
        warn(f"{lost}; a server takes the newest version")


def _publish(temporary: Path, folder: Path) -> Path:
    """Renames `temporary` to the next free version number, whoever else exports meanwhile."""
    for path in temporary.rglob("*"):
        if path.is_file():
            with open(path, "rb") as written:
                os.fsync(written.fileno())
    while True:
        target = folder / str(max(exported.versions(folder), default=0) + 1)
        try:
            # Fails on a directory with content, so an export that was faster keeps its number.
            os.rename(temporary, target)
            return target
        except OSError:
            if not target.exists():
                raise
