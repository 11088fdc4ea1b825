"""The client's REST side against KServe, whose V1 protocol is TensorFlow Serving's row form.

Collected only where KServe is installed, in an environment of its own: `pip install kserve
"tensorflow>=2.21,<2.22" tensorflow-serving-api requests tenacity "pytest-xdist[psutil]" pytest`,
then `python -m pytest -m servers tests/serving/test_client_kserve.py`.

KServe takes the requests apart, puts answers and errors into HTTP, and knows nothing of this
project; the model behind it is ten lines around `tf.saved_model.load`.
"""

import base64
import io
import json
import socket
import subprocess
import sys
import time

import numpy as np
import PIL.Image
import pytest
import requests
import tensorflow as tf
import tiny_model

from btcp_tf.serving.client import ANSWERS, Client

pytest.importorskip("kserve")
pytestmark = pytest.mark.servers

IMAGES = np.random.default_rng(1).integers(256, size=(7, 8, 8, 1), dtype=np.uint8)

SERVER = """
import base64, sys
import kserve
import numpy as np
import tensorflow as tf

class Tiny(kserve.Model):
    def __init__(self, path):
        super().__init__("tiny")
        self.signatures = tf.saved_model.load(path).signatures
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        signature = payload.get("signature_name", "serving_default")
        if signature not in self.signatures:
            raise kserve.errors.InvalidInput(f"no signature {signature}")
        answer = self.signatures[signature]
        ((name, spec),) = answer.structured_input_signature[1].items()
        rows = payload["instances"]
        if spec.dtype == tf.string:
            rows = [base64.b64decode(row["b64"]) for row in rows]
        try:
            outputs = answer(**{name: tf.constant(rows, spec.dtype)})
        except (tf.errors.InvalidArgumentError, TypeError, ValueError) as error:
            raise kserve.errors.InvalidInput(str(error)[:300])
        columns = {key: value.numpy().tolist() for key, value in outputs.items()}
        columns["class_name"] = [text.decode() for text in columns["class_name"]]
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        return {"predictions": rows}

server = kserve.ModelServer(http_port=int(sys.argv[2]), enable_grpc=False, workers=1)
server.start([Tiny(sys.argv[1])])
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model.save(tmp_path_factory.mktemp("models") / "1")[0]


@pytest.fixture(scope="module")
def address(path, tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(path), str(port)], stdout=out, stderr=out
        )
    with Client(f"127.0.0.1:{port}", "tiny") as client:
        while not client.ready():
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait(60)


def in_process(path, signature, batch_size, values):
    answer = tf.saved_model.load(str(path)).signatures[signature]
    name = "image_bytes" if signature == "serving_bytes" else "images"
    parts = [
        answer(**{name: tf.constant(values[start : start + batch_size])})
        for start in range(0, len(values), batch_size)
    ]
    return {key: np.concatenate([part[key].numpy() for part in parts]) for key in ANSWERS}


def check_equal(found, wanted):
    for name, want in wanted.items():
        want = want.astype(str) if want.dtype == object else want
        assert found[name].dtype.kind == want.dtype.kind
        np.testing.assert_array_equal(found[name], want)


@pytest.mark.parametrize("batch_size", [3, 64])
def test_answers_are_those_of_the_saved_model(address, path, batch_size):
    floats = IMAGES.astype(np.float32)
    files = []
    for image in IMAGES:
        file = io.BytesIO()
        PIL.Image.fromarray(image[..., 0]).save(file, "PNG")
        files.append(file.getvalue())
    with Client(address, "tiny", batch_size=batch_size) as client:
        for signature, found, values in (
            ("serving_default", client.predict(IMAGES), IMAGES),
            ("serving_float", client.predict(floats, signature="serving_float"), floats),
            ("serving_bytes", client.predict_bytes(files), files),
        ):
            check_equal(found, in_process(path, signature, batch_size, values))
        assert client.predict(IMAGES[:0])["accept"].shape == (0,)


def test_what_is_refused(address):
    with Client(address, "tiny") as client:
        with pytest.raises(ValueError, match="HTTP 400.*no signature serving"):
            client.predict(IMAGES, signature="serving")
        with pytest.raises(ValueError, match="HTTP 400"):
            client.predict(IMAGES[:1, :5])  # No metadata: it is the graph that cannot reshape it.
        with pytest.raises(ValueError, match="HTTP 400.*Unknown image file format"):
            client.predict_bytes([b"no image"])
        with pytest.raises(ValueError, match="expected finite numbers"):
            client.predict(np.full((1, 8, 8, 1), np.nan), signature="serving_float")
    with Client(address, "nobody") as client:
        assert not client.ready()
        with pytest.raises(ValueError, match="HTTP 404.*nobody"):
            client.predict(IMAGES)


def test_malformed_json_is_refused(address):
    url = f"http://{address}/v1/models/tiny:predict"
    assert requests.post(url, data=b"{", timeout=30).status_code == 400
    row = {"b64": base64.b64encode(b"x").decode()}
    body = json.dumps({"signature_name": "serving_bytes", "instances": [row]})
    assert requests.post(url, data=body, timeout=30).status_code == 400
