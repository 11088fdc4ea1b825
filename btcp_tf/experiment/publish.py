"""The end of a run: report, export, `finished.json`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from btcp_tf.core import command, files, wording
from btcp_tf.core.config import Config
from btcp_tf.data import datasets
from btcp_tf.data.splits import Dataset
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.decision_file import DECISION_FILE, NOT_EXPORTED
from btcp_tf.evaluation import results
from btcp_tf.evaluation.explanations import Explanations
from btcp_tf.experiment import journal
from btcp_tf.experiment.score import Scorer
from btcp_tf.experiment.values import AllPredictions, Decision, Row
from btcp_tf.reporting import run_page
from btcp_tf.serving import publishing
from btcp_tf.serving.publishing import PUBLICATION


@dataclasses.dataclass(frozen=True)
class End:
    """What `finished.json` says: how the run ended."""

    saved_model: str
    """Where the SavedModel is, or why there is none."""
    retry: bool = False
    """Whether the same command is to try the export again."""

    def to_export(self, config: Config) -> bool:
        """Whether a finished run has an export left to do."""
        missing = self.saved_model.startswith(NOT_EXPORTED)
        return missing and (self.retry or config.export_collapsed)


EXPORT_OPEN = f"{NOT_EXPORTED}: the run has not ended; the same command goes on with it"


def report_run(
    folder: Path,
    predictions: "AllPredictions",
    history: list[Row],
    dataset: Dataset,
    explanations: Explanations | None,
) -> None:
    """Writes figures and page, before the export, which may fail."""
    rows, extra = results.load_rows(folder / "results.json")
    run_page.write_run_report(
        folder,
        rows,
        {name: found for (split, name), found in predictions.items() if split == "test"},
        history,
        images=dataset.test.images,
        class_names=dataset.class_names,
        settings=extra["settings"],
        environment=extra["environment"],
        notes=extra["notes"],
        saved_model=EXPORT_OPEN,
        promises=extra["promises"],
        decision=decision_file.load_decision(folder),
        explanations=explanations,
        files=dataset.test.files,
    )


def finish_run(folder: Path, decision: "Decision", end: End) -> None:
    """Writes how the run ended where it is to be read, `finished.json` last."""
    save_decision(folder, decision, end.saved_model)
    page = folder / "report.html"
    replaced = page.exists() and run_page.replace_saved_model(folder, end.saved_model)
    journal.log(folder, f"exported: {end.saved_model}")
    with files.atomic_path(folder / "finished.json") as temporary:
        temporary.write_text(json.dumps(dataclasses.asdict(end)) + "\n")
    if not replaced:
        # Another version wrote the page, or nobody.
        run_page.redraw_run(folder)
    journal.log(folder, "finished")


def save_decision(folder: Path, decision: "Decision", saved_model: str) -> None:
    with files.atomic_path(folder / DECISION_FILE) as temporary:
        temporary.write_text(json.dumps(decision.as_json(saved_model), indent=2) + "\n")


def export_folder(config: Config, dataset: Dataset) -> Path:
    """Where the run's versions are, below `config.export_dir`."""
    trial = "-trial" if config.max_train_images else ""
    return Path(config.export_dir) / (config.export_name or dataset.name + trial)


@dataclasses.dataclass(frozen=True)
class Beside:
    """What is known of the version that the run's would replace."""

    version: Path
    words: str
    is_worse: bool
    compared: bool

    @property
    def note(self) -> str:
        """For the report; "" where all is well."""
        if self.is_worse:
            return f"export: {self.words}; a worse model is published with --publish alone"
        return "" if self.compared else f"export: {self.words}"


def replaces(folder: Path, decision: Decision, dataset: Dataset, config: Config) -> Beside | None:
    """The run's classifier beside the version that it would replace; None where there is none."""
    target, version = export_folder(config, dataset), None
    predicted = decision.held_out["validation"].predicted
    try:
        version = publishing.replaced_version(target, publishing.publication_id(folder))
        if version is None:
            return None
        found = publishing.compare_with(version, predicted, dataset, config, datasets.load)
    except Exception as error:  # Whatever a model of other times raises.
        place = version or target
        words = f"{place} and this model cannot be compared: {wording.one_line(error)[:300]}"
        return Beside(place, words, is_worse=False, compared=False)
    return Beside(version, found.words(version), found.is_worse, compared=True)


def try_export(
    folder: Path,
    scorer: Scorer,
    decision: Decision,
    beside: Beside | None,
    dataset: Dataset,
    config: Config,
) -> tuple[End, Exception | None]:
    """Exports what was decided on.

    Returns:
      How the run ends, and what to raise once that is written.
    """
    none = NOT_EXPORTED
    collapse = scorer.collapse(decision.predictor, decision.method)
    if collapse and not config.export_collapsed:
        return End(f"{none}: {collapse}; --export_collapsed exports it all the same"), None
    try:
        publication = publishing.publication_id(folder)
        threshold = dataclasses.asdict(decision.threshold)
        # A run that was killed behind its export has published already.
        own = publishing.own_version(export_folder(config, dataset), publication, threshold)
        if own is not None:
            return End(str(own)), None
        if beside and beside.is_worse and not config.publish:
            words = f"{none}: {beside.words}; the same command with --publish publishes it"
            return End(words, retry=True), RuntimeError(words)
        about = {PUBLICATION: publication}
        if beside:
            about["replaces"] = beside.words
        return End(str(export_model(folder, scorer, decision, about, dataset, config))), None
    except Exception as error:
        journal.log(folder, f"the export failed: {wording.one_line(error)}")
        words = (
            f"{none}: {wording.one_line(error)[:500]}; everything else is done, and the same "
            "command tries the export again"
        )
        # A fault of the program shows where it is.
        raised = RuntimeError(words) if command.is_expected(error) else error
        return End(words, retry=True), raised


def export_model(
    folder: Path,
    scorer: Scorer,
    decision: Decision,
    about: dict[str, Any],
    dataset: Dataset,
    config: Config,
) -> Path:
    """Writes the SavedModel of what was decided on; returns the version's folder."""
    from btcp_tf.serving.saved_model import export

    rows, _ = results.load_rows(folder / "results.json")
    wanted = (decision.method, decision.stage)
    target = export_folder(config, dataset)
    return export(
        scorer.exported_model(decision.predictor, decision.method),
        target.parent,
        target.name,
        dataset.class_names,
        dataset.validation.images[:64],
        threshold=decision.threshold,
        held_out=decision.held_out,
        calibration_inputs=dataset.calibration.images,
        about={
            **about,
            "uncertainty": {"method": decision.method, "stage": decision.stage},
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "note": dataset.note,
                # For those who choose another threshold on the calibration rows.
                "no_promise": dataset.overlaps.no_promise,
            },
            "metadata": {
                "settings": config.settings(results_only=True),
                "test": next(
                    (row for row in rows if (row["method"], row["stage"]) == wanted), None
                ),
            },
        },
    )


def read_finished(folder: Path) -> End:
    """How a finished run ended."""
    path = folder / "finished.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # Without the second where 0.1.0 wrote it.
        end = End(content["saved_model"], content.get("retry", False))
        if not (isinstance(end.saved_model, str) and isinstance(end.retry, bool)):
            raise ValueError(f"it is {content!r}")
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ValueError(
            f"expected the end of a run in {path}, received what cannot be read ({error}); delete "
            "it, and the same command goes on from the checkpoints"
        ) from error
    return end
