"""What both transports of the client share: deadlines, signatures, errors."""

import json
import time
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from btcp_tf.core import wording

DTYPES = {
    "DT_BFLOAT16": "bfloat16",
    "DT_BOOL": "bool",
    "DT_DOUBLE": "float64",
    "DT_FLOAT": "float32",
    "DT_HALF": "float16",
    "DT_INT8": "int8",
    "DT_INT16": "int16",
    "DT_INT32": "int32",
    "DT_INT64": "int64",
    "DT_STRING": "string",
    "DT_UINT8": "uint8",
    "DT_UINT16": "uint16",
    "DT_UINT32": "uint32",
    "DT_UINT64": "uint64",
}

TRANSIENT = (429, 502, 503, 504)

# Seconds between attempts: they double from the first to the longest.
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0

# Above some weeks, the operating system's waits overflow.
LONGEST_TIMEOUT = 1e6


class Spec(NamedTuple):
    """One input or output of a signature."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @classmethod
    def of(cls, info: Any) -> "Spec":
        """From a `TensorInfo` as JSON; TypeError or ValueError where it is none."""
        dtype = member_of(info, "dtype", str)
        shape = member_of(info, "tensor_shape", dict)
        # A size is a number or its word.
        dims = [
            int(str(member_of(dim, "size", object, 0))) for dim in member_of(shape, "dim", list)
        ]
        return cls(
            DTYPES.get(dtype, dtype),
            None
            if member_of(shape, "unknown_rank", bool)
            else tuple(None if d < 0 else d for d in dims),
        )


class Signature(NamedTuple):
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]


class Refused(ValueError):
    """The server finds fault with the inputs themselves: HTTP 400, gRPC INVALID_ARGUMENT."""


class Deadline:
    """The end of a call, retries and batches included."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()

    def missed(self, where: str, reason: str = "") -> NoReturn:
        reason = f"; last: {reason}" if reason else ""
        raise TimeoutError(
            f"{where}: expected an answer within {self.seconds:g} s, received none{reason}"
        ) from None


class Transport(Protocol):
    """What differs between REST and gRPC; errors as in `Client`."""

    where: str

    def signatures(self, deadline: Deadline) -> dict[str, Signature] | None:
        """Signatures of the model; None where the server does not tell."""

    def call(
        self, signature: str, name: str, value: Any, deadline: Deadline
    ) -> dict[str, np.ndarray]:
        """One request with an array or a list of bytes, or no input (None); outputs by name.

        A single output has the name "" where the protocol leaves it out.
        """

    def ready(self, deadline: Deadline) -> bool:
        """Whether the model is available; one attempt."""

    def close(self) -> None: ...


def unexpected(where: str, wanted: str, received: Any) -> RuntimeError:
    """An answer that is none of a model server, on one line."""
    return RuntimeError(f"{where}: expected {wanted}, received {wording.one_line(received)[:80]}")


def parse_json(text: Any) -> Any:
    """ValueError or TypeError where it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON: expected fewer lists in one another") from None


def member_of(found: Any, key: str, kind: type, missing: Any = None) -> Any:
    """What a JSON object has under a key, which protocol buffers leave out where it is empty.

    Raises:
      TypeError: If `found` is no object, or what it has is not of this kind.
    """
    if not isinstance(found, dict):
        raise TypeError(f"expected an object, received {type(found).__name__}")
    value = found.get(key, kind() if missing is None else missing)
    if not isinstance(value, kind):
        raise TypeError(f"{key}: expected {kind.__name__}, received {type(value).__name__}")
    return value


def signatures_of(told: Any) -> dict[str, Signature] | None:
    """From a `SignatureDefMap` as JSON, None if empty; TypeError or ValueError where it is none."""
    found = member_of(told, "signature_def", dict)
    return {
        signature: Signature(
            *(
                {name: Spec.of(info) for name, info in member_of(about, key, dict).items()}
                for key in ("inputs", "outputs")
            )
        )
        for signature, about in found.items()
        # What Keras and TensorFlow add for themselves.
        if not signature.startswith("__")
    } or None
