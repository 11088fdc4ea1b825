"""The inputs and answers of a model server, checked; pure functions."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf.core.wording import shape_text
from btcp_tf.serving import transport
from btcp_tf.serving.transport import DTYPES, Signature, Spec

ANSWERS: dict[str, np.dtype] = {
    "predicted": np.dtype(np.int64),
    "class_name": np.dtype(np.str_),
    "probs": np.dtype(np.float32),
    "uncertainty": np.dtype(np.float32),
    "accept": np.dtype(np.bool_),
}
"""Name and type of each part of an answer: `[n]`, `probs` `[n, k]`."""

SECOND: dict[str, np.dtype] = {
    "second_opinion": np.dtype(np.int64),
    "second_probability": np.dtype(np.float32),
}
"""The further parts of a model with looks, `[n]`: the class with the largest mean probability over
the classifier and its looks, and that probability."""

GROUP = "group"
"""Name of a column with the group of each row, in what is scored by a model whose thresholds are by
group, whatever the model calls it."""

_TYPES = ANSWERS | SECOND


def parts(names: Collection[str]) -> list[str]:
    """The parts of an answer, in order, among the names of what a model answers.

    >>> parts(["probs", "predicted", "class_name", "uncertainty", "accept", "logits"])
    ['predicted', 'class_name', 'probs', 'uncertainty', 'accept']
    """
    return [*ANSWERS, *(SECOND if SECOND.keys() <= {*names} else ())]


def fits(sizes: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Whether an array of these sizes has the shape that is wanted; None stands for any size."""
    same_rank = len(sizes) == len(wanted)
    return same_rank and all(a in (None, b) for a, b in zip(wanted, sizes, strict=True))


# How far above 1 rounding may take a probability, as `evaluation` has it.
_ROUNDING = 1e-3


def checked_inputs(images: ArrayLike, name: str, spec: Spec | None) -> np.ndarray | Sequence[Any]:
    """Images in the type of a signature's input; text in UTF-8.

    Args:
      images: `[n, ...]`; `[n]` for text, also where the model takes `[n, 1]`.
      name: The input's name, for errors.
      spec: Type and shape of the input; None where the server does not say.

    Raises:
      ValueError: If they are not finite numbers of that kind and shape.
    """
    try:
        array = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"{name}: expected images of one shape, received {error}") from None
    received = f"{array.dtype} {list(array.shape)}"
    is_text = array.size and all(isinstance(one, str) for one in array.flat)
    if is_text and spec == Spec("string", (None, 1)) and array.shape[1:] in ((), (1,)):
        return [[one.encode()] for one in array.flat]
    if is_text and array.ndim == 1 and (spec is None or spec.dtype == "string"):
        return [one.encode() for one in array]
    if array.dtype.kind not in "buif" or not array.ndim:
        raise ValueError(f"{name}: expected numbers [n, ...], received {received}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ValueError(f"{name}: expected finite numbers, received NaN or infinity in row {row}")
    if spec is None:
        return array
    wanted = _spec_text(spec)
    if spec.dtype not in DTYPES.values():
        raise ValueError(f"{name}: expected {wanted}, received {array.dtype}")
    if spec.dtype == "string":
        raise ValueError(f"{name}: expected text or files ({wanted}), received {array.dtype}")
    if spec.shape == (None, 1) and array.ndim == 1:
        array = array[:, None]
    if spec.shape is not None and not fits(array.shape, spec.shape):
        raise ValueError(f"{name}: expected {wanted}, received {received}")
    if array.dtype == spec.dtype:
        return array
    dtype = np.dtype("float32" if spec.dtype == "bfloat16" else spec.dtype)
    whole = array.dtype.kind in "ui" and dtype.kind in "ui"
    if not whole and not (array.dtype.kind == dtype.kind == "f"):
        raise ValueError(f"{name}: expected {wanted}, received {array.dtype}")
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if whole and not (converted == array).all():
        limits = np.iinfo(dtype)
        raise ValueError(
            f"{name}: expected {wanted}, from {limits.min} to {limits.max}, received numbers from "
            f"{array.min()} to {array.max()}"
        )
    if not whole and not np.isfinite(converted).all():
        raise ValueError(f"{name}: expected {wanted}, received numbers beyond it")
    return converted


def _spec_text(spec: Spec) -> str:
    return spec.dtype if spec.shape is None else f"{spec.dtype} {shape_text(spec.shape, 'n')}"


def checked_answers(outputs: Mapping[str, Any], rows: range, where: str) -> dict[str, np.ndarray]:
    """Outputs of a request as answers.

    Args:
      outputs: Arrays or lists by name.
      rows: Their rows in the whole call.
      where: How errors name the server.

    Returns:
      `ANSWERS`, and `SECOND` where the model answers both of them, in their types.

    Raises:
      RuntimeError: If one is missing, of another type or shape, or out of range.
    """
    if not ANSWERS.keys() <= outputs.keys():
        received = ", ".join(filter(None, outputs)) or "one without a name"
        raise transport.unexpected(where, f"the answers {', '.join(ANSWERS)}", received)
    columns = {key: _column(key, outputs[key], len(rows), where) for key in parts(outputs)}
    last = columns["probs"].shape[1] - 1
    limits = {"predicted": last, "probs": 1, "uncertainty": 1}
    limits |= {"second_opinion": last, "second_probability": 1}
    for key in [key for key in limits if key in columns]:
        most, value = limits[key], columns[key].T  # rows last, as in `accept`
        is_probability = key in ("probs", "second_probability")
        good = (value >= 0) & (value <= most + (_ROUNDING if is_probability else 0))
        # A model of floats that overflows has no answer, and must not accept one.
        good |= np.isnan(value) & ~columns["accept"]
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            wanted = f"{key} from 0 to {most}"
            if value.dtype.kind == "f":
                wanted += ", or NaN where accept is false"
            raise transport.unexpected(where, wanted, f"{value[place]:g} in row {rows[place[-1]]}")
    return columns


def _column(key: str, value: Any, n: int, where: str) -> np.ndarray:
    """An output in its type and shape."""
    dtype, rank = _TYPES[key], 2 if key == "probs" else 1
    is_text = dtype.kind == "U"
    try:
        # Text as objects: NumPy would turn everything beside it into text.
        array = np.asarray(value, object if is_text else None)
    except (OverflowError, ValueError):
        array = np.empty((), object)
    if is_text:
        texts = [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in array.flat]
        if all(isinstance(text, str) for text in texts):
            array = np.array(texts, np.str_).reshape(array.shape)
    kinds = {"i": "iu", "U": "U", "f": "fiu", "b": "b"}[dtype.kind]
    if array.dtype.kind not in kinds or array.ndim != rank or len(array) != n:
        shape = shape_text([n, None][:rank], "k")
        wanted = f"{key} {'str' if is_text else dtype.name} {shape}"
        raise transport.unexpected(where, wanted, f"{array.dtype} {list(array.shape)}")
    with np.errstate(over="ignore"):
        return array if is_text else array.astype(dtype)


def no_answers(signature: Signature | None) -> dict[str, np.ndarray]:
    """Answers to no input, `probs` `[0, k]`; k is 0 where the signature does not say."""
    outputs = signature.outputs if signature else {}
    probs = outputs.get("probs")
    classes = (probs.shape[-1] or 0) if probs and probs.shape else 0
    shapes = {"probs": (0, classes)}
    return {name: np.empty(shapes.get(name, 0), _TYPES[name]) for name in parts(outputs)}


def joined_answers(batches: list[dict[str, np.ndarray]], where: str) -> dict[str, np.ndarray]:
    """Answers of all requests of a call; RuntimeError if they differ in the number of classes.

    A second opinion is kept where all have one: another version may begin to answer meanwhile.
    """
    widths = {batch["probs"].shape[1] for batch in batches}
    if len(widths) > 1:
        raise RuntimeError(
            f"{where}: expected the same classes in each batch, received "
            f"{' and '.join(map(str, sorted(widths)))}"
        )
    names = parts(set.intersection(*({*batch} for batch in batches)))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names}
