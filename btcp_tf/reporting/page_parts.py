"""Parts that the pages of runs, studies and score files share."""

import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from btcp_tf import metrics
from btcp_tf.core.files import as_path, atomic_path
from btcp_tf.data.corruptions import CORRUPTIONS
from btcp_tf.evaluation import predictions as predictions_
from btcp_tf.evaluation import tabular
from btcp_tf.evaluation.keys import CLASSIFIER, FINETUNED, TEST, Predictor, predictions_file
from btcp_tf.evaluation.predictions import REFERENCE, Predictions, about_file, mcp_column
from btcp_tf.methods.registry import METHODS
from btcp_tf.metrics import METRICS, OOD_METRICS
from btcp_tf.reporting import cells, figures, gallery, glance, pages, plots, tables
from btcp_tf.reporting.cells import FEW_ERRORS, GIVEN, Cell, Row, Words
from btcp_tf.reporting.drawing import Drawing
from btcp_tf.reporting.glance import Step
from btcp_tf.reporting.pages import Block, Definitions, Details, Heading
from btcp_tf.reporting.svg import Chart, Matrix
from btcp_tf.thresholds import Outcome

SHOWN = 24
"""Single errors that a report shows of each kind."""

MOST_CLASSES = 20
"""Classes of a confusion matrix; of more the pairs that are confused most are listed alone."""

PAPER_WORDS = (
    "Beside the paper's table, in percent; the paper's BTCP is the fine-tuned one. Its FPR column "
    "cannot be matched. Read by the paper's formula (FPR: accepted errors ÷ errors), MCP on "
    "Fashion-MNIST would have to reject most correct answers; read as the authors' prototype "
    "computes it (FP / n: accepted errors ÷ all answers), the MNIST classifier would have to be "
    "wrong on more than 13 %. Both are shown, and no match is claimed. Our AUROC is the "
    "paper's AUC, several cells of which equal those of an earlier publication."
)

PART_WORDS = (
    "The paper's cells are left out: this is a part of the data (max_train_images, "
    "max_test_images), whose figures do not belong beside them."
)


def class_blocks(
    predictions: Mapping[Predictor, Predictions],
    class_names: Sequence[str] | None,
    test: Sequence[Row],
) -> list[Block]:
    first, *_ = predictions.values()
    return per_class([first], class_names, str(test[0]["dataset"]))


def per_class(
    predictions: Sequence[Predictions],
    class_names: Sequence[str] | None,
    dataset: str,
    who: str = "frozen classifier",
) -> list[Block]:
    """Failures per class, and which class is taken for which; see `tables.class_table`."""
    blocks: list[Block] = [tables.class_table(predictions, class_names, dataset, who)]
    classes, counts = tables.confusion(predictions)
    pairs = tables.confused_table(classes, counts, class_names, dataset)
    if 1 < len(classes) <= MOST_CLASSES:
        blocks.append(_confusion_matrix(classes, counts, class_names, dataset))
        if pairs is not None:
            blocks.append(Details("Confused classes as a table", [pairs]))
    elif pairs is not None:
        blocks.append(pairs)
    return blocks


def _confusion_matrix(
    classes: np.ndarray, counts: np.ndarray, class_names: Sequence[str] | None, dataset: str
) -> Matrix:
    names = [cells.class_name(int(number_), class_names) for number_ in classes]
    right, total = int(counts.trace()), int(counts.sum())
    alt = f"Confusion matrix of {len(names)} classes: {right:,} of {total:,} answers are right"
    pairs = [
        f"{names[true]} taken for {names[said]}, {counts[true, said]:,} times"
        for true, said in tables.confused(counts)[:3]
    ]
    alt += f". Most often confused: {'; '.join(pairs)}." if pairs else ", none is confused."
    return Matrix(
        alt,
        counts,
        names,
        f"Which class is taken for which: {dataset}",
        "A row for each true class, a column for each class that was predicted, as counts. Right "
        "answers stand on the diagonal. The shade of a wrong cell is its share of the row, beside "
        "the largest such share.",
    )


def look_step(picked: Mapping[str, np.ndarray]) -> Step:
    unsure, trusted = (len(picked[kind]) for kind in ("uncertain", "trusted"))
    words = f"Look at the {unsure} answers with the highest u"
    if trusted:
        words += f", and at the {trusted} error{'s' * (trusted > 1)} that it trusts most"
    return Step(f"{words}.", link="#check-these-first")


def curve_of(p: Predictions, method: str, chosen: Outcome | None) -> Chart:
    """Risk and coverage of a method and of MCP."""
    columns = [(cells.label(method), "ours", p.uncertainty[method])]
    mcp = mcp_column(p)
    if mcp is not None and not np.allclose(mcp, columns[0][2], atol=1e-6):
        columns.append((cells.label(REFERENCE), "mcp", mcp))
    return glance.risk_coverage(p.is_error, columns, chosen)


@dataclasses.dataclass(frozen=True)
class Kept:
    """Pictures of answers, as they are kept beside the figures, and where they come from."""

    pictures: Mapping[int, np.ndarray]
    """Row -> thumbnail."""
    files: Mapping[int, str]
    """Row -> path of its file, as far as they are known."""

    @classmethod
    def of(
        cls,
        rows: np.ndarray,
        source: Path,
        images: np.ndarray | None,
        files: Sequence[str] | np.ndarray | None,
    ) -> "Kept":
        """Those of some rows, from all images, or without them from an earlier report.

        Args:
          rows: Which.
          source: The `figures` of the earlier report.
          images: All images.
          files: Path of the file of each image; None: they have none.
        """
        if images is None:
            kept = cls.load(source)
            here = [row for row in rows.tolist() if row in kept.pictures]
            return cls(
                {row: kept.pictures[row] for row in here},
                {row: kept.files[row] for row in here if row in kept.files},
            )
        return cls(
            {row: gallery.thumbnail(images[row]) for row in rows.tolist()},
            {} if files is None else {row: str(files[row]) for row in rows.tolist()},
        )

    @classmethod
    def load(cls, folder: Path) -> "Kept":
        """All that an earlier report kept; a version before galleries kept some errors alone."""
        pictures: dict[int, np.ndarray] = {}
        files: dict[int, str] = {}
        for name in ("likely_label_errors", "most_confident_errors", *KEPT):
            if not (folder / f"{name}.npz").exists():
                continue
            with np.load(folder / f"{name}.npz", allow_pickle=False) as saved:
                rows = saved["rows"].tolist()
                pictures |= dict(zip(rows, map(gallery.thumbnail, saved["images"]), strict=True))
                if "files" in saved and len(saved["files"]):
                    pairs = zip(rows, map(str, saved["files"]), strict=True)
                    files |= {row: file for row, file in pairs if file}
        return cls(pictures, files)

    @property
    def links(self) -> dict[int, str]:
        """Row -> address of its file."""
        paths = {row: Path(file) for row, file in self.files.items()}
        return {row: path.as_uri() for row, path in paths.items() if path.is_absolute()}

    def names(self, count: int) -> dict[int, str]:
        """What each of so many rows is called."""
        paths = {row: Path(file) for row, file in self.files.items()}
        return {row: f"image {row}" for row in range(count)} | {
            row: f"{path.parent.name}/{path.name}" for row, path in paths.items()
        }

    def save(self, path: Path) -> None:
        """Writes one of the files of `KEPT`, from which a report is drawn again."""
        if not self.pictures:
            return
        rows = [*self.pictures]
        files = [self.files.get(row, "") for row in rows] if self.files else []
        with atomic_path(path) as temporary:
            np.savez_compressed(
                temporary,
                rows=np.array(rows, np.int64),
                images=np.stack([*self.pictures.values()]),
                files=np.array(files, str),
            )


KEPT = ("gallery", "errors")
"""Files of pictures beside the figures: of a run's own gallery, and of the wrong answers that the
page of a study may show, whichever method turns out to be the best of it."""


def errors_kept(p: Predictions) -> np.ndarray:
    """The rows that a study may show of a frozen classifier's answers."""
    picked = [
        rows
        for method in p.uncertainty
        if is_candidate(method)
        for rows in gallery.pick_errors(p.is_error, p.uncertainty, method).values()
    ]
    return np.unique(np.concatenate([np.empty(0, np.int64), *picked]))


def outcome_words(found: Outcome) -> list[Words]:
    """The share that is accepted, and how much of it is wrong."""
    words: list[Words] = [Cell(f"{found.coverage:.1%}", found.coverage)]
    if found.accepted:
        rate = f"{found.risk:.2%} [{found.low:.2%}, {found.high:.2%}]"
        words += [", and of those ", Cell(rate, found.risk), " are wrong"]
    return [*words, "."]


def merge_notes(notes: Iterable[str]) -> list[str]:
    """Notes in their order; the same sentence about several stages, "tcp: …", becomes one."""
    whose: dict[str, list[str]] = {}
    for note in notes:
        head, colon, rest = note.partition(": ")
        alone = colon and " " not in head
        whose.setdefault(rest if alone else note, []).extend([head] if alone else [])
    return [
        f"{', '.join(dict.fromkeys(heads))}: {words}" if heads else words
        for words, heads in whose.items()
    ]


def whole_number(settings: Mapping[str, Any]) -> bool:
    """Whether a run took all of its data set."""
    limits = ("max_train_images", "max_test_images")
    return all(str(settings.get(name, 0)) == "0" for name in limits)


def names_of(rows: Iterable[Row], column: str) -> str:
    return ", ".join(dict.fromkeys(str(row[column]) for row in rows))


def remarks_of(rows: Iterable[Row]) -> list[str]:
    """What the numbers of errors say about the rest of the page."""
    remarks = []
    for group in cells.classifiers(rows):
        errors, who = group[0]["errors"], f"The {cells.stage_label(group[0]['stage'])} classifier"
        if errors == 0:
            remarks.append(f"{who} has no wrong answers: {_undefined(group)}.")
        elif errors == group[0]["n"]:
            remarks.append(f"{who} has no right answers: {_undefined(group)}.")
        elif errors < FEW_ERRORS:
            remarks.append(
                f"{who} makes only {errors} error{'s' * (errors > 1)}: every figure about finding "
                "them rests on these few."
            )
    return list(dict.fromkeys(remarks))


def _undefined(group: Sequence[Row]) -> str:
    """The metrics that are not defined where all answers are right, or all are wrong."""
    titles = [
        metric.title
        for name, metric in METRICS.items()
        if metric.kind != "calibration"
        and all(math.isnan(cells.number(row[name])) for row in group)
    ]
    return f"{', '.join(titles)} are not defined (n/a)"


def headline(group: Sequence[Row]) -> list[Block]:
    first = group[0]
    where = "answers" if first["stage"] == GIVEN else f"{first['split']} images"
    return [
        Heading(cells.answers_title(first)),
        pages.text(
            "Right on ",
            Cell(f"{cells.printed(first['accuracy'], 'accuracy')} %", first["accuracy"]),
            f" of {first['n']:,} {where}, wrong on ",
            Cell(f"{first['errors']:,}", first["errors"]),
            ". ",
            *_hand_over(group),
            "How well each method finds these errors:",
        ),
        *tables.headline_tables(group),
    ]


def _hand_over(group: Sequence[Row]) -> list[str | Cell]:
    """What is left of the errors if the least trusted answers go to a person."""
    real = [row for row in group if is_candidate(row["method"])] or group
    known = [row for row in real if not math.isnan(cells.number(row.get("risk_at_coverage_90")))]
    if not known:
        return []
    row = min(known, key=lambda row: cells.number(row["aurc"]))
    risk = cells.number(row["risk_at_coverage_90"])
    words: list[str | Cell] = [
        f"Among the 90 % that {cells.label(row['method'])} trusts most (ties included), ",
        Cell(f"{cells.printed(risk, 'risk_at_coverage_90')} %", risk),
        " are wrong",
    ]
    if len(known) > 1:
        words.append("; of the methods here it has the least AURC on these answers")
    return [*words, ". "]


def is_candidate(name: str) -> bool:
    """Whether a method is one to choose, no control."""
    return name not in METHODS or METHODS[name].group != "control"


def main_method(p: Predictions) -> str:
    """The method whose errors are shown where there is room for one: that of the least AURC."""
    names = [name for name in p.uncertainty if is_candidate(name)] or list(p.uncertainty)
    return min(names, key=lambda name: metrics.aurc(p.is_error, p.uncertainty[name]))


def paper_blocks(rows: Sequence[Row], whole: bool) -> list[Block]:
    return (
        [pages.text(PAPER_WORDS), *tables.paper_tables(rows)] if whole else [pages.text(PART_WORDS)]
    )


def other_images(seen: Sequence[Row], raw: Sequence[Row], whole: bool) -> list[Block]:
    """Tables of OOD sets, the joint task and shifted images; without such rows nothing.

    Args:
      seen: Rows with `answers`, of one run or over seeds.
      raw: Rows of single runs, for the number of OOD images.
      whole: Whether the paper's cells may be shown.
    """
    blocks: list[Block] = []
    for rows in cells.by(seen, "dataset").values():
        sets = [ood for ood in cells.by(rows, "ood") if ood]
        for ood in sets:
            n_ood = next(int(row["n_ood"]) for row in raw if row.get("ood") == ood)
            blocks.append(tables.ood_table(cells.only(rows, "ood", ood), n_ood=n_ood, paper=whole))
        if len(sets) > 1:
            blocks.append(tables.near_far_table([r for r in rows if r.get("task") == "ood"]))
        blocks += [tables.joint_table(cells.only(rows, "joint", ood)) for ood in sets]
        failure = [row for row in rows if row.get("task", "failure") == "failure"]
        if any(":" in row["split"] for row in failure):
            words = " ".join(map(_first_words, CORRUPTIONS.values()))
            blocks.append(pages.text(f"Shifted images, at strength 1, 2 and 3: {words}"))
            blocks += [tables.shift_table(failure, name) for name in ("aurc", "auroc")]
    return blocks


def appendix(
    rows: Sequence[Row], settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[tuple[str, list[Block]]]:
    def folded(values: Mapping[str, Any], name: str, caption: str) -> list[Block]:
        # In the order of a saved file, so that a page is drawn again alike.
        table = tables.pair_table(dict(sorted(values.items())), name, caption)
        return [Details(caption, [table])] if values else []

    return [
        ("What the metrics mean", [_glossary(any(row.get("ood") for row in rows))]),
        ("What the methods are", _methods(rows)),
        ("Settings", folded(settings, "settings", "Settings of the run")),
        ("Environment", folded(environment, "environment", "Where it ran")),
    ]


def _glossary(ood: bool) -> Block:
    entries = []
    for name, metric in (METRICS | (OOD_METRICS if ood else {})).items():
        function = getattr(metrics, metric.formula.__name__.removeprefix("_"))
        better = "higher" if metric.higher_is_better else "lower"
        entries.append((metric.title, name, f"{_first_words(function)} Better when {better}."))
    return Details(f"{len(entries)} metrics", [Definitions(entries)])


_TRAINED = {
    "tcp": "Estimator of the true class probability, plain squared error (ConfidNet).",
    "ohem": "The same estimator, trained on the hardest examples of each batch alone.",
    "thresholding": "TCP's u; tau is where BACC is best on validation data.",
    "btcp": "The same estimator, trained with the Distributional Focal Loss.",
}


def _methods(rows: Iterable[Row]) -> list[Block]:
    entries = []
    for name in METHODS:
        if any(row["method"] == name for row in rows):
            prepare = METHODS[name].prepare
            words = _TRAINED.get(name) or (_first_words(prepare) if prepare else "")
            entries.append((cells.marked(name), name, words))
    return [Details(f"{len(entries)} methods", [Definitions(entries)])] if entries else []


def _first_words(function: Any) -> str:
    return " ".join((function.__doc__ or "").split("\n\n")[0].split()).replace("`", "")


def main_predictor(predictions: Mapping[Predictor, Predictions]) -> Predictor:
    """The last fine-tuned classifier, else the first one."""
    first, *_ = predictions
    return next((who for who in reversed([*predictions]) if who.stage == FINETUNED), first)


def _picks(
    predictions: Mapping[Predictor, Predictions],
) -> dict[str, tuple[Predictor, str, np.ndarray]]:
    """Which errors are shown: file of their pixels -> predictor, method, rows."""
    first, main = next(iter(predictions)), main_predictor(predictions)
    p, shared = predictions[main], predictions[first]
    method = main_method(p)
    confident = plots.confident_errors(p.is_error, p.uncertainty[method], SHOWN)
    picks = {"most_confident_errors": (main, method, confident)}
    columns = figures.curves(shared.uncertainty)
    if len(columns) > 1:
        suspects = plots.trusted_by_all(shared.is_error, columns, SHOWN)
        picks["likely_label_errors"] = (first, "", suspects)
    return picks


def error_blocks(
    folder: Path,
    predictions: Mapping[Predictor, Predictions],
    class_names: Sequence[str] | None,
    *,
    images: np.ndarray | None = None,
    names: Sequence[str] | None = None,
) -> list[Block]:
    """Sheets and tables of confident errors, and of errors that no method distrusts.

    Args:
      folder: The `figures` of the run, whose pixels are used where `images` is None.
      predictions: See `write_run_report`.
      class_names: Names by class number.
      images: All test images.
      names: What each row answers; None: its number says it.
    """
    blocks: list[Block] = []
    for stem, (predictor, method, rows) in _picks(predictions).items():
        p = predictions[predictor]
        labels = tables.known_labels(p)
        if not len(rows):
            continue
        if method:
            title = "Most confident errors"
            caption = (
                f"Wrong answers of the {cells.stage_label(predictor)} classifier with the "
                f"smallest u by {cells.label(method)}, the most trusted first: what it is, what "
                "the classifier said, and u."
            )
            key = f"u ({cells.label(method)}, {cells.stage_label(predictor)})"
            values = [cells.printed_u(float(p.uncertainty[method][row]), 4) for row in rows]
            shown = [cells.printed_u(float(p.uncertainty[method][row])) for row in rows]
            remarks = [f"u {u}" if u.startswith("<") else f"u = {u}" for u in shown]
        else:
            title = "Errors that every method trusts"
            caption = (
                f"Wrong answers of the {cells.stage_label(predictor)} classifier that every method "
                "trusts more than half of all answers, ordered by the least trusting method's "
                "rank. Look at the label first: it may be the label that is wrong."
            )
            key = "largest u of all methods in [0, 1]"
            scales = [
                u
                for name, u in p.uncertainty.items()
                if is_candidate(name) and u.min() >= 0 and u.max() <= 1
            ]
            largest = [max((float(u[row]) for u in scales), default=math.nan) for row in rows]
            values = ["n/a" if math.isnan(u) else cells.printed_u(u, 4) for u in largest]
            remarks = [f"u up to {u}" for u in values]
        listed = [
            {
                "image": one_line(names[row]) if names else int(row),
                "true class": cells.class_name(labels[row], class_names),
                "predicted class": cells.class_name(p.predicted[row], class_names),
                key: value,
            }
            for row, value in zip(rows, values, strict=True)
        ]
        pixels = images[rows] if images is not None else _pixels(folder / f"{stem}.npz", rows)
        if pixels is None:
            blocks += [Heading(title), pages.text(caption)]
        else:
            sheet = plots.error_sheet(pixels, labels[rows], p.predicted[rows], remarks, class_names)
            alt = "; ".join(", ".join(map(str, row.values())) for row in listed[:3])
            blocks.append(Drawing(stem, title, caption, sheet, 2, f"{len(rows)}, first {alt}"))
        table = tables.error_table(listed, stem, title)
        blocks.append(Details(f"{len(listed)} error{'s' * (len(listed) > 1)} as a table", [table]))
    return blocks


def save_pixels(
    folder: Path,
    predictions: Mapping[Predictor, Predictions],
    images: np.ndarray | None,
    source: str | os.PathLike | None,
) -> None:
    """Keeps the pixels of the errors that are shown, from the images or an earlier report."""
    for stem, (*_, rows) in _picks(predictions).items():
        found = images[rows] if images is not None else None
        if found is None and source is not None and Path(source) != folder:
            found = _pixels(Path(source) / f"{stem}.npz", rows)
        if found is not None:
            with atomic_path(folder / f"{stem}.npz") as temporary:
                np.savez_compressed(temporary, rows=rows, images=found)


def _pixels(path: Path, rows: np.ndarray) -> np.ndarray | None:
    """Images of these rows from an earlier report; None where it has others or is not there."""
    if path.exists():
        with np.load(path) as saved:
            if np.array_equal(saved["rows"], rows):
                return saved["images"]
    return None


def plain_of(rows: Iterable[Row], dataset: str) -> list[Row]:
    """Rows of one data set."""
    return [row for row in rows if row["dataset"] == dataset]


def percent(row: Row, name: str) -> Cell:
    cell = cells.value_cell(row, name)
    return dataclasses.replace(cell, text=f"{cell.text} %")


def folders_(path: Path, given: str | os.PathLike | None) -> list[Path]:
    """Where the files may be that the rows of a file of scores name.

    Raises:
      ValueError: If the folder that is given is not there.
    """
    if given is not None:
        folder = as_path("files_dir", given)
        if not folder.is_dir():
            raise ValueError(f"files_dir: expected a folder that is there, received {folder}")
        return [folder]
    try:
        about = json.loads(about_file(path).read_text(encoding="utf-8"))
        return [Path(about["paths"]["input"]), path.parent]
    except (OSError, ValueError, KeyError, TypeError):
        return [path.parent]  # What is told beside a file is no more than a help.


def file_of(name: str, folders: Sequence[Path]) -> Path | None:
    """The file that a row names; None if no folder holds it.

    A page may be passed on, so no name leads out of the folders: "../" and other places stay shut.
    """
    for folder in map(os.path.abspath, folders):
        file = Path(os.path.abspath(os.path.join(folder, name)))
        try:
            if file.is_relative_to(folder) and file.is_file():
                return file
        except (OSError, ValueError):
            continue  # No name that a file can have.
    return None


def one_line(name: object) -> str:
    """What a row answers, on one line."""
    return " ".join(tabular.shown(name).split())


def load_predictions(folder: Path, rows: Iterable[Row]) -> dict[Predictor, Predictions]:
    """Test predictions of a run's predictors, in order of its rows; those whose file is there.

    Args:
      folder: The run's folder.
      rows: Rows of the run, or of runs with the same methods.

    Returns:
      Predictions of each, the classifier of phase 1 among them; or nothing without that one.
    """
    predictors = [CLASSIFIER]
    for row in cells.with_answers(cells.only(rows)):
        if row["answers"]:
            predictors.append(Predictor(row["answers"], row["stage"]))
    found = {}
    for predictor in dict.fromkeys(predictors):
        path = folder / predictions_file(TEST, predictor)
        predictions = load_saved(path)
        if predictions is not None:
            count = cells.only(rows)[0]["n"]
            if len(predictions.predicted) != count:
                raise ValueError(
                    f"{path}: expected the {count} answers of results.json, received "
                    f"{len(predictions.predicted)}"
                )
            found[predictor] = predictions
    return found if CLASSIFIER in found else {}


def load_saved(path: Path) -> Predictions | None:
    return predictions_.load_predictions(path) if path.exists() else None


def load_history(path: Path) -> list[dict[str, Any]]:
    """Rows of a run's history, numbers as floats, NaN where a cell is empty; none without a file.

    Raises:
      ValueError: If it is no history; the message names the file.
    """
    if not path.exists():
        return []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return [
                {
                    key: value if key in ("stage", "phase") else float(value or "nan")
                    for key, value in row.items()
                }
                for row in csv.DictReader(file)
            ]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected a run's history, received {error}") from error
