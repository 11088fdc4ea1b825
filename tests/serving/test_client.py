"""The client alone: what it sends, refuses, retries and makes of answers.

The servers here are doubles that answer what a test tells them; tests/serving/test_serving.py asks
real ones.
"""

import base64
import contextlib
import gzip
import http.server
import io
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from fractions import Fraction
from pathlib import Path

import grpc
import numpy as np
import PIL.Image
import pytest
import tiny_model
from google.protobuf import any_pb2, wrappers_pb2

from btcp_tf.serving import transport
from btcp_tf.serving.client import ANSWERS, Client

CHECKOUT = Path(__file__).resolve().parents[2]
NAMES = np.array(["cat", "dog", "owl"])
IMAGES = np.random.default_rng(0).integers(256, size=(5, 2, 2, 1), dtype=np.uint8)

INFO = {
    "dtype": "DT_UINT8",
    "tensor_shape": {"dim": [{"size": s} for s in ("-1", "2", "2", "1")], "unknown_rank": False},
}
FLOATS = {**INFO, "dtype": "DT_FLOAT"}
FILES = {"dtype": "DT_STRING", "tensor_shape": {"dim": [{"size": "-1"}]}}
PROBS = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "3"}]}}
SIGNATURES = {
    "serving_default": {"inputs": {"images": INFO}, "outputs": {"probs": PROBS}},
    "serving_float": {"inputs": {"images": FLOATS}, "outputs": {"probs": PROBS}},
    "serving_bytes": {"inputs": {"image_bytes": FILES}, "outputs": {"probs": PROBS}},
    "about": {"inputs": {"ask": FILES}, "outputs": {"json": FILES}},
    "__saved_model_init_op": {"outputs": {}},
}
METADATA = {"metadata": {"signature_def": {"signature_def": SIGNATURES}}}


def answers(images):
    """Made-up answers that tell images apart, in JSON's types, by column."""
    first = np.array([np.ravel(image)[0] for image in images], np.float64) / 256
    probs = np.stack([first, (1 - first) / 2, (1 - first) / 2], axis=1).astype(np.float32)
    predicted = probs.argmax(axis=1)
    uncertainty = 1 - probs.max(axis=1)
    return {
        "predicted": predicted.tolist(),
        "class_name": NAMES[predicted].tolist(),
        "probs": probs.tolist(),
        "uncertainty": uncertainty.tolist(),
        "accept": (uncertainty.astype(np.float64) < 0.4).tolist(),
    }


def respond(method, path, body):
    """What a model server answers, (status, object), in rows or columns as it is asked."""
    if path.endswith("/metadata"):
        return 200, METADATA
    if method == "GET":
        return 200, {"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}
    if body["signature_name"] == "about":
        told = '{"class_names": ["été"]}'
        if "instances" in body:
            return 200, {"predictions": [told for _ in body["instances"]]}
        asked = body["inputs"].get("ask")
        return 200, {"outputs": told if asked is None else [told for _ in asked]}
    rows = "instances" in body
    values = body["instances"] if rows else next(iter(body["inputs"].values()))
    if body["signature_name"] == "serving_bytes":
        values = [list(base64.b64decode(value["b64"])) for value in values]
    columns = answers(values)
    if not rows:
        return 200, {"outputs": columns}
    return 200, {
        "predictions": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    }


class Double:
    """An HTTP server on a free port; `script` overrides its next answers, one each."""

    def __init__(self, port=0):
        self.script, self.seen, self.respond = [], [], respond
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                double.handle(self)

            do_POST = do_GET

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def handle(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        body = json.loads(body) if body else None
        self.seen.append((handler.command, handler.path, body, dict(handler.headers)))
        step = self.script.pop(0) if self.script else None
        if step == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            handler.connection.close()
            return
        if callable(step):
            step(handler)
            return
        status, content, *headers = step or self.respond(handler.command, handler.path, body)
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def double():
    server = Double()
    yield server
    server.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def check_equal(found, images):
    wanted = answers(images)
    assert list(found) == list(ANSWERS)
    for name, dtype in ANSWERS.items():
        assert found[name].dtype.kind == dtype.kind
        np.testing.assert_array_equal(found[name], np.array(wanted[name], dtype))


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_batches_are_put_together_in_order(double, form, batch_size):
    with Client(double.address, "tiny", form=form, batch_size=batch_size) as client:
        check_equal(client.predict(IMAGES), IMAGES)
    asked = [body for method, _, body, _ in double.seen if method == "POST"]
    assert len(asked) == -(-5 // batch_size)
    if form == "rows":
        assert asked[0] == {
            "signature_name": "serving_default",
            "instances": IMAGES[:batch_size].tolist(),
        }
    else:
        assert asked[0]["inputs"] == {"images": IMAGES[:batch_size].tolist()}


def with_second(images):
    columns = answers(images)
    return columns | {
        "second_opinion": [2 - number for number in columns["predicted"]],
        "second_probability": [1 - u for u in columns["uncertainty"]],
    }


def as_rows(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_second_opinion_is_kept(double, form):
    def told(images):
        columns = with_second(images)
        return 200, {"predictions": as_rows(columns)} if form == "rows" else {"outputs": columns}

    double.script = [None, *(told(IMAGES[start : start + 2]) for start in (0, 2, 4))]
    with Client(double.address, "tiny", form=form, batch_size=2) as client:
        found = client.predict(IMAGES)
        assert list(found) == [*ANSWERS, "second_opinion", "second_probability"]
        assert found["second_opinion"].dtype == np.int64
        assert found["second_probability"].dtype == np.float32
        np.testing.assert_array_equal(found["second_opinion"], 2 - found["predicted"])
        np.testing.assert_allclose(found["second_probability"], 1 - found["uncertainty"])
        # Another version, without looks, begins to answer.
        double.script = [told(IMAGES[:2])]
        check_equal(client.predict(IMAGES[:4]), IMAGES[:4])


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("second_opinion", 3, "second_opinion from 0 to 2, received 3 in row 1$"),
        ("second_opinion", 0.5, r"second_opinion int64 \[5\], received float64"),
        ("second_probability", 1.5, "second_probability from 0 to 1, .* received 1.5 in row 1$"),
        ("second_probability", "high", r"second_probability float32 \[5\]"),
    ],
)
def test_a_second_opinion_out_of_range(double, name, value, message):
    columns = with_second(IMAGES) | {"accept": [True] * 5}
    columns[name][1] = value
    double.script = [None, (200, {"outputs": columns})]
    with (
        Client(double.address, "tiny", form="columns") as client,
        pytest.raises(RuntimeError, match=message),
    ):
        client.predict(IMAGES)


def test_a_second_opinion_of_no_images(double):
    names = ("probs", "second_opinion", "second_probability")
    outputs = {name: PROBS if name == "probs" else FILES for name in names}
    signature = {"inputs": {"images": INFO}, "outputs": outputs}
    content = {"signature_def": {"signature_def": {"serving_default": signature}}}
    double.script = [(200, {"metadata": content})]
    with Client(double.address, "tiny") as client:
        found = client.predict(IMAGES[:0])
    assert [found[name].shape for name in names] == [(0, 3), (0,), (0,)]
    assert found["second_opinion"].dtype == np.int64


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_files_travel_as_base64(double, form):
    files = [bytes([10, 250, 251]), bytes([200])]
    with Client(double.address, "tiny", form=form) as client:
        check_equal(client.predict_bytes(files), [list(file) for file in files])
    body = double.seen[-1][2]
    sent = body["instances"] if form == "rows" else body["inputs"]["image_bytes"]
    assert sent[0] == {"b64": "Cvr7"}


@pytest.mark.parametrize(
    "options, path",
    [
        ({}, "/v1/models/tiny%2Fa"),
        ({"version": 3}, "/v1/models/tiny%2Fa/versions/3"),
        ({"label": "canary"}, "/v1/models/tiny%2Fa/labels/canary"),
    ],
)
def test_the_paths_of_tensorflow_serving(double, options, path):
    with Client(
        f"http://{double.address}/gate/", "tiny/a", headers={"X-Key": "k"}, **options
    ) as client:
        client.predict(IMAGES)
        assert client.ready()
    paths = [(method, found) for method, found, _, _ in double.seen]
    assert paths == [
        ("GET", f"/gate{path}/metadata"),
        ("POST", f"/gate{path}:predict"),
        ("GET", f"/gate{path}"),
    ]
    assert all(headers["X-Key"] == "k" for *_, headers in double.seen)


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_about(double, form):
    with Client(double.address, "tiny", form=form) as client:
        assert client.about() == {"class_names": ["été"]}
        body = double.seen[-1][2]
        asked = body["instances"] if form == "rows" else body["inputs"]["ask"]
        assert asked == [{"b64": "Pw=="}]
        double.script = [(200, {"predictions" if form == "rows" else "outputs": "no JSON"})]
        with pytest.raises(RuntimeError, match="expected a JSON object from about, received no J"):
            client.about()


def test_about_of_a_version_that_takes_nothing(double):
    of_old = {name: dict(told) for name, told in SIGNATURES.items()}
    del of_old["about"]["inputs"]
    double.script = [(200, {"metadata": {"signature_def": {"signature_def": of_old}}})]
    with Client(double.address, "tiny") as client:
        assert client.about() == {"class_names": ["été"]}
    assert double.seen[-1][2] == {"signature_name": "about", "inputs": {}}


def test_about_where_the_server_tells_of_no_signatures(double):
    double.script = [(404, {})]
    with Client(double.address, "tiny") as client:
        assert client.about() == {"class_names": ["été"]}
    assert double.seen[-1][2]["instances"] == [{"b64": "Pw=="}]


def test_no_images_are_no_request(double):
    with Client(double.address, "tiny") as client:
        for found in (client.predict(IMAGES[:0]), client.predict_bytes([])):
            assert {name: value.shape for name, value in found.items()} == {
                **dict.fromkeys(ANSWERS, (0,)),
                "probs": (0, 3),
            }
            assert {name: value.dtype.kind for name, value in found.items()} == {
                name: dtype.kind for name, dtype in ANSWERS.items()
            }
    assert {method for method, *_ in double.seen} == {"GET"}


@pytest.mark.parametrize(
    "images, signature, message",
    [
        (
            IMAGES[..., 0],
            "serving_default",
            r"expected uint8 \[n, 2, 2, 1\], received uint8 \[5, 2",
        ),
        (
            IMAGES[0],
            "serving_default",
            r"expected uint8 \[n, 2, 2, 1\], received uint8 \[2, 2, 1\]",
        ),
        (IMAGES / 255, "serving_default", r"expected uint8 \[n, 2, 2, 1\], received float64"),
        (IMAGES > 9, "serving_default", r"expected uint8 .*, received bool"),
        (IMAGES + np.int64(256), "serving_default", r"from 0 to 255, received numbers from"),
        (IMAGES, "serving_float", r"expected float32 \[n, 2, 2, 1\], received uint8"),
        (np.full((2, 2, 2, 1), 1e300), "serving_float", "received numbers beyond it"),
        (np.full((2, 2, 2, 1), np.nan), "serving_float", "finite numbers, received NaN .* row 0"),
        ([[1, 2], [3]], "serving_default", "expected images of one shape, received"),
        ("cat", "serving_default", r"images: expected numbers \[n, ...\], received <U3 \[\]"),
        (IMAGES, "serving_bytes", r"expected text or files \(string \[n\]\), received uint8"),
        (IMAGES, "serving", "expected one of about, serving_bytes, serving_default, serv"),
    ],
)
def test_what_does_not_fit_the_model_is_not_sent(double, images, signature, message):
    with Client(double.address, "tiny") as client, pytest.raises(ValueError, match=message) as info:
        client.predict(images, signature=signature)
    assert "\n" not in str(info.value)
    assert {method for method, *_ in double.seen} == {"GET"}


def test_numbers_that_fit_are_converted(double):
    with Client(double.address, "tiny") as client:
        check_equal(client.predict(IMAGES.astype(np.int64).tolist()), IMAGES)
        client.predict(IMAGES / 3, signature="serving_float")
    sent = np.array(double.seen[-1][2]["instances"])
    np.testing.assert_array_equal(sent, (IMAGES / 3).astype(np.float32))


def test_a_server_without_metadata_judges_for_itself(double):
    double.script = [(404, {"detail": "Not Found"})]
    with Client(double.address, "tiny") as client:
        with pytest.raises(ValueError, match="finite numbers"):
            client.predict([[np.inf]])
        check_equal(client.predict(IMAGES), IMAGES)
        assert client.predict(IMAGES[:0])["probs"].shape == (0, 0)


@pytest.mark.parametrize(
    "files, message",
    [
        (b"abc", "expected a list of bytes, received bytes"),
        (["a"], "expected a list of bytes, received str in place 0"),
        ("a.png", "expected a list of bytes, received str"),
        (None, "expected a list of bytes, received NoneType"),
        ([b"a", b""], "received an empty one in place 1"),
    ],
)
def test_files_that_are_none(double, files, message):
    with Client(double.address, "tiny") as client, pytest.raises(ValueError, match=message):
        client.predict_bytes(files)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"address": "nowhere:port"}, "address: expected host:port, received 'nowhere:port'"),
        ({"address": "ftp://host:1"}, "address: expected host:port"),
        ({"address": "host", "protocol": "grpc"}, "address: expected host:port"),
        ({"address": "host:1/path", "protocol": "grpc"}, "address: expected host:port"),
        ({"model": ""}, "model: expected a name, received ''"),
        ({"protocol": "soap"}, "protocol: expected rest or grpc, received 'soap'"),
        ({"form": "piles"}, "form: expected rows or columns, received 'piles'"),
        ({"address": 8501}, "address: expected host:port, received 8501"),
        ({"model": 3}, "model: expected a name, received 3"),
        ({"label": ""}, "label: expected a name, received ''"),
        ({"label": 3}, "label: expected a name, received 3"),
        *(
            ({"timeout": value}, "timeout: expected seconds above 0, at most 1000000, received ")
            for value in (0, -1.5, 1e10, np.inf, np.nan, "3", True, None)
        ),
        *(
            ({"retries": value}, "retries: expected a whole number >= 0, received ")
            for value in (-1, 1.5, 2.0, "3", True, None)
        ),
        ({"retries": 5, "protocol": "grpc"}, r"from 0 to 4 \(gRPC\), received 5"),
        *(
            ({"batch_size": value}, "batch_size: expected a whole number >= 1, received ")
            for value in (0, 8.0, "8", True, None)
        ),
        *(
            ({"version": value}, "version: expected a whole number >= 0, received ")
            for value in (-1, 1.5, "1", True, 2**63)
        ),
        ({"headers": ["a"]}, "headers: expected names with lines of ASCII, received list"),
        ({"headers": {"a": 1}}, "headers: expected names with lines of ASCII, received 'a'"),
        ({"headers": {"a b": "c"}}, "headers: expected names with lines of ASCII, received 'a b'"),
        ({"headers": {"a": "b\nc"}}, "headers: expected names with lines of ASCII, received 'a'"),
        ({"version": 1, "label": "a"}, "version, label: expected one of them"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Client(**{"address": "127.0.0.1:1", "model": "tiny", **arguments})


@pytest.mark.parametrize("timeout", [1e6, np.float32(30), Fraction(99, 2)])
def test_numbers_of_other_kinds_are_arguments_too(double, timeout):
    options = {"retries": np.int64(3), "batch_size": np.uint8(2), "version": np.int32(1)}
    with Client(double.address, "tiny", timeout=timeout, **options) as client:
        check_equal(client.predict(IMAGES), IMAGES)


def cut_short(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"predictions": [')
    handler.close_connection = True


def packed(handler):
    """Compressed, in chunks."""
    body = json.dumps({"outputs": answers(IMAGES)}).encode()
    body = gzip.compress(body)
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for start in range(0, len(body), 7):
        part = body[start : start + 7]
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
    handler.wfile.write(b"0\r\n\r\n")
    handler.close_connection = True


def test_compressed_answers_in_chunks(double):
    double.script = [None, packed]
    with Client(double.address, "tiny", form="columns") as client:
        check_equal(client.predict(IMAGES), IMAGES)


@pytest.mark.parametrize(
    "trouble", [(429, {}), (502, b""), (503, {}), (504, {}), "reset", cut_short]
)
def test_transient_trouble_is_tried_again(double, trouble):
    double.script = [trouble, None, trouble, trouble]
    with Client(double.address, "tiny") as client:
        check_equal(client.predict(IMAGES), IMAGES)
    assert [method for method, *_ in double.seen] == ["GET"] * 2 + ["POST"] * 3


@pytest.mark.parametrize(
    "status, error, message",
    [
        (400, ValueError, "received HTTP 400: no such thing"),
        (404, ValueError, "received HTTP 404: no such thing"),
        (413, ValueError, "received HTTP 413: no such thing"),
        (500, RuntimeError, "received HTTP 500: no such thing"),
        (302, RuntimeError, "received HTTP 302: no such thing"),
    ],
)
def test_other_trouble_is_not(double, status, error, message):
    double.script = [None, (status, {"error": "no such\n thing"})]
    with Client(double.address, "tiny") as client, pytest.raises(error, match=message) as info:
        client.predict(IMAGES)
    assert str(info.value).startswith(f"http://{double.address}/v1/models/tiny:predict: expected ")
    assert len(double.seen) == 2


def test_an_overloaded_server_is_named_after_all_attempts(double):
    double.script = [None, *[(503, {"error": "full"})] * 3]
    with Client(double.address, "tiny", retries=2) as client:
        message = r"received HTTP 503: full \(3 attempts\)"
        with pytest.raises(ConnectionError, match=message):
            client.predict(IMAGES)
        double.script = [(503, b"full")]
        assert not client.ready()


def test_the_server_says_when_to_come_again(double):
    double.script = [(503, {}, ("Retry-After", "60"))]
    with Client(double.address, "tiny", timeout=20) as client:
        message = "within 20 s, received none; last: HTTP 503"
        with pytest.raises(TimeoutError, match=message):
            client.predict(IMAGES)
    # It is no use to wait for a time beyond the deadline.
    assert len(double.seen) == 1


@pytest.mark.parametrize("after", ["9" * 30, "Thu, 31 Dec 2999 23:59:59 GMT"])
def test_the_server_says_to_come_again_in_ages(double, after):
    double.script = [(503, {}, ("Retry-After", after))]
    with (
        Client(double.address, "tiny", timeout=20) as client,
        pytest.raises(TimeoutError, match="within 20 s, received none; last: HTTP 503"),
    ):
        client.predict(IMAGES)
    assert len(double.seen) == 1


@pytest.mark.parametrize(
    "after",
    ["0", "\N{SUPERSCRIPT TWO}", "-1", "1.5", "1, 2", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"]
    + ["Sun, 06 Nov 99999 08:49:37 GMT", "9" * 5000],
)
def test_the_server_says_nothing_of_use(double, after):
    double.script = [(503, {}, ("Retry-After", after))]
    with Client(double.address, "tiny") as client:
        check_equal(client.predict(IMAGES), IMAGES)


def drip(handler):
    """Never stops to answer, and never ends."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.01)
    except OSError:
        pass


def test_the_deadline_is_one_of_the_whole_call(double):
    with Client(double.address, "tiny", timeout=0.5) as client:
        double.script = [None, drip]
        with pytest.raises(TimeoutError, match="tiny:predict: expected an answer within 0.5 s"):
            client.predict(IMAGES)
        silent = threading.Event()
        double.script = [lambda handler: silent.wait(10)]
        with pytest.raises(TimeoutError, match="within 0.5 s, received none"):
            client.predict(IMAGES)
        silent.set()


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX-Trickle: "])
def test_the_deadline_is_one_of_status_and_headers_too(double, start):
    gone = threading.Event()

    def trickle(handler):
        try:
            handler.wfile.write(start)
            for _ in range(600):
                handler.wfile.write(b"H")
                time.sleep(0.05)
        except OSError:
            gone.set()

    with Client(double.address, "tiny", timeout=0.5) as client:
        double.script = [None, trickle]
        with pytest.raises(TimeoutError, match="tiny:predict: expected an answer within 0.5 s"):
            client.predict(IMAGES)
        # Nor does anything of the client go on listening.
        assert gone.wait(60)
        check_equal(client.predict(IMAGES), IMAGES)


def test_the_deadline_is_one_of_the_look_up_of_a_name_too(monkeypatch):
    silent, ended = threading.Event(), threading.Event()

    def look_up(*arguments, **options):
        silent.wait(20)
        ended.set()
        raise socket.gaierror(socket.EAI_AGAIN, "nobody answered")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with Client("nowhere.invalid:8501", "tiny", timeout=0.5) as client:
        with pytest.raises(TimeoutError, match="expected an answer within 0.5 s, received none"):
            client.predict(IMAGES)
        assert not ended.is_set()
        silent.set()


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_nobody_there(protocol):
    with Client(f"127.0.0.1:{free_port()}", "tiny", protocol=protocol, retries=1) as client:
        assert not client.ready()
        with pytest.raises(
            ConnectionError, match=r"127.0.0.1:.*tiny.*[Cc]onnection refused.*2 att"
        ):
            client.predict(IMAGES)


def test_a_server_that_comes_back():
    port = free_port()
    client = Client(f"127.0.0.1:{port}", "tiny", retries=100)
    with futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.predict, IMAGES)
        time.sleep(0.3)
        assert not waiting.done()
        double = Double(port)
        try:
            check_equal(waiting.result(), IMAGES)
        finally:
            client.close()
            double.close()


def without(name):
    return {key: value for key, value in answers(IMAGES).items() if key != name}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"<html>", "expected JSON, received b'<html>'"),
        ({"outputs": {}}, "expected predictions, received"),
        ([1], "expected predictions, received"),
        ({"predictions": [1, 2]}, "received one without a name"),
        ({"predictions": [{"a": 1}, {}]}, "expected the same names in each row"),
        ({"predictions": []}, "expected 5 predictions, received 0"),
        ({"predictions": [{"a": 1}] * 6}, "expected 5 predictions, received 6"),
        ({"predictions": {"a": [1] * 5}}, "expected the answers .* received one without a name"),
        (b"[" * 100_000, "expected JSON, received"),
        (json.dumps("two\nlines").encode(), "expected predictions, received two lines$"),
        ({"predictions": [{"a": 1}] * 5}, "expected the answers predicted, .* received a"),
    ],
)
def test_answers_that_are_none(double, content, message):
    double.script = [None, (200, content)]
    with Client(double.address, "tiny") as client, pytest.raises(RuntimeError, match=message):
        client.predict(IMAGES)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"accept": [1] * 5}, r"expected accept bool \[5\], received int64 \[5\]"),
        ({"predicted": [0.5] * 5}, r"expected predicted int64 \[5\], received float64"),
        ({"uncertainty": [0.1] * 4}, r"expected uncertainty float32 \[5\], received float64 \[4\]"),
        ({"uncertainty": [None] * 5}, "expected uncertainty float32"),
        ({"probs": [0.1] * 5}, r"expected probs float32 \[5, k\], received float64 \[5\]"),
        ({"probs": [[0.1], [0.1, 0.2]] * 2}, r"expected probs float32 \[5, k\]"),
        ({"probs": [[0.1]] * 6}, r"expected probs float32 \[5, k\], received float64 \[6, 1\]"),
        ({"probs": {"a": 1}}, r"expected probs float32 \[5, k\]"),
        ({"predicted": [10**400, 0.5, 0, 0, 0]}, r"expected predicted int64 \[5\]"),
        ({"accept": None}, r"expected accept bool \[5\]"),
        ({"class_name": [1] * 5}, r"expected class_name str \[5\], received object"),
        ({"class_name": ["cat"] * 4 + [1]}, r"expected class_name str \[5\], received object"),
        ({"class_name": ["cat"] * 4 + [["dog"]]}, r"expected class_name str \[5\]"),
    ],
)
def test_answers_of_another_kind(double, change, message):
    double.script = [None, (200, {"outputs": answers(IMAGES) | change})]
    with (
        Client(double.address, "tiny", form="columns") as client,
        pytest.raises(RuntimeError, match=message),
    ):
        client.predict(IMAGES)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("predicted", -5, "predicted from 0 to 2, received -5 in row 3$"),
        ("predicted", 3, "predicted from 0 to 2, received 3 in row 3$"),
        ("predicted", 2**63, "predicted (from 0 to 2|int64 .*), received "),
        ("uncertainty", 5, "uncertainty from 0 to 1, .* received 5 in row 3$"),
        ("uncertainty", -0.1, "uncertainty from 0 to 1, .* received -0.1 in row 3$"),
        ("uncertainty", 1e300, "uncertainty from 0 to 1, .* received inf in row 3$"),
        ("uncertainty", -INF, "uncertainty from 0 to 1, .* received -inf in row 3$"),
        ("uncertainty", NAN, ".*, or NaN where accept is false, received nan in row 3$"),
        ("probs", [0.5, 0.6, -0.1], "probs from 0 to 1, .* received -0.1"),
        ("probs", [0, 0, 1.5], "probs from 0 to 1, .* received 1.5"),
        ("probs", [NAN, 0, 0], ".*, or NaN where accept is false, received nan in row 3$"),
    ],
)
@pytest.mark.parametrize("form", ["rows", "columns"])
def test_answers_out_of_range(double, form, name, value, message):
    images = np.zeros((5, 2, 2, 1), np.uint8)
    columns = answers(images) | {"accept": [True] * 5}
    columns[name] = list(columns[name])
    columns[name][3] = value
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    double.script = [None] + [
        (
            200,
            {"predictions": rows[i : i + 2]}
            if form == "rows"
            else {"outputs": {key: column[i : i + 2] for key, column in columns.items()}},
        )
        for i in (0, 2, 4)
    ]
    with (
        Client(double.address, "tiny", form=form, batch_size=2) as client,
        pytest.raises(RuntimeError, match=f"tiny: expected {message}") as info,
    ):
        client.predict(images)
    assert "\n" not in str(info.value)


def test_no_answer_is_taken_where_it_is_not_accepted(double):
    """As of a model whose floats overflow."""
    columns = answers(IMAGES)
    columns["accept"] = [True, False, True, True, True]
    columns["uncertainty"][1] = NAN
    columns["probs"][1] = [NAN] * 3
    columns["probs"][0] = [1.0000002, 0, 0]
    double.script = [None, (200, {"outputs": columns})]
    with Client(double.address, "tiny", form="columns") as client:
        found = client.predict(IMAGES)
    assert np.isnan(found["uncertainty"]).tolist() == [False, True, False, False, False]
    assert np.isnan(found["probs"]).all(axis=1).tolist() == [False, True, False, False, False]


def changed(part, value):
    """Metadata with something else in one place, named by the keys to it."""
    content = json.loads(json.dumps(METADATA))
    found = content
    for key in part[:-1]:
        found = found[key]
    found[part[-1]] = value
    return content


MAP = ("metadata", "signature_def", "signature_def")
IMAGE_INFO = (*MAP, "serving_default", "inputs", "images")


@pytest.mark.parametrize(
    "content",
    [
        *([], None, 5, "signatures", [METADATA]),
        *(changed(MAP[:length], value) for length in (1, 2, 3) for value in (None, [], 5, "a")),
        *(changed((*MAP, "serving_default"), value) for value in (None, [], 5)),
        *(changed((*MAP, "serving_default", "inputs"), value) for value in (None, [1], "a")),
        *(changed(IMAGE_INFO, value) for value in (None, [], 5, "DT_UINT8")),
        *(changed((*IMAGE_INFO, "dtype"), value) for value in (None, 4, ["DT_UINT8"])),
        *(changed((*IMAGE_INFO, "tensor_shape"), value) for value in (None, [2, 2], 5)),
        *(changed((*IMAGE_INFO, "tensor_shape", "dim"), value) for value in (None, {}, [2], [[]])),
        *(
            changed((*IMAGE_INFO, "tensor_shape", "dim", 1, "size"), value)
            for value in (None, "many", 1.5, True, [2])
        ),
        changed((*IMAGE_INFO, "tensor_shape", "unknown_rank"), "no"),
    ],
)
def test_metadata_that_are_none(double, content):
    double.script = [(200, content)]
    message = "tiny/metadata: expected signatures, received"
    with Client(double.address, "tiny") as client:
        with pytest.raises(RuntimeError, match=message) as info:
            client.predict(IMAGES)
        assert "\n" not in str(info.value)
        # It may know better now.
        check_equal(client.predict(IMAGES), IMAGES)


@pytest.mark.parametrize("content", [{}, {"metadata": {}}, changed(MAP, {})])
def test_metadata_that_say_nothing(double, content):
    double.script = [(200, content)]
    with Client(double.address, "tiny") as client:
        check_equal(client.predict(IMAGES), IMAGES)


def test_a_type_that_numpy_does_not_have(double):
    double.script = [(200, changed((*IMAGE_INFO, "dtype"), "DT_QUINT8"))]
    message = r"images: expected DT_QUINT8 \[n, 2, 2, 1\], received uint8"
    with Client(double.address, "tiny") as client, pytest.raises(ValueError, match=message):
        client.predict(IMAGES)


@pytest.mark.parametrize(
    "content",
    [
        *([], None, 5, "AVAILABLE"),
        *({"model_version_status": value} for value in (None, {}, 5, "AVAILABLE", [None], [[]])),
        {"model_version_status": [{"state": 30}]},
        *({"ready": value} for value in (None, 1, [], "perhaps")),
    ],
)
def test_a_status_that_is_none(double, content):
    double.script = [(200, content)]
    with (
        Client(double.address, "tiny") as client,
        pytest.raises(RuntimeError, match="tiny: expected a model's status, received"),
    ):
        client.ready()


@pytest.mark.parametrize(
    "content",
    [[], None, {"outputs": None}, {"outputs": 5}, {"outputs": [1, [2]]}, {"outputs": {"json": {}}}],
)
def test_about_that_is_none(double, content):
    double.script = [None, (200, content)]
    with (
        Client(double.address, "tiny", form="columns") as client,
        pytest.raises(RuntimeError, match="expected"),
    ):
        client.about()


FILES_OF_TEN = [bytes([i, 250]) for i in range(10)]


def refusing(*places, status=400):
    """Answers but for requests with one of these of `FILES_OF_TEN`."""
    bad = {base64.b64encode(FILES_OF_TEN[place]).decode() for place in places}

    def answer(method, path, body):
        if method == "POST" and bad & {item["b64"] for item in body["instances"]}:
            return status, {"error": "no image"}
        return respond(method, path, body)

    return answer


@pytest.mark.parametrize(
    "places, first", [([0], 0), ([3], 3), ([9], 9), ([7, 4], 4), (range(10), 0)]
)
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_broken_file_is_named(double, places, first, batch_size):
    double.respond = refusing(*places)
    message = rf"^files: .* in place {first} one that is refused; .*:predict: .* 400: no image$"
    with Client(double.address, "tiny", batch_size=batch_size) as client:
        with pytest.raises(ValueError, match=message):
            client.predict_bytes(FILES_OF_TEN)
    # By halves.
    assert len(double.seen) <= 1 + -(-10 // batch_size) + 2 * 4


def test_files_are_only_looked_at_when_they_are_refused(double):
    double.respond = refusing(3, status=404)
    with Client(double.address, "tiny") as client:
        with pytest.raises(ValueError, match="received HTTP 404: no image$"):
            client.predict_bytes(FILES_OF_TEN)
    assert len(double.seen) == 2


def test_a_request_of_sound_files_that_is_refused(double):
    double.script = [None, (400, {"error": "too many"})]
    with Client(double.address, "tiny") as client:
        with pytest.raises(ValueError, match="received HTTP 400: too many$"):
            client.predict_bytes(FILES_OF_TEN)
    assert len(double.seen) == 2 + 2


@pytest.mark.parametrize("trouble", [(500, {}), (200, []), drip], ids=["500", "nothing", "drip"])
def test_the_refusal_counts_when_the_file_cannot_be_found(double, trouble):
    double.script = [None, (400, {"error": "no image"}), trouble]
    with Client(double.address, "tiny", timeout=2) as client:
        with pytest.raises(ValueError, match="received HTTP 400: no image$"):
            client.predict_bytes(FILES_OF_TEN)
    assert len(double.seen) == 3


@pytest.mark.parametrize(
    "content, ready",
    [
        ((200, {"model_version_status": [{"state": "LOADING"}, {"state": "AVAILABLE"}]}), True),
        ((200, {"model_version_status": [{"state": "LOADING"}]}), False),
        ((200, {"model_version_status": []}), False),
        ((200, {"name": "tiny", "ready": True}), True),
        ((200, {"name": "tiny", "ready": "False"}), False),
        ((404, {"error": "no tiny"}), False),
        ((503, {"error": "ModelNotReady"}), False),
    ],
)
def test_ready(double, content, ready):
    double.script = [content]
    with Client(double.address, "tiny") as client:
        assert client.ready() is ready
    assert len(double.seen) == 1


def test_ready_where_waiting_is_no_help(double):
    double.script = [(403, {"error": "no"})]
    with (
        Client(double.address, "tiny") as client,
        pytest.raises(ValueError, match="HTTP 403: no"),
    ):
        client.ready()


def test_the_rest_client_needs_no_tensorflow(double):
    code = (
        "import sys, numpy as np\n"
        "from btcp_tf.client import Client\n"
        f"answers = Client({double.address!r}, 'tiny').predict(np.zeros((2, 2, 2, 1), np.uint8))\n"
        "assert len(answers['accept']) == 2\n"
        "print({'tensorflow', 'keras', 'grpc', 'google.protobuf'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()", done.stderr


class Servicer:
    """A gRPC double in this process: the official services, answers by the tiny SavedModel."""

    def __init__(self, model):
        self.model, self.trouble, self.seen = model, [], []
        self.metadata = self.outputs = None  # to answer in place of the right ones

    def start(self, port=0):
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

        server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return server

    def enter(self, request, context):
        self.seen.append((request, dict(context.invocation_metadata())))
        step = self.trouble.pop(0) if self.trouble else None
        if step is not None:
            context.abort(step, "in trouble")

    def Predict(self, request, context):
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        self.enter(request, context)
        answer = predict_pb2.PredictResponse()
        signature = self.model.signatures[request.model_spec.signature_name]
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        try:
            outputs = signature(**{name: tf.constant(value) for name, value in inputs.items()})
        except tf.errors.InvalidArgumentError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        if self.outputs:
            return predict_pb2.PredictResponse(outputs=self.outputs)
        for name, value in outputs.items():
            answer.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return answer

    def GetModelMetadata(self, request, context):
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_metadata_pb2

        self.enter(request, context)
        found = get_model_metadata_pb2.SignatureDefMap()
        json_format.ParseDict({"signature_def": SIGNATURES}, found)
        if self.metadata:
            return get_model_metadata_pb2.GetModelMetadataResponse(metadata=self.metadata)
        answer = get_model_metadata_pb2.GetModelMetadataResponse()
        answer.metadata["signature_def"].Pack(found)
        return answer

    def GetModelStatus(self, request, context):
        from tensorflow_serving.apis import get_model_status_pb2 as messages

        self.enter(request, context)
        available = messages.ModelVersionStatus.AVAILABLE
        status = messages.ModelVersionStatus(version=1, state=available)
        return messages.GetModelStatusResponse(model_version_status=[status])

    def __getattr__(self, name):
        # The other methods of the services, which nobody calls.
        if name.startswith("_"):
            raise AttributeError(name)
        return None


def png():
    file = io.BytesIO()
    PIL.Image.fromarray(IMAGES[0, ..., 0]).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def servicer(tmp_path_factory):
    import tensorflow as tf

    path, answer = tiny_model.save(tmp_path_factory.mktemp("models") / "1", shape=(2, 2, 1))
    found = Servicer(tf.saved_model.load(str(path)))
    found.answer = answer
    server = found.start()
    yield found
    server.stop(None)


@pytest.fixture
def over_grpc(servicer):
    servicer.seen.clear()
    servicer.trouble.clear()
    servicer.metadata = servicer.outputs = None
    with Client(
        f"127.0.0.1:{servicer.port}",
        "tiny",
        protocol="grpc",
        batch_size=2,
        label="stable",
        headers={"Authorization": "key"},
    ) as client:
        yield client


def test_grpc(servicer, over_grpc):
    found = over_grpc.predict(IMAGES)
    probs, uncertainty = servicer.answer(IMAGES)
    np.testing.assert_allclose(found["probs"], probs, atol=1e-6)
    np.testing.assert_allclose(found["uncertainty"], uncertainty, atol=1e-6)
    np.testing.assert_array_equal(found["class_name"], NAMES[probs.argmax(axis=1)])
    np.testing.assert_array_equal(found["accept"], found["uncertainty"].astype(np.float64) < 0.55)
    assert [found[name].dtype.kind for name in ANSWERS] == ["i", "U", "f", "f", "b"]
    assert over_grpc.ready()
    assert len(servicer.seen) == 1 + 3 + 1
    for request, headers in servicer.seen:
        assert request.model_spec.name == "tiny"
        assert request.model_spec.version_label == "stable"
        assert headers["authorization"] == "key"
    assert over_grpc.about()["class_names"] == list(NAMES)
    with pytest.raises(ValueError, match=r"expected uint8 \[n, 2, 2, 1\], received float64"):
        over_grpc.predict(IMAGES / 255)
    assert over_grpc.predict(IMAGES[:0])["probs"].shape == (0, 3)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_grpc_retries(servicer, over_grpc, code):
    code = grpc.StatusCode[code]
    servicer.trouble = [None, code, code]
    images = np.zeros((1, 2, 2, 1), np.uint8)
    assert len(over_grpc.predict(images)["accept"]) == 1
    assert len(servicer.seen) == 4
    servicer.trouble = [code] * 5
    with pytest.raises(ConnectionError, match=rf"received {code.name}: in trouble \(up to 5 att"):
        over_grpc.predict(images)
    servicer.trouble = [grpc.StatusCode.UNAVAILABLE]
    assert not over_grpc.ready()


def test_grpc_retries_large_requests(servicer):
    """By default, requests above 256 KiB are not."""
    servicer.trouble = [None, grpc.StatusCode.UNAVAILABLE]
    images = np.zeros((100_000, 2, 2, 1), np.uint8)
    address = f"127.0.0.1:{servicer.port}"
    with Client(address, "tiny", protocol="grpc", batch_size=len(images)) as client:
        assert len(client.predict(images)["accept"]) == len(images)


@pytest.mark.parametrize(
    "code, error",
    [
        ("INVALID_ARGUMENT", ValueError),
        ("NOT_FOUND", ValueError),
        ("FAILED_PRECONDITION", ValueError),
        ("INTERNAL", RuntimeError),
        ("DEADLINE_EXCEEDED", TimeoutError),
    ],
)
def test_grpc_does_not_retry_the_rest(servicer, over_grpc, code, error):
    servicer.trouble = [None, grpc.StatusCode[code]]
    with pytest.raises(error, match="grpc://127.0.0.1:.*/tiny/stable: expected an answer"):
        over_grpc.predict(IMAGES)
    assert len(servicer.seen) == 2


def test_a_grpc_server_without_metadata_judges_for_itself(servicer, over_grpc):
    servicer.trouble = [grpc.StatusCode.UNIMPLEMENTED]
    assert len(over_grpc.predict(IMAGES)["accept"]) == 5
    servicer.trouble = [grpc.StatusCode.NOT_FOUND]
    assert not over_grpc.ready()


@pytest.mark.parametrize("value", [b"\xff", None])
def test_grpc_metadata_that_are_none(servicer, over_grpc, value):
    """No message at all, or one of another kind."""
    told = any_pb2.Any(type_url="type.googleapis.com/tensorflow.serving.SignatureDefMap")
    if value is None:
        told.Pack(wrappers_pb2.Int64Value(value=3))
    else:
        told.value = value
    servicer.metadata = {"signature_def": told}
    with pytest.raises(RuntimeError, match="/tiny/stable: expected signatures, received") as info:
        over_grpc.predict(IMAGES)
    assert "\n" not in str(info.value)
    servicer.metadata = {"else": told}
    assert len(over_grpc.predict(IMAGES)["accept"]) == 5


@pytest.mark.parametrize("fields", [{"dtype": 1}, {"dtype": 99}, {"dtype": 3, "shape": 7}])
def test_grpc_answers_that_are_none(servicer, over_grpc, fields):
    """Without values, of an unknown type, of too few values."""
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2

    shape = tensor_shape_pb2.TensorShapeProto(
        dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=fields.get("shape", 2))]
    )
    tensor = tensor_pb2.TensorProto(
        dtype=fields["dtype"], tensor_shape=shape, tensor_content=b"123"
    )
    servicer.outputs = dict.fromkeys(ANSWERS, tensor)
    with pytest.raises(RuntimeError, match="expected tensors, received"):
        over_grpc.predict(IMAGES)


def test_grpc_names_a_broken_file(servicer, over_grpc):
    files = [png(), png(), png(), b"no image", png()]
    assert len(over_grpc.predict_bytes(files[:3])["accept"]) == 3
    message = r"^files: .* in place 3 one that is refused; .* received INVALID_ARGUMENT: "
    with pytest.raises(ValueError, match=message):
        over_grpc.predict_bytes(files)


def test_a_grpc_server_that_comes_back(servicer):
    port = free_port()
    again = Servicer(servicer.model)
    with Client(f"127.0.0.1:{port}", "tiny", protocol="grpc") as client:
        with pytest.raises(ConnectionError, match="[Cc]onnection refused"):
            client.predict(IMAGES)
        server = again.start(port)
        try:
            # Through the same channel.
            while not client.ready():
                time.sleep(0.05)
            assert len(client.predict(IMAGES)["accept"]) == 5
        finally:
            server.stop(None)


def endless(handler):
    """An answer of a gigabyte and more, in pieces that a server makes as it goes."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    piece = b"100000\r\n" + bytes(2**20) + b"\r\n"
    with contextlib.suppress(ConnectionError):
        for _ in range(1024):
            handler.wfile.write(piece)
        pytest.fail("all of it was read")


def squeezed(handler):
    """A quarter of a megabyte that is 256 of them."""
    content = gzip.compress(bytes(2**28 + 1))
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    with contextlib.suppress(ConnectionError):
        handler.wfile.write(content)


@pytest.mark.parametrize("answer", [endless, squeezed])
def test_an_answer_without_an_end_is_cut_off(double, answer):
    with Client(double.address, "tiny") as client:
        client.predict(IMAGES)
        double.script = [answer]
        with pytest.raises(RuntimeError, match="expected an answer of at most 256 MiB, received"):
            client.predict(IMAGES)
        assert not double.script
        # The client goes on with the next one.
        check_equal(client.predict(IMAGES), IMAGES)


def test_a_large_answer_over_grpc_is_cut_off(servicer, monkeypatch):
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 1000)
    servicer.trouble.clear()
    with Client(f"127.0.0.1:{servicer.port}", "tiny", protocol="grpc", batch_size=200) as client:
        with pytest.raises(RuntimeError, match="expected an answer of at most 0 MiB, received"):
            client.predict(np.repeat(IMAGES, 50, axis=0)[:200])
