"""The client's REST transport."""

import base64
import contextlib
import http.client
import io
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import numpy as np
import requests
import tenacity
import urllib3

from btcp_tf.core import wording
from btcp_tf.serving import transport
from btcp_tf.serving.transport import (
    FIRST_WAIT,
    LONGEST_TIMEOUT,
    LONGEST_WAIT,
    TRANSIENT,
    Deadline,
    Refused,
    Server,
    Signature,
)


class _Transient(Exception):
    """A failure that another attempt may not meet."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Rest:
    """TensorFlow Serving's REST interface, and KServe's V1; see `transport.Transport`."""

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
        status, content = self._ask("GET", "/metadata", None, deadline, self._retries)
        # A server that has no metadata says so in one of these ways.
        if status in (404, 405, 501):
            return None
        content = self._content(status, content, "/metadata")
        try:
            found = transport.member_of(content, "metadata", dict)
            return transport.signatures_of(transport.member_of(found, "signature_def", dict))
        except (TypeError, ValueError):
            raise transport.unexpected(f"{self.where}/metadata", "signatures", content) from None

    def call(
        self, signature: str, name: str, value: Any, deadline: Deadline
    ) -> dict[str, np.ndarray]:
        rows = self._rows and value is not None
        if isinstance(value, np.ndarray):
            inputs = value.tolist()
        else:
            inputs = [{"b64": base64.b64encode(file).decode()} for file in value or ()]
        body: dict[str, Any] = {"signature_name": signature}
        if rows:
            body["instances"] = inputs
        else:
            body["inputs"] = {} if value is None else {name: inputs}
        status, content = self._ask(
            "POST", ":predict", json.dumps(body).encode(), deadline, self._retries
        )
        content = self._content(status, content, ":predict")
        key = "predictions" if rows else "outputs"
        outputs = content.get(key) if isinstance(content, dict) else None
        if outputs is None:
            raise transport.unexpected(f"{self.where}:predict", key, content)
        if rows:
            return self._of_rows(outputs, len(inputs))
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
        status, content = self._ask("GET", "", None, deadline, 0)
        if status == 404:
            return False
        content = self._content(status, content, "")
        try:
            found = transport.member_of(content, "ready", object, missing=...)
            if found is not ...:  # KServe; earlier ones as text.
                return {"true": True, "false": False}[str(found).lower()]
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
            return transport.parse_json(content)
        except ValueError:
            raise transport.unexpected(self.where + path, "JSON", content[:80]) from None

    def _ask(
        self, method: str, path: str, body: bytes | None, deadline: Deadline, retries: int
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
            return retrying(self._attempt, method, url, body, deadline)
        except _Transient as error:
            attempts = retrying.statistics["attempt_number"]
            if attempts <= retries:
                deadline.missed(url)
            times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
            raise ConnectionError(
                f"{url}: expected an answer, received {error} ({times})"
            ) from None

    def _attempt(
        self, method: str, url: str, body: bytes | None, deadline: Deadline
    ) -> tuple[int, bytes]:
        left = deadline.left()
        if left <= 0:
            deadline.missed(url)
        answer = _begin(lambda: self._exchange(method, url, body, left))
        after = ""
        try:
            status, headers, content = answer.result(left)
            if status not in TRANSIENT:
                return status, content
            deadline.trouble = f"HTTP {status}{_error_text(content)}"
            after = headers.get("Retry-After", "")
        except (TimeoutError, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
            deadline.missed(url)
        except requests.exceptions.SSLError as error:
            raise ValueError(f"{url}: expected a TLS connection, received {error}") from None
        except (
            requests.exceptions.ConnectionError,
            requests.exceptions.ChunkedEncodingError,
            urllib3.exceptions.HTTPError,
        ) as error:
            deadline.trouble = _reason(error)
        except requests.exceptions.RequestException as error:
            raise ValueError(f"{url}: expected an address, received {error}") from None
        raise _Transient(deadline.trouble, _retry_after(after))

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


_BACKOFF = tenacity.wait_exponential(FIRST_WAIT, LONGEST_WAIT) + tenacity.wait_random(0, FIRST_WAIT)


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

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Stream(sock, self.fp.detach()))


class _Stream(io.RawIOBase):
    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._deadline = Deadline(sock.gettimeout() or LONGEST_TIMEOUT)

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
    """Seconds that a header asks for by their number or a date; 0 where it is neither."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OverflowError, ValueError):
        return min(urllib3.Retry().parse_retry_after(value), LONGEST_TIMEOUT)
    return 0.0


def _reason(error: BaseException) -> str:
    """Why a connection failed, as the operating system says it if it does."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror.lower()
        inner = [*seen.args, getattr(seen, "reason", None), seen.__cause__, seen.__context__]
        seen = next((item for item in inner if isinstance(item, BaseException)), None)
    return wording.one_line(error)


def _error_text(content: bytes | bytearray) -> str:
    """A server's message of an error, on one line, behind a colon."""
    text = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        message = transport.parse_json(text)
        if isinstance(message, dict):
            text = str(message.get("error") or message.get("detail") or text)
    text = wording.one_line(text)
    return f": {text[:500]}" if text else ""
