"""A client for model servers that speak TensorFlow Serving's protocols.

REST needs no TensorFlow in the process; gRPC does, as the official messages are part of it.

    client = Client("http://127.0.0.1:8501", "fashion_mnist")
    answers = client.predict(images)
    answers["class_name"][answers["accept"]]

Sources: TensorFlow Serving's RESTful API and its `PredictionService` and `ModelService`
(tensorflow/serving, `tensorflow_serving/apis`). KServe's V1 protocol is the row form of the same
REST call.
"""

import base64
import contextlib
import http.client
import io
import json
import numbers
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import requests
import tenacity
import urllib3
from numpy.typing import ArrayLike

ANSWERS = {
    "predicted": np.dtype(np.int64),
    "class_name": np.dtype(np.str_),
    "probs": np.dtype(np.float32),
    "uncertainty": np.dtype(np.float32),
    "accept": np.dtype(np.bool_),
}
"""What an answer consists of: `[n]` each, `probs` `[n, k]`."""

_DTYPES = {
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

_TRANSIENT = (429, 502, 503, 504)
# Seconds between attempts: they double from the first to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0
_READY_SECONDS = 5.0
# Above some weeks, the operating system's waits overflow.
_LONGEST_TIMEOUT = 1e6
# gRPC makes 5 attempts at most, whatever a policy says.
_GRPC_RETRIES = 4
# How far above 1 rounding may take a probability, as `evaluation` has it.
_ROUNDING = 1e-3


class _Spec(NamedTuple):
    """One input or output of a signature."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @classmethod
    def of(cls, info: Any) -> "_Spec":
        """From a `TensorInfo` as JSON; TypeError or ValueError where it is none."""
        dtype = _member(info, "dtype", str)
        shape = _member(info, "tensor_shape", dict)
        # A size is a number or its word.
        dims = [int(str(_member(dim, "size", object, 0))) for dim in _member(shape, "dim", list)]
        return cls(
            _DTYPES.get(dtype, dtype),
            None
            if _member(shape, "unknown_rank", bool)
            else tuple(None if d < 0 else d for d in dims),
        )


class _Signature(NamedTuple):
    inputs: dict[str, _Spec]
    outputs: dict[str, _Spec]


class _Refused(ValueError):
    """The server finds fault with the inputs themselves: HTTP 400, gRPC INVALID_ARGUMENT."""


class _Deadline:
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


class _Transport(Protocol):
    """What differs between REST and gRPC; errors as in `Client`."""

    where: str

    def signatures(self, deadline: _Deadline) -> dict[str, _Signature] | None:
        """Signatures of the model; None where the server does not tell."""

    def call(
        self, signature: str, name: str, value: Any, deadline: _Deadline
    ) -> dict[str, np.ndarray]:
        """One request with an array or a list of bytes, or no input (None); outputs by name.

        A single output has the name "" where the protocol leaves it out.
        """

    def ready(self, deadline: _Deadline) -> bool:
        """Whether the model is available; one attempt."""

    def close(self) -> None: ...


class Client:
    """Asks a model server for answers, in batches, with retries, within a deadline.

    The signatures are read from the server once, before the first answer; what does not fit them
    is refused here. A server that does not tell them (KServe's V1 protocol) judges for itself.

    Transient failures are tried again, waiting longer each time: a connection that is refused or
    reset, HTTP 429, 502, 503 and 504, gRPC UNAVAILABLE and RESOURCE_EXHAUSTED. Requests change
    nothing on a server, so asking twice is harmless.

    One client is for one thread. It can be used in a `with` statement, which closes it.

    All methods that ask a server raise

    - ValueError: what was asked is refused, here or by the server (HTTP 4xx; INVALID_ARGUMENT,
      NOT_FOUND and the like);
    - ConnectionError: the server cannot be reached or is overloaded, after all attempts;
    - TimeoutError: no answer within the deadline;
    - RuntimeError: the server failed, or its answer is not one of a model of this package.
    """

    def __init__(
        self,
        address: str,
        model: str,
        *,
        protocol: str = "rest",
        version: int | None = None,
        label: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        batch_size: int = 64,
        form: str = "rows",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
          address: `host:port`, by convention 8501 for REST and 8500 for gRPC. `http://` may stand
            before it; `https://` asks for TLS. For REST a path may follow, for servers behind a
            gateway.
          model: Name of the model on the server.
          protocol: "rest" or "grpc".
          version: Version to ask; None: the server's choice, the latest.
          label: Version label to ask, such as "stable", in place of a version.
          timeout: Seconds for a whole call, all its batches and retries, above 0 and at most 1e6.
          retries: Further attempts for each request, >= 0; with gRPC at most 4, its own limit.
          batch_size: Inputs in one request at most, >= 1.
          form: REST alone: "rows" (`instances`) or "columns" (`inputs`), which is shorter.
          headers: Sent with each request (gRPC: as metadata), such as `authorization`.

        Raises:
          ValueError: If an argument is not as described.
        """
        _check_choice("protocol", protocol, ("rest", "grpc"))
        _check_choice("form", form, ("rows", "columns"))
        _check_text("model", model)
        if label is not None:
            _check_text("label", label)
        if not _is(numbers.Real, timeout) or not 0 < timeout <= _LONGEST_TIMEOUT:
            raise ValueError(
                f"timeout: expected seconds above 0, at most {_LONGEST_TIMEOUT:.0f}, "
                f"received {timeout!r}"
            )
        retries = _whole("retries", retries, 0, _GRPC_RETRIES if protocol == "grpc" else None)
        batch_size = _whole("batch_size", batch_size, 1)
        if version is not None:
            version = _whole("version", version, 0)
        if version is not None and label is not None:
            raise ValueError(
                f"version, label: expected one of them, received {version} and {label!r}"
            )
        headers = {} if headers is None else headers
        _check_headers(headers)
        parts = _split_address(address, protocol)
        self._timeout = float(timeout)
        self._batch_size = batch_size
        self._signatures: dict[str, _Signature] | None = None
        self._knows_signatures = False
        self._transport: _Transport
        if protocol == "rest":
            self._transport = _Rest(
                parts, model, version, label, retries, dict(headers), form == "rows"
            )
        else:
            self._transport = _Grpc(parts, model, version, label, retries, dict(headers))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client must not be used after it."""
        self._transport.close()

    def predict(
        self, images: ArrayLike, *, signature: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """Answers for images, or for other numbers that the model reads.

        Args:
          images: `[n, ...]` as the model's input, n >= 0. Floats become the model's float type;
            whole numbers its integer type if they fit.
          signature: `serving_float` takes the pixels of a uint8 model as floats.

        Returns:
          By name `predicted` int64 `[n]` from 0 to k - 1, `class_name` `[n]` strings, `probs`
          float32 `[n, k]` and `uncertainty` float32 `[n]` in [0, 1], and `accept` bool `[n]`. A
          model of floats may overflow: `probs` and `uncertainty` can then be NaN, in rows that
          are not accepted alone.

        Raises:
          See the class.
        """
        deadline = _Deadline(self._timeout)
        name, spec = self._input(signature, "images", deadline)
        return self._answers(signature, name, _checked(images, name, spec), deadline)

    def predict_bytes(
        self, files: Sequence[bytes], *, signature: str = "serving_bytes"
    ) -> dict[str, np.ndarray]:
        """Answers for the contents of image files, JPEG or PNG, which the server decodes.

        A file that cannot be decoded fails the request that it is in, and so this call. Which one
        it is, is asked by halves of that request, while there is time.

        Args:
          files: n >= 0 files.
          signature: Signature that takes files.

        Returns:
          As `predict`.

        Raises:
          See the class.
        """
        given: Any = files
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise ValueError(f"files: expected a list of bytes, received {type(given).__name__}")
        files = list(given)
        for i, file in enumerate(files):
            if not isinstance(file, bytes):
                raise ValueError(
                    f"files: expected a list of bytes, received {type(file).__name__} in place {i}"
                )
            if not file:
                raise ValueError(f"files: expected image files, received an empty one in place {i}")
        deadline = _Deadline(self._timeout)
        name, spec = self._input(signature, "image_bytes", deadline)
        if spec and spec.dtype != "string":
            raise ValueError(f"signature: expected one that takes files, received {signature!r}")
        return self._answers(signature, name, files, deadline)

    def about(self) -> dict[str, Any]:
        """What the model says of itself: the content of its `assets.extra/btcp_tf.json`.

        Of a version that an earlier release exported, whose `about` takes nothing, TensorFlow
        Serving refuses it over REST, and wherever it batches requests: then read that file.

        Raises:
          See the class.
        """
        deadline = _Deadline(self._timeout)
        known = self._signature("about", deadline)
        name = "ask" if known is None else next(iter(known.inputs), "")
        try:
            outputs = self._transport.call("about", name, [b"?"] if name else None, deadline)
        except ValueError as error:
            if "input" not in str(error):
                raise
            raise ValueError(
                f"{error} (a server may want an input: ask over gRPC without batching)"
            ) from None
        value = outputs.get("json", outputs.get(""))
        try:
            found = _json(np.asarray(value).item())
        except (TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise _unexpected(self._transport.where, "a JSON object from about", value)
        return found

    def ready(self) -> bool:
        """Whether the server answers and the model is available, in one attempt of 5 s at most.

        Raises:
          ValueError, RuntimeError: Where waiting is no help, see the class.
        """
        try:
            return self._transport.ready(_Deadline(min(self._timeout, _READY_SECONDS)))
        except (ConnectionError, TimeoutError):
            return False

    def _input(self, signature: str, default: str, deadline: _Deadline) -> tuple[str, _Spec | None]:
        """Name of a signature's input, and what is known of it."""
        known = self._signature(signature, deadline)
        if known is None:
            return default, None
        if len(known.inputs) != 1:
            raise ValueError(
                "signature: expected one with one input, received "
                f"{signature!r} with {len(known.inputs)}"
            )
        return next(iter(known.inputs.items()))

    def _signature(self, signature: str, deadline: _Deadline) -> _Signature | None:
        """What is known of a signature; None where the server tells of none."""
        if not self._knows_signatures:
            self._signatures = self._transport.signatures(deadline)
            self._knows_signatures = True
        if self._signatures is None:
            return None
        if signature not in self._signatures:
            raise ValueError(
                f"signature: expected one of {', '.join(sorted(self._signatures))}, which "
                f"{self._transport.where} has, received {signature!r}"
            )
        return self._signatures[signature]

    def _answers(
        self, signature: str, name: str, inputs: Any, deadline: _Deadline
    ) -> dict[str, np.ndarray]:
        def ask(start: int, stop: int) -> dict[str, np.ndarray]:
            outputs = self._transport.call(signature, name, inputs[start:stop], deadline)
            return _columns(outputs, range(start, stop), self._transport.where)

        parts = []
        for start in range(0, len(inputs), self._batch_size):
            stop = min(start + self._batch_size, len(inputs))
            try:
                parts.append(ask(start, stop))
            except _Refused as refusal:
                # Arrays fit the model or do not, all rows alike; a file may be the only bad one.
                if isinstance(inputs, list):
                    _blame(ask, start, stop, refusal)
                raise
        if not parts:
            # Without a request: JSON cannot say how wide no image is.
            classes = 0
            if self._signatures is not None:
                probs = self._signatures[signature].outputs.get("probs")
                classes = (probs.shape[-1] or 0) if probs and probs.shape else 0
            return {
                key: np.empty((0, classes) if key == "probs" else 0, dtype)
                for key, dtype in ANSWERS.items()
            }
        widths = {part["probs"].shape[1] for part in parts}
        if len(widths) > 1:
            raise RuntimeError(
                f"{self._transport.where}: expected the same classes in each batch, "
                f"received {' and '.join(map(str, sorted(widths)))}"
            )
        return {key: np.concatenate([part[key] for part in parts]) for key in ANSWERS}


def _split_address(address: str, protocol: str) -> urllib.parse.SplitResult:
    fault = ValueError(f"address: expected host:port, received {address!r}")
    try:
        parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except (TypeError, ValueError):
        raise fault from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise fault
    if protocol == "grpc" and (port is None or parts.path.strip("/")):
        raise fault
    return parts


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected {' or '.join(choices)}, received {value!r}")


def _check_text(name: str, value: str) -> None:
    if not value or not isinstance(value, str):
        raise ValueError(f"{name}: expected a name, received {value!r}")


def _check_headers(headers: Any) -> None:
    known = isinstance(headers, Mapping)
    if not known or not all(
        isinstance(name, str)
        and isinstance(value, str)
        and re.fullmatch(r"[!-9;-~]+", name)
        and re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", value)
        for name, value in headers.items()
    ):
        # Without the values, which may be secret.
        received = ", ".join(map(repr, headers)) if known else type(headers).__name__
        raise ValueError(f"headers: expected names with lines of ASCII, received {received}")


def _is(kind: type, value: Any) -> bool:
    """Whether it is a number of this kind, Python's or NumPy's; True is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _whole(name: str, value: int, low: int, high: int | None = None) -> int:
    if not _is(numbers.Integral, value) or not low <= value <= (
        2**63 - 1 if high is None else high
    ):
        limits = f">= {low}" if high is None else f"from {low} to {high} (gRPC)"
        raise ValueError(f"{name}: expected a whole number {limits}, received {value!r}")
    return int(value)


def _blame(ask: Callable[[int, int], Any], start: int, stop: int, refusal: _Refused) -> None:
    """Raises the refusal of a request again, with the place of the first file that is at fault.

    Returns if that cannot be told: if each half is answered, or there is trouble of another kind.
    """
    if stop - start == 1:
        raise ValueError(
            f"files: expected JPEG or PNG, received in place {start} one that is refused; {refusal}"
        ) from None
    middle = (start + stop) // 2
    for half in ((start, middle), (middle, stop)):
        try:
            ask(*half)
        except _Refused as error:
            return _blame(ask, *half, error)
        except (ConnectionError, TimeoutError, RuntimeError):
            return


def _checked(images: ArrayLike, name: str, spec: _Spec | None) -> np.ndarray:
    """`images` in the model's type; ValueError where they do not fit what is known of it."""
    try:
        array = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"{name}: expected images of one shape, received {error}") from None
    if array.dtype.kind not in "buif" or not array.ndim:
        raise ValueError(
            f"{name}: expected numbers [n, ...], received {array.dtype} {list(array.shape)}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise ValueError(f"{name}: expected finite numbers, received NaN or infinity in row {row}")
    if spec is None:
        return array
    wanted = _words(spec)
    if spec.dtype not in _DTYPES.values():
        raise ValueError(f"{name}: expected {wanted}, received {array.dtype}")
    if spec.dtype == "string":
        raise ValueError(f"{name}: expected files ({wanted}), received {array.dtype}")
    if spec.shape is not None and (
        len(spec.shape) != array.ndim
        or any(want not in (None, got) for want, got in zip(spec.shape, array.shape, strict=True))
    ):
        raise ValueError(f"{name}: expected {wanted}, received {array.dtype} {list(array.shape)}")
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


def _words(spec: _Spec) -> str:
    if spec.shape is None:
        return spec.dtype
    dims = ["n" if size is None else str(size) for size in spec.shape]
    return f"{spec.dtype} [{', '.join(dims)}]"


def _columns(outputs: Mapping[str, Any], rows: range, where: str) -> dict[str, np.ndarray]:
    """Outputs as answers to these rows of a call; RuntimeError where they are none."""
    if not ANSWERS.keys() <= outputs.keys():
        received = ", ".join(filter(None, outputs)) or "one without a name"
        raise _unexpected(where, f"the answers {', '.join(ANSWERS)}", received)
    columns = {key: _column(key, outputs[key], len(rows), where) for key in ANSWERS}
    limits = {"predicted": columns["probs"].shape[1] - 1, "probs": 1, "uncertainty": 1}
    for key, most in limits.items():
        value = columns[key].T  # rows last, as in `accept`
        good = (value >= 0) & (value <= most + (_ROUNDING if key == "probs" else 0))
        # A model of floats that overflows has no answer, and must not accept one.
        good |= np.isnan(value) & ~columns["accept"]
        if not good.all():
            place = tuple(np.argwhere(~good)[0])
            wanted = f"{key} from 0 to {most}"
            if value.dtype.kind == "f":
                wanted += ", or NaN where accept is false"
            raise _unexpected(where, wanted, f"{value[place]:g} in row {rows[place[-1]]}")
    return columns


def _column(key: str, value: Any, n: int, where: str) -> np.ndarray:
    """An output in its type and shape."""
    dtype = ANSWERS[key]
    try:
        # Text as it comes: NumPy would make text of other things beside it.
        found = np.asarray(value, object if dtype.kind == "U" else None)
    except (OverflowError, ValueError):
        found = np.empty((), object)
    if dtype.kind == "U":
        texts = [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in found.flat]
        if all(isinstance(text, str) for text in texts):
            found = np.array(texts, np.str_).reshape(found.shape)
    kinds = {"i": "iu", "U": "U", "f": "fiu", "b": "b"}[dtype.kind]
    if (
        found.dtype.kind not in kinds
        or found.ndim != (2 if key == "probs" else 1)
        or len(found) != n
    ):
        kind = "str" if dtype.kind == "U" else dtype.name
        shape = f"[{n}, k]" if key == "probs" else f"[{n}]"
        raise _unexpected(where, f"{key} {kind} {shape}", f"{found.dtype} {list(found.shape)}")
    with np.errstate(over="ignore"):
        return found if dtype.kind == "U" else found.astype(dtype)


def _unexpected(where: str, wanted: str, received: Any) -> RuntimeError:
    """An answer that is none of a model server, on one line."""
    return RuntimeError(f"{where}: expected {wanted}, received {_line(received)[:80]}")


def _line(value: Any) -> str:
    return " ".join(str(value).split())


def _json(text: Any) -> Any:
    """ValueError or TypeError where it is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON: expected fewer lists in one another") from None


def _member(found: Any, key: str, kind: type, missing: Any = None) -> Any:
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


class _Transient(Exception):
    """A failure that may be none in a moment."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _Rest:
    def __init__(
        self,
        address: urllib.parse.SplitResult,
        model: str,
        version: int | None,
        label: str | None,
        retries: int,
        headers: dict[str, str],
        rows: bool,
    ) -> None:
        self.where = address._replace(path=address.path.rstrip("/")).geturl()
        self.where += f"/v1/models/{urllib.parse.quote(model, safe='')}"
        if version is not None:
            self.where += f"/versions/{version}"
        if label is not None:
            self.where += f"/labels/{urllib.parse.quote(label, safe='')}"
        self._retries = retries
        self._rows = rows
        self._session = requests.Session()
        self._session.headers.update(headers)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _Adapter())

    def signatures(self, deadline: _Deadline) -> dict[str, _Signature] | None:
        status, content = self._ask("GET", "/metadata", None, deadline, self._retries)
        # A server that has no metadata says so in one of these ways.
        if status in (404, 405, 501):
            return None
        content = self._content(status, content, "/metadata")
        try:
            found = _member(content, "metadata", dict)
            return _signatures(_member(found, "signature_def", dict))
        except (TypeError, ValueError):
            raise _unexpected(f"{self.where}/metadata", "signatures", content) from None

    def call(
        self, signature: str, name: str, value: Any, deadline: _Deadline
    ) -> dict[str, np.ndarray]:
        rows = self._rows and value is not None
        if isinstance(value, np.ndarray):
            plain = value.tolist()
        else:
            plain = [{"b64": base64.b64encode(file).decode()} for file in value or ()]
        body: dict[str, Any] = {"signature_name": signature}
        if rows:
            body["instances"] = plain
        else:
            body["inputs"] = {} if value is None else {name: plain}
        status, content = self._ask(
            "POST", ":predict", json.dumps(body).encode(), deadline, self._retries
        )
        content = self._content(status, content, ":predict")
        key = "predictions" if rows else "outputs"
        found = content.get(key) if isinstance(content, dict) else None
        if found is None:
            raise _unexpected(f"{self.where}:predict", key, content)
        if not rows:
            return found if isinstance(found, dict) else {"": found}
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            return {"": found}
        if any(row.keys() != found[0].keys() for row in found):
            raise _unexpected(f"{self.where}:predict", "the same names in each row", "other ones")
        if len(found) != len(plain):
            raise _unexpected(f"{self.where}:predict", f"{len(plain)} {key}", len(found))
        return {key: [row[key] for row in found] for key in found[0]}  # type: ignore[misc]

    def ready(self, deadline: _Deadline) -> bool:
        status, content = self._ask("GET", "", None, deadline, 0)
        if status == 404:
            return False
        content = self._content(status, content, "")
        try:
            found = _member(content, "ready", object, missing=...)
            if found is not ...:  # KServe; earlier ones as text.
                return {"true": True, "false": False}[str(found).lower()]
            versions = _member(content, "model_version_status", list)
            return "AVAILABLE" in [_member(item, "state", str) for item in versions]
        except (KeyError, TypeError):
            raise _unexpected(self.where, "a model's status", content) from None

    def close(self) -> None:
        self._session.close()

    def _content(self, status: int, content: bytes, path: str) -> Any:
        if status != 200:
            kind = ValueError if 400 <= status < 500 else RuntimeError
            raise (_Refused if status == 400 else kind)(
                f"{self.where}{path}: expected an answer, received HTTP {status}"
                f"{_error_words(content)}"
            )
        try:
            return _json(content)
        except ValueError:
            raise _unexpected(self.where + path, "JSON", content[:80]) from None

    def _ask(
        self, method: str, path: str, body: bytes | None, deadline: _Deadline, retries: int
    ) -> tuple[int, bytes]:
        """Status and content, once neither is transient."""
        url, last, left = self.where + path, "", deadline.left()

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, _Transient) else 0.0
            return max(asked, backoff(state))

        backoff = tenacity.wait_exponential(_FIRST_WAIT, _LONGEST_WAIT) + tenacity.wait_random(
            0, _FIRST_WAIT
        )
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            stop=tenacity.stop_after_attempt(1 + retries) | tenacity.stop_before_delay(left),
            wait=wait,
            reraise=True,
        )
        try:
            for attempt in retrying:
                with attempt:
                    try:
                        return self._attempt(method, url, body, deadline, last)
                    except _Transient as error:
                        last = str(error)
                        raise
        except _Transient as error:
            attempts = retrying.statistics["attempt_number"]
            if attempts <= retries:
                deadline.missed(url, str(error))
            times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            raise ConnectionError(
                f"{url}: expected an answer, received {error} ({times})"
            ) from None
        raise AssertionError("tenacity ends with an answer or an error")

    def _attempt(
        self, method: str, url: str, body: bytes | None, deadline: _Deadline, last: str
    ) -> tuple[int, bytes]:
        left = deadline.left()
        if left <= 0:
            deadline.missed(url, last)
        answer = _begin(lambda: self._exchange(method, url, body, left))
        try:
            status, headers, content = answer.result(left)
        except (TimeoutError, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
            deadline.missed(url, last)
        except requests.exceptions.SSLError as error:
            raise ValueError(f"{url}: expected a TLS connection, received {error}") from None
        except (
            requests.exceptions.ConnectionError,
            requests.exceptions.ChunkedEncodingError,
            urllib3.exceptions.HTTPError,
        ) as error:
            raise _Transient(_reason(error)) from None
        except requests.exceptions.RequestException as error:
            raise ValueError(f"{url}: expected an address, received {error}") from None
        if status in _TRANSIENT:
            raise _Transient(
                f"HTTP {status}{_error_words(content)}",
                _retry_after(headers.get("Retry-After", "")),
            )
        return status, content

    def _exchange(
        self, method: str, url: str, body: bytes | None, seconds: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content of one answer."""
        with self._session.request(
            method,
            url,
            data=body,
            headers={"Content-Type": "application/json"} if body is not None else None,
            timeout=seconds,
            stream=True,
            allow_redirects=False,
        ) as response:
            content = response.raw.read(decode_content=True)
            return response.status_code, response.headers, content


def _begin(work: Callable[[], Any]) -> futures.Future:
    """Work in a thread of its own, which nobody has to wait for: nothing ends the look-up of a name
    early, and each of its addresses may take the whole timeout of a connection."""
    done: futures.Future = futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


class _Adapter(requests.adapters.HTTPAdapter):
    """Connections whose answers end: threads that nobody waits for are not to stay."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        kind: Any = pool.ConnectionCls
        if not issubclass(kind, _Bounded):
            pool.ConnectionCls = type(kind.__name__, (_Bounded, kind), {})
        return pool


class _Response(http.client.HTTPResponse):
    """Comes within the timeout of the socket as a whole, which else is one of each wait."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Stream(sock, self.fp.detach()))


class _Bounded:
    response_class = _Response


class _Stream(io.RawIOBase):
    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._deadline = _Deadline(sock.gettimeout() or _LONGEST_TIMEOUT)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline.left()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _retry_after(value: str) -> float:
    """Seconds, of a number of them or a date; 0 where it is neither."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OverflowError, ValueError):
        return min(urllib3.Retry().parse_retry_after(value), _LONGEST_TIMEOUT)
    return 0.0


def _reason(error: BaseException) -> str:
    """Why a connection failed: the operating system's words where it has some."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror.lower()
        inner = [*seen.args, getattr(seen, "reason", None), seen.__cause__, seen.__context__]
        seen = next((item for item in inner if isinstance(item, BaseException)), None)
    return _line(error)


def _error_words(content: bytes | bytearray) -> str:
    """What a server says of an error, on one line."""
    text = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        found = _json(text)
        if isinstance(found, dict):
            text = str(found.get("error") or found.get("detail") or text)
    text = _line(text)
    return f": {text[:500]}" if text else ""


def _signatures(told: Any) -> dict[str, _Signature] | None:
    """From a `SignatureDefMap` as JSON, None if empty; TypeError or ValueError where it is none."""
    found = _member(told, "signature_def", dict)
    return {
        signature: _Signature(
            *(
                {name: _Spec.of(info) for name, info in _member(about, key, dict).items()}
                for key in ("inputs", "outputs")
            )
        )
        for signature, about in found.items()
        # What Keras and TensorFlow add for themselves.
        if not signature.startswith("__")
    } or None


class _Grpc:
    def __init__(
        self,
        address: urllib.parse.SplitResult,
        model: str,
        version: int | None,
        label: str | None,
        retries: int,
        headers: dict[str, str],
    ) -> None:
        import grpc
        from tensorflow_serving.apis import (
            model_pb2,
            model_service_pb2_grpc,
            prediction_service_pb2_grpc,
        )

        self._model = model_pb2.ModelSpec(name=model)
        if version is not None:
            self._model.version.value = version
        if label is not None:
            self._model.version_label = label
        self.where = f"grpc://{address.netloc}/{model}"
        if version is not None or label is not None:
            self.where += f"/{label if version is None else version}"
        policy = {
            "maxAttempts": 1 + retries,
            "initialBackoff": f"{_FIRST_WAIT}s",
            "maxBackoff": f"{_LONGEST_WAIT}s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
        }
        service = {
            "methodConfig": [
                {
                    "name": [{"service": "tensorflow.serving.PredictionService"}],
                    **({"retryPolicy": policy} if retries else {}),
                }
            ]
        }
        options = [
            ("grpc.service_config", json.dumps(service)),
            ("grpc.enable_retries", int(retries > 0)),
            # Requests above this size would not be tried again, by default 256 KiB.
            ("grpc.per_rpc_retry_buffer_size", 2**30),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # Else a server that comes back is not noticed for longer than all attempts take.
            ("grpc.initial_reconnect_backoff_ms", int(1000 * _FIRST_WAIT)),
            ("grpc.min_reconnect_backoff_ms", int(1000 * _FIRST_WAIT)),
            ("grpc.max_reconnect_backoff_ms", int(5000 * _FIRST_WAIT)),
        ]
        if address.scheme == "https":
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.secure_channel(address.netloc, credentials, options)
        else:
            self._channel = grpc.insecure_channel(address.netloc, options)
        self._headers = [(name.lower(), value) for name, value in headers.items()]
        self._attempts = 1 + retries
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def signatures(self, deadline: _Deadline) -> dict[str, _Signature] | None:
        import grpc
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._model, metadata_field=["signature_def"]
        )
        try:
            answer = self._ask(self._predictions.GetModelMetadata, request, deadline)
        except ValueError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise
        if "signature_def" not in answer.metadata:
            return None
        found, told = get_model_metadata_pb2.SignatureDefMap(), answer.metadata["signature_def"]
        try:
            if not told.Unpack(found):
                raise TypeError(f"expected a SignatureDefMap, received {told.type_url}")
            return _signatures(json_format.MessageToDict(found, preserving_proto_field_name=True))
        except (DecodeError, TypeError, ValueError):
            raise _unexpected(self.where, "signatures", told) from None

    def call(
        self, signature: str, name: str, value: Any, deadline: _Deadline
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(model_spec=self._model)
        request.model_spec.signature_name = signature
        if value is not None:
            dtype = None if isinstance(value, np.ndarray) else tf.string
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype))
        answer = self._ask(self._predictions.Predict, request, deadline)
        try:
            return {name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}
        except (TypeError, ValueError) as error:
            raise _unexpected(self.where, "tensors", error) from None

    def ready(self, deadline: _Deadline) -> bool:
        import grpc
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest(model_spec=self._model)
        try:
            answer = self._ask(self._models.GetModelStatus, request, deadline)
        except ValueError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise
        available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        return any(status.state == available for status in answer.model_version_status)

    def close(self) -> None:
        self._channel.close()

    def _ask(self, method: Any, request: Any, deadline: _Deadline) -> Any:
        import grpc

        left = deadline.left()
        if left <= 0:
            deadline.missed(self.where)
        try:
            return method(request, timeout=left, metadata=self._headers)
        except grpc.RpcError as error:
            code, details = error.code(), _line(error.details() or "")
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                deadline.missed(self.where, details)
            words = f"{self.where}: expected an answer, received {code.name}: {details[:500]}"
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                times = "1 attempt" if self._attempts == 1 else f"up to {self._attempts} attempts"
                raise ConnectionError(f"{words} ({times})") from error
            failed = (
                grpc.StatusCode.INTERNAL,
                grpc.StatusCode.UNKNOWN,
                grpc.StatusCode.DATA_LOSS,
                grpc.StatusCode.CANCELLED,
                grpc.StatusCode.ABORTED,
            )
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                raise _Refused(words) from error
            raise (RuntimeError if code in failed else ValueError)(words) from error
