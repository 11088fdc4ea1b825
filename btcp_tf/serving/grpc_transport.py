"""The client's gRPC transport."""

import json
import urllib.parse
from typing import Any

import numpy as np

from btcp_tf.core import wording
from btcp_tf.serving import transport
from btcp_tf.serving.transport import FIRST_WAIT, LONGEST_WAIT, Deadline, Refused, Signature

# gRPC makes 5 attempts at most, whatever a policy says.
GRPC_RETRIES = 4


class Grpc:
    def __init__(
        self,
        address: urllib.parse.SplitResult,
        model: str,
        version: int | None,
        label: str | None,
        retries: int,
        headers: dict[str, str],
    ) -> None:
        import grpc
        from tensorflow_serving.apis import (
            model_pb2,
            model_service_pb2_grpc,
            prediction_service_pb2_grpc,
        )

        self._model = model_pb2.ModelSpec(name=model)
        if version is not None:
            self._model.version.value = version
        if label is not None:
            self._model.version_label = label
        self.where = f"grpc://{address.netloc}/{model}"
        if version is not None or label is not None:
            self.where += f"/{label if version is None else version}"
        policy = {
            "maxAttempts": 1 + retries,
            "initialBackoff": f"{FIRST_WAIT}s",
            "maxBackoff": f"{LONGEST_WAIT}s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
        }
        service = {
            "methodConfig": [
                {
                    "name": [{"service": "tensorflow.serving.PredictionService"}],
                    **({"retryPolicy": policy} if retries else {}),
                }
            ]
        }
        options = [
            ("grpc.service_config", json.dumps(service)),
            ("grpc.enable_retries", int(retries > 0)),
            # Requests above this size would not be tried again, by default 256 KiB.
            ("grpc.per_rpc_retry_buffer_size", 2**30),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # Else a server that comes back is not noticed for longer than all attempts take.
            ("grpc.initial_reconnect_backoff_ms", int(1000 * FIRST_WAIT)),
            ("grpc.min_reconnect_backoff_ms", int(1000 * FIRST_WAIT)),
            ("grpc.max_reconnect_backoff_ms", int(5000 * FIRST_WAIT)),
        ]
        if address.scheme == "https":
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.secure_channel(address.netloc, credentials, options)
        else:
            self._channel = grpc.insecure_channel(address.netloc, options)
        self._headers = [(name.lower(), value) for name, value in headers.items()]
        self._attempts = 1 + retries
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
        try:
            answer = self._ask(self._predictions.GetModelMetadata, request, deadline)
        except ValueError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise
        if "signature_def" not in answer.metadata:
            return None
        found, told = get_model_metadata_pb2.SignatureDefMap(), answer.metadata["signature_def"]
        try:
            if not told.Unpack(found):
                raise TypeError(f"expected a SignatureDefMap, received {told.type_url}")
            return transport.signatures_of(
                json_format.MessageToDict(found, preserving_proto_field_name=True)
            )
        except (DecodeError, TypeError, ValueError):
            raise transport.unexpected(self.where, "signatures", told) from None

    def call(
        self, signature: str, name: str, value: Any, deadline: Deadline
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest(model_spec=self._model)
        request.model_spec.signature_name = signature
        if value is not None:
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
        try:
            answer = self._ask(self._models.GetModelStatus, request, deadline)
        except ValueError as error:
            cause = error.__cause__
            if isinstance(cause, grpc.RpcError) and cause.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise
        available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        return any(status.state == available for status in answer.model_version_status)

    def close(self) -> None:
        self._channel.close()

    def _ask(self, method: Any, request: Any, deadline: Deadline) -> Any:
        import grpc

        left = deadline.left()
        if left <= 0:
            deadline.missed(self.where)
        try:
            return method(request, timeout=left, metadata=self._headers)
        except grpc.RpcError as error:
            code, details = error.code(), wording.one_line(error.details() or "")
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                deadline.missed(self.where, details)
            words = f"{self.where}: expected an answer, received {code.name}: {details[:500]}"
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                times = "1 attempt" if self._attempts == 1 else f"up to {self._attempts} attempts"
                raise ConnectionError(f"{words} ({times})") from error
            failed = (
                grpc.StatusCode.INTERNAL,
                grpc.StatusCode.UNKNOWN,
                grpc.StatusCode.DATA_LOSS,
                grpc.StatusCode.CANCELLED,
                grpc.StatusCode.ABORTED,
            )
            if code is grpc.StatusCode.INVALID_ARGUMENT:
                raise Refused(words) from error
            raise (RuntimeError if code in failed else ValueError)(words) from error
