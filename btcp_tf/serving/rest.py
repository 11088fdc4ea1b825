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
    Signature,
)


class _Transient(Exception):
    """A failure that may be none in a moment."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Rest:
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
            raise transport.unexpected(f"{self.where}:predict", key, content)
        if not rows:
            return found if isinstance(found, dict) else {"": found}
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            return {"": found}
        if any(row.keys() != found[0].keys() for row in found):
            raise transport.unexpected(
                f"{self.where}:predict", "the same names in each row", "other ones"
            )
        if len(found) != len(plain):
            raise transport.unexpected(f"{self.where}:predict", f"{len(plain)} {key}", len(found))
        return {key: [row[key] for row in found] for key in found[0]}  # type: ignore[misc]

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
                f"{_error_words(content)}"
            )
        try:
            return transport.parse_json(content)
        except ValueError:
            raise transport.unexpected(self.where + path, "JSON", content[:80]) from None

    def _ask(
        self, method: str, path: str, body: bytes | None, deadline: Deadline, retries: int
    ) -> tuple[int, bytes]:
        """Status and content, once neither is transient."""
        url, last, left = self.where + path, "", deadline.left()

        def wait(state: tenacity.RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, _Transient) else 0.0
            return max(asked, backoff(state))

        backoff = tenacity.wait_exponential(FIRST_WAIT, LONGEST_WAIT) + tenacity.wait_random(
            0, FIRST_WAIT
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
        self, method: str, url: str, body: bytes | None, deadline: Deadline, last: str
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
        if status in TRANSIENT:
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
    """Seconds, of a number of them or a date; 0 where it is neither."""
    with contextlib.suppress(urllib3.exceptions.HTTPError, OverflowError, ValueError):
        return min(urllib3.Retry().parse_retry_after(value), LONGEST_TIMEOUT)
    return 0.0


def _reason(error: BaseException) -> str:
    """Why a connection failed: the operating system's words where it has some."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror.lower()
        inner = [*seen.args, getattr(seen, "reason", None), seen.__cause__, seen.__context__]
        seen = next((item for item in inner if isinstance(item, BaseException)), None)
    return wording.one_line(error)


def _error_words(content: bytes | bytearray) -> str:
    """What a server says of an error, on one line."""
    text = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        found = transport.parse_json(text)
        if isinstance(found, dict):
            text = str(found.get("error") or found.get("detail") or text)
    text = wording.one_line(text)
    return f": {text[:500]}" if text else ""
