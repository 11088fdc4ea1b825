"""The files for TensorFlow Serving, and a real server that speaks its protocols.

`python -m pytest -m servers tests/serving/test_serving.py` starts Ray Serve (extra `ray`), about a
minute; what has no such marker reads files alone.
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import keras
import numpy as np
import PIL.Image
import pytest
import requests
import tensorflow as tf
import tiny_model
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.config import model_server_config_pb2

from btcp_tf import thresholds
from btcp_tf.serving import saved_model
from btcp_tf.serving.client import ANSWERS, Client

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "serving"
SHAPE = (4, 4, 1)
IMAGES = np.random.default_rng(1).integers(256, size=(7, *SHAPE), dtype=np.uint8)
ROWS = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)


# The files.


def message(name, fields, of=None):
    """A message class of TensorFlow Serving that its Python package leaves out.

    Fields by name: number, type, whether it is repeated.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto", package="tensorflow.serving", syntax="proto3"
    )
    file.dependency.append("google/protobuf/wrappers.proto")
    kinds = descriptor_pb2.FieldDescriptorProto
    described = file.message_type.add(name=name)
    inner = {"PrometheusConfig": described.nested_type.add(name="PrometheusConfig")}
    inner["PrometheusConfig"].field.add(name="enable", number=1, type=kinds.TYPE_BOOL, label=1)
    inner["PrometheusConfig"].field.add(name="path", number=2, type=kinds.TYPE_STRING, label=1)
    for field, (number, kind, repeated) in fields.items():
        added = described.field.add(name=field, number=number, label=3 if repeated else 1)
        if kind.startswith("."):
            added.type, added.type_name = kinds.TYPE_MESSAGE, kind
        else:
            added.type = getattr(kinds, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    from google.protobuf import wrappers_pb2

    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"tensorflow.serving.{name}")
    )()


WRAPPED = ".google.protobuf.Int64Value"
# tensorflow/serving: tensorflow_serving/servables/tensorflow/session_bundle_config.proto
BATCHING = {
    "max_batch_size": (1, WRAPPED, False),
    "batch_timeout_micros": (2, WRAPPED, False),
    "max_enqueued_batches": (3, WRAPPED, False),
    "num_batch_threads": (4, WRAPPED, False),
    "thread_pool_name": (5, ".google.protobuf.StringValue", False),
    "allowed_batch_sizes": (6, "INT64", True),
    "pad_variable_length_inputs": (7, "BOOL", False),
}
# tensorflow/serving: tensorflow_serving/config/monitoring_config.proto
MONITORING = {
    "prometheus_config": (1, ".tensorflow.serving.MonitoringConfig.PrometheusConfig", False)
}


def read(name, into):
    return text_format.Parse((EXAMPLES / name).read_text(encoding="utf-8"), into)


def test_models_config():
    found = read("models.config", model_server_config_pb2.ModelServerConfig())
    (model,) = found.model_config_list.config
    served = list(model.model_version_policy.specific.versions)
    assert len(served) == 2
    assert set(model.version_labels) == {"stable", "canary"}
    assert sorted(model.version_labels.values()) == served
    assert model.model_platform == "tensorflow"
    # The folder below which the command of the README mounts the models.
    assert model.base_path == f"/models/{model.name}"


def test_batching_config():
    found = read("batching.config", message("BatchingParameters", BATCHING))
    sizes = list(found.allowed_batch_sizes)
    assert sizes == sorted(sizes)
    assert sizes[-1] == found.max_batch_size.value
    assert found.num_batch_threads.value >= 1


def test_monitoring_config():
    found = read("monitoring.config", message("MonitoringConfig", MONITORING))
    assert found.prometheus_config.enable
    assert found.prometheus_config.path.startswith("/")


def test_the_readme_names_files_that_are_there():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"[\w.]+\.config\b", text):
        assert (EXAMPLES / name).is_file()


def readme_bodies():
    """The JSON that the README's commands send."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    return re.findall(r"-d '(\{.*?\})'", text)


# The server.


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Server:
    """`examples/serving/ray_serve.py` in a process of its own."""

    def __init__(self, models, log, *options):
        self.ports = dict(zip(("rest", "grpc"), free_ports(2), strict=True))
        self.command = [
            *(sys.executable, str(EXAMPLES / "ray_serve.py"), *options),
            *(f"--{protocol}_port={port}" for protocol, port in self.ports.items()),
            *(f"--model={model}" for model in models),
        ]
        self.log = log
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Else Ray takes the pytest worker's settings for those of its own workers.
                env={name: value for name, value in os.environ.items() if "PYTEST" not in name},
            )
        for line in self.process.stdout:
            if line.startswith("serving "):
                self.ready = line.strip()
                # Its later words would fill the pipe and stop it.
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise RuntimeError(f"expected a server, received\n{self.log.read_text()[-3000:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def client(self, protocol, model="tiny", **options):
        return Client(f"127.0.0.1:{self.ports[protocol]}", model, protocol=protocol, **options)


def export(root):
    """A network of Keras, exported as those that are trained."""
    keras.utils.set_random_seed(1)
    images = keras.Input(SHAPE, dtype="uint8")
    features = keras.layers.Conv2D(4, 3, activation="relu")(keras.layers.Rescaling(1 / 255)(images))
    features = keras.layers.Flatten()(keras.layers.BatchNormalization()(features))
    outputs = {
        "probs": keras.layers.Dense(3, activation="softmax")(features),
        "uncertainty": keras.layers.Dense(1, activation="sigmoid")(features),
    }
    model = keras.Model(images, outputs)
    u = np.sort(model(IMAGES, training=False)["uncertainty"].numpy()[:, 0].astype(np.float64))
    threshold = thresholds.given(np.arange(len(u)) % 2 == 1, u, tau=float(u[2:4].mean()))
    names = ("cat", "dog", "été")
    return saved_model.export(model, root, "real", names, IMAGES, threshold=threshold)


def save_gated(folder, gate):
    """A model that answers once the file `gate` is there."""
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec((None, *SHAPE), tf.uint8, name="images")])
    def serving_default(images):
        # The pattern changes from turn to turn, so that no optimizer looks only once.
        def is_closed(turn):
            pattern = tf.strings.join([gate, tf.where(turn % 2 == 0, "", "*")])
            return tf.equal(tf.size(tf.io.matching_files(pattern)), 0)

        turns = tf.while_loop(is_closed, lambda turn: (turn + 1,), [tf.constant(0)])[0]
        zeros = tf.cast(images[:, 0, 0, 0], tf.float32) * 0 + tf.cast(turns, tf.float32) * 0
        return {
            "predicted": tf.cast(zeros, tf.int64),
            "class_name": tf.strings.as_string(zeros, precision=0),
            "probs": tf.stack([zeros + 1, zeros], axis=1),
            "uncertainty": zeros,
            "accept": zeros < 1,
        }

    tf.saved_model.save(module, str(folder), {"serving_default": serving_default})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_model.save(root / "tiny" / "1", shape=SHAPE, seed=1)
    tiny_model.save(root / "tiny" / "2", shape=SHAPE, seed=2)
    tiny_model.save(root / "small" / "1", shape=(2, 2, 1))
    tiny_model.save(root / "digits" / "1", shape=(8, 8, 1), class_names="0123456789")
    tiny_model.save(root / "rows" / "1", shape=(5,), dtype="float32")
    export(root)
    save_gated(root / "gated" / "1", str(root / "opened"))
    return root


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    if importlib.util.find_spec("ray") is None:
        pytest.fail("expected ray[serve], of the extra [ray], received none")
    paths = [f"{path.parent.name}={path}" for path in sorted(models.glob("*/*")) if path.is_dir()]
    log = tmp_path_factory.mktemp("log") / "server.log"
    found = Server(paths, log, "--max_ongoing=2", "--max_queued=1")
    yield found
    found.stop()


both = pytest.mark.parametrize("protocol", ["rest", "grpc"])


def in_process(path, signature, batch_size=64, **inputs):
    """The SavedModel's own answers, in the same batches: others round differently."""
    answer = tf.saved_model.load(str(path)).signatures[signature]
    ((name, values),) = inputs.items()
    parts = [
        answer(**{name: tf.constant(values[start : start + batch_size])})
        for start in range(0, len(values), batch_size)
    ]
    return {key: np.concatenate([part[key].numpy() for part in parts]) for key in ANSWERS}


def check_equal(found, wanted):
    assert list(found) == list(ANSWERS)
    for name, want in wanted.items():
        want = np.char.decode(want.astype(bytes), "utf-8") if want.dtype == object else want
        assert found[name].dtype.kind == want.dtype.kind
        np.testing.assert_array_equal(found[name], want, strict=want.dtype.kind != "U")


def files():
    """PNG and JPEG files of the images, some in another size."""
    found = []
    for i, image in enumerate(IMAGES):
        file = io.BytesIO()
        picture = PIL.Image.fromarray(image[..., 0])
        if i % 3 == 0:
            picture = picture.resize((9, 6))
        picture.save(file, "PNG" if i % 2 else "JPEG")
        found.append(file.getvalue())
    return found


@pytest.mark.servers
@both
@pytest.mark.parametrize("batch_size", [3, 64])
@pytest.mark.parametrize(
    "name, version", [("tiny", None), ("tiny", 1), ("tiny", 2), ("real", None)]
)
def test_answers_are_those_of_the_saved_model(server, models, protocol, name, version, batch_size):
    floats = (IMAGES + np.float32(0.3)).clip(0, 255)

    path = models / name / str(version or (2 if name == "tiny" else 1))

    def wanted(signature, **inputs):
        return in_process(path, signature, batch_size, **inputs)

    with server.client(protocol, name, version=version, batch_size=batch_size) as client:
        assert client.ready()
        check_equal(client.predict(IMAGES), wanted("serving_default", images=IMAGES))
        check_equal(
            client.predict(floats, signature="serving_float"),
            wanted("serving_float", images=floats),
        )
        check_equal(client.predict_bytes(files()), wanted("serving_bytes", image_bytes=files()))
        assert client.predict(IMAGES[:0])["probs"].shape == (0, 3)


@pytest.mark.servers
@both
def test_rows_of_numbers(server, models, protocol):
    wanted = in_process(models / "rows" / "1", "serving_default", images=ROWS)
    with server.client(protocol, "rows") as client:
        check_equal(client.predict(ROWS), wanted)
        # NumPy's own type, rounded to the model's.
        check_equal(client.predict(ROWS.astype(np.float64)), wanted)


@pytest.mark.servers
def test_columns_of_rest(server, models):
    wanted = in_process(models / "tiny" / "2", "serving_default", images=IMAGES)
    with server.client("rest", form="columns") as client:
        check_equal(client.predict(IMAGES), wanted)
        check_equal(
            client.predict_bytes(files()),
            in_process(models / "tiny" / "2", "serving_bytes", image_bytes=files()),
        )


@pytest.mark.servers
def test_about_of_the_server(server, models):
    for name, version in (("tiny", 2), ("real", 1)):
        path = models / name / str(version) / "assets.extra" / "btcp_tf.json"
        wanted = json.loads(path.read_text(encoding="utf-8"))
        for protocol, form in (("grpc", {}), ("rest", {}), ("rest", {"form": "columns"})):
            with server.client(protocol, name, **form) as client:
                assert client.about() == wanted


@pytest.mark.servers
@both
def test_what_the_client_refuses_or_the_server(server, protocol):
    with server.client(protocol) as client:
        with pytest.raises(ValueError, match=r"expected uint8 \[n, 4, 4, 1\], received uint8"):
            client.predict(IMAGES[..., 0])
        with pytest.raises(ValueError, match="expected uint8 .* received float64"):
            client.predict(IMAGES / 255)
        with pytest.raises(ValueError, match="expected finite numbers"):
            client.predict(np.full((1, *SHAPE), np.nan), signature="serving_float")
        with pytest.raises(ValueError, match="expected one of about, serving_bytes, serving_def"):
            client.predict(IMAGES, signature="serving")
        with pytest.raises(ValueError, match="Unknown image file format"):
            client.predict_bytes([*files(), b"no image"])
    for options in ({"model": "nobody"}, {"version": 9}):
        with server.client(protocol, **options) as client:
            assert not client.ready()
            with pytest.raises(ValueError, match=r"(404|NOT_FOUND): Servable not found"):
                client.predict(IMAGES)


@pytest.mark.servers
@pytest.mark.parametrize("word", ["tiny", "=x/1", "tiny=nowhere/1", f"tiny={EXAMPLES}"])
def test_a_model_that_is_none_is_named(word):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_serve.py", f"--model={word}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"expected NAME=DIRECTORY/VERSION with a SavedModel, received {word!r}" in done.stderr


@pytest.fixture
def ray_serve(monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("ray_serve")


@pytest.mark.servers
def test_the_line_that_says_that_it_answers(ray_serve, server, models):
    words = [f"--model=tiny={models}/tiny/{number}" for number in (2, 1)]
    words.append(f"--model=a b={models}/small/1")
    wanted = "serving tiny (versions 1, 2), a b (version 1): "
    found = ray_serve.ready_line(ray_serve.parse(words))
    assert found == f"{wanted}REST http://127.0.0.1:8501/v1/models/tiny, gRPC 127.0.0.1:8500"
    found = ray_serve.ready_line(ray_serve.parse([*words, "--host=::1"]))
    assert found == f"{wanted}REST http://[::1]:8501/v1/models/tiny, gRPC [::1]:8500"
    # What it says is where the models are.
    url, address = re.search(r"REST (\S+), gRPC (\S+)", server.ready).groups()
    assert requests.get(url, timeout=60).json()["model_version_status"]
    assert address == f"127.0.0.1:{server.ports['grpc']}"


@pytest.mark.servers
@pytest.mark.parametrize("setting", ["rest_port", "grpc_port"])
def test_a_port_that_is_taken_is_one_line(ray_serve, models, monkeypatch, capfd, setting):
    monkeypatch.setattr(ray_serve.ray, "init", None)
    ports = dict(zip(("rest_port", "grpc_port"), free_ports(2), strict=True))
    with socket.create_server(("127.0.0.1", ports[setting])):
        words = [f"--model=tiny={models}/tiny/1", *(f"--{n}={p}" for n, p in ports.items())]
        assert ray_serve.main(words) == 1
    told = capfd.readouterr().err
    assert told.startswith(f"error: {setting}: expected a free port, received {ports[setting]}")
    assert told.count("\n") == 1


@pytest.mark.servers
def test_a_ray_that_does_not_start_is_one_line(ray_serve, models, monkeypatch, capfd):
    def failing(*_, **__):
        raise RuntimeError("no shared memory\n  at node 1")

    monkeypatch.setattr(ray_serve.ray, "init", failing)
    monkeypatch.setattr(ray_serve.signal, "signal", lambda *_: None)
    words = [f"--{n}_port={p}" for n, p in zip(("rest", "grpc"), free_ports(2), strict=True)]
    assert ray_serve.main([f"--model=tiny={models}/tiny/1", *words]) == 1
    assert (
        capfd.readouterr().err == "error: Ray: expected it to start, received: no shared memory\n"
    )


@pytest.mark.servers
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rest_port=0"], "rest_port: expected a number from 1 to 65535, received 0"),
        (["--grpc_port=65536"], "grpc_port: expected a number from 1 to 65535, received 65536"),
        (["--grpc_port=8501"], "expected two ports, received 8501 twice"),
    ],
)
def test_ports_that_are_none_are_refused(ray_serve, models, capfd, words, message):
    with pytest.raises(SystemExit) as end:
        ray_serve.parse([f"--model=tiny={models}/tiny/1", *words])
    assert end.value.code == 2 and message in capfd.readouterr().err


@pytest.mark.servers
@pytest.mark.parametrize("body", readme_bodies())
def test_the_requests_of_the_readme_are_answered(server, body):
    url = f"http://127.0.0.1:{server.ports['rest']}/v1/models/small:predict"
    answer = requests.post(url, data=body, timeout=120)
    assert answer.status_code == 200
    found = answer.json()
    row = found["predictions"][0] if "predictions" in found else found["outputs"]
    if json.loads(body)["signature_name"] == "about":
        row = json.loads(row)
        assert row["class_names"] and row["threshold"]
    else:
        assert row.keys() == ANSWERS.keys()


@pytest.mark.servers
def test_the_digits_of_the_readme(server):
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -c .*$", text, re.MULTILINE)
    url = f"http://127.0.0.1:{server.ports['rest']}/v1/models/digits"
    command = command.replace("http://127.0.0.1:8501/v1/models/digits", url)
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "PATH": python}, capture_output=True, text=True
    )
    rows = json.loads(done.stdout)["predictions"]
    assert len(rows) == 2 and all(row.keys() == ANSWERS.keys() for row in rows)


@pytest.mark.servers
def test_the_file_of_the_readme(server, tmp_path):
    """Its command, by its shell, at this server's address."""
    PIL.Image.fromarray(IMAGES[0, ..., 0]).save(tmp_path / "shoe.png")
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^printf .*$", text, re.MULTILINE)
    url = f"http://127.0.0.1:{server.ports['rest']}/v1/models/small"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "URL": url},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["predictions"][0].keys() == ANSWERS.keys(), done.stderr


@pytest.mark.servers
@pytest.mark.parametrize(
    "body, words",
    [
        (b"{", "JSON Parse error"),
        (b'{"instances": ' + b"[" * 100_000, "JSON Parse error"),
        (b'{"instances": ' + b"[" * 900 + b"]" * 900 + b"}", ""),
        (b"[1]", "expected an object"),
        ({"signature_name": 1, "instances": [1]}, "must be a string"),
        ({"signature_name": "x", "instances": [1]}, '"x" not found in signature def'),
        ({}, "either 'inputs' or 'instances'"),
        ({"instances": [1], "inputs": [1]}, "either 'inputs' or 'instances'"),
        ({"instances": []}, "at least one value"),
        ({"instances": 3}, "at least one value"),
        ({"instances": [{"pixels": 1}]}, "expected objects with the keys"),
        ({"instances": [{"images": 1}, 1]}, "objects alone or values alone"),
        ({"inputs": {"pixels": 1}}, "Missing named input: images"),
        ({"instances": [[1, [2]]]}, "equal lengths"),
        ({"instances": [[1, 2]]}, "expected uint8"),
        ({"instances": (IMAGES / 255).tolist()}, "expected uint8, received"),
        ({"instances": (IMAGES + 1.0).tolist()}, "expected uint8, received"),
        ({"instances": ["cat"]}, "expected uint8, received"),
        ({"instances": [{"b64": "AAAA"}]}, "expected uint8, received"),
        ({"signature_name": "serving_bytes", "instances": [{"b64": "?"}]}, "expected text or"),
        ({"signature_name": "serving_bytes", "instances": [3]}, "expected text or"),
    ],
)
def test_bad_requests_are_400_in_words(server, body, words):
    url = f"http://127.0.0.1:{server.ports['rest']}/v1/models/tiny:predict"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = requests.post(url, data=data, timeout=120)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.servers
@pytest.mark.parametrize(
    "signature, inputs, code, words",
    [
        ("serving_default", {"images": IMAGES[..., 0]}, "INVALID_ARGUMENT", "received uint8"),
        ("serving_default", {"images": IMAGES / 255}, "INVALID_ARGUMENT", "received float64"),
        ("serving_default", {"pixels": IMAGES}, "INVALID_ARGUMENT", r"\['images'\], received"),
        ("serving_default", {}, "INVALID_ARGUMENT", r"\['images'\], received"),
        ("serving", {"images": IMAGES}, "INVALID_ARGUMENT", "not found in signature def"),
    ],
)
def test_bad_requests_have_a_grpc_status(server, signature, inputs, code, words):
    """The official stub, without the client's own checks."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "tiny"
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as info:
            stub.Predict(request, timeout=120)
        with pytest.raises(grpc.RpcError) as other:
            stub.GetModelMetadata(
                get_model_metadata_pb2.GetModelMetadataRequest(model_spec=request.model_spec),
                timeout=120,
            )
    assert info.value.code() is grpc.StatusCode[code]
    assert re.search(words, info.value.details())
    assert other.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.servers
def test_nothing_is_accepted_where_a_pixel_is_nan(server):
    """A client of another kind may send what ours refuses."""
    url = f"http://127.0.0.1:{server.ports['rest']}/v1/models/rows:predict"
    body = json.dumps({"inputs": [[float("nan")] * 5]})
    outputs = requests.post(url, data=body, timeout=120).json()["outputs"]
    assert outputs["accept"] == [False]


@pytest.mark.servers
@both
def test_an_overloaded_server(server, models, protocol):
    """Two requests are at work and one waits: no more are let in until the gate is open."""
    gate = models / "opened"
    gate.unlink(missing_ok=True)
    image = IMAGES[:1]

    def ask(retries):
        with server.client(protocol, "gated", retries=retries, timeout=300) as client:
            # What is known of the model takes a request, too; here only predictions count.
            client._knows_signatures = True
            return client.predict(image)

    with futures.ThreadPoolExecutor(16) as pool:
        try:
            asked = [pool.submit(ask, 0) for _ in range(8)]
            done, _ = futures.wait(asked, return_when=futures.FIRST_EXCEPTION)
            full = "HTTP 503" if protocol == "rest" else "RESOURCE_EXHAUSTED"
            for refused in done:
                with pytest.raises(ConnectionError, match=rf"received {full}.*\(1 attempt\)"):
                    refused.result()
            # The first may have been refused while another was on its way from the queue to a
            # worker: one that is let in after it waits with the others, and leaves less room.
            while True:
                again = pool.submit(ask, 1)
                if futures.wait([again], timeout=20).done:
                    break
                asked.append(again)
            with pytest.raises(ConnectionError, match=rf"received {full}.*2 attempts\)"):
                again.result()
            # As patient as it takes; gRPC has too few attempts for that.
            patient = pool.submit(ask, 100) if protocol == "rest" else None
        finally:
            gate.touch()
        if patient:
            assert len(patient.result()["accept"]) == 1
        waited = [future for future in asked if not future.exception()]
        assert waited
        assert all(len(future.result()["accept"]) == 1 for future in waited)
        assert len(ask(4)["accept"]) == 1


@pytest.mark.servers
def test_a_server_that_stops_and_comes_back(server, models):
    """Last, as it stops the server of the tests above."""
    wanted = in_process(models / "tiny" / "2", "serving_default", images=IMAGES)
    with server.client("rest") as rest, server.client("grpc", timeout=60) as over_grpc:
        for client in (rest, over_grpc):
            check_equal(client.predict(IMAGES), wanted)
        server.stop()
        for client in (rest, over_grpc):
            assert not client.ready()
            with pytest.raises(ConnectionError, match=r"[Cc]onnection refused.*5 attempts\)"):
                client.predict(IMAGES)
        with (
            futures.ThreadPoolExecutor() as pool,
            server.client("rest", timeout=300, retries=1000) as patient,
        ):
            until = time.monotonic() + 300

            def ask():
                while True:
                    try:
                        return patient.predict(IMAGES)
                    except ValueError as error:
                        # Ray answers before it knows its own routes.
                        if "HTTP 404" not in str(error) or time.monotonic() > until:
                            raise
                    time.sleep(0.2)

            waiting = pool.submit(ask)
            server.start()
            check_equal(waiting.result(), wanted)
        # The same channel finds the server again.
        while not over_grpc.ready():
            time.sleep(0.2)
        check_equal(over_grpc.predict(IMAGES), wanted)
