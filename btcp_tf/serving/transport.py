"""What both transports of the client share: deadlines, signatures, errors."""

import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from btcp_tf.core import wording

_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]

DTYPES = {
    **{f"DT_{name.upper()}": name for name in ("bool", "string", "bfloat16", *_INTEGERS)},
    **{"DT_HALF": "float16", "DT_FLOAT": "float32", "DT_DOUBLE": "float64"},
}
"""TensorFlow's name of a type -> NumPy's."""

TRANSIENT = (429, 502, 503, 504)

# Seconds between attempts: they double from the first to the longest.
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0

LARGEST_ANSWER = 2**28
"""Bytes of an answer. One of 64 inputs and 20,000 classes has a tenth of them as JSON."""

# Above some weeks, the operating system's waits overflow.
LONGEST_TIMEOUT = 1e6


class Spec(NamedTuple):
    """One input or output of a signature."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @classmethod
    def of(cls, info: Any) -> "Spec":
        """The one in a `TensorInfo` as JSON; TypeError or ValueError where it is none."""
        dtype = member_of(info, "dtype", str)
        shape = member_of(info, "tensor_shape", dict)
        # A size is a number, or the text of one; negative where it is not known.
        sizes = [
            int(str(member_of(dim, "size", object, 0))) for dim in member_of(shape, "dim", list)
        ]
        known = tuple(None if size < 0 else size for size in sizes)
        is_unknown = member_of(shape, "unknown_rank", bool)
        return cls(DTYPES.get(dtype, dtype), None if is_unknown else known)


Values = Mapping[str, Any]
"""Inputs of a request by name: arrays, or lists of bytes."""


class Signature(NamedTuple):
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]


class Refused(ValueError):
    """The server finds fault with the inputs themselves: HTTP 400, gRPC INVALID_ARGUMENT."""


class Server(NamedTuple):
    """A model on a server, and how to ask it."""

    address: urllib.parse.SplitResult
    model: str
    version: int | None
    label: str | None
    retries: int
    headers: Mapping[str, str]


class Deadline:
    """The end of a call, retries and batches included."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.trouble = ""
        """What went wrong last."""
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; not above 0 once it is over."""
        return self._end - time.monotonic()

    def missed(self, where: str) -> NoReturn:
        reason = f"; last: {self.trouble}" if self.trouble else ""
        raise TimeoutError(
            f"{where}: expected an answer within {self.seconds:g} s, received none{reason}"
        ) from None


def unexpected(where: str, wanted: str, received: Any) -> RuntimeError:
    """An error about an answer that no model server gives, on one line."""
    return RuntimeError(f"{where}: expected {wanted}, received {wording.one_line(received)[:80]}")


def too_large(where: str) -> RuntimeError:
    """An error about an answer without an end."""
    return RuntimeError(
        f"{where}: expected an answer of at most {LARGEST_ANSWER / 2**20:,.0f} MiB, received a "
        "larger one; with more classes, ask for fewer inputs at once (batch_size)"
    )


def member_of(parent: Any, key: str, kind: type, missing: Any = None) -> Any:
    """The value under a key of a JSON object; protocol buffers leave out those that are empty.

    Args:
      parent: The object.
      key: The key.
      kind: Type of the value.
      missing: What stands for a value that is left out; None: an empty one of its kind.

    Raises:
      TypeError: If `parent` is no object, or the value is not of this kind.
    """
    if not isinstance(parent, dict):
        raise TypeError(f"expected an object, received {type(parent).__name__}")
    value = parent.get(key, kind() if missing is None else missing)
    if not isinstance(value, kind):
        raise TypeError(f"{key}: expected {kind.__name__}, received {type(value).__name__}")
    return value


def signatures_of(content: Any) -> dict[str, Signature] | None:
    """Signatures in a `SignatureDefMap` as JSON; None if it has none.

    Raises:
      TypeError, ValueError: If it is no such map.
    """

    def specs(definition: Any, key: str) -> dict[str, Spec]:
        return {name: Spec.of(info) for name, info in member_of(definition, key, dict).items()}

    return {
        name: Signature(specs(definition, "inputs"), specs(definition, "outputs"))
        for name, definition in member_of(content, "signature_def", dict).items()
        # Keras and TensorFlow add some for themselves.
        if not name.startswith("__")
    } or None
