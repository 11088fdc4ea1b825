"""A small baseline and what came later, as files of the contract: for tests of monitoring."""

import csv
import json
from pathlib import Path

import numpy as np

from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import Predictions, save_predictions

NAMES = ("cat", "dog", "cow")
TAU = 0.3


def answers(n, seed, *, harder=0.0):
    """Predictions of three classes whose error rate is u; `harder` adds errors that u misses."""
    rng = np.random.default_rng(seed)
    predicted = rng.integers(0, 3, n)
    u = rng.beta(0.6, 2.5, n).astype(np.float32)
    wrong = rng.random(n) < u / 4 + harder
    rest = ((1 - 0.4) / 2) * np.ones((n, 3), np.float32)
    rest[np.arange(n), predicted] = 0.4
    labels = np.where(wrong, (predicted + 1) % 3, predicted)
    return Predictions(labels, rest, predicted, {"uncertainty": u})


def threshold(**changes):
    """The threshold of btcp_tf.json and decision.json."""
    return {
        "tau": TAU,
        "coverage": 0.7,
        "rule": "error rate <= 0.05 with probability 0.9",
        "n": 400,
        "accepted": 280,
        "errors": 8,
        "risk": 8 / 280,
        "risk_bound": 0.05,
        "delta": 0.1,
        "least_risk": None,
        "target": 0.05,
    } | changes


def write_run(folder, predictions, *, column="btcp", names=NAMES, **changes):
    """A run's folder with decision.json."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    columns = {"mcp": predictions.uncertainty["uncertainty"][::-1].copy()}
    columns[column] = predictions.uncertainty["uncertainty"]
    found = Predictions(predictions.labels, predictions.probs, predictions.predicted, columns)
    save_predictions(folder / "predictions_calibration.npz", found)
    decision = {
        "threshold": threshold(**changes),
        "predictions": "predictions_calibration.npz",
        "column": column,
        "saved_model": "none was exported",
    }
    (folder / "decision.json").write_text(json.dumps(decision))
    results.save_rows(folder / "results.json", [], {"data": {"class_names": names}})
    return folder


def write_model(folder, predictions, *, names=NAMES, fit=None, **changes):
    """What an exported model holds beside its network."""
    extra = Path(folder) / "assets.extra"
    extra.mkdir(parents=True)
    (Path(folder) / "saved_model.pb").touch()
    about = {"class_names": names, "image_shape": [4, 4, 1], "threshold": threshold(**changes)}
    about |= {} if fit is None else {"fit": fit}
    (extra / "btcp_tf.json").write_text(json.dumps(about))
    if predictions is not None:
        found = Predictions(
            predictions.labels, None, predictions.predicted, predictions.uncertainty
        )
        save_predictions(extra / "calibration.npz", found)
    return Path(folder)


def rows_of(predictions, *, labels=False, broken=(), tau=TAU, names=NAMES):
    """Rows as `btcp_tf.predict` writes them; `broken` inputs have no answer."""
    u = predictions.uncertainty["uncertainty"]
    rows = []
    for n, number in enumerate(map(int, predictions.predicted)):
        row = {"input": f"x_test[{n}]"}
        if labels:
            row["labels"] = int(predictions.labels[n])
        row |= {
            "predicted": number,
            "class_name": names[number],
            "probs": [float(p) for p in predictions.probs[n]],
            "uncertainty": float(u[n]),
            "accept": bool(tau is not None and float(u[n]) < tau),
            "problem": None,
        }
        if n in broken:
            row |= dict.fromkeys(list(row)[1:-1]) | {"problem": "truncated file"}
        rows.append(row)
    return rows


def write_csv(path, rows):
    """The CSV form of `rows_of`."""
    classes = max(len(row["probs"] or ()) for row in rows)
    with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        names = []
        for name in rows[0]:
            names += [f"probs_{k}" for k in range(classes)] if name == "probs" else [name]
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            flat = []
            for name, value in row.items():
                if name == "probs":
                    flat += ["" if value is None else repr(p) for p in value or [None] * classes]
                elif isinstance(value, bool):
                    flat.append(str(value).lower())
                else:
                    flat.append("" if value is None else value)
            writer.writerow(flat)
    return path


def write_jsonl(path, rows):
    """The JSONL form of `rows_of`."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path, rows):
    """The Parquet form of `rows_of`."""
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


WRITERS = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}


def write_labels(path, pairs):
    """A file of labels that came later."""
    lines = ["input,labels", *(f'"{name}",{label}' for name, label in pairs)]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
