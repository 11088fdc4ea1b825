"""What one run is: its settings and its three phases, as plain data.

This module knows neither TensorFlow nor absl. The command modules turn command
lines into a `Config`; everything below them receives the values it needs.
"""

import collections
import dataclasses
import math
import numbers
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from btcp_tf.core import wording

_Part = TypeVar("_Part")

OWN_DATA = ("folder", "npz")
"""Words for `dataset` with which `data_dir` is the data itself: one's own folder or file."""

RULES = ("best_bacc", "least_cost", "target_coverage", "target_risk")
"""Words for `threshold`; `thresholds.RULES` has their functions."""

IMAGE_LOOKS = (
    *("mirror", "shift_up", "shift_down", "shift_left", "shift_right"),
    *("rotate_left", "rotate_right", "zoom_in", "zoom_out"),
    *("brighter", "darker", "more_contrast", "less_contrast", "gamma_up", "gamma_down"),
    *("blur", "noise", "shifts", "rotations", "zooms", "dropout", "dropouts"),
)
"""Names for `residual_looks`: changes of an image and groups of them, of `networks.looks`, and the
classifier's own dropout."""

ENSEMBLES = frozenset({"ensemble", "ensemble_few"})
"""Words for `method`: those that train further classifiers."""

MAX_PIXELS = 64_000_000
"""Pixels that an image file may have, unless another limit is named: 8,000 x 8,000."""

PILLOWS_LIMIT = 178_956_970
"""Pixels above which Pillow opens no file."""

MIN_COVERAGE = 0.3
"""Share of answers that a threshold of `target_risk` has to accept, unless another is named."""


PREDICTED = "predicted"
"""The setting `by` of thresholds by predicted class."""


class Phase(NamedTuple):
    """One of the three `fit()` phases of the paper's algorithm 1."""

    name: str
    trains: tuple[str, ...]
    """Sub-models whose weights change; all others are frozen."""
    objective: tuple[str, ...]
    """Loss terms that are summed."""


PHASES = (
    Phase("classifier", ("encoder", "classifier"), ("cross_entropy",)),
    Phase("estimator", ("estimator",), ("dfl",)),
    Phase("finetune", ("encoder", "classifier", "estimator"), ("cross_entropy", "dfl")),
)


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is known of a setting: the metadata of its field, by these names."""

    help: str
    """One line for `--help`."""
    choices: tuple[str, ...] = ()
    """Words that are accepted."""
    files: str = ""
    """Ending of the files whose paths are accepted beside these words."""
    low: float = -math.inf
    """Smallest accepted number."""
    high: float = math.inf
    """Largest accepted number."""
    above: float = -math.inf
    """Number that the value must exceed."""
    below: float = math.inf
    """Number that the value must stay below."""
    auto: bool = False
    """Whether the word "auto" is accepted beside numbers."""
    changes_results: bool = True
    """Whether a run resumed with another value would be a different run."""
    before: Any = None
    """What runs did before there was this setting, for those whose flags.cfg lacks it; None: what
    the default does."""


def setting(default: Any, help: str, **rule: Any) -> Any:
    """Declares one setting: its default, its help and what else is in `Rule`.

    The default's type is the setting's type. A tuple of texts is written as a comma-separated list
    on the command line.
    """
    metadata = vars(Rule(help, **{"before": default, **rule}))
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of one run. Checked on construction.

    Raises:
      ValueError: If a value is out of range or two settings conflict; the
        message starts with the name of the setting.
    """

    # What runs, and where the files are.
    dataset: str = setting(
        "",
        "Name of a data set in btcp_tf.data.DATASETS or of another that is prepared in "
        "--data_dir; folder or npz: the images in --data_dir.",
    )
    data_dir: str = setting(
        "",
        "Folder of prepared tensorflow-datasets data. "
        "Default: TFDS_DATA_DIR, else ~/tensorflow_datasets. "
        "With --dataset=folder a folder of class folders, perhaps in train/, val/ and test/; "
        "with --dataset=npz a file of x_train, y_train, x_test, y_test.",
        changes_results=False,
    )
    image_size: str = setting(
        "",
        "Brings all images to one size in pixels: a side, or HEIGHTxWIDTH. "
        "Default: as they are, if they are all alike.",
    )
    bad_files: str = setting(
        "fail",
        "What becomes of files in a class folder that are no whole image.",
        choices=("fail", "skip"),
    )
    max_pixels: int = setting(
        MAX_PIXELS,
        "Pixels that an image file may have. A larger one is not decoded, as it would take too "
        "much memory, and is no whole image.",
        low=1,
        high=PILLOWS_LIMIT,
        changes_results=False,
    )
    groups: str = setting(
        "",
        "With --dataset=folder a regular expression: images in whose file names it finds the same "
        "(its first part in parentheses) belong together, such as those of a patient, and stay in "
        "one part of the data. An npz file says so in groups_train, groups_test and groups_val.",
    )
    output_dir: str = setting(
        "",
        "The run's folder. Default: runs/<dataset>[-<preset>]-seed<seed>.",
        changes_results=False,
    )
    export_dir: str = setting(
        "saved_models", "Root of the exported SavedModels.", changes_results=False
    )
    export_name: str = setting(
        "",
        "Folder below --export_dir. Default: the data set's name; for trials with the name of the "
        "preset behind it (quick, smoke), or -trial (max_train_images).",
        changes_results=False,
    )
    strict: bool = setting(
        False,
        "Refuse to go on with checkpoints that other versions of Python, TensorFlow, Keras, NumPy "
        "or this package trained; else a warning and a note say so.",
        changes_results=False,
    )
    publish: bool = setting(
        False,
        "Publish even a classifier that is wrong more often than the version that it replaces, or "
        "a threshold that promises less.",
        changes_results=False,
    )
    seed: int = setting(0, "Seed of splits, weights, dropout and shuffling.", low=0, high=2**31 - 1)
    method: tuple[str, ...] = setting(
        ("mcp", "tcp", "btcp", "residual"), "Methods to compare, from btcp_tf.methods.METHODS."
    )
    finetune_method: tuple[str, ...] = setting(
        ("btcp",), "Trained methods that are also fine-tuned (phase 3); must be among --method."
    )
    max_train_images: int = setting(
        0,
        "Use only this many of the official training images "
        "(drawn by seed, before the split); 0: all.",
        low=0,
    )
    max_test_images: int = setting(
        0, "Use only the first images of the official test set; 0: all.", low=0
    )

    # Networks.
    classifier: str = setting(
        "",
        "A .keras file of a trained classifier: it takes the place of phase 1 and of --encoder. "
        "Its classes are in the order of the data set's.",
    )
    classifier_pixels: str = setting(
        "auto",
        "Input scaling of --classifier, for pixels from 0 to 255; auto tries all three and keeps "
        "the one with the lowest cross-entropy on validation images.",
        choices=("auto", "0_255", "0_1", "-1_1"),
    )
    allow_poor_classifier: bool = setting(
        False,
        "Go on with a --classifier that knows hardly more than the class frequencies, or whose "
        "pixels or class order look wrong.",
        changes_results=False,
    )
    encoder: str = setting(
        "small",
        "Encoder network, from btcp_tf.networks.ENCODERS.",
        choices=("small", "svhn", "vgg16"),
    )
    feature_dim: int = setting(128, "Length of the encoder's feature vector.", low=1, high=65_536)
    estimator_activation: str = setting(
        "sigmoid",
        "Output activation of the estimator (hard_sigmoid: the authors' prototype).",
        choices=("sigmoid", "hard_sigmoid"),
    )

    # Loss.
    gamma: str = setting(
        "auto",
        "Exponent of the focal factor of btcp, >= 0, or auto = 1 / (12 var(U)).",
        auto=True,
        low=0,
    )
    gamma_max: float = setting(10.0, "Cap of gamma=auto.", above=0)
    epsilon: float = setting(0.05, "Half width of the density window.", above=0, high=1)
    density: str = setting(
        "window",
        "Density of u: a window centered on u, or the prototype's 10 fixed bins.",
        choices=("window", "bins"),
    )
    scope: str = setting(
        "dataset",
        "Where the density's U comes from: all training targets, or each batch (prototype).",
        choices=("dataset", "batch"),
    )
    fine_bins: int = setting(
        1000, "Bins of the histogram behind the window.", low=10, high=1_000_000
    )
    cross_entropy_weight: float = setting(1.0, "Weight of the cross-entropy in fine-tuning.", low=0)
    dfl_weight: float = setting(1.0, "Weight of the estimator's loss in fine-tuning.", low=0)

    # Methods.
    ohem_fraction: float = setting(
        0.25, "Share of each batch that ohem trains on, by largest loss.", above=0, high=1
    )
    mc_passes: int = setting(
        50, "Passes with dropout on of mc_dropout, for each image.", low=1, high=100_000
    )
    trust_alpha: float = setting(
        0.0,
        "Share of each class that trust_score leaves out, where training samples are few.",
        low=0,
        below=1,
    )
    trust_neighbors: int = setting(
        10, "Neighbors whose distance tells trust_score how few.", low=1, high=100_000
    )
    ensemble_members: int = setting(
        3,
        "Classifiers of the method ensemble and of --residual_distilled, and at most of "
        "ensemble_few, the run's own among them.",
        low=2,
        high=1000,
    )
    residual_folds: int = setting(
        0,
        "Parts of the training images; residual also learns from the answers to each of a further "
        "classifier that is trained on the others. 0: it learns from validation images alone.",
        low=0,
        high=100,
    )
    residual_copies: tuple[str, ...] = setting(
        (),
        "Corrupted copies of its images, from which residual learns what to add to u where an "
        "image looks like them: noise,blur,rotation, one of each image and name, at strength 1; or "
        "none. Default: one of each image, weakly corrupted in one of five ways.",
        choices=("none", "noise", "blur", "rotation"),
    )
    residual_distilled: bool = setting(
        False,
        "Whether residual learns what an ensemble thinks of the true class, not right or wrong.",
    )
    residual_looks: tuple[str, ...] = setting(
        ("auto",),
        "Further answers to the same image that residual_looks may use: to a changed image, with "
        "dropout, and those of other classifiers, which were trained without the validation, "
        "calibration and test images. auto: those that help most often "
        "(mirror, zoom_in, shifts, rotations, zooms, dropouts).",
        choices=("auto", *IMAGE_LOOKS),
        files=".keras",
    )
    residual_cost: float = setting(
        1.3,
        "Largest mean cost of an image with residual_looks, in passes of the classifier.",
        low=1,
    )

    # Training.
    classifier_epochs: int = setting(20, "Epochs of phase 1.", low=1)
    estimator_epochs: int = setting(100, "Epochs of phase 2.", low=1)
    finetune_epochs: int = setting(
        20, "Epochs of phase 3; 0 leaves the classifier untouched.", low=0
    )
    batch_size: int = setting(32, "Training batch over all replicas.", low=1, high=1_000_000)
    test_batch_size: int = setting(
        1024, "Batch of inference passes.", low=1, high=1_000_000, changes_results=False
    )
    optimizer: str = setting("sgd", "Optimizer of all phases.", choices=("sgd", "adam"))
    learning_rate: float = setting(1e-3, "Learning rate of phase 1.", above=0)
    estimator_learning_rate: float = setting(1e-3, "Learning rate of phase 2.", above=0)
    finetune_learning_rate: float = setting(1e-4, "Learning rate of phase 3.", above=0)
    schedule: str = setting(
        "constant",
        "Learning rate over a phase: constant, or one_cycle (linear rise, cosine decay to 0).",
        choices=("constant", "one_cycle"),
    )
    momentum: float = setting(0.9, "Momentum of SGD.", low=0, below=1)
    weight_averaging: str = setting(
        "none",
        "What phases 1 and 3 leave: none, the last weights; ema, their exponential moving average; "
        "swa, their mean over the last quarter of the steps.",
        choices=("none", "ema", "swa"),
    )
    ema_momentum: float = setting(
        0.999, "What one step leaves of the average of weight_averaging=ema.", low=0, below=1
    )
    sam_rho: float = setting(
        0.0,
        "Radius of sharpness-aware minimization in phases 1 and 3, which doubles their time; "
        "0: off.",
        low=0,
    )
    weight_decay: float = setting(1e-4, "L2 weight decay, as PyTorch's SGD applies it.", low=0)
    steps_per_execution: int = setting(
        20,
        "Training steps per call of the compiled function; phase 2 on one device: an epoch.",
        low=1,
        changes_results=False,
    )
    strategy: str = setting(
        "none",
        "Distribution: none, or mirrored (all GPUs of this machine).",
        choices=("none", "mirrored"),
    )
    logical_devices: int = setting(
        0, "Split the CPU into this many devices to try --strategy=mirrored; 0: off.", low=0
    )

    # Evaluation and output.
    tau: float = setting(0.5, "Decision threshold on u: u < tau accepts.", low=0, high=1)
    export_method: str = setting(
        "auto",
        "Whose u the SavedModel answers: mcp, residual, residual_no_index, residual_looks or one "
        "whose estimator is trained, of --method; a fine-tuned one with its own classifier. auto: "
        "the one with the smallest AURC on validation images.",
    )
    threshold: str = setting(
        "best_bacc",
        "What the SavedModel accepts, chosen on calibration images: best_bacc; least_cost (see "
        "error_cost, abstention_cost); target_coverage (coverage); target_risk (risk, delta, "
        "min_coverage); or a number, which is its tau.",
    )
    by: str = setting(
        "",
        "predicted: target_risk chooses a threshold for each predicted class, and makes its "
        "promise in each. Empty: one for all answers.",
    )
    risk: float = setting(
        0.05, "Error rate of accepted answers that target_risk promises.", above=0, below=1
    )
    delta: float = setting(
        0.05, "Probability that target_risk may break its promise.", above=0, below=1
    )
    min_coverage: float = setting(
        MIN_COVERAGE,
        "Share of answers that a threshold of target_risk has to accept.",
        low=0,
        high=1,
    )
    coverage: float = setting(
        0.9, "Share of answers that target_coverage accepts.", above=0, high=1
    )
    error_cost: float = setting(1.0, "Of accepting a wrong answer, for least_cost.", low=0)
    abstention_cost: float = setting(0.1, "Of rejecting an answer, for least_cost.", low=0)
    ood: tuple[str, ...] = setting(
        (),
        "Sets of other images to tell from the test set: names of data sets, or paths of npz "
        "files or folders of images.",
    )
    shift: bool = setting(
        False, "Also score the test set under noise, blur and rotation at three strengths."
    )
    bootstrap_draws: int = setting(1000, "Draws of the bootstrap intervals.", low=1, high=1_000_000)
    export_collapsed: bool = setting(
        False,
        "Export even an estimator that collapsed or saturated, or a classifier that did not learn.",
        changes_results=False,
    )
    verbose: int = setting(
        1,
        "0: silent, 1: progress bars on a terminal, else as 2: one line an epoch.",
        low=0,
        high=2,
        changes_results=False,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, check(field, getattr(self, field.name)))
        check_by(self.by)
        checks = (_text_faults, _method_faults, _residual_faults, _look_faults, _device_faults)
        for faults in checks:
            for fault in faults(self):
                raise ValueError(fault)

    @property
    def finetuned(self) -> tuple[str, ...]:
        """Methods that phase 3 trains; empty with `finetune_epochs=0`."""
        return self.finetune_method if self.finetune_epochs else ()

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of `image_size`; None: the images' own."""
        if not self.image_size:
            return None
        height, _, width = self.image_size.partition("x")
        return int(height), int(width or height)

    def take(self, part: type[_Part], **more: Any) -> _Part:
        """The settings that a function needs: a dataclass whose fields have their names.

        Args:
          part: The dataclass.
          **more: Values of its fields that are no settings.
        """
        names = {field.name for field in dataclasses.fields(cast(Any, part))} - more.keys()
        return part(**{name: getattr(self, name) for name in names}, **more)

    def settings(self, *, results_only: bool = False) -> dict[str, str]:
        """All settings as command-line text, in order of declaration.

        Args:
          results_only: Leave out what does not change the results (folders,
            verbosity): two runs agree exactly if these agree.
        """
        # One's own data is known by its path alone.
        also = ("data_dir",) if self.dataset in OWN_DATA else ()
        return {
            field.name: to_text(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.metadata["changes_results"] or not results_only or field.name in also
        }


def check_threshold(word: str) -> None:
    """ValueError unless a word is one for `threshold`: one of `RULES`, or a number above 0."""
    number = _number(word, whole=False) if isinstance(word, str) else math.nan
    if word not in RULES and not 0.0 < number < math.inf:
        raise ValueError(
            f"threshold: expected one of {', '.join(RULES)}, or a number above 0, received "
            f"{wording.quoted(word)}" + wording.suggestion(word, RULES)
        )


def check_by(by: str, known: Sequence[str] = (PREDICTED,)) -> None:
    """ValueError unless a word is one for the setting `by`.

    It has no `choices`: in other commands a flag of this name takes a column.
    """
    if by not in ("", *known):
        raise ValueError(
            f"by: expected {' or '.join(known)}, or nothing for one threshold, received "
            f"{wording.quoted(by)}"
            + wording.suggestion(by, known)
            + "; --by=group takes the groups of the column group, in which btcp_tf.predict writes "
            "those of a model's input, whatever that is called" * ("group" in known)
        )


def _text_faults(config: Config) -> Iterator[str]:
    if not config.dataset:
        yield "dataset: expected the name of a data set, received none"
    if config.groups:
        if config.dataset and config.dataset != "folder":
            yield "groups: expected none but with --dataset=folder, received one"
        try:
            re.compile(config.groups)
        except re.error as error:
            yield f"groups: expected a regular expression, received {config.groups!r}: {error}"
    if not config.export_dir:
        yield "export_dir: expected a folder, received none"
    if config.export_name and not re.fullmatch(r"\w[\w.-]*", config.export_name):
        yield (
            "export_name: expected the name of one folder, of letters, digits, _, - and ., "
            f"received {config.export_name!r}"
        )
    if not re.fullmatch(r"([1-9]\d{0,4}(x[1-9]\d{0,4})?)?", config.image_size):
        yield (
            "image_size: expected a side or HEIGHTxWIDTH in pixels, such as 64 or 48x64, "
            f"received {config.image_size!r}"
        )
    check_threshold(config.threshold)


def _method_faults(config: Config) -> Iterator[str]:
    if not config.method:
        yield "method: expected at least one name, received none"
    for name in ("method", "finetune_method", "ood", "residual_copies", "residual_looks"):
        for item, times in collections.Counter(getattr(config, name)).items():
            if times > 1:
                yield f"{name}: expected each name once, received {item} {times} times"
    methods = ",".join(config.method)
    for name in config.finetuned:
        if name not in config.method:
            yield f"finetune_method: expected names among method={methods}, received {name}"
    if config.classifier and not ENSEMBLES.isdisjoint(config.method):
        yield (
            "method: expected no ensemble, whose members are trained, beside classifier, "
            f"received {methods}"
        )


def _residual_faults(config: Config) -> Iterator[str]:
    learned = ("residual_folds", "residual_copies", "residual_distilled")
    used = [name for name in learned if getattr(config, name) != getattr(Config, name)]
    if "none" in config.residual_copies and len(config.residual_copies) > 1:
        yield (
            "residual_copies: expected none alone, or names of corruptions, received "
            f"{','.join(config.residual_copies)}"
        )
    if used and not any(name.startswith("residual") for name in config.method):
        yield (
            f"{used[0]}: expected residual, residual_no_index or residual_looks among the methods "
            f"beside it, received method={','.join(config.method)}"
        )
    if config.residual_folds == 1:
        yield "residual_folds: expected 0, or 2 and more, received 1"
    trained = [name for name in used if name != "residual_copies"]
    if trained and config.classifier:
        yield (
            f"{trained[0]}: expected none beside classifier, of whose kind no further "
            "ones can be trained here (in Python, Judge.fit takes yours), received one"
        )
    if len(trained) == 2:
        yield (
            "residual_distilled: expected no residual_folds beside it, as the ensemble has seen "
            f"all of their images, received {config.residual_folds}"
        )


def _look_faults(config: Config) -> Iterator[str]:
    looks = config.residual_looks
    settings = ("residual_looks", "residual_cost")
    used = [name for name in settings if getattr(config, name) != getattr(Config, name)]
    if used and "residual_looks" not in config.method:
        yield (
            f"{used[0]}: expected residual_looks among the methods beside it, received "
            f"method={','.join(config.method)}"
        )
    if not looks or ("auto" in looks and len(looks) > 1):
        yield (
            "residual_looks: expected auto alone, or names and files, received "
            f"{','.join(looks) or 'none'}"
        )
    others = [look for look in looks if look not in ("auto", *IMAGE_LOOKS)]
    if others and config.residual_folds:
        yield (
            "residual_looks: expected no other classifier beside residual_folds, whose images it "
            f"may know by heart, received {others[0]}"
        )


def _device_faults(config: Config) -> Iterator[str]:
    devices, mirrored = config.logical_devices, config.strategy == "mirrored"
    if mirrored and devices == 1:
        yield "logical_devices: expected at least 2 with strategy=mirrored, received 1"
    if devices and config.batch_size % devices:
        yield (
            f"batch_size: expected a multiple of the {devices} logical devices, received "
            f"{config.batch_size}"
        )
    if devices and not mirrored:
        yield f"logical_devices: expected 0 with strategy=none, received {devices}"


def to_text(value: Any) -> str:
    """The command-line form of a setting's value."""
    if isinstance(value, tuple | list):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def accepted(field: dataclasses.Field) -> str:
    """What a setting accepts, in words; empty where any text does."""
    rule = field.metadata
    if rule["choices"] and isinstance(field.default, tuple):
        files = f", and paths of {rule['files']} files" if rule["files"] else ""
        return f"some of {', '.join(rule['choices'])}{files}"
    if rule["choices"]:
        return f"one of {', '.join(rule['choices'])}"
    if isinstance(field.default, bool):
        return "true or false"
    if not _is_number(field):
        return ""
    limits = {">=": rule["low"], ">": rule["above"], "<=": rule["high"], "<": rule["below"]}
    parts = [f"{sign} {limit:.10g}" for sign, limit in limits.items() if math.isfinite(limit)]
    kind = "a whole number" if isinstance(field.default, int) else "a finite number"
    return ("auto, or " if rule["auto"] else "") + f"{kind} {' and '.join(parts)}".strip()


def check(field: dataclasses.Field, value: Any) -> Any:
    """Checks one value of a setting.

    Args:
      field: One of `dataclasses.fields(Config)`.
      value: What it is given; a number may come as text.

    Returns:
      The value in its one form, so that equal settings have equal text: the
      number for text, a float for a float setting, a tuple for a list.

    Raises:
      ValueError: If the setting does not accept the value; names the setting.
    """
    rule = field.metadata
    kind: Any = type(field.default)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if _is_number(field) and not (rule["auto"] and value == "auto"):
        number = _number(value, whole=kind is int)
        good = rule["low"] <= number <= rule["high"] and rule["above"] < number < rule["below"]
        if not (math.isfinite(number) and good):
            raise ValueError(f"{field.name}: expected {accepted(field)}, received {value!r}")
        return str(number) if kind is str else number
    if not isinstance(value, kind):
        wanted = {bool: "true or false", str: "text", tuple: "a tuple of names"}[kind]
        raise ValueError(f"{field.name}: expected {wanted}, received {wording.quoted(value)}")
    if kind is not bool:
        for text in value if kind is tuple else (value,):
            _check_text(field, text)
    return value


def _check_text(field: dataclasses.Field, text: Any) -> None:
    """ValueError unless a text setting, or one of a list, may be this."""
    received = f"received {wording.quoted(text)}"
    choices = field.metadata["choices"]
    if isinstance(text, str) and (wrong := wording.fault(text)):
        raise ValueError(f"{field.name}: {wrong}")
    fits = isinstance(text, str) and wording.is_utf8(text)
    if isinstance(field.default, tuple):
        # Spaces inside are those of a path.
        if not (fits and re.fullmatch(r"[^,\s]+( +[^,\s#][^,\s]*)*", text)):
            raise ValueError(f"{field.name}: expected names, {received}")
    elif not choices and not (fits and text == text.strip() and not re.search(r"\s#", text)):
        # A flag file, which has to repeat the run, could not hold it.
        raise ValueError(
            f"{field.name}: expected one line of UTF-8 without spaces at its ends and without "
            f"' #', {received}"
        )
    files = field.metadata["files"]
    if choices and text not in choices and not (files and text.endswith(files)):
        suggestion = wording.suggestion(text, choices)
        raise ValueError(f"{field.name}: expected {accepted(field)}, {received}{suggestion}")


def _is_number(field: dataclasses.Field) -> bool:
    return field.metadata["auto"] or type(field.default) in (int, float)


def _number(value: Any, whole: bool) -> float:
    """`value`, a number or its text, as an int or float; NaN if it is none."""
    if isinstance(value, bool) or (whole and not isinstance(value, numbers.Integral | str)):
        return math.nan
    try:
        number = wording.number(value) if isinstance(value, str) else float(value)
        return int(value) if whole else number
    except (TypeError, ValueError, OverflowError):
        return math.nan
