"""Queues of answers to check: how they are drawn, and what decisions about them show."""

import csv
import json

import numpy as np
import pytest

from btcp_tf.decisions import reviewing
from btcp_tf.decisions.reviewing import Decision
from btcp_tf.decisions.scores import Scores

NAMES = ("cat", "dog", "1")


def make_scores(n=40, seed=0, **changes):
    rng = np.random.default_rng(seed)
    values = {
        "name": "scores.csv",
        "uncertainty": rng.random(n),
        "predicted": rng.integers(0, 3, n),
        "column": "uncertainty",
        "inputs": tuple(f"{row}.png" for row in range(n)),
    } | changes
    return Scores(**values)


def write(path, rows, header=("row", "input", "decision", "label")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_a_queue_is_the_highest_u_and_then_a_sample_of_all():
    u = make_scores().uncertainty
    queue = reviewing.draw(u, budget=10, audit=20, seed=3)
    assert queue.rows[:10].tolist() == np.argsort(-u)[:10].tolist() and queue.first == 10
    assert queue.drawn.tolist() == np.random.default_rng(3).permutation(40)[:20].tolist()
    assert len(set(queue.rows.tolist())) == len(queue.rows)
    assert set(queue.drawn.tolist()) <= set(queue.rows.tolist())
    assert queue.probability == 0.5
    assert queue.place_in_sample(int(queue.drawn[4])) == 5
    missing = int(np.setdiff1d(np.arange(40), queue.drawn)[0])
    assert queue.place_in_sample(missing) is None


def test_more_than_there_is_is_all_of_it():
    queue = reviewing.draw([0.1, 0.3, 0.2], budget=10, audit=10)
    assert queue.rows.tolist() == [1, 2, 0] and queue.probability == 1.0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"budget": -1}, "budget: expected a whole number >= 0, received -1"),
        ({"audit": 1.5}, "audit: expected a whole number"),
        ({"seed": -1}, "seed: expected a whole number"),
        ({"budget": 0, "audit": 0}, "budget: expected answers to check"),
        ({"uncertainty": [0.1, np.nan]}, "uncertainty: expected finite numbers"),
    ],
)
def test_a_queue_that_cannot_be_drawn_is_an_error(changes, match):
    values = {"uncertainty": [0.1, 0.2], "budget": 1, "audit": 1} | changes
    with pytest.raises(ValueError, match=match):
        reviewing.draw(values.pop("uncertainty"), **values)


def test_a_kept_queue_is_drawn_again_for_its_own_scores_alone(tmp_path):
    scores = make_scores()
    queue = reviewing.draw(scores.uncertainty, budget=5, audit=8, seed=2)
    path = tmp_path / "queue.json"
    path.write_text(json.dumps(reviewing.record(queue, scores, 5, 8, 2)))
    again = reviewing.read_record(path, scores)
    assert again.rows.tolist() == queue.rows.tolist()
    assert json.loads(path.read_text())["inclusion_probability"] == 8 / 40
    with pytest.raises(ValueError, match="received one of other answers"):
        reviewing.read_record(path, make_scores(seed=1))
    path.write_text("{}")
    with pytest.raises(ValueError, match="what cannot be read"):
        reviewing.read_record(path, scores)
    with pytest.raises(ValueError, match="which is not there; name its folder with --output_dir"):
        reviewing.read_record(tmp_path / "other.json", scores)


def test_decisions_are_read_and_open_ones_left_out(tmp_path):
    scores = make_scores(inputs=("=1.png", *(f"{row}.png" for row in range(1, 40))))
    queue = reviewing.draw(scores.uncertainty, budget=40, audit=4)
    p = int(scores.predicted[0])
    rows = [[0, "'=1.png", "right", p], [1, "1.png", "", ""], [2, "2.png", "unsure", ""]]
    rows.append([3, "3.png", "wrong", ""])
    found = reviewing.read_decisions(write(tmp_path / "d.csv", rows), queue, scores, NAMES)
    assert found == {
        0: Decision("right", p),
        2: Decision("unsure", None),
        3: Decision("wrong", None),
    }


def test_labels_that_label_studio_exports_are_decisions(tmp_path):
    scores = make_scores(predicted=np.zeros(40, np.int64))
    queue = reviewing.draw(scores.uncertainty, budget=40, audit=4)
    header = ("annotator", "id", "image", "input", "label", "row")
    rows = [
        [1, 9, "data:image/png;base64,xx", "4.png", "cat", 4],
        [1, 10, "", "5.png", "1", 5],
        [1, 11, "", "6.png", "", 6],
        [1, 12, "", "7.png", "0", 7],
    ]
    path = write(tmp_path / "project-1.csv", rows, header)
    found = reviewing.read_decisions(path, queue, scores, NAMES)
    assert found == {4: Decision("right", 0), 5: Decision("wrong", 2), 7: Decision("right", 0)}
    write(path, [[1, 9, "", "4.png", "cow", 4]], header)
    with pytest.raises(ValueError, match="label: expected the name of a class or nothing, .*'cow'"):
        reviewing.read_decisions(path, queue, scores, NAMES)


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ([39, "39.png", "right", ""], "received row 39 in line 2, which is not one of them"),
        (["x", "0.png", "right", ""], "row: expected the number of a row"),
        ([0, "9.png", "right", ""], "'0.png' of row 0, received '9.png' in line 2"),
        ([0, "0.png", "good", ""], "received 'good' in line 2"),
        ([0, "0.png", "right", 2], "fits its label, received right with the label 2"),
        ([0, "0.png", "wrong", 1], "fits its label, received wrong with the label 1"),
        ([0, "0.png", "wrong", 3], "a label from 0 to 2, received 3; subtract 1"),
        ([0, "0.png", "wrong", "cat"], "label: expected a class number or nothing"),
        ([0, "0.png", "", ""], "expected a decision, received 1 open rows"),
    ],
)
def test_decisions_that_are_none_of_this_queue_are_errors(tmp_path, row, match):
    u = np.linspace(1, 0, 40)
    scores = make_scores(uncertainty=u, predicted=np.ones(40, np.int64))
    queue = reviewing.draw(u, budget=5, audit=0)
    with pytest.raises(ValueError, match=match):
        reviewing.read_decisions(write(tmp_path / "d.csv", [row]), queue, scores, NAMES)


def test_a_row_that_is_decided_twice_is_an_error(tmp_path):
    scores = make_scores()
    queue = reviewing.draw(scores.uncertainty, budget=40, audit=0)
    rows = [[0, "0.png", "right", ""]] * 2
    with pytest.raises(ValueError, match="row 0 in line 3, twice"):
        reviewing.read_decisions(write(tmp_path / "d.csv", rows), queue, scores, NAMES)


def decided(rows, scores, word="right"):
    labels = {"right": scores.predicted, "wrong": (scores.predicted + 1) % 3}
    return {
        int(row): Decision(word, int(labels[word][row]) if word in labels else None) for row in rows
    }


def test_the_sample_ends_at_the_last_decision_and_gaps_in_it_count_as_wrong():
    scores = make_scores()
    queue = reviewing.draw(scores.uncertainty, budget=4, audit=30)
    rest = [row for row in queue.drawn.tolist() if row not in queue.rows[:4].tolist()]
    made = decided([rest[0], rest[1], rest[5]], scores)
    sample = reviewing.checked_sample(queue, made, scores)
    end = queue.drawn.tolist().index(rest[5]) + 1
    assert sample.rows.tolist() == queue.drawn[:end].tolist()
    assert sample.probability == end / 40
    wrong = sample.labels != scores.predicted[sample.rows]
    assert sample.assumed == wrong.sum() == end - 3
    text = " ".join(reviewing.words(queue, made, sample, scores))
    assert f"{end} of 30 answers of the sample count" in text and "count as wrong" in text


def test_the_whole_sample_counts_once_all_that_was_drawn_besides_is_decided():
    scores = make_scores()
    queue = reviewing.draw(scores.uncertainty, budget=20, audit=30)
    sample = reviewing.checked_sample(queue, decided(queue.rows, scores), scores)
    assert sample.rows.tolist() == queue.drawn.tolist() and not sample.assumed
    assert (sample.labels == scores.predicted[sample.rows]).all()


def test_without_a_decision_about_the_sample_nothing_follows():
    scores = make_scores()
    queue = reviewing.draw(scores.uncertainty, budget=5, audit=10)
    with pytest.raises(ValueError, match="decisions about the random sample.*received none"):
        reviewing.checked_sample(queue, decided(queue.rows[:5], scores), scores)
    queue = reviewing.draw(scores.uncertainty, budget=5, audit=0)
    with pytest.raises(ValueError, match="without \\(--audit=0\\)"):
        reviewing.checked_sample(queue, decided(queue.rows, scores), scores)


def test_the_error_rate_of_accepted_answers_is_estimated_without_bias():
    # From all that was checked it would be far too high: the queue holds the doubtful ones.
    rng = np.random.default_rng(0)
    u = rng.random(400)
    predicted = np.zeros(400, np.int64)
    labels = (rng.random(400) < u**2).astype(np.int64)
    scores = make_scores(uncertainty=u, predicted=predicted, inputs=None)
    accepted = u < 0.6
    truth = labels[accepted].mean()
    rates, checked = [], []
    for seed in range(400):
        queue = reviewing.draw(u, budget=250, audit=80, seed=seed)
        words = np.where(labels == 1, "wrong", "right")
        made = {row: Decision(words[row], int(labels[row])) for row in queue.rows.tolist()}
        sample = reviewing.checked_sample(queue, made, scores)
        kept = accepted[sample.rows]
        rates.append(sample.labels[kept].mean())
        checked.append(labels[queue.rows][accepted[queue.rows]].mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert abs(np.mean(rates) - truth) < 4 * error
    assert np.mean(checked) > truth + 10 * error
