"""The client's REST transport."""

import base64
import contextlib
import functools
import http.client
import json
import threading
import urllib.parse
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np
import requests
import tenacity
import urllib3
from requests import exceptions as errors

from btcp_tf.core import json_files, wording
from btcp_tf.serving import transport
from btcp_tf.serving.transport import Deadline, Refused, Server, Signature, Values


class _Transient(Exception):
    """A failure that another attempt may not meet."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Rest:
    """TensorFlow Serving's REST interface, and KServe's V1; errors as in `Client`.

    Attributes:
      where: The model's address, for errors.
    """

    def __init__(self, server: Server, rows: bool) -> None:
        """`rows`: whether inputs are sent as `instances`, not as `inputs`."""
        address = server.address
        self.where = address._replace(path=address.path.rstrip("/")).geturl()
        self.where += f"/v1/models/{urllib.parse.quote(server.model, safe='')}"
        if server.version is not None:
            self.where += f"/versions/{server.version}"
        if server.label is not None:
            self.where += f"/labels/{urllib.parse.quote(server.label, safe='')}"
        self._retries = server.retries
        self._rows = rows
        self._session = requests.Session()
        self._session.headers.update(server.headers)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _Adapter())

    def signatures(self, deadline: Deadline) -> dict[str, Signature] | None:
        """Signatures of the model by name; None where the server does not know them."""
        status, content = self._ask("/metadata", None, deadline, self._retries)
        # Answers of servers without metadata.
        if status in (404, 405, 501):
            return None
        content = self._content(status, content, "/metadata")
        try:
            metadata = transport.member_of(content, "metadata", dict)
            return transport.signatures_of(transport.member_of(metadata, "signature_def", dict))
        except (TypeError, ValueError):
            raise transport.unexpected(f"{self.where}/metadata", "signatures", content) from None

    def call(self, signature: str, inputs: Values, deadline: Deadline) -> dict[str, Any]:
        """Outputs of one request by name, arrays or lists.

        Args:
          signature: Name of the signature.
          inputs: By name, arrays or lists of bytes, of the same rows; {} for no input.
          deadline: When the call ends.

        A single output has the name "" where the protocol leaves it out.
        """
        columns = {name: _json_values(value) for name, value in inputs.items()}
        rows = self._rows and bool(columns)
        asked: dict[str, Any] = {"inputs": columns}
        if rows:
            every = [*columns.values()]
            # One input alone stands without its name.
            asked = {"instances": every[0]}
            if len(columns) > 1:
                parts = zip(*every, strict=True)
                asked = {"instances": [dict(zip(columns, row, strict=True)) for row in parts]}
        body = json.dumps({"signature_name": signature, **asked}).encode()
        answer = self._ask(":predict", body, deadline, self._retries)
        content = self._content(*answer, ":predict")
        key = "predictions" if rows else "outputs"
        outputs = content.get(key) if isinstance(content, dict) else None
        if outputs is None:
            raise transport.unexpected(f"{self.where}:predict", key, content)
        if rows:
            return self._of_rows(outputs, len(asked["instances"]))
        return outputs if isinstance(outputs, dict) else {"": outputs}

    def _of_rows(self, outputs: Any, n: int) -> dict[str, Any]:
        """Columns of a list of n rows, each an object."""
        where = f"{self.where}:predict"
        if not isinstance(outputs, list) or not all(isinstance(row, dict) for row in outputs):
            return {"": outputs}
        if any(row.keys() != outputs[0].keys() for row in outputs):
            raise transport.unexpected(where, "the same names in each row", "other ones")
        if len(outputs) != n:
            raise transport.unexpected(where, f"{n} predictions", len(outputs))
        return {key: [row[key] for row in outputs] for key in outputs[0]}

    def ready(self, deadline: Deadline) -> bool:
        """Whether the model is available; one attempt."""
        status, content = self._ask("", None, deadline, 0)
        if status == 404:
            return False
        content = self._content(status, content, "")
        try:
            ready = transport.member_of(content, "ready", object, missing=...)
            if ready is not ...:  # KServe; its earlier versions answer text.
                return {"true": True, "false": False}[str(ready).lower()]
            versions = transport.member_of(content, "model_version_status", list)
            return "AVAILABLE" in [transport.member_of(item, "state", str) for item in versions]
        except (KeyError, TypeError):
            raise transport.unexpected(self.where, "a model's status", content) from None

    def close(self) -> None:
        self._session.close()

    def _content(self, status: int, content: bytes, path: str) -> Any:
        if status != 200:
            kind = ValueError if 400 <= status < 500 else RuntimeError
            raise (Refused if status == 400 else kind)(
                f"{self.where}{path}: expected an answer, received HTTP {status}"
                f"{_error_text(content)}"
            )
        try:
            return json_files.parse(content)
        except ValueError:
            raise transport.unexpected(self.where + path, "JSON", content[:80]) from None

    def _ask(
        self, path: str, body: bytes | None, deadline: Deadline, retries: int
    ) -> tuple[int, bytes]:
        """Status and content of the first answer that is no transient failure."""
        url = self.where + path
        deadline.trouble = ""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Transient),
            stop=tenacity.stop_after_attempt(1 + retries)
            | tenacity.stop_before_delay(deadline.left()),
            wait=_wait,
            reraise=True,
        )
        try:
            return retrying(self._attempt, url, body, deadline)
        except _Transient as error:
            attempts = retrying.statistics["attempt_number"]
            if attempts <= retries:
                deadline.missed(url)
            times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            raise ConnectionError(
                f"{url}: expected an answer, received {error} ({times})"
            ) from None

    def _attempt(self, url: str, body: bytes | None, deadline: Deadline) -> tuple[int, bytes]:
        left = deadline.left()
        if left <= 0:
            deadline.missed(url)
        request = functools.partial(
            self._session.request,
            "GET" if body is None else "POST",
            url,
            data=body,
            headers=None if body is None else {"Content-Type": "application/json"},
            timeout=left,
            allow_redirects=False,
            stream=True,
        )
        retry_after = ""
        try:
            response, content = _begin(lambda: _whole(request, url)).result(left)
            if response.status_code not in transport.TRANSIENT:
                return response.status_code, content
            deadline.trouble = f"HTTP {response.status_code}{_error_text(content)}"
            retry_after = response.headers.get("Retry-After", "")
        except (TimeoutError, errors.Timeout):
            deadline.missed(url)
        except errors.SSLError as error:
            raise ValueError(f"{url}: expected a TLS connection, received {error}") from None
        except _BROKEN as error:
            deadline.trouble = _reason(error)
        except errors.RequestException as error:
            raise ValueError(f"{url}: expected an address, received {error}") from None
        raise _Transient(deadline.trouble, _retry_after(retry_after))


def _whole(request: Callable[[], requests.Response], url: str) -> tuple[requests.Response, bytes]:
    """An answer and its content, which a server may go on with for ever."""
    content = bytearray()
    with request() as response:
        # What is compressed grows a thousand times at most.
        for part in response.iter_content(2**16):
            content += part
            if len(content) > transport.LARGEST_ANSWER:
                raise transport.too_large(url)
    return response, bytes(content)


def _json_values(value: Any) -> Any:
    """An array, or lists of bytes, as JSON has them."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return [_json_values(one) for one in value]


_BROKEN = (errors.ConnectionError, errors.ChunkedEncodingError, errors.ContentDecodingError)
"""Of connections that were refused, or ended before the whole answer was there."""

_BACKOFF = tenacity.wait_exponential(
    transport.FIRST_WAIT, transport.LONGEST_WAIT
) + tenacity.wait_random(0, transport.FIRST_WAIT)


def _wait(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: the server's, or longer ones each time."""
    error = state.outcome.exception() if state.outcome else None
    return max(getattr(error, "retry_after", 0.0), _BACKOFF(state))


def _begin(work: Callable[[], Any]) -> futures.Future:
    """Starts work in a thread of its own, for which nobody has to wait.

    Neither requests nor urllib3 has a deadline of a whole request: nothing ends the look-up of a
    name early, and each of its addresses may take the whole timeout of a connection.
    """
    done: futures.Future = futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


class _Adapter(requests.adapters.HTTPAdapter):
    """Connections whose answers end with the timeout, so that no such thread stays for ever."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        kind: Any = pool.ConnectionCls
        if kind.response_class is not _Response:
            pool.ConnectionCls = type(kind.__name__, (kind,), {"response_class": _Response})
        return pool


class _Response(http.client.HTTPResponse):
    """An answer that the timeout of the socket limits as a whole, not each of its parts."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        deadline = Deadline(sock.gettimeout() or transport.LONGEST_TIMEOUT)
        stream: Any = self.fp.raw
        read = stream.readinto

        def read_in_time(buffer: Any) -> int | None:
            if (left := deadline.left()) <= 0:
                raise TimeoutError("timed out")
            sock.settimeout(left)
            return read(buffer)

        stream.readinto = read_in_time


def _retry_after(value: str) -> float:
    """Seconds that a header asks for by their number or a date; 0 where it is neither."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OverflowError, ValueError):
        return min(urllib3.Retry().parse_retry_after(value), transport.LONGEST_TIMEOUT)
    return 0.0


def _reason(error: BaseException) -> str:
    """Why a connection failed, as the operating system says it if it does."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        causes = [*inner.args, getattr(inner, "reason", None), inner.__cause__, inner.__context__]
        inner = next((item for item in causes if isinstance(item, BaseException)), None)
    return wording.one_line(error)


def _error_text(content: bytes | bytearray) -> str:
    """A server's message of an error, on one line, behind a colon."""
    text = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        message = json_files.parse(text)
        if isinstance(message, dict):
            text = str(message.get("error") or message.get("detail") or text)
    text = wording.one_line(text)
    return f": {text[:500]}" if text else ""
