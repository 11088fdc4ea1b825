"""The client's gRPC transport."""

import json
from typing import Any

import numpy as np

from btcp_tf.core import wording
from btcp_tf.serving import transport
from btcp_tf.serving.transport import FIRST_WAIT, Deadline, Refused, Server, Signature, Values

# gRPC makes 5 attempts at most, whatever the policy is.
GRPC_RETRIES = 4


class Grpc:
    """TensorFlow Serving's gRPC services; attributes and methods as those of `rest.Rest`."""

    def __init__(self, server: Server) -> None:
        import grpc
        from tensorflow_serving.apis import (
            model_pb2,
            model_service_pb2_grpc,
            prediction_service_pb2_grpc,
        )

        address, model, version, label = server.address, server.model, server.version, server.label
        self.where = f"grpc://{address.netloc}/{model}"
        self._model = model_pb2.ModelSpec(name=model)
        if version is not None:
            self._model.version.value = version
            self.where += f"/{version}"
        if label is not None:
            self._model.version_label = label
            self.where += f"/{label}"
        self._headers = [(name.lower(), value) for name, value in server.headers.items()]
        self._attempts = 1 + server.retries
        options = _channel_options(server.retries)
        if address.scheme == "https":
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.secure_channel(address.netloc, credentials, options)
        else:
            self._channel = grpc.insecure_channel(address.netloc, options)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def signatures(self, deadline: Deadline) -> dict[str, Signature] | None:
        import grpc
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(
            model_spec=self._model, metadata_field=["signature_def"]
        )
        answer = self._ask(
            self._predictions.GetModelMetadata, request, deadline, grpc.StatusCode.UNIMPLEMENTED
        )
        if answer is None or "signature_def" not in answer.metadata:
            return None
        packed = answer.metadata["signature_def"]
        unpacked = get_model_metadata_pb2.SignatureDefMap()
        try:
            if not packed.Unpack(unpacked):
                raise TypeError(f"expected a SignatureDefMap, received {packed.type_url}")
            return transport.signatures_of(
                json_format.MessageToDict(unpacked, preserving_proto_field_name=True)
            )
        except (DecodeError, TypeError, ValueError):
            raise transport.unexpected(self.where, "signatures", packed) from None

    def call(self, signature: str, inputs: Values, deadline: Deadline) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(model_spec=self._model)
        request.model_spec.signature_name = signature
        for name, value in inputs.items():
            dtype = None if isinstance(value, np.ndarray) else tf.string
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype))
        answer = self._ask(self._predictions.Predict, request, deadline)
        try:
            return {name: tf.make_ndarray(tensor) for name, tensor in answer.outputs.items()}
        except (TypeError, ValueError) as error:
            raise transport.unexpected(self.where, "tensors", error) from None

    def ready(self, deadline: Deadline) -> bool:
        import grpc
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest(model_spec=self._model)
        answer = self._ask(
            self._models.GetModelStatus, request, deadline, grpc.StatusCode.NOT_FOUND
        )
        if answer is None:
            return False
        available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        return any(status.state == available for status in answer.model_version_status)

    def close(self) -> None:
        self._channel.close()

    def _ask(self, method: Any, request: Any, deadline: Deadline, absent: Any = None) -> Any:
        """The answer to a request; None where its status is `absent`."""
        import grpc

        left = deadline.left()
        if left <= 0:
            deadline.missed(self.where)
        try:
            return method(request, timeout=left, metadata=self._headers)
        except grpc.RpcError as error:
            code, details = error.code(), wording.one_line(error.details() or "")
            if code is absent:
                return None
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                deadline.trouble = details
                deadline.missed(self.where)
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
                raise transport.too_large(self.where) from error
            text = f"{self.where}: expected an answer, received {code.name}: {details[:500]}"
            kind = _ERRORS.get(code.name, ValueError)
            if kind is ConnectionError:
                attempts = self._attempts
                text += " (1 attempt)" if attempts == 1 else f" (up to {attempts} attempts)"
            raise kind(text) from error


_TOO_LARGE = "larger than max"
"""What gRPC itself says of a message above the limit of this side."""

_RETRIED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")

_ERRORS: dict[str, type[Exception]] = {
    **dict.fromkeys(_RETRIED, ConnectionError),
    **dict.fromkeys(("INTERNAL", "UNKNOWN", "DATA_LOSS", "CANCELLED", "ABORTED"), RuntimeError),
    "INVALID_ARGUMENT": Refused,
}
"""Status -> error; a ValueError for all others."""


def _channel_options(retries: int) -> list[tuple[str, Any]]:
    """Options of a channel on which gRPC itself repeats what fails for the moment."""
    method: dict[str, Any] = {"name": [{"service": "tensorflow.serving.PredictionService"}]}
    if retries:
        method["retryPolicy"] = {
            "maxAttempts": 1 + retries,
            "initialBackoff": f"{FIRST_WAIT}s",
            "maxBackoff": f"{transport.LONGEST_WAIT}s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": _RETRIED,
        }
    return [
        ("grpc.service_config", json.dumps({"methodConfig": [method]})),
        ("grpc.enable_retries", int(retries > 0)),
        # Requests above this size, by default 256 KiB, would not be repeated.
        ("grpc.per_rpc_retry_buffer_size", 2**30),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", transport.LARGEST_ANSWER),
        # By default a server that comes back is not noticed for longer than all attempts take.
        ("grpc.initial_reconnect_backoff_ms", int(1000 * FIRST_WAIT)),
        ("grpc.min_reconnect_backoff_ms", int(1000 * FIRST_WAIT)),
        ("grpc.max_reconnect_backoff_ms", int(5000 * FIRST_WAIT)),
    ]
