"""The end of a run: results, report, export, `finished.json`."""

import contextlib
import dataclasses
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import special

from btcp_tf.core import command, files, json_files, versions, warning, wording
from btcp_tf.core.files import folder_lock
from btcp_tf.core.progress import say
from btcp_tf.data.splits import Dataset
from btcp_tf.decisions import decision_file
from btcp_tf.decisions.decision_file import NOT_EXPORTED, Decision
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.evaluation import keys, results
from btcp_tf.evaluation.keys import CALIBRATION, VALIDATION
from btcp_tf.evaluation.predictions import (
    REFERENCE,
    Predictions,
    mcp_logit,
    save_predictions,
)
from btcp_tf.experiment import journal
from btcp_tf.experiment.values import AllPredictions
from btcp_tf.reporting import run_page
from btcp_tf.serving import publishing
from btcp_tf.serving.publishing import PUBLICATION, RUN, Comparison
from btcp_tf.thresholds import Threshold

if TYPE_CHECKING:
    import keras

FINISHED_FILE = "finished.json"
"""In a run's folder: how the run ended."""


@dataclasses.dataclass(frozen=True)
class End:
    """How a run ended: the content of `finished.json`."""

    saved_model: str
    """Where the SavedModel is, or why there is none."""
    retry: bool = False
    """Whether the same command is to try the export again."""
    collapse: str = ""
    """Why what was chosen for the export must not be exported, see `Scorer.collapse`."""
    sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Check sums of the run's results by name; none in files of earlier versions."""

    def to_export(self, export_collapsed: bool) -> bool:
        """Whether a finished run has an export left to do.

        Args:
          export_collapsed: Whether estimators are exported that collapsed.
        """
        missing = self.saved_model.startswith(NOT_EXPORTED)
        return missing and (self.retry or export_collapsed)


EXPORT_OPEN = f"{NOT_EXPORTED}: the run has not ended; the same command goes on with it"


def environment() -> dict[str, str]:
    """What besides the settings can change a figure: versions, platform, devices."""
    import tensorflow as tf

    return versions.installed() | {
        "platform": platform.platform(),
        # Physical ones: how a CPU is split is a setting of the run.
        "devices": ", ".join(
            device.name.removeprefix("/physical_device:")
            for device in tf.config.list_physical_devices()
        ),
        "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "unset"),
    }


def save_answers(folder: Path, predictions: AllPredictions) -> None:
    """Writes a file of predictions for each predictor and set of images."""
    for (image_set, predictor), answers in predictions.items():
        save_predictions(folder / keys.predictions_file(image_set, predictor), answers)


def finish_run(folder: Path, decision: Decision, end: End) -> None:
    """Writes how the run ended where it is to be read, `finished.json` last."""
    decision_file.save_decision(folder, decision, end.saved_model)
    page = folder / "report.html"
    replaced = page.exists() and run_page.replace_saved_model(folder, end.saved_model)
    journal.log(folder, f"exported: {end.saved_model}")
    _write_end(folder, end)
    if not replaced:
        # Another version wrote the page, or nobody.
        run_page.redraw_run(folder)
    journal.log(folder, "finished")


def set_threshold(folder: Path, threshold: Threshold, version: Path) -> Path | None:
    """Writes into a finished run that its SavedModel has another threshold now.

    Args:
      folder: The run's folder.
      threshold: Chosen on the run's calibration images.
      version: The SavedModel's new version.

    Returns:
      The run's page, drawn again; None where there is none.

    Raises:
      ValueError: If a file of the run is damaged or missing.
      RuntimeError: If another process holds the folder.
      OSError: If a file cannot be read or written.
    """
    with folder_lock(folder):
        end, decision = read_finished(folder), decision_file.load_decision(folder)
        if end is None or decision is None:
            raise ValueError(f"{folder}: expected a finished run, received one that is not")
        new = dataclasses.replace(decision, threshold=threshold)
        decision_file.save_decision(folder, new, str(version))
        new_end = End(str(version), collapse=end.collapse, sha256=end.sha256)
        json_files.write(folder / FINISHED_FILE, new_end)
        journal.log(folder, f"another threshold: {version}")
        if not (folder / "report.html").exists():
            return None
        page, _ = run_page.redraw_run(folder)
        return page


def read_finished(folder: Path) -> End | None:
    """How a run ended; None if it has not.

    Raises:
      ValueError: If the file is damaged.
    """
    path = folder / FINISHED_FILE
    if not path.exists():
        return None
    try:
        content = json_files.parse(path.read_text(encoding="utf-8"))
        # Without the others where 0.1.0 wrote it.
        end = End(
            content["saved_model"],
            content.get("retry", False),
            content.get("collapse", ""),
            content.get("sha256", {}),
        )
        if not [type(value) for value in dataclasses.astuple(end)] == [str, bool, str, dict]:
            raise ValueError(f"it is {content!r}")
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ValueError(
            f"expected the end of a run in {path}, received what cannot be read ({error}); delete "
            "it, and the same command goes on from the checkpoints"
        ) from error
    return end


_RESULTS = ("results.json", "predictions*.npz")
"""What the figures of a finished run are, as patterns of names; nothing changes them later."""


def _write_end(folder: Path, end: End) -> None:
    """Writes how a run ended, with the check sums of what it leaves."""
    found = [path for pattern in _RESULTS for path in folder.glob(pattern)]
    sums = {path.name: files.sha256(path) for path in sorted(found)}
    json_files.write(folder / FINISHED_FILE, dataclasses.replace(end, sha256=sums))


def check_results(folder: Path, end: End) -> None:
    """Looks at what a finished run left, and warns where its SavedModel is gone.

    Raises:
      ValueError: If a file is not the one that the run wrote.
    """
    changed = [
        name
        for name, sum_ in end.sha256.items()
        if (folder / name).exists() and files.sha256(folder / name) != sum_
    ]
    if changed:
        raise ValueError(
            f"expected {', '.join(changed)} in {folder} as the run wrote them, received others; "
            f"delete {folder / FINISHED_FILE}, and the same command makes them again from the "
            "checkpoints"
        )
    if not end.saved_model.startswith(NOT_EXPORTED) and not Path(end.saved_model).is_dir():
        warning.warn(
            f"the SavedModel of {folder} is not in {end.saved_model} any more; where it was not "
            f"moved, delete {folder / FINISHED_FILE}, and the same command exports it again"
        )


def collapsed(collapse: str) -> RuntimeError:
    """The error of a run that exports nothing as its training failed, see `End.collapse`."""
    return RuntimeError(f"{NOT_EXPORTED}: {collapse}; --export_collapsed exports it all the same")


def export_folder(root: str, name: str, dataset: str, *, is_trial: bool) -> Path:
    """Where the run's versions are.

    Args:
      root: The setting `export_dir`.
      name: The setting `export_name`; "": the default.
      dataset: Name of the data set.
      is_trial: Whether only a part of the training images was used.
    """
    return Path(root) / (name or dataset + "-trial" * is_trial)


@dataclasses.dataclass(frozen=True)
class Replaced:
    """The published version that the run's would replace, and how the two compare."""

    text: str
    is_worse: bool = False
    """Whether the run's classifier is wrong more often."""
    compared: bool = True
    lost_promise: str = ""
    """From `publishing.lost_promise`."""

    @property
    def fault(self) -> str:
        """Why the run's version is published only when asked for; "": it needs not be."""
        return "; ".join(filter(None, [self.text if self.is_worse else "", self.lost_promise]))

    @property
    def note(self) -> str:
        """For the report; "" where all is well."""
        notes = [] if self.compared else [self.text]
        if self.fault:
            notes.append(f"{self.fault}; such a model is published with --publish alone")
        return f"export: {'; '.join(notes)}" if notes else ""


def find_replaced(
    folder: Path,
    target: Path,
    threshold: Threshold,
    compare: Callable[[Path], Comparison],
    verbose: int = 0,
) -> Replaced | None:
    """Compares what the run exports with the version that it would replace.

    Args:
      folder: The run's folder.
      target: The folder of all versions.
      threshold: What the run's version accepts.
      compare: Version directory → comparison; see `publishing.compare_with`.
      verbose: 1 says when it begins, 0 is silent.

    Returns:
      None where there is no such version.
    """
    version, lost = None, ""
    try:
        version = publishing.replaced_version(target, publishing.publication_id(folder))
        if version is None:
            return None
        lost = publishing.lost_promise(target, threshold)
        say(f"comparing the classifier with {version}", verbose)
        comparison = compare(version)
    except Exception as error:  # Whatever a model of other times raises.
        reason = wording.one_line(error)[:300]
        text = f"{version or target} and this model cannot be compared: {reason}"
        return Replaced(text, compared=False, lost_promise=lost)
    return Replaced(comparison.text(version), comparison.is_worse, lost_promise=lost)


@dataclasses.dataclass(frozen=True)
class Export:
    """What goes into a run's SavedModel beside the network."""

    folder: Path
    """The run's folder."""
    target: Path
    """The folder of all versions, from `export_folder`."""
    decision: Decision
    held_out: dict[str, Predictions]
    """From `held_out_rows`."""
    dataset: Dataset
    settings: dict[str, str]
    """Those that change results."""
    verbose: int = 0


def held_out_rows(predictions: AllPredictions, decision: Decision) -> dict[str, Predictions]:
    """Validation and calibration rows with the exported u, as SavedModels carry them; with looks
    that of MCP, too, which says which inputs are looked at."""
    held_out = {}
    for image_set in (VALIDATION, CALIBRATION):
        rows = predictions[image_set, decision.predictor]
        columns = {COLUMN: rows.uncertainty[decision.method]}
        if decision.fit is not None and (z := mcp_logit(rows)) is not None:
            columns[REFERENCE] = special.expit(z)
        held_out[image_set.kind] = dataclasses.replace(rows, probs=None, uncertainty=columns)
    return held_out


def try_export(
    model: "contextlib.AbstractContextManager[keras.Model]",
    export: Export,
    *,
    replaced: Replaced | None,
    collapse: str,
    publish_worse: bool,
) -> tuple[End, Exception | None]:
    """Exports what was decided on.

    Args:
      model: From `Scorer.exported_model`.
      export: What else the SavedModel holds.
      replaced: From `find_replaced`.
      collapse: Why the model must not be exported; "": it may.
      publish_worse: Whether it is published if its classifier is worse than the one it replaces,
        or promises less.

    Returns:
      How the run ends, and what to raise once that is written.
    """
    if collapse:
        failure = collapsed(collapse)
        return End(str(failure), collapse=collapse), failure
    try:
        publication = publishing.publication_id(export.folder)
        threshold = dataclasses.asdict(export.decision.threshold)
        # A run that was killed behind its export has published already.
        own = publishing.own_version(export.target, publication, threshold)
        if own is not None:
            return End(str(own)), None
        if replaced and replaced.fault and not publish_worse:
            reason = (
                f"{NOT_EXPORTED}: {replaced.fault}; the same command with --publish publishes it"
            )
            return End(reason, retry=True), RuntimeError(reason)
        about = {PUBLICATION: publication} | ({"replaces": replaced.text} if replaced else {})
        with model as network:
            return End(str(export_model(network, export, about))), None
    except Exception as error:
        message = wording.one_line(error)
        journal.log(export.folder, f"the export failed: {message}")
        reason = (
            f"{NOT_EXPORTED}: {message[:500]}; everything else is done, and the same "
            "command tries the export again"
        )
        # A fault of the program shows where it is.
        raised = RuntimeError(reason) if command.is_expected(error) else error
        return End(reason, retry=True), raised


def export_model(model: "keras.Model", export: Export, about: Mapping[str, Any]) -> Path:
    """Writes the SavedModel of what was decided on; returns the version's folder."""
    from btcp_tf.serving import saved_model

    decision, dataset = export.decision, export.dataset
    rows, _ = results.load_rows(export.folder / "results.json")
    exported = (decision.method, decision.predictor.stage)
    return saved_model.export(
        model,
        export.target.parent,
        export.target.name,
        dataset.class_names,
        dataset.validation.images[:64],
        threshold=decision.threshold,
        held_out=export.held_out,
        calibration_inputs=dataset.calibration.images,
        verbose=export.verbose,
        about={
            **about,
            RUN: publishing.run_entry(export.folder, export.target),
            "uncertainty": {"method": decision.method, "stage": decision.predictor.stage},
            **({} if decision.fit is None else {"fit": decision.fit}),
            "data": {
                "name": dataset.name,
                "fingerprint": dataset.fingerprint,
                "note": dataset.note,
                # For those who choose another threshold on the calibration rows.
                "no_promise": dataset.overlaps.no_promise,
            },
            "metadata": {
                "settings": export.settings,
                "test": next(
                    (row for row in rows if (row["method"], row["stage"]) == exported), None
                ),
            },
        },
    )
