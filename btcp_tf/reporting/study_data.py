"""The rows and files of a study, gathered by data set and run."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from btcp_tf.evaluation.keys import CLASSIFIER, FINETUNED, ImageSet, Predictor, predictions_file
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.evaluation.seeds import across_seeds
from btcp_tf.methods.registry import answer_costs
from btcp_tf.reporting import cells
from btcp_tf.reporting.cells import Row
from btcp_tf.reporting.notes import uses_all_data
from btcp_tf.reporting.saved_run import load_history, load_if_saved, load_predictions


@dataclasses.dataclass(frozen=True)
class StudyCell:
    """One run of a study: all methods on one data set, under one seed."""

    name: str
    folder: Path
    """Its own; some files may be missing."""
    rows: Sequence[Row]

    @functools.cached_property
    def frozen(self) -> Predictions | None:
        """Answers of the frozen classifier to the test images; None without their file."""
        return load_predictions(self.folder, self.rows).get(CLASSIFIER)

    def ood(self) -> dict[str, Predictions]:
        """Name of an OOD set -> answers of the frozen classifier; those whose file exists."""
        names = filter(None, cells.by(self.rows, "ood"))
        files = {name: self.folder / predictions_file(ImageSet("ood", name)) for name in names}
        return {name: saved for name, file in files.items() if (saved := load_if_saved(file))}

    def history(self) -> list[dict[str, Any]]:
        """Rows per epoch; none without their file."""
        return load_history(self.folder / "history.csv")


@dataclasses.dataclass(frozen=True)
class StudyDataset:
    """What a study holds about one data set."""

    name: str
    folder: Path
    """The study's."""
    rows: Sequence[Row]
    """Of single runs, ablations included."""
    class_names: Sequence[str] | None
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """From `answer_costs`, the mean of its runs."""

    @functools.cached_property
    def plain(self) -> list[Row]:
        """Rows of single runs without ablations."""
        return [row for row in self.rows if not row["ablation"]]

    @functools.cached_property
    def over_seeds(self) -> list[dict[str, Any]]:
        """Rows over seeds with `answers`."""
        return across_seeds(cells.with_answers(self.plain))

    @functools.cached_property
    def test(self) -> list[Row]:
        """Rows over seeds of failure prediction on the test set."""
        return cells.only(self.over_seeds)

    @functools.cached_property
    def cells(self) -> list[StudyCell]:
        """Runs, in order of appearance."""
        tested, groups = cells.by(cells.only(self.plain), "cell"), cells.by(self.plain, "cell")
        return [StudyCell(name, self.folder / name, groups[name]) for name in tested]

    @property
    def answered(self) -> list[StudyCell]:
        """Runs whose predictions exist."""
        return [cell for cell in self.cells if cell.frozen is not None]

    @property
    def frozen(self) -> list[Predictions]:
        """Answers of the frozen classifier of each of these runs."""
        return [cell.frozen for cell in self.cells if cell.frozen is not None]

    @functools.cached_property
    def reference(self) -> Row | None:
        """The row of the frozen classifier's MCP."""
        return next((row for row in _frozen(self.test) if row["method"] == REFERENCE), None)

    @property
    def errors(self) -> list[int]:
        """Errors of each seed's frozen classifier."""
        rows = _frozen(cells.only(self.plain))
        return [row["errors"] for row in rows if row["method"] == REFERENCE]

    @property
    def too_few_errors(self) -> bool:
        """Whether there are too few errors to choose a method by."""
        fewest = min(row["errors"] for row in _frozen(cells.only(self.plain)))
        return fewest < cells.MIN_ERRORS_TO_COMPARE

    @functools.cached_property
    def best(self) -> Row | None:
        """The method that ranks the errors better than MCP; None: none is shown to."""
        return best_of(candidates(self.test))

    @property
    def is_better(self) -> bool:
        """Whether a method is shown to rank the errors better than MCP, by enough errors."""
        return self.best is not None and not self.too_few_errors

    @property
    def method(self) -> str:
        """The method to use."""
        return self.best["method"] if self.best is not None and self.is_better else REFERENCE

    def history(self) -> list[dict[str, Any]]:
        """Rows per epoch of all runs' estimators, without fine-tuning."""
        rows = [row for cell in self.cells for row in cell.history()]
        return [row for row in rows if Predictor.from_text(row["stage"]).stage != FINETUNED]


def _frozen(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["stage"] != FINETUNED]


def candidates(rows: Iterable[Row]) -> list[Row]:
    """What a user could take instead of MCP on the same classifier.

    Args:
      rows: Rows over seeds with `answers`, of one task and OOD set.
    """
    return [
        row
        for row in _frozen(rows)
        if not row["answers"]
        and row["method"] != REFERENCE
        and row.get("verdict")
        and cells.is_candidate(row["method"])
        and cells.has_own_ranking(row["method"])
    ]


def best_of(rows: Iterable[Row]) -> Row | None:
    """The row of the largest gain in AUROC among those that are better than MCP; None: none is."""
    better = [row for row in rows if row["verdict"] == "better"]
    return max(better, key=lambda row: row[f"auroc_minus_{REFERENCE}"], default=None)


def shared(rows: Iterable[Row], *, splits: bool = False) -> list[Row]:
    """Rows of failure prediction about the shared frozen classifiers.

    Args:
      rows: Rows with `answers`.
      splits: Whether to keep the rows of shifted test images.
    """
    return [
        row
        for row in _frozen(rows)
        if row.get("task", "failure") == "failure"
        and not row["answers"]
        and (splits or ":" not in row["split"])
    ]


def _mean_costs(runs: Iterable[str], extra: Mapping[str, Any]) -> dict[str, float]:
    """What an answer costs, by method, mean of the runs; of methods that each of them knows."""
    settings, fitted = extra.get("cells", {}), extra.get("costs", {})
    every = [answer_costs(settings.get(run, {}), fitted.get(run, {})) for run in runs]
    known = [name for name in every[0] if all(name in one for one in every)]
    return {name: sum(one[name] for one in every) / len(every) for name in known}


@dataclasses.dataclass(frozen=True)
class SavedStudy:
    """All that the page of a study is made of."""

    datasets: Sequence[StudyDataset]
    settings: Mapping[str, Mapping[str, Any]]
    """Name of a run -> its settings."""
    notes: Mapping[str, Sequence[str]]
    """Note -> names of the runs that have it."""
    failed: Mapping[str, str]
    """Name of a run -> why it failed."""
    environment: Mapping[str, Any]
    command: str

    @classmethod
    def of_rows(cls, folder: Path, rows: Iterable[Row], extra: Mapping[str, Any]) -> "SavedStudy":
        """A study from its rows and `extra`; see `write_study_report`."""
        rows = [
            {"ablation": "", "cell": f"{row['dataset']}-seed{row['seed']}", **row} for row in rows
        ]
        data = extra.get("data", {})
        names = cells.by((row for row in rows if not row["ablation"]), "dataset")
        groups = cells.by(rows, "dataset")
        return cls(
            [
                StudyDataset(
                    name,
                    folder,
                    groups[name],
                    data.get(name, {}).get("class_names"),
                    _mean_costs(cells.by(names[name], "cell"), extra),
                )
                for name in names
            ],
            extra.get("cells", {}),
            extra.get("notes", {}),
            extra.get("failed", {}),
            extra.get("environment", {}),
            " ".join(extra.get("command", [])),
        )

    @property
    def plain(self) -> list[Row]:
        """Rows of single runs without ablations."""
        return [row for dataset in self.datasets for row in dataset.plain]

    @property
    def whole(self) -> bool:
        """Whether all runs used all images of their data sets."""
        names = [cell.name for dataset in self.datasets for cell in dataset.cells]
        return all(uses_all_data(self.settings.get(name, {})) for name in names)
