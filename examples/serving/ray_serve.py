"""Ray Serve as a model server with TensorFlow Serving's protocols, REST and gRPC.

    python examples/serving/ray_serve.py --model=fashion_mnist=saved_models/fashion_mnist/3

A model is a version directory, as `saved_models/<data set>/<n>`; further ones of the same name are
further versions, and the highest is asked where a request names none. Needs the extra `ray`. One
line says when it answers, and where; Ctrl-C or SIGTERM ends it. Ray opens the gRPC port on all
addresses of the machine, whatever --host says of REST.

REST is read as TensorFlow Serving reads it: `instances` or `inputs`, `signature_name`, bytes as
`{"b64": ...}`; a signature without an input is refused there, as it does. What is not here: labels,
Classify, Regress, batching of several requests, loading versions while it runs.
"""

import argparse
import asyncio
import base64
import binascii
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's proxies import TensorFlow for its messages. On a busy machine that takes longer than the
# three times 5 s after which Ray kills them.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")

import fastapi
import grpc
import numpy as np
import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions
from ray.serve.grpc_util import RayServegRPCContext

SERVICERS = [
    f"tensorflow_serving.apis.{module}_pb2_grpc.add_{service}Servicer_to_server"
    for module, service in (
        ("prediction_service", "PredictionService"),
        ("model_service", "ModelService"),
    )
]

HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INTERNAL: 500,
}

app = fastapi.FastAPI(openapi_url=None)


class Refused(Exception):
    """A request that has no answer: a status code and words."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        super().__init__(words)
        self.code, self.words = code, words


def invalid(words: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, words)


class Model:
    """One SavedModel: its signatures, and tensors in and out."""

    def __init__(self, path: str) -> None:
        import tensorflow as tf
        from tensorflow.core.protobuf import saved_model_pb2

        self._loaded = tf.saved_model.load(path)
        proto = saved_model_pb2.SavedModel.FromString(Path(path, "saved_model.pb").read_bytes())
        # What GetModelMetadata tells: the file's own words.
        self.signature_defs = proto.meta_graphs[0].signature_def

    def inputs(self, signature: str) -> dict[str, Any]:
        """By name the `tf.TensorSpec` of each input."""
        signature = signature or "serving_default"
        if signature not in self._loaded.signatures:
            raise invalid(f'Serving signature name: "{signature}" not found in signature def')
        return self._loaded.signatures[signature].structured_input_signature[1]

    def answer(self, signature: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name; strings as objects of bytes."""
        import tensorflow as tf

        specs = self.inputs(signature)
        if tensors.keys() != specs.keys():
            raise invalid(f"expected the inputs {sorted(specs)}, received {sorted(tensors)}")
        for name, spec in specs.items():
            found = tf.as_dtype(tensors[name].dtype if tensors[name].dtype != object else "string")
            if found != spec.dtype or not spec.shape.is_compatible_with(tensors[name].shape):
                raise invalid(
                    f"{name}: expected {spec.dtype.name} {spec.shape}, "
                    f"received {found.name} {tensors[name].shape}"
                )
        try:
            outputs = self._loaded.signatures[signature or "serving_default"](
                **{name: tf.constant(tensors[name], spec.dtype) for name, spec in specs.items()}
            )
        except tf.errors.InvalidArgumentError as error:
            raise invalid(error.message) from None
        except (tf.errors.ResourceExhaustedError, MemoryError):
            raise invalid(
                "expected inputs for whose answers there is memory, received more; send fewer at "
                "once"
            ) from None
        return {name: value.numpy() for name, value in outputs.items()}


def rest_answer(model: Model, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a `:predict` request, in the form that the request has."""
    signature = body.get("signature_name", "")
    if not isinstance(signature, str):
        raise invalid("'signature_name' key must be a string value")
    specs = model.inputs(signature)
    if not specs:
        raise invalid(f"Failed to get input map for signature: {signature}")
    rows = "instances" in body
    if rows == ("inputs" in body):
        raise invalid("expected either 'inputs' or 'instances', received both or none")
    if rows:
        instances = body["instances"]
        if not isinstance(instances, list) or not instances:
            raise invalid("'instances': expected a list with at least one value")
        if any(_is_named(row) != _is_named(instances[0]) for row in instances):
            raise invalid("'instances': expected objects alone or values alone")
        if _is_named(instances[0]):
            if any(row.keys() != specs.keys() for row in instances):
                raise invalid(f"'instances': expected objects with the keys {sorted(specs)}")
            columns = {name: [row[name] for row in instances] for name in specs}
        else:
            columns = _only(specs, instances)
    else:
        columns = body["inputs"] if _is_named(body["inputs"]) else _only(specs, body["inputs"])
        if missing := specs.keys() - columns.keys():
            raise invalid(f"Missing named input: {', '.join(sorted(missing))} in 'inputs' object.")
    tensors = {name: _to_array(name, columns[name], spec) for name, spec in specs.items()}
    outputs = {
        name: _to_json(name, value) for name, value in model.answer(signature, tensors).items()
    }
    if not rows:
        return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    return {
        "predictions": [
            dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
        ]
    }


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() != {"b64"}


def _only(specs: Mapping[str, Any], value: Any) -> dict[str, Any]:
    if len(specs) > 1:
        raise invalid(f"expected an object with the inputs {sorted(specs)}, received a value")
    return {name: value for name in specs}


def _to_array(name: str, value: Any, spec: Any) -> np.ndarray:
    """A JSON value as an array of the input's type."""
    if spec.dtype.name == "string":
        return np.array(_decoded(name, value), object)
    try:
        found = np.asarray(value)
    except ValueError:
        raise invalid(f"{name}: expected lists of equal lengths") from None
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    kinds = {"f": "iuf", "b": "b"}.get(dtype.kind, "iu")
    if found.dtype.kind not in kinds or (
        dtype.kind in "iu" and not (found.astype(dtype) == found).all()
    ):
        raise invalid(f"{name}: expected {spec.dtype.name}, received {str(value)[:80]}")
    return found.astype(dtype)


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(name, item) for item in value]
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (KeyError, TypeError, binascii.Error):
        raise invalid(f'{name}: expected text or {{"b64": ...}}') from None


def _to_json(name: str, value: np.ndarray) -> Any:
    """An output as JSON has it: strings as text, or base64 where the name ends with _bytes."""
    plain = np.asarray(value).tolist()

    def encoded(item: Any) -> Any:
        if isinstance(item, list):
            return [encoded(part) for part in item]
        if not isinstance(item, bytes):
            return item
        if name.endswith("_bytes"):
            return {"b64": base64.b64encode(item).decode()}
        return item.decode("utf-8", "replace")

    return encoded(plain)


def _spec(request: Any) -> tuple[str, int | None]:
    spec = request.model_spec
    if spec.HasField("version"):
        return spec.name, spec.version.value
    if spec.HasField("version_label"):
        raise Refused(
            grpc.StatusCode.NOT_FOUND, f"Unrecognized servable version label: {spec.version_label}"
        )
    return spec.name, None


def _metadata(name: str, number: int, model: Model) -> Any:
    from tensorflow_serving.apis import get_model_metadata_pb2

    signatures = get_model_metadata_pb2.SignatureDefMap()
    for key, signature in model.signature_defs.items():
        signatures.signature_def[key].CopyFrom(signature)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = name
    response.model_spec.version.value = number
    response.metadata["signature_def"].Pack(signatures)
    return response


def _status(versions: Mapping[int, Model]) -> Any:
    from tensorflow_serving.apis import get_model_status_pb2 as messages

    response = messages.GetModelStatusResponse()
    for number in reversed(versions):
        response.model_version_status.add(
            version=number, state=messages.ModelVersionStatus.AVAILABLE
        )
    return response


def _plain(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


async def _in_thread(work: Any, empty: Any, grpc_context: RayServegRPCContext) -> Any:
    """TensorFlow's work away from the event loop; what is refused becomes a gRPC status."""
    try:
        return await asyncio.to_thread(work)
    except Refused as refused:
        # Ray Serve 2.60 loses code and words of what is raised on its way between two processes.
        grpc_context.set_code(refused.code)
        grpc_context.set_details(refused.words)
        return empty


async def _as_json(work: Any) -> fastapi.Response:
    try:
        content, status = await asyncio.to_thread(work), 200
    except Refused as refused:
        content, status = {"error": refused.words}, HTTP_STATUS[refused.code]
    # NaN is written as it is, which JSON proper has no word for: TensorFlow Serving does the same.
    return fastapi.Response(json.dumps(content), status, media_type="application/json")


# Below what it uses: Ray Serve packs the methods of `app` up as they stand here.
@serve.deployment
@serve.ingress(app)
class ModelServer:
    """All models in one replica; answers one request after another in threads."""

    def __init__(self, paths: Mapping[str, Mapping[int, str]]) -> None:
        self._models = {
            name: {version: Model(path) for version, path in sorted(versions.items())}
            for name, versions in paths.items()
        }

    def _versions(self, name: str, version: int | None) -> dict[int, Model]:
        """The versions that a request is about, ascending."""
        found = self._models.get(name, {})
        if version is not None:
            found = {number: model for number, model in found.items() if number == version}
        if not found:
            asked = "Latest" if version is None else f"Specific, {version}"
            raise Refused(
                grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {asked}({name})"
            )
        return found

    def _latest(self, name: str, version: int | None) -> tuple[int, Model]:
        return list(self._versions(name, version).items())[-1]

    # gRPC: PredictionService and ModelService.

    async def Predict(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        def predict() -> Any:
            number, model = self._latest(*_spec(request))
            tensors = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            signature = request.model_spec.signature_name
            response = predict_pb2.PredictResponse()
            for name, value in model.answer(signature, tensors).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            response.model_spec.name = request.model_spec.name
            response.model_spec.version.value = number
            response.model_spec.signature_name = signature or "serving_default"
            return response

        return await _in_thread(predict, predict_pb2.PredictResponse(), grpc_context)

    async def GetModelMetadata(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        from tensorflow_serving.apis import get_model_metadata_pb2

        def metadata() -> Any:
            number, model = self._latest(*_spec(request))
            if list(request.metadata_field) != ["signature_def"]:
                raise invalid(
                    "expected the metadata_field signature_def, "
                    f"received {list(request.metadata_field)}"
                )
            return _metadata(request.model_spec.name, number, model)

        return await _in_thread(
            metadata, get_model_metadata_pb2.GetModelMetadataResponse(), grpc_context
        )

    async def GetModelStatus(self, request: Any, grpc_context: RayServegRPCContext) -> Any:
        from tensorflow_serving.apis import get_model_status_pb2

        def status() -> Any:
            return _status(self._versions(*_spec(request)))

        return await _in_thread(status, get_model_status_pb2.GetModelStatusResponse(), grpc_context)

    # REST.

    @app.post("/v1/models/{name}:predict")
    @app.post("/v1/models/{name}/versions/{version}:predict")
    async def rest_predict(
        self, request: fastapi.Request, name: str, version: int | None = None
    ) -> fastapi.Response:
        text = await request.body()

        def predict() -> dict[str, Any]:
            _, model = self._latest(name, version)
            try:
                body = json.loads(text)
                if not isinstance(body, dict):
                    raise invalid("JSON Value: expected an object")
                return rest_answer(model, body)
            except json.JSONDecodeError as error:
                raise invalid(f"JSON Parse error: {error}") from None
            except UnicodeDecodeError:
                raise invalid("JSON Parse error: expected UTF-8") from None
            except RecursionError:
                raise invalid("JSON Parse error: expected fewer lists in one another") from None

        return await _as_json(predict)

    @app.get("/v1/models/{name}")
    @app.get("/v1/models/{name}/versions/{version}")
    async def rest_status(self, name: str, version: int | None = None) -> fastapi.Response:
        return await _as_json(lambda: _plain(_status(self._versions(name, version))))

    @app.get("/v1/models/{name}/metadata")
    @app.get("/v1/models/{name}/versions/{version}/metadata")
    async def rest_metadata(self, name: str, version: int | None = None) -> fastapi.Response:
        return await _as_json(lambda: _plain(_metadata(name, *self._latest(name, version))))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", required=True, metavar="NAME=DIRECTORY/VERSION")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--rest_port", type=int, default=8501)
    parser.add_argument("--grpc_port", type=int, default=8500)
    parser.add_argument("--max_ongoing", type=int, default=5, help="requests at work, at most")
    parser.add_argument(
        "--max_queued", type=int, default=100, help="requests that wait, at most; more get HTTP 503"
    )
    arguments = parser.parse_args(argv)
    paths: dict[str, dict[int, str]] = {}
    for word in arguments.model:
        name, _, path = word.partition("=")
        folder = Path(path).resolve()
        if not name or not folder.name.isdigit() or not (folder / "saved_model.pb").is_file():
            parser.error(
                f"model: expected NAME=DIRECTORY/VERSION with a SavedModel, received {word!r}"
            )
        paths.setdefault(name, {})[int(folder.name)] = str(folder)
    for name in ("rest_port", "grpc_port"):
        port = getattr(arguments, name)
        if not 0 < port < 2**16:
            parser.error(f"{name}: expected a number from 1 to 65535, received {port}")
    if arguments.rest_port == arguments.grpc_port:
        parser.error(
            f"rest_port, grpc_port: expected two ports, received {arguments.rest_port} twice"
        )
    arguments.paths = paths
    return arguments


def check_ports(arguments: argparse.Namespace) -> None:
    """OSError, in words, for a port that cannot be had: Ray says so in pages, or not at all."""
    for name, host in (("rest_port", arguments.host), ("grpc_port", "")):
        port = getattr(arguments, name)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family) as probe:
                # Connections of a server that has just ended are no hindrance.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as error:
            where = f"{port} of {host}" if host else str(port)
            reason = error.strerror or str(error)
            raise OSError(f"{name}: expected a free port, received {where}: {reason}") from None


def wait_until_answering(arguments: argparse.Namespace, seconds: float = 60.0) -> None:
    """Returns when both ports are open and the models known: Ray is ready a moment before that.

    Raises:
      TimeoutError: If they are not within so many seconds.
    """
    end = time.monotonic() + seconds
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(arguments.host, arguments.host)
    url = _url(host, arguments.rest_port, next(iter(arguments.paths)))
    address = _address(host, arguments.grpc_port)
    # Not through a proxy of the environment: it is this machine that is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        while True:
            try:
                opener.open(url, timeout=5).close()
                # Both ports learn of the models at once.
                grpc.channel_ready_future(channel).result(timeout=5)
                return
            except (OSError, grpc.FutureTimeoutError) as error:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"no answer of {url} and {address} within {seconds:.0f} s: {error}"
                    ) from None
                time.sleep(0.2)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(host: str, port: int, name: str) -> str:
    return f"http://{_address(host, port)}/v1/models/{urllib.parse.quote(name)}"


def ready_line(arguments: argparse.Namespace) -> str:
    """What a person has to know to ask: models with their versions, and both addresses."""
    models = ", ".join(
        f"{name} ({'version' if len(versions) == 1 else 'versions'} "
        f"{', '.join(map(str, sorted(versions)))})"
        for name, versions in arguments.paths.items()
    )
    host, name = arguments.host, next(iter(arguments.paths))
    return (
        f"serving {models}: REST {_url(host, arguments.rest_port, name)}, "
        f"gRPC {_address(host, arguments.grpc_port)}"
    )


def main(argv: list[str] | None = None) -> int:
    """Serves until it is told to end; returns the exit status, 1 where it could not start."""
    arguments = parse(argv)
    try:
        check_ports(arguments)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        # Its own cluster, never one that happens to run on this machine.
        ray.init("local", include_dashboard=False, logging_level=logging.WARNING)
        serve.start(
            http_options=HTTPOptions(host=arguments.host, port=arguments.rest_port),
            grpc_options=gRPCOptions(port=arguments.grpc_port, grpc_servicer_functions=SERVICERS),
        )
        server = ModelServer.options(
            max_ongoing_requests=arguments.max_ongoing, max_queued_requests=arguments.max_queued
        )
        serve.run(server.bind(arguments.paths), route_prefix="/")
        wait_until_answering(arguments)
    except Exception as error:  # Whatever Ray raises: a person needs the reason and no more.
        _shut_down()
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"error: Ray: expected it to start, received: {first[:300]}", file=sys.stderr)
        return 1
    print(ready_line(arguments), flush=True)
    stop.wait()
    _shut_down()
    return 0


def _shut_down() -> None:
    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
