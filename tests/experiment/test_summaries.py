"""Tests of the TensorBoard files, read back as TensorBoard reads them."""

import io

import matplotlib.image
import numpy as np
import pytest
from PIL import ImageColor
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

from btcp_tf.experiment.summaries import Summaries
from btcp_tf.reporting.drawing import WRONG


def read(folder):
    """All values of a folder: {tag: [(step, value)]}."""
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [(e.step, tensor_util.make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def scalars(folder):
    return {
        tag: [(step, float(value)) for step, value in series]
        for tag, series in read(folder).items()
        if series[0][1].shape == ()
    }


def test_numbers_of_a_row_become_scalars_by_stage(tmp_path):
    with Summaries(tmp_path) as summaries:
        for epoch in (1, 2):
            row = {
                "stage": "btcp",
                "epoch": epoch,
                "loss": 0.5 / epoch,
                "auroc": np.float32(0.75),
                "errors": np.int64(3),
                "effective_sample_size": None,
                "fnr": float("nan"),
                "gamma": float("inf"),
                "collapsed": True,
            }
            summaries.epoch("btcp", row)
        summaries.epoch("btcp_finetuned", {"epoch": 1, "loss": 0.125})
    assert scalars(tmp_path) == {
        "btcp/loss": [(1, 0.5), (2, 0.25)],
        "btcp/auroc": [(1, 0.75), (2, 0.75)],
        "btcp/errors": [(1, 3.0), (2, 3.0)],
        "btcp_finetuned/loss": [(1, 0.125)],
    }


def test_histograms_count_the_finite_values(tmp_path):
    u = np.array([[0.0, 0.1], [0.1, 1.0], [np.nan, np.inf]], np.float32)
    with Summaries(tmp_path) as summaries:
        summaries.epoch("btcp", {"epoch": 4}, {"u_validation": u, "u_none": np.zeros(0)})
    values = read(tmp_path)
    [(step, buckets)] = values["btcp/u_validation"]
    assert step == 4
    assert buckets[:, 2].sum() == 4
    left, right, count = buckets[(buckets[:, 2] == 2)][0]
    assert left <= 0.1 <= right
    assert values["btcp/u_none"][0][1][:, 2].sum() == 0


def test_summaries_are_on_disk_without_close_and_nothing_is_before_the_first(tmp_path):
    summaries = Summaries(tmp_path / "tensorboard")
    assert not (tmp_path / "tensorboard").exists()
    summaries.epoch("classifier", {"epoch": 1, "loss": 2.0})
    assert scalars(tmp_path / "tensorboard") == {"classifier/loss": [(1, 2.0)]}
    summaries.text("notes", "**Part** of the data.")
    [(step, text)] = read(tmp_path / "tensorboard")["notes"]
    assert (step, text.item()) == (0, b"**Part** of the data.")
    summaries.close()


def test_resumed_run_continues_the_curve_in_the_same_folder(tmp_path):
    for epochs in ((1, 2), (2, 3)):
        with Summaries(tmp_path) as summaries:
            for epoch in epochs:
                summaries.epoch("classifier", {"epoch": epoch, "loss": 1 / epoch})
    assert sorted(set(scalars(tmp_path)["classifier/loss"])) == [
        (epoch, pytest.approx(1 / epoch)) for epoch in (1, 2, 3)
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_sheet_shows_each_image_sharp_and_in_order(tmp_path, channels):
    # One level of gray for each image; half of it black, so that smoothing would show.
    levels = np.arange(60, 200, 20, dtype=np.uint8)
    images = np.zeros((len(levels), 8, 8, channels), np.uint8)
    images[:, :, 4:] = levels[:, np.newaxis, np.newaxis, np.newaxis]
    captions = [f"true {n}\nu = 0.9" for n in range(len(levels))]
    with Summaries(tmp_path) as summaries:
        summaries.images("highest_u", images, captions, columns=4)
    [(_, (width, height, png))] = read(tmp_path)["highest_u"]
    sheet = matplotlib.image.imread(io.BytesIO(png), format="png")[..., :3]
    assert sheet.shape[:2] == (int(height), int(width))
    sheet = np.round(sheet * 255).astype(int)
    centers = []
    for level in levels.tolist():
        rows, places = np.nonzero((sheet == level).all(axis=-1))
        assert len(rows) > 40 * 80  # Enlarged from 8 × 4 pixels.
        centers.append((rows.mean() // (sheet.shape[0] / 2), places.mean()))
    assert centers == sorted(centers)
    assert [row for row, _ in centers] == [0] * 4 + [1] * 3


def test_marked_images_have_a_frame(tmp_path):
    images = np.full((2, 8, 8, 1), 90, np.uint8)
    with Summaries(tmp_path) as summaries:
        summaries.images("u", images, ["a", "b"], [False, True])
    [(_, (_, _, png))] = read(tmp_path)["u"]
    sheet = np.round(matplotlib.image.imread(io.BytesIO(png), format="png")[..., :3] * 255)
    [places] = np.nonzero((sheet == ImageColor.getrgb(WRONG)).all(axis=-1).any(axis=0))
    assert len(places) and (places > sheet.shape[1] / 2).all()


def test_images_larger_than_their_place_are_made_smaller(tmp_path):
    with Summaries(tmp_path) as summaries:
        summaries.images("u", np.zeros((3, 900, 300, 3), np.uint8), ["a" * 99] * 3)
    [(_, (width, height, _))] = read(tmp_path)["u"]
    assert int(width) == 720 and 600 < int(height) < 900


def test_captions_are_drawn(tmp_path):
    sheets = []
    # A caption that raqm cannot lay out as it is.
    for caption in ("", "true 3", "true\x1c\r\x85\u20293"):
        with Summaries(tmp_path / f"caption{len(caption)}") as summaries:
            summaries.images("u", np.zeros((1, 8, 8, 1), np.uint8), [caption])
        sheets.append(read(tmp_path / f"caption{len(caption)}")["u"][0][1][2])
    assert len(set(sheets)) == 3


@pytest.mark.parametrize("count", [0, 2])
def test_images_without_captions_are_refused(tmp_path, count):
    with pytest.raises(ValueError, match=f"received {count} images and 1 captions"):
        Summaries(tmp_path).images("u", np.zeros((count, 8, 8, 1), np.uint8), ["a"])


def test_hparams_hold_settings_by_type_and_only_final_metrics(tmp_path):
    settings = {"dataset": "digits", "gamma": "auto", "epsilon": "0.05", "seed": "3"}
    settings |= {"export_collapsed": "false", "data_dir": "", "encoder": "nan"}
    metrics = {"btcp/auroc": 0.875, "tcp/auroc": np.float64(0.75), "mcp/fpr95": float("nan")}
    with Summaries(tmp_path) as summaries:
        summaries.epoch("classifier", {"epoch": 1, "loss": 2.0})
        summaries.hparams("runs/try", settings, metrics)
    assert scalars(tmp_path) == {"classifier/loss": [(1, 2.0)]}
    assert scalars(tmp_path / "final") == {
        "final/btcp/auroc": [(0, 0.875)],
        "final/tcp/auroc": [(0, 0.75)],
    }
    events = EventAccumulator(str(tmp_path / "final")).Reload()
    tag = "_hparams_/session_start_info"
    data = plugin_data_pb2.HParamsPluginData.FromString(
        events.SummaryMetadata(tag).plugin_data.content
    )
    assert data.session_start_info.group_name == "runs/try"
    found = {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in data.session_start_info.hparams.items()
    }
    assert found == {
        "dataset": "digits",
        "gamma": "auto",
        "epsilon": 0.05,
        "seed": 3.0,
        "export_collapsed": False,
        "data_dir": "",
        "encoder": "nan",
    }
