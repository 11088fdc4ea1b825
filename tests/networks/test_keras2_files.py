"""HDF5 files of Keras 2, beside the answers that Keras 2 gave: tests/fixtures/make_keras2.py."""

import json
import shutil
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import btcp_tf
from btcp_tf.networks import classifiers, keras2_files, keras_files

FILES = Path(__file__).parents[1] / "fixtures" / "keras2"
NAMES = sorted(path.stem for path in FILES.glob("*.h5"))


def answers_of(name):
    """Inputs, and what Keras 2 answered."""
    with np.load(FILES / "answers.npz") as found:
        kind = name.split("_")[0]
        return found[f"{kind}_x"], found[f"{kind}_probs"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_keras_2_answers_as_it_did_there(name, tmp_path):
    path = tmp_path / "my.h5"
    shutil.copy(FILES / f"{name}.h5", path)
    before = path.read_bytes()
    x, wanted = answers_of(name)
    judge = btcp_tf.attach(path)
    np.testing.assert_allclose(judge.predict(x)["probs"], wanted, atol=1e-6)
    assert wanted.std(axis=0).max() > 0.01 and path.read_bytes() == before
    judge.save(tmp_path / "judge.keras")
    again = btcp_tf.load(tmp_path / "judge.keras").predict(x)["probs"]
    np.testing.assert_allclose(again, wanted, atol=1e-6)


def test_what_keras_3_does_with_them_by_itself():
    """If one of these stops failing, less is to be mended."""
    read = []
    for name in NAMES:
        x, wanted = answers_of(name)
        try:
            found = keras.models.load_model(FILES / f"{name}.h5", compile=False)(x)
            np.testing.assert_allclose(found, wanted, atol=1e-6)
            read.append(name)
        except Exception:
            continue
    assert len(NAMES) == 14 and read == []


def described(name, change, path):
    """A copy of a file, another in its description."""
    shutil.copy(FILES / f"{name}.h5", path)
    with h5py.File(path, "r+") as content:
        config = json.loads(content.attrs["model_config"])
        change(config["config"]["layers"])
        content.attrs["model_config"] = json.dumps(config)
    return path


@pytest.mark.parametrize(
    ("key", "value"), [("groups", 2), ("time_major", True), ("renorm", True), ("novel", 0.5)]
)
def test_a_setting_that_changes_answers_is_refused(key, value, tmp_path):
    def change(stack):
        stack[1]["config"] = {**stack[1]["config"], key: value}

    path = described("recurrent", change, tmp_path / "my.h5")
    told = (
        rf"it holds the LSTM layer 'lstm' of Keras 2 with {key}={value!r}, which Keras 3 does not"
    )
    with pytest.raises(ValueError, match=rf"^classifier: .*{told} have: .*fit_scores"):
        btcp_tf.attach(path)


@pytest.mark.parametrize("kind", ["CuDNNLSTM", "CuDNNGRU", "LocallyConnected1D"])
def test_a_layer_that_is_gone_is_told(kind, tmp_path):
    def change(stack):
        stack[1]["class_name"] = kind

    path = described("recurrent", change, tmp_path / "my.h5")
    with pytest.raises(
        ValueError, match=rf"it holds {kind} \(lstm\), a layer of Keras 2 that Keras 3"
    ):
        btcp_tf.attach(path)


def test_a_file_of_keras_3_stays_as_it_is(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "hard_sigmoid")])
    model.save(tmp_path / "my.keras")
    with keras2_files.readable(tmp_path / "my.keras", lambda name: False) as path:
        assert path == tmp_path / "my.keras"
    x = np.float32([[-2.0, 0.5, 2.0]])
    loaded = classifiers.load(tmp_path / "my.keras")
    np.testing.assert_array_equal(loaded(x), model(x))


def test_what_new_names_turn_into_code_is_refused(tmp_path):
    """A name of a layer that is written anew must not become that of a Lambda."""
    path = tmp_path / "my.h5"
    shutil.copy(FILES / "images.h5", path)
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layer = config["config"]["layers"][-1]
        layer["config"]["name"] = "_/lambda__"
        layer["config"]["activation"] = {"class_name": "_/lambda__", "config": {"value": "x"}}
        file.attrs["model_config"] = json.dumps(config)
    with pytest.raises(ValueError, match="Lambda|lambda"):
        classifiers.load(path)
    assert keras_files.fault_in(path, lambda name: True) == ""
    with pytest.raises(ValueError, match="lambda"), keras2_files.readable(path, lambda name: True):
        pass


def test_types_and_shapes_are_in_the_words_of_keras_3():
    policy = {"class_name": "Policy", "config": {"name": "mixed_float16"}}
    config = {"name": "d", "units": 2, "dtype": policy, "batch_input_shape": [None, 3]}
    found = keras2_files.mended(
        {"class_name": "Sequential", "config": [{"class_name": "Dense", "config": config}]}
    )
    first, dense = found["config"]["layers"]
    assert first["class_name"] == "InputLayer" and first["config"]["batch_shape"] == [None, 3]
    assert dense["config"] == {"name": "d", "units": 2, "dtype": "mixed_float16"}
    norm = {"class_name": "BatchNormalization", "config": {"name": "b", "axis": [3]}}
    assert keras2_files.mended(norm)["config"]["axis"] == 3
