"""Figures of the paper's Tables 1 and 2, from `templates/paper.csv`."""

import csv
from pathlib import Path

PAPER: dict[str, dict[str, tuple[float, float, float]]] = {}
"""The paper's table of failure prediction: data set -> method -> (BACC, AUC, FPR) in percent."""

PAPER_OOD: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
"""The paper's table of OOD detection: (data set, OOD set) -> method -> (ACC in percent, AU)."""


def _read() -> None:
    path = Path(__file__).parent / "templates" / "paper.csv"
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        data, ood, method = row["data"], row["ood"], row["method"]
        if ood:
            pair = float(row["ood_acc"]), float(row["ood_au"])
            PAPER_OOD.setdefault((data, ood), {})[method] = pair
        else:
            cells = float(row["bacc"]), float(row["auc"]), float(row["fpr"])
            PAPER.setdefault(data, {})[method] = cells


_read()
