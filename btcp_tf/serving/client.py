"""A client for model servers that speak TensorFlow Serving's protocols.

REST needs no TensorFlow in the process; gRPC does, as the official messages are part of it.

    client = Client("http://127.0.0.1:8501", "fashion_mnist")
    answers = client.predict(images)
    answers["class_name"][answers["accept"]]

Sources: TensorFlow Serving's RESTful API and its `PredictionService` and `ModelService`
(tensorflow/serving, `tensorflow_serving/apis`). KServe's V1 protocol is the row form of the same
REST call.
"""

import numbers
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf.serving import transport
from btcp_tf.serving.grpc_transport import GRPC_RETRIES, Grpc
from btcp_tf.serving.rest import Rest
from btcp_tf.serving.transport import (
    DTYPES,
    LONGEST_TIMEOUT,
    Deadline,
    Refused,
    Server,
    Signature,
    Spec,
    Transport,
)

ANSWERS = {
    "predicted": np.dtype(np.int64),
    "class_name": np.dtype(np.str_),
    "probs": np.dtype(np.float32),
    "uncertainty": np.dtype(np.float32),
    "accept": np.dtype(np.bool_),
}
"""What an answer consists of: `[n]` each, `probs` `[n, k]`."""

_READY_SECONDS = 5.0

# How far above 1 rounding may take a probability, as `evaluation` has it.
_ROUNDING = 1e-3


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
        if not _is(numbers.Real, timeout) or not 0 < timeout <= LONGEST_TIMEOUT:
            raise ValueError(
                f"timeout: expected seconds above 0, at most {LONGEST_TIMEOUT:.0f}, "
                f"received {timeout!r}"
            )
        retries = _whole("retries", retries, 0, GRPC_RETRIES if protocol == "grpc" else None)
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
        self._signatures: dict[str, Signature] | None = None
        self._knows_signatures = False
        server = Server(parts, model, version, label, retries, dict(headers))
        self._transport: Transport = (
            Rest(server, rows=form == "rows") if protocol == "rest" else Grpc(server)
        )

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

        It raises what `Client` says.
        """
        deadline = Deadline(self._timeout)
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

        It raises what `Client` says.
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
        deadline = Deadline(self._timeout)
        name, spec = self._input(signature, "image_bytes", deadline)
        if spec and spec.dtype != "string":
            raise ValueError(f"signature: expected one that takes files, received {signature!r}")
        return self._answers(signature, name, files, deadline)

    def about(self) -> dict[str, Any]:
        """What the model says of itself: the content of its `assets.extra/btcp_tf.json`.

        Of a version that an earlier release exported, whose `about` takes nothing, TensorFlow
        Serving refuses it over REST, and wherever it batches requests: then read that file.

        It raises what `Client` says.
        """
        deadline = Deadline(self._timeout)
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
            found = transport.parse_json(np.asarray(value).item())
        except (TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise transport.unexpected(self._transport.where, "a JSON object from about", value)
        return found

    def ready(self) -> bool:
        """Whether the server answers and the model is available, in one attempt of 5 s at most.

        Raises:
          ValueError, RuntimeError: Where waiting is no help, see the class.
        """
        try:
            return self._transport.ready(Deadline(min(self._timeout, _READY_SECONDS)))
        except (ConnectionError, TimeoutError):
            return False

    def _input(self, signature: str, default: str, deadline: Deadline) -> tuple[str, Spec | None]:
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

    def _signature(self, signature: str, deadline: Deadline) -> Signature | None:
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
        self, signature: str, name: str, inputs: Any, deadline: Deadline
    ) -> dict[str, np.ndarray]:
        def ask(start: int, stop: int) -> dict[str, np.ndarray]:
            outputs = self._transport.call(signature, name, inputs[start:stop], deadline)
            return _columns(outputs, range(start, stop), self._transport.where)

        parts = []
        for start in range(0, len(inputs), self._batch_size):
            stop = min(start + self._batch_size, len(inputs))
            try:
                parts.append(ask(start, stop))
            except Refused as refusal:
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


def _blame(ask: Callable[[int, int], Any], start: int, stop: int, refusal: Refused) -> None:
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
        except Refused as error:
            return _blame(ask, *half, error)
        except (ConnectionError, TimeoutError, RuntimeError):
            return


def _checked(images: ArrayLike, name: str, spec: Spec | None) -> np.ndarray:
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
    if spec.dtype not in DTYPES.values():
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


def _words(spec: Spec) -> str:
    if spec.shape is None:
        return spec.dtype
    dims = ["n" if size is None else str(size) for size in spec.shape]
    return f"{spec.dtype} [{', '.join(dims)}]"


def _columns(outputs: Mapping[str, Any], rows: range, where: str) -> dict[str, np.ndarray]:
    """Outputs as answers to these rows of a call; RuntimeError where they are none."""
    if not ANSWERS.keys() <= outputs.keys():
        received = ", ".join(filter(None, outputs)) or "one without a name"
        raise transport.unexpected(where, f"the answers {', '.join(ANSWERS)}", received)
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
            raise transport.unexpected(where, wanted, f"{value[place]:g} in row {rows[place[-1]]}")
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
        raise transport.unexpected(
            where, f"{key} {kind} {shape}", f"{found.dtype} {list(found.shape)}"
        )
    with np.errstate(over="ignore"):
        return found if dtype.kind == "U" else found.astype(dtype)
