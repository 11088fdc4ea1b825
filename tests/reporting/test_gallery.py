"""The answers to look at first: which ones, none twice, and what is said of each."""

import base64
import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from btcp_tf.evaluation import explanations
from btcp_tf.evaluation.explanations import EXPLANATIONS_FILE, Explanations
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.reporting import gallery, pictures


def make_predictions(n=200, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    u = rng.random(n)
    predicted = np.where(rng.random(n) < u / 2, (labels + 1) % 3, labels)
    return Predictions(labels, None, predicted, {"mcp": u[::-1].copy(), "residual": u})


def test_the_highest_u_and_apart_from_them_the_most_trusted_errors():
    p = make_predictions()
    u = p.uncertainty["residual"]
    found = gallery.pick(dataclasses.replace(p, uncertainty={"residual": u}), "residual", 24)
    assert not len(found["unsuspected"])
    assert found["uncertain"].tolist() == sorted(range(200), key=lambda row: -u[row])[:24]
    trusted = [row for row in sorted(range(200), key=u.__getitem__) if p.is_error[row]]
    expected = [row for row in trusted if row not in set(found["uncertain"].tolist())][:24]
    assert found["trusted"].tolist() == expected


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_no_answer_is_shown_twice_however_few_there_are(n):
    p = make_predictions(n)
    p = dataclasses.replace(p, labels=(p.predicted + 1) % 3)
    rows = np.concatenate([*gallery.pick(p, "residual").values()])
    assert len(set(rows.tolist())) == len(rows) == min(n, 48)


def test_labels_that_are_probably_wrong_are_shown_with_the_probability():
    rng = np.random.default_rng(1)
    # A classifier that is sure and right, and 12 labels that are not.
    labels = rng.integers(0, 3, 600)
    probs = (0.97 * np.eye(3)[labels] + 0.01).astype(np.float32)
    u = {name: 0.9 * rng.random(600) for name in ("mcp", "residual")}
    u["residual"][:6] = 0.95
    given = np.where(np.arange(600) < 12, (labels + 1) % 3, labels)
    p = Predictions(given, probs, labels, u)
    found = gallery.pick(p, "residual")
    assert set(range(6)) <= set(found["uncertain"].tolist())
    assert set(found["label"].tolist()) == set(range(12)) - set(found["uncertain"].tolist())
    assert not len(found["unsuspected"]) and not len(found["trusted"])
    made = gallery.build(p, "residual", 0.5)
    assert "label" in made.kinds
    for card in made.cards:
        assert ("label wrong with probability" in card.remark) == (card.row < 12)
    assert not gallery.doubtful_labels(dataclasses.replace(p, labels=None))
    assert not gallery.doubtful_labels(make_predictions())  # Nothing is known of probabilities.
    (confident, likely) = gallery.error_tables(made, "residual")
    assert len(confident.lines) == len(likely.lines) == len(found["label"])


@pytest.mark.parametrize("methods", [("residual",), ("mcp", "residual")])
def test_errors_of_a_study_are_wrong_and_shown_once(methods):
    p = make_predictions()
    u = {name: p.uncertainty[name] for name in methods}
    found = gallery.pick_errors(p.is_error, u, "residual", 5)
    rows = np.concatenate([*found.values()]).tolist()
    assert len(set(rows)) == len(rows) and p.is_error[rows].all()
    assert bool(len(found["unsuspected"])) == (len(methods) > 1)
    for row in found["unsuspected"]:
        assert all(np.mean(column <= column[row]) <= 0.5 for column in u.values())
    wrong = set(np.flatnonzero(p.is_error).tolist()) - set(found["unsuspected"].tolist())
    by_u = sorted(wrong, key=lambda row: p.uncertainty["residual"][row])
    assert found["trusted"].tolist() == by_u[:5] and found["caught"].tolist() == by_u[:-6:-1]
    none = gallery.pick_errors(np.zeros(200, bool), u, "residual")
    assert [len(rows) for rows in none.values()] == [0, 0, 0]


def test_a_gallery_has_the_kinds_of_its_cards_alone():
    p = make_predictions()
    made = gallery.build(
        p, "residual", 0.5, picked={"caught": np.array([3])}, remarks={3: "so"}, name="x"
    )
    assert [*made.kinds] == ["caught"] and not made.mixed and made.name == "x"
    assert [card.remark for card in made.cards] == ["so"]
    assert [*gallery.build(p, "residual", 0.5).kinds] == ["uncertain", "unsuspected", "trusted"]


@pytest.mark.parametrize(
    ("mode", "ending", "shape"),
    [
        ("RGB", "jpg", (80, 160, 3)),
        ("L", "jpg", (80, 160, 1)),
        ("P", "gif", (80, 160, 3)),
        ("RGBA", "webp", (80, 160, 3)),
        ("1", "bmp", (80, 160, 1)),
    ],
)
def test_pictures_of_files_are_small(tmp_path, mode, ending, shape):
    Image.new("RGB", (1200, 600), (200, 200, 200)).convert(mode).save(tmp_path / f"a.{ending}")
    found = pictures.read_picture(tmp_path / f"a.{ending}")
    assert found is not None and found.shape == shape and found.dtype == np.uint8
    assert mode == "1" or np.abs(found.astype(int) - 200).max() < 20


def test_pictures_are_the_right_way_up(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (40, 20)).save(tmp_path / "a.jpg", exif=exif)
    assert pictures.read_picture(tmp_path / "a.jpg").shape == (40, 20, 1)


def test_files_that_are_too_large_or_no_pictures_are_not_shown(tmp_path, monkeypatch):
    small = tmp_path / "a.png"
    Image.new("L", (30, 20)).save(small)
    assert pictures.read_picture(small) is not None
    monkeypatch.setattr(pictures, "MOST_PIXELS", 599)
    assert pictures.read_picture(small) is None
    monkeypatch.undo()
    monkeypatch.setattr(pictures, "LARGEST_FILE", small.stat().st_size - 1)
    assert pictures.read_picture(small) is None
    monkeypatch.undo()
    # The header of a bomb; half a file; 16 bits; a folder; nothing.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert pictures.read_picture(small) is None
    monkeypatch.undo()
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "half.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "half.png").read_bytes()[:9_000])
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "deep.png")
    for name in ("half.png", "deep.png", ".", "none.png", "bad\0name"):
        assert pictures.read_picture(tmp_path / name) is None


def test_cards_say_what_the_rows_say():
    p = make_predictions()
    images = np.random.default_rng(1).integers(0, 256, (200, 5, 4, 3), np.uint8)
    made = gallery.build(
        p,
        "residual",
        0.6,
        class_names=("a", "b", "c"),
        pictures=dict(enumerate(images)),
        names={0: "first"},
        links={0: "file:///x/first.png"},
    )
    assert 48 <= len(made.cards) <= 72 and set(made.classes) <= {"a", "b", "c"}
    for card in made.cards:
        assert card.predicted == "abc"[p.predicted[card.row]]
        assert card.true == "abc"[p.labels[card.row]]
        assert card.wrong == p.is_error[card.row]
        assert card.accepted == (p.uncertainty["residual"][card.row] < 0.6)
        assert card.mcp == p.uncertainty["mcp"][card.row]
        assert card.predicted in card.alt and card.title in card.alt
        file = io.BytesIO(base64.b64decode(card.picture.split(",")[1]))
        np.testing.assert_array_equal(np.asarray(Image.open(file)), images[card.row])


def test_decisions_of_a_file_count_and_without_a_threshold_none_is_accepted():
    p = make_predictions()
    accept = np.arange(200) % 2 == 0
    for card in gallery.build(p, "residual", 0.5, accept=accept).cards:
        assert card.accepted == (card.row % 2 == 0)
    assert not any(card.accepted for card in gallery.build(p, "residual", None).cards)


def test_mcp_is_not_said_beside_itself():
    p = make_predictions()
    u = p.uncertainty["mcp"]
    same = Predictions(p.labels, None, p.predicted, {"mcp": u, "uncertainty": u + 1e-8})
    for method in ("mcp", "uncertainty"):
        assert all(card.mcp is None for card in gallery.build(same, method, 0.5).cards)


def test_large_pictures_become_small_and_gray_ones_stay_gray():
    shown = pictures.data_uri(np.full((600, 300, 1), 7, np.uint8))
    image = Image.open(io.BytesIO(base64.b64decode(shown.split(",")[1])))
    assert image.mode == "L" and max(image.size) <= 160 and image.size[1] == 2 * image.size[0]


def test_the_strongest_evidence_is_named_first_and_weak_one_is_not():
    values = np.zeros((200, 4), np.float32)
    values[3] = [0.3, -2.0, 0.01, 1.2]
    explained = Explanations("residual", ("answer", "neighbors", "head", "new_look"), values)
    found = gallery.reasons(explained, 3)
    assert [round(reason.value, 3) for reason in found] == [-2.0, 1.2, 0.3]
    assert "agree" in found[0].text and "disagree" not in found[0].text
    assert found[1].text == "new look"
    p = make_predictions()
    assert not any(c.reasons for c in gallery.build(p, "mcp", 0.5, explanations=explained).cards)


def test_explanations_are_read_again_or_refused(tmp_path):
    path = tmp_path / EXPLANATIONS_FILE
    assert explanations.load_explanations(path, 5) is None
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    explanations.save_explanations(path, Explanations("residual", ("a", "b"), values))
    found = explanations.load_explanations(path, 5)
    assert (found.method, found.names) == ("residual", ("a", "b"))
    np.testing.assert_array_equal(found.values, values)
    with pytest.raises(ValueError, match="expected those of 6 answers, received 5"):
        explanations.load_explanations(path, 6)
    np.savez(path, names=np.array(["a"]))
    with pytest.raises(ValueError, match="expected method, names and values"):
        explanations.load_explanations(path, 5)
    path.write_bytes(b"no npz")
    with pytest.raises(ValueError, match="no explanations"):
        explanations.load_explanations(path, 5)
    with pytest.raises(ValueError, match=r"expected floats \[n, 3\]"):
        Explanations("residual", ("a", "b", "c"), values)
    values[2, 1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        Explanations("residual", ("a", "b"), values)
