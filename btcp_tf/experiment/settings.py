"""The settings of a run: flag files, presets and command line in, one `Config` out."""

import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from btcp_tf.core import command, files, keras_setup, wording
from btcp_tf.core.command import FIELDS, UsageError
from btcp_tf.core.config import OWN_DATA, PREDICTED, Config, check, check_by, to_text

USAGE = "python -m btcp_tf.main --dataset=NAME [--preset=NAME] [--SETTING=VALUE ...]"

DECISION_SETTINGS = (
    *("by", "risk", "delta", "min_coverage", "coverage", "error_cost", "abstention_cost"),
)
"""Settings of the rules for `threshold`; each rule uses some of them."""

TRIALS = ("quick", "smoke")
"""Presets whose models nobody should serve: too little data, or too few epochs."""


def flags_dir() -> Path:
    """Folder of the project's flag files, in an installed package or a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "flags"
    return installed if installed.is_dir() else package.parent / "flags"


def presets() -> list[str]:
    """Names that `--preset` accepts: the flag files that are not a data set's."""
    from btcp_tf.data.catalog import DATASETS

    return sorted(path.stem for path in flags_dir().glob("*.cfg") if path.stem not in DATASETS)


def help_lines() -> list[str]:
    """What `--help` says of data sets, presets and the order in which settings are taken."""
    from btcp_tf.data.catalog import DATASETS

    return [
        f"Data sets: {', '.join(DATASETS)}, what else is prepared in",
        f"--data_dir; {' and '.join(OWN_DATA)}: images of one's own.",
        f"Presets: {', '.join(presets())}.",
        "Settings come from their defaults, then flags/<dataset>.cfg, then flags/<preset>.cfg,",
        "then the arguments of the command line in order; the last one counts.",
    ]


def define_flags(flag_values: flags.FlagValues | None = None) -> flags.FlagValues:
    """Defines one flag for each setting of `Config`, and `--preset`.

    Args:
      flag_values: Where to define them; None: a new, private set.

    Returns:
      The set that now holds the flags.
    """
    flag_values = flags.FlagValues() if flag_values is None else flag_values
    command.define_settings(FIELDS, flag_values)
    flags.DEFINE_string(
        "preset",
        "",
        "Settings of flags/<preset>.cfg over the data set's own.",
        flag_values=flag_values,
    )
    return flag_values


def parse(
    argv: Sequence[str] | None = None,
    flag_values: flags.FlagValues | None = None,
    *,
    usage: str = USAGE,
) -> Config:
    """Reads a command line; ends the process where it asks for help or is wrong.

    `--output_dir` is filled in where it was left out, and the default of
    `--finetune_method` is limited to the methods that run.

    Args:
      argv: Arguments after the program's name; None: those of this process.
      flag_values: Flags from `define_flags`, perhaps with further ones; None:
        new ones. What was read into it before is forgotten.
      usage: First line of `--help`.

    Returns:
      The settings of the run.

    Raises:
      SystemExit: With status 0 after `--help`; with status 2 after an error,
        which is one line on stderr.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    flag_values = define_flags() if flag_values is None else flag_values
    command.answer_questions(arguments, flag_values, usage, help_lines())
    with command.exit_on_error():
        return _parse(arguments, flag_values)


def _parse(arguments: Sequence[str], flag_values: flags.FlagValues) -> Config:
    from btcp_tf.data.datasets import short_name

    keras_setup.check(("float32",))
    _read_in_order(arguments, flag_values)
    values: dict[str, Any] = {name: flag_values[name].value for name in FIELDS}
    _check_methods(values)
    if not flag_values["finetune_method"].present:
        # The default must not conflict with a --method that leaves it out.
        values["finetune_method"] = [
            name for name in values["finetune_method"] if name in values["method"]
        ]
    # A shell leaves the ~ of --output_dir=~/runs to the program.
    for name in ("output_dir", "export_dir", "data_dir", "classifier"):
        values[name] = os.path.expanduser(values[name])
    for name in ("ood", "residual_looks"):
        values[name] = [os.path.expanduser(path) for path in values[name]]
    if values["dataset"] in OWN_DATA:
        # A shell completes the name of a folder with a slash: the same data all the same.
        values["data_dir"] = os.path.normpath(values["data_dir"])
    config = Config(**values)
    # The promises that a run's report makes have these, whatever its own threshold.
    check_decision(arguments, flag_values, used=("delta", "min_coverage"))
    preset: Any = flag_values["preset"].value
    data_name = short_name(config.dataset, config.data_dir)
    parts = filter(None, [data_name, preset, f"seed{config.seed}"])
    return dataclasses.replace(
        config,
        # Trials are beside the models that are served, not above them.
        export_name=config.export_name or f"{data_name}-{preset}" * (preset in TRIALS),
        output_dir=config.output_dir or os.path.join("runs", "-".join(parts)),
    )


def _read_in_order(arguments: Sequence[str], flag_values: flags.FlagValues) -> None:
    """Reads the data set's flag file, the preset's and the arguments, in this order.

    Which files these are is known only from the arguments, which may themselves name flag files:
    read, look, read again with more in front.
    """
    from btcp_tf.data.catalog import DATASETS
    from btcp_tf.data.datasets import check_name

    leftovers = command.read(flag_values, arguments)
    if leftovers:
        raise UsageError(f"expected --SETTING=VALUE, received {leftovers[0]!r}")
    preset: Any = flag_values["preset"].value
    if preset:
        _check_name("preset", preset, presets())
        arguments = [f"--flagfile={flags_dir() / preset}.cfg", *arguments]
        command.read(flag_values, arguments)
    dataset: Any = flag_values["dataset"].value
    data_dir: Any = flag_values["data_dir"].value
    check_name(dataset, data_dir)
    if dataset in DATASETS:
        command.read(flag_values, [f"--flagfile={flags_dir() / dataset}.cfg", *arguments])


def _check_methods(values: Mapping[str, Any]) -> None:
    """UsageError for a method that there is not, or that cannot be what it is asked to be."""
    from btcp_tf.methods.registry import METHODS

    methods, export_method = values["method"], values["export_method"]
    for name in methods:
        _check_name("method", name, METHODS)
        base = METHODS[name].column_of or METHODS[name].rival_of
        if base and base not in methods:
            raise UsageError(f"method: expected {base} beside {name}, received {name} without it")
    exported = [name for name in methods if METHODS[name].exported]
    if not exported:
        can = [name for name, method in METHODS.items() if method.exported]
        raise UsageError(
            f"method: expected among them one that a SavedModel can answer, {', '.join(can)}, "
            f"received {','.join(methods)}"
        )
    if export_method not in ("auto", *exported):
        raise UsageError(
            f"export_method: expected auto, or one of the methods that a SavedModel can answer, "
            f"{', '.join(exported)}, received {export_method}"
            + wording.suggestion(export_method, exported)
        )
    trained = [name for name, method in METHODS.items() if method.trained]
    for name in values["finetune_method"]:
        _check_name("finetune_method", name, trained)


def _check_name(setting: str, name: str, known: Any) -> None:
    if name not in known:
        raise UsageError(wording.expected_one_of(setting, known, name))


def check_decision(
    arguments: Sequence[str],
    flag_values: flags.FlagValues,
    used: Iterable[str] = (),
    by_known: Sequence[str] = (PREDICTED,),
) -> None:
    """UsageError for an argument that sets what the chosen `threshold` would ignore.

    A setting in a flag file may be unused: the file of a run holds them all.

    Args:
      arguments: Arguments after the program's name.
      flag_values: What was read from them, `threshold` among it.
      used: Settings that the command has a use for whatever the threshold.
      by_known: What the setting `by` may be.
    """
    from btcp_tf.thresholds import RULES, settings_of

    threshold: Any = flag_values["threshold"].value
    by: Any = flag_values["by"].value
    check_by(by, by_known)
    known = {rule: settings_of(rule) for rule in RULES}
    known["target_risk"]["by"] = False
    own = known.get(threshold, known["given"])
    before = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
    for argument in before:
        match = re.match(r"--?(\w+)", argument)
        name = match[1] if match else ""
        rules = [rule for rule in known if name in known[rule]]
        # Rows that belong together are a matter of the data, too.
        if name in FIELDS and name not in ("tau", "groups") and rules and name not in {*own, *used}:
            raise UsageError(
                f"{name}: expected only with --threshold={' or '.join(rules)}, received it with "
                f"--threshold={threshold}"
            )


def save_flagfile(config: Config, path: str | os.PathLike) -> None:
    """Writes every setting as `--name=value`, in order of declaration, atomically.

    `parse(["--flagfile=PATH"])` returns an equal `Config`.
    """
    lines = ["# All settings of one run; --flagfile with this file repeats it."]
    lines += [f"--{name}={text}" for name, text in config.settings().items()]
    with files.atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_flagfile(path: str | os.PathLike) -> dict[str, str]:
    """The settings that a flag file sets, as text in the form of `Config.settings`.

    Raises:
      UsageError: If the file is missing or is not a flag file of this version.
    """
    flag_values = define_flags()
    command.read(flag_values, [f"--flagfile={os.fspath(path)}"])
    return {
        name: to_text(check(field, flag_values[name].value))
        for name, field in FIELDS.items()
        if flag_values[name].present
    }


def differences(config: Config, saved: Mapping[str, str]) -> list[str]:
    """Names of the settings under which two runs would have different results.

    Args:
      config: Settings of one run.
      saved: Settings of the other, from `load_flagfile`. One that is missing, since that run is
        older than the setting, has the value that means "as before" (see `config.setting`).

    Returns:
      Names in order of declaration; empty if the runs agree.
    """
    return [
        name
        for name, text in config.settings(results_only=True).items()
        if saved.get(name, to_text(FIELDS[name].metadata["before"])) != text
    ]
