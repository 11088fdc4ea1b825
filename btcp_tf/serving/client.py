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

from btcp_tf import metrics
from btcp_tf.core import json_files
from btcp_tf.serving import answers, transport
from btcp_tf.serving.answers import ANSWERS
from btcp_tf.serving.grpc_transport import GRPC_RETRIES, Grpc
from btcp_tf.serving.rest import Rest
from btcp_tf.serving.transport import Deadline, Refused, Server, Signature, Spec

__all__ = ["ANSWERS", "Client"]

_READY_SECONDS = 5.0

_FILES = "image_bytes"
"""Name of the input that holds contents of files."""


class Client:
    """Asks a model server for answers, in batches, with retries, within a deadline.

    The signatures are asked for once, before the first answer, and inputs that do not fit them are
    refused before they are sent. With a server that does not know them (KServe's V1 protocol), the
    server alone checks its inputs.

    Transient failures are tried again, waiting longer each time: a connection that is refused or
    reset, HTTP 429, 502, 503 and 504, gRPC UNAVAILABLE and RESOURCE_EXHAUSTED. Requests change
    nothing on a server, so repeating them is harmless.

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
        server = _server(address, model, protocol, version, label, retries, headers)
        if form not in ("rows", "columns"):
            raise ValueError(f"form: expected rows or columns, received {form!r}")
        _check_timeout(timeout)
        self._timeout = float(timeout)
        self._batch_size = metrics.whole_number("batch_size", batch_size, "a whole number >= 1", 1)
        self._signatures: dict[str, Signature] | None = None
        self._knows_signatures = False
        self._transport = Rest(server, form == "rows") if protocol == "rest" else Grpc(server)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; the client must not be used after it."""
        self._transport.close()

    def predict(
        self,
        images: ArrayLike | Mapping[str, ArrayLike],
        *,
        signature: str = "serving_default",
    ) -> dict[str, np.ndarray]:
        """Answers for images, or for other numbers that the model takes.

        Args:
          images: `[n, ...]` as the model's input, n >= 0; strings `[n]` for a model of text. Floats
            become the model's float type; whole numbers its integer type if they fit. Of a model
            of several inputs a dictionary of them by name, and so of one whose thresholds are by
            group: `{"images": images, "site": sites}`, the groups as strings.
          signature: `serving_float` takes the pixels of a uint8 model as floats.

        Returns:
          By name `predicted` int64 `[n]` from 0 to k - 1, `class_name` `[n]` strings, `probs`
          float32 `[n, k]` and `uncertainty` float32 `[n]` in [0, 1], and `accept` bool `[n]`. Of
          a model with looks also `second_opinion` int64 `[n]`, the class with the largest mean
          probability over the classifier and its looks, and `second_probability` float32 `[n]`.
          A model of floats may overflow: `probs`, `uncertainty` and `second_probability` can then
          be NaN, in rows that are not accepted alone.

        It raises what `Client` says.
        """
        deadline = Deadline(self._timeout)
        if isinstance(images, Mapping):
            inputs = self._named(signature, images, deadline)
        else:
            name, spec = self._input(signature, "images", deadline)
            inputs = {name: answers.checked_inputs(images, name, spec)}
        return self._answers(signature, inputs, deadline)

    def predict_bytes(
        self,
        files: Sequence[bytes] | Mapping[str, Sequence[Any]],
        *,
        signature: str = "serving_bytes",
    ) -> dict[str, np.ndarray]:
        """Answers for the contents of image files, JPEG or PNG, which the server decodes.

        A file that cannot be decoded fails the request that it is in, and so this call. Which one
        it is, is asked by halves of that request, while there is time.

        Args:
          files: n >= 0 files. For a model whose thresholds are by group a dictionary of them and
            of the groups as strings: `{"image_bytes": files, "site": sites}`.
          signature: Signature that takes files.

        Returns:
          As `predict`.

        It raises what `Client` says.
        """
        deadline = Deadline(self._timeout)
        if isinstance(files, Mapping):
            return self._answers(signature, self._named(signature, files, deadline), deadline)
        files = _checked_files(files)
        name, spec = self._input(signature, _FILES, deadline)
        if spec and spec.dtype != "string":
            raise ValueError(f"signature: expected one that takes files, received {signature!r}")
        return self._answers(signature, {name: files}, deadline)

    def about(self) -> dict[str, Any]:
        """The description of the model: the content of its `assets.extra/btcp_tf.json`.

        The signature `about` of models that version 0.1.0 exported has no input: TensorFlow Serving
        refuses it over REST, and where it batches requests. Read that file then.

        It raises what `Client` says.
        """
        deadline = Deadline(self._timeout)
        known = self._signature("about", deadline)
        name = "ask" if known is None else next(iter(known.inputs), "")
        try:
            ask = {name: [b"?"]} if name else {}
            outputs = self._transport.call("about", ask, deadline)
        except ValueError as error:
            if "input" not in str(error):
                raise
            raise ValueError(
                f"{error} (a server may want an input: ask over gRPC without batching)"
            ) from None
        value = outputs.get("json", outputs.get(""))
        try:
            content = json_files.parse(np.asarray(value).item())
        except (TypeError, ValueError):
            content = None
        if not isinstance(content, dict):
            raise transport.unexpected(self._transport.where, "a JSON object from about", value)
        return content

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
        """Name of a signature's input, and its type and shape where the server says them."""
        known = self._signature(signature, deadline)
        if known is None:
            return default, None
        if len(known.inputs) != 1:
            raise ValueError(
                f"signature: expected one with one input, received {signature!r} with "
                f"{len(known.inputs)}; give a dictionary of {', '.join(known.inputs)}"
            )
        return next(iter(known.inputs.items()))

    def _named(
        self, signature: str, inputs: Mapping[str, ArrayLike], deadline: Deadline
    ) -> dict[str, Any]:
        """Inputs by name, checked, each of the same rows; files under the name `_FILES`."""
        known = self._signature(signature, deadline)
        wanted = known.inputs if known else dict.fromkeys(inputs)
        if not inputs or wanted.keys() != inputs.keys():
            raise ValueError(
                f"images: expected the inputs {', '.join(wanted) or 'of the model'}, received "
                f"{', '.join(map(str, inputs)) or 'none'}"
            )
        checked = {
            name: _checked_files(value)
            if name == _FILES
            else answers.checked_inputs(value, name, wanted[name])
            for name, value in inputs.items()
        }
        counts = {name: len(value) for name, value in checked.items()}
        if len({*counts.values()}) > 1:
            received = ", ".join(f"{n} of {name}" for name, n in counts.items())
            raise ValueError(f"images: expected as many rows of each input, received {received}")
        return checked

    def _signature(self, signature: str, deadline: Deadline) -> Signature | None:
        """A signature of the model; None where the server does not know any."""
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
        self, signature: str, inputs: Mapping[str, Any], deadline: Deadline
    ) -> dict[str, np.ndarray]:
        where, first = self._transport.where, next(iter(inputs.values()))

        def ask(start: int, stop: int) -> dict[str, np.ndarray]:
            rows = {name: value[start:stop] for name, value in inputs.items()}
            outputs = self._transport.call(signature, rows, deadline)
            return answers.checked_answers(outputs, range(start, stop), where)

        parts = []
        for start in range(0, len(first), self._batch_size):
            stop = min(start + self._batch_size, len(first))
            try:
                parts.append(ask(start, stop))
            except Refused as refusal:
                # Arrays fit the model or do not, all rows alike; a file may be the only bad one.
                if isinstance(first, list) and (len(inputs) == 1 or _FILES in inputs):
                    _blame(ask, start, stop, refusal)
                raise
        if not parts:
            # Without a request: JSON cannot say how wide no image is.
            return answers.no_answers((self._signatures or {}).get(signature))
        return answers.joined_answers(parts, where)


def _server(
    address: str,
    model: str,
    protocol: str,
    version: int | None,
    label: str | None,
    retries: int,
    headers: Mapping[str, str] | None,
) -> Server:
    """Arguments of `Client`, checked."""
    if protocol not in ("rest", "grpc"):
        raise ValueError(f"protocol: expected rest or grpc, received {protocol!r}")
    for what, value in (("model", model), ("label", "-" if label is None else label)):
        if not value or not isinstance(value, str):
            raise ValueError(f"{what}: expected a name, received {value!r}")
    if protocol == "grpc":
        limits = f"a whole number from 0 to {GRPC_RETRIES} (gRPC)"
        metrics.whole_number("retries", retries, limits, 0, GRPC_RETRIES)
    retries = metrics.whole_number("retries", retries, "a whole number >= 0", 0)
    if version is not None:
        version = metrics.whole_number("version", version, "a whole number >= 0", 0, 2**63 - 1)
        if label is not None:
            raise ValueError(
                f"version, label: expected one of them, received {version} and {label!r}"
            )
    headers = {} if headers is None else headers
    _check_headers(headers)
    parts = _split_address(address, protocol)
    return Server(parts, model, version, label, retries, dict(headers))


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


def _check_timeout(timeout: Any) -> None:
    real = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    most = transport.LONGEST_TIMEOUT
    if not real or not 0 < timeout <= most:
        raise ValueError(
            f"timeout: expected seconds above 0, at most {most:.0f}, received {timeout!r}"
        )


def _checked_files(files: Any) -> list[bytes]:
    """Contents of files as a list; ValueError for anything else."""
    if isinstance(files, str | bytes) or not isinstance(files, Iterable):
        raise ValueError(f"files: expected a list of bytes, received {type(files).__name__}")
    files = list(files)
    for i, file in enumerate(files):
        received = type(file).__name__
        if not isinstance(file, bytes):
            raise ValueError(f"files: expected a list of bytes, received {received} in place {i}")
        if not file:
            raise ValueError(f"files: expected image files, received an empty one in place {i}")
    return files


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


def _blame(ask: Callable[[int, int], Any], start: int, stop: int, refusal: Refused) -> None:
    """Raises the refusal of a request again, with the place of the first file that is at fault.

    Returns where no file is at fault: each half is answered, or fails in another way.
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
