"""The command line: flag files and words in, one `Config` or one clear line out.

Flags are absl flags in a `FlagValues` of their own, so that reading a command
line neither needs nor changes the process-wide `absl.flags.FLAGS`, and may be
done any number of times in one process. TensorFlow is not imported here.

Settings are taken, later over earlier, from

1. the defaults of `Config`,
2. `flags/<dataset>.cfg`, the table of a data set in `data.DATASETS`,
3. `flags/<preset>.cfg` with `--preset=<preset>`,
4. the words of the command line, in order; a `--flagfile=PATH` among them
   counts where it stands.

Another command reuses this with flags of its own:

    flag_values = command.define_flags()
    flags.DEFINE_integer("seeds", 5, "Number of seeds.", flag_values=flag_values)
    config = command.parse(argv, flag_values, usage="python -m btcp_tf.study ...")
    flag_values.seeds

and a command without a `Config` defines its flags in a new `flags.FlagValues()`
and works inside `reading`.
"""

import contextlib
import dataclasses
import logging
import os
import re
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import flags

import btcp_tf
from btcp_tf import keras_setup, wording
from btcp_tf.config import OWN_DATA, Config, accepted, check, to_word
from btcp_tf.files import atomic_path
from btcp_tf.wording import one_line

USAGE = "python -m btcp_tf.main --dataset=NAME [--preset=NAME] [--SETTING=VALUE ...]"

_FIELDS = {field.name: field for field in dataclasses.fields(Config)}

# Headings of --help; each holds the settings from the named one on.
_HEADINGS = {
    "dataset": "What runs, and where the files are",
    "classifier": "Networks",
    "gamma": "Loss",
    "ohem_fraction": "Methods",
    "classifier_epochs": "Training",
    "tau": "Evaluation and output",
}

TRIALS = ("quick", "smoke")
"""Presets whose models nobody should serve: too little data, or too few epochs."""

_HELP_WORDS = ("-h", "-help", "--help", "--helpshort", "--helpfull")
_VERSION_WORDS = ("-version", "--version")


class UsageError(ValueError):
    """A command line, or a flag file that it names, that cannot be carried out."""


def flags_dir() -> Path:
    """Folder of the project's flag files, in an installed package or a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "flags"
    return installed if installed.is_dir() else package.parent / "flags"


def presets() -> list[str]:
    """Names that `--preset` accepts: the flag files that are not a data set's."""
    from btcp_tf.data import DATASETS

    return sorted(path.stem for path in flags_dir().glob("*.cfg") if path.stem not in DATASETS)


def define_settings(names: Iterable[str], flag_values: flags.FlagValues) -> None:
    """Defines a flag for each of these settings of `Config`; `read` checks their values."""
    for name in names:
        default = _FIELDS[name].default
        # Numbers stay words here: `check` turns them into numbers, and says what it expected.
        special = {bool: flags.DEFINE_boolean, tuple: flags.DEFINE_list}
        define: Any = special.get(type(default), flags.DEFINE_string)
        help = _FIELDS[name].metadata["help"]
        define(name, to_word(default), help, flag_values=flag_values)


def settings(flag_values: flags.FlagValues) -> dict[str, Any]:
    """The checked values of those settings of `Config` that have a flag here, by name."""
    return {
        name: check(field, flag_values[name].value)
        for name, field in _FIELDS.items()
        if name in flag_values
    }


def define_flags(flag_values: flags.FlagValues | None = None) -> flags.FlagValues:
    """Defines one flag for each setting of `Config`, and `--preset`.

    Args:
      flag_values: Where to define them; None: a new, private set.

    Returns:
      The set that now holds the flags.
    """
    flag_values = flags.FlagValues() if flag_values is None else flag_values
    define_settings(_FIELDS, flag_values)
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
      argv: The words after the program's name; None: those of this process.
      flag_values: Flags from `define_flags`, perhaps with further ones; None:
        new ones. What was read into it before is forgotten.
      usage: First line of `--help`.

    Returns:
      The settings of the run.

    Raises:
      SystemExit: With status 0 after `--help`; with status 2 after an error,
        which is one line on stderr.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    flag_values = define_flags() if flag_values is None else flag_values
    answer_questions(words, flag_values, usage)
    with exit_on_error():
        return _parse(words, flag_values)


def _parse(words: Sequence[str], flag_values: flags.FlagValues) -> Config:
    from btcp_tf.data import DATASETS, check_name, short_name
    from btcp_tf.methods import METHODS

    keras_setup.check(("float32",))
    given = words
    # Which files stand before the words is known only from the words, which may
    # themselves name flag files: read, look, read again with more in front.
    leftovers = read(flag_values, words)
    if leftovers:
        raise UsageError(f"expected --SETTING=VALUE, received the word {leftovers[0]!r}")
    preset: Any = flag_values["preset"].value
    if preset:
        _check_name("preset", preset, presets())
        words = [f"--flagfile={flags_dir() / preset}.cfg", *words]
        read(flag_values, words)
    dataset: Any = flag_values["dataset"].value
    data_dir: Any = flag_values["data_dir"].value
    check_name(dataset, data_dir)
    if dataset in DATASETS:
        read(flag_values, [f"--flagfile={flags_dir() / dataset}.cfg", *words])
    values: dict[str, Any] = {name: flag_values[name].value for name in _FIELDS}
    for name in values["method"]:
        _check_name("method", name, METHODS)
        base = METHODS[name].column_of
        if base and base not in values["method"]:
            raise UsageError(f"method: expected {base} beside {name}, received {name} without it")
    trained = [name for name, method in METHODS.items() if method.trained]
    exported = [name for name in values["method"] if METHODS[name].exported]
    if not exported:
        can = [name for name, method in METHODS.items() if method.exported]
        raise UsageError(
            f"method: expected among them one that a SavedModel can answer, {', '.join(can)}, "
            f"received {','.join(values['method'])}"
        )
    if values["export_method"] not in ("auto", *exported):
        raise UsageError(
            f"export_method: expected auto, or one of the methods that a SavedModel can answer, "
            f"{', '.join(exported)}, received {values['export_method']}"
            + wording.suggestion(values["export_method"], exported)
        )
    for name in values["finetune_method"]:
        _check_name("finetune_method", name, trained)
    if not flag_values["finetune_method"].present:
        # The default must not conflict with a --method that leaves it out.
        values["finetune_method"] = [
            name for name in values["finetune_method"] if name in values["method"]
        ]
    # A shell leaves the ~ of --output_dir=~/runs to the program.
    for name in ("output_dir", "export_dir", "data_dir"):
        values[name] = os.path.expanduser(values[name])
    if dataset in OWN_DATA:
        # A shell completes the name of a folder with a slash: the same data all the same.
        values["data_dir"] = os.path.normpath(values["data_dir"])
    values["ood"] = [os.path.expanduser(name) for name in values["ood"]]
    config = Config(**values)
    # The promises that a run's report makes have these, whatever its own threshold.
    check_decision(given, flag_values, used=("delta", "min_coverage"))
    data_name = short_name(dataset, config.data_dir)
    if preset in TRIALS and not config.export_name:
        # Beside the models that are served, not above them.
        config = dataclasses.replace(config, export_name=f"{data_name}-{preset}")
    if not config.output_dir:
        parts = filter(None, [data_name, preset, f"seed{config.seed}"])
        config = dataclasses.replace(config, output_dir=os.path.join("runs", "-".join(parts)))
    return config


def _check_name(setting: str, name: str, known: Any) -> None:
    if name not in known:
        raise UsageError(wording.expected_one_of(setting, known, name))


def read(flag_values: flags.FlagValues, words: Sequence[str]) -> list[str]:
    """Reads words and the flag files they name into `flag_values`.

    What an earlier call read is forgotten.

    Args:
      flag_values: The flags that are known.
      words: The words after the program's name. A later one wins.

    Returns:
      The words that are not flags, in order.

    Raises:
      UsageError: For an unknown flag, a value that its flag does not accept, a
        flag file that is missing, names itself, or holds a line that is not one
        flag. The message names the flag, and the file and line if it stands in
        one.
    """
    flag_values.unparse_flags()
    leftovers = []
    for origin, chunk in _expand(words):
        try:
            leftovers += flag_values(["", *chunk])[1:]
            # At once, and not only in Config: here the line at fault is known.
            for name in set(_FIELDS).intersection(flag_values):
                # Another command may have a flag of that name that is not set by default.
                if flag_values[name].present:
                    check(_FIELDS[name], flag_values[name].value)
            for name in flag_values:
                _check_text(name, flag_values[name].value)
            for word in leftovers:
                _check_text("PATH", word)
        except (flags.Error, ValueError) as error:
            # For a bool it says so in the form of a tuple.
            if match := re.fullmatch(
                r"flag --(\w+)=(.*?): \('Non-boolean.*", str(error), re.DOTALL
            ):
                error = ValueError(f"{match[1]}: expected true or false, received {match[2]!r}")
            raise UsageError(f"{origin}{error}") from None
    flag_values.mark_as_parsed()
    return leftovers


def _check_text(name: str, value: Any) -> None:
    """ValueError for text that is no name or path here, before any work."""
    for word in value if isinstance(value, list) else (value,):
        if isinstance(word, str) and (wrong := wording.fault(word)):
            raise ValueError(f"{name}: {wrong}")


def _expand(
    words: Sequence[str], opened: tuple[str, ...] = ()
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields (origin, words) pieces in order, with flag files in place of their names."""
    piece: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            piece += [word, *rest]
        elif match := re.fullmatch(r"--?flagfile(?:=(.*))?", word, re.DOTALL):
            yield "", piece
            piece = []
            path = match[1] if match[1] is not None else next(rest, "")
            yield from _expand_file(path, opened)
        else:
            piece.append(word)
    yield "", piece


def _expand_file(path: str, opened: tuple[str, ...]) -> Iterator[tuple[str, Sequence[str]]]:
    real = os.path.realpath(os.path.expanduser(path))
    if real in opened:
        raise UsageError(f"flagfile: expected files that do not name each other, received {path}")
    try:
        text = Path(real).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(
            f"flagfile: expected a readable file, received {path!r}: {reason}"
        ) from None
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "//")):
            continue
        origin = f"{path} line {number}: "
        if re.search(r"\s#", line):
            # absl takes the note into the value, where a text setting keeps it unnoticed.
            raise UsageError(
                f"{origin}expected a note on a line of its own, received it after a value: {line!r}"
            )
        if not re.match(r"--?\w", line):
            raise UsageError(f"{origin}expected --SETTING=VALUE, received {line!r}")
        for inner, piece in _expand([line], (*opened, real)):
            yield inner or origin, piece


@contextlib.contextmanager
def reading(
    argv: Sequence[str] | None, flag_values: flags.FlagValues, usage: str
) -> Iterator[list[str]]:
    """Reads the command line of a command without a `Config`, and what is wrong with it.

    `--help` ends the process here; so does a ValueError inside, as in `exit_on_error`.

    Args:
      argv: The words after the program's name; None: those of this process.
      flag_values: The command's flags, which hold their values then.
      usage: First line of `--help`.

    Yields:
      The words that are not flags, in order.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    answer_questions(words, flag_values, usage)
    with exit_on_error():
        yield read(flag_values, words)


def check_file(name: str, path: str | os.PathLike, endings: Sequence[str]) -> None:
    """UsageError unless a flag names a file that is there, with one of these endings."""
    path = Path(path)
    if not (path.is_file() and path.suffix.lower() in endings):
        raise UsageError(
            f"{name}: expected a file ({', '.join(endings)}), received {path}"
            + ("" if path.exists() else ", which is not there")
        )


def check_decision(
    words: Sequence[str], flag_values: flags.FlagValues, used: Iterable[str] = ()
) -> None:
    """UsageError for a word that sets what the chosen `threshold` would ignore.

    A setting in a flag file may be unused: the file of a run holds them all.

    Args:
      words: The words after the program's name.
      flag_values: What was read from them, `threshold` among it.
      used: Settings that the command has a use for whatever the threshold.
    """
    from btcp_tf.thresholds import RULES, settings_of

    threshold: Any = flag_values["threshold"].value
    known = {rule: settings_of(rule) for rule in RULES}
    own = known.get(threshold, known["given"])
    before = words[: list(words).index("--")] if "--" in words else words
    for word in before:
        match = re.match(r"--?(\w+)", word)
        name = match[1] if match else ""
        rules = [rule for rule in known if name in known[rule]]
        if name in _FIELDS and name != "tau" and rules and name not in {*own, *used}:
            raise UsageError(
                f"{name}: expected only with --threshold={' or '.join(rules)}, received it with "
                f"--threshold={threshold}"
            )


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns a ValueError inside into one line on stderr and exit status 2."""
    try:
        yield
    except ValueError as error:
        fail(str(error))


def carry_out(action: Callable[[], Any], verbose: int) -> int:
    """Does a command's work in a process that is set up for TensorFlow.

    Args:
      action: The work. What it returns is the exit status; nothing, or 0: all is well.
      verbose: 0 silences warnings.

    Returns:
      The exit status of the action; 1 after an error of the user's or the machine's making, which
      is one line on stderr; 130 after Ctrl-C. Other errors are the program's own and are raised.
    """
    # Before TensorFlow is imported. The user's own setting wins.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # It tells at length where it keeps its fonts if there is no home folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        with plain_warnings(verbose):
            return int(action() or 0)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except Exception as error:
        if not is_expected(error):
            raise
        print("error:", one_line(error), file=sys.stderr)
        return 1


@contextlib.contextmanager
def plain_warnings(verbose: int = 1) -> Iterator[None]:
    """Shows warnings inside as one plain line each, without file and line; none if not verbose."""
    usual = warnings.formatwarning
    with warnings.catch_warnings():
        if not verbose:
            warnings.simplefilter("ignore")
        warnings.formatwarning = lambda message, *_, **__: f"warning: {wording.one_line(message)}\n"
        try:
            yield
        finally:
            warnings.formatwarning = usual


def is_expected(error: Exception) -> bool:
    """Whether an error may be the user's or the machine's making, not a fault of the program."""
    expected = (ValueError, RuntimeError, ArithmeticError, OSError, MemoryError)
    # TensorFlow's errors have a base class of their own, known only once it is imported.
    return isinstance(error, expected) or type(error).__module__.startswith("tensorflow")


@contextlib.contextmanager
def hidden_stderr() -> Iterator[None]:
    """Keeps back what is printed on stderr inside, C++ libraries included, unless it fails.

    For the import of TensorFlow, which speaks of this processor and of CUDA libraries that it
    looked for before any setting of its own can silence it.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(shown, kept.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


def fail(message: str) -> NoReturn:
    """Ends the process with status 2 and one line on stderr."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def answer_questions(
    words: Sequence[str], flag_values: flags.FlagValues, usage: str = USAGE
) -> None:
    """Ends the process with status 0 after `--help` or `--version` among a command line's words.

    Args:
      words: The words after the program's name.
      flag_values: The command's flags.
      usage: First line of the help.
    """
    words = list(words)
    before = words[: words.index("--")] if "--" in words else words
    if any(word in _HELP_WORDS for word in before):
        _show(help_text(flag_values, usage))
    if any(word in _VERSION_WORDS for word in before):
        _show(f"btcp_tf {btcp_tf.__version__}")


def _show(answer: str) -> NoReturn:
    try:
        print(answer, flush=True)
    except BrokenPipeError:
        # The reader (`--help | head`) has seen enough; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def help_text(flag_values: flags.FlagValues, usage: str = USAGE) -> str:
    """The help of a command: all its flags with their defaults, in groups.

    Args:
      flag_values: The command's flags: those of `define_flags`, others, or both.
      usage: What stands behind "usage:".
    """
    from btcp_tf.data import DATASETS

    groups: dict[str, list[str]] = {"This command": []}
    title = ""
    for name in _FIELDS:
        title = _HEADINGS.get(name, title)
        if name in flag_values:
            groups.setdefault(title, []).append(name)
    groups["This command"] = [name for name in flag_values if name not in _FIELDS]

    lines = [f"usage: {usage}"]
    if "preset" in flag_values:
        lines += [
            "",
            f"Data sets: {', '.join(DATASETS)}, what else is prepared in",
            f"--data_dir; {' and '.join(OWN_DATA)}: images of one's own.",
            f"Presets: {', '.join(presets())}.",
            "Settings come from their defaults, then flags/<dataset>.cfg, then flags/<preset>.cfg,",
            "then the words of the command line in order; the last one counts.",
        ]
    for title, names in groups.items():
        lines += ["", f"{title}:"]
        for name in names:
            lines += _help_of(flag_values[name])
        if title == "This command":
            lines += _entry("--flagfile=PATH", "Flags from a file, one --name=value a line.")
            lines += _entry("--help", "This text.")
            lines += _entry("--version", "The version of btcp_tf.")
    return "\n".join(lines)


def _help_of(flag: flags.Flag) -> list[str]:
    default = tuple(flag.default) if isinstance(flag.default, list) else flag.default
    words = flag.help
    if flag.name in _FIELDS and (rule := accepted(_FIELDS[flag.name])):
        words = f"{words} [{rule}]"
    return _entry(f"--{flag.name}={to_word(default)}", words)


def _entry(head: str, words: str) -> list[str]:
    column = 36
    body = textwrap.wrap(words, width=100 - column, break_on_hyphens=False)
    if len(head) + 4 > column:
        return [f"  {head}", *(" " * column + line for line in body)]
    return [f"  {head}".ljust(column) + body[0], *(" " * column + line for line in body[1:])]


def save_flagfile(config: Config, path: str | os.PathLike) -> None:
    """Writes every setting as `--name=value`, in order of declaration, atomically.

    `parse(["--flagfile=PATH"])` returns an equal `Config`.
    """
    lines = ["# All settings of one run; --flagfile with this file repeats it."]
    lines += [f"--{name}={word}" for name, word in config.settings().items()]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def load_flagfile(path: str | os.PathLike) -> dict[str, str]:
    """The settings that a flag file sets, as words in the form of `Config.settings`.

    Raises:
      UsageError: If the file is missing or is not a flag file of this version.
    """
    flag_values = define_flags()
    read(flag_values, [f"--flagfile={os.fspath(path)}"])
    return {
        name: to_word(check(field, flag_values[name].value))
        for name, field in _FIELDS.items()
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
        for name, word in config.settings(results_only=True).items()
        if saved.get(name, to_word(_FIELDS[name].metadata["before"])) != word
    ]
