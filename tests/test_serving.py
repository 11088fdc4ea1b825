"""The files for TensorFlow Serving, and a real server that speaks its protocols.

`python -m pytest -m servers tests/test_serving.py` starts Ray Serve (extra `servers`), about a
minute; what has no such marker reads files alone.
"""

import base64
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

from btcp_tf.client import ANSWERS, Client

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "serving"
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
    bodies = re.findall(r"-d '(\{.*?\})'", text, re.DOTALL)
    assert {json.loads(body)["signature_name"] for body in bodies} >= {
        "serving_default",
        "serving_float",
    }
