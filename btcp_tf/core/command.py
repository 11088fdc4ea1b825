"""The command line: flag files and arguments in, checked settings or one clear line out.

Flags are absl flags in a `FlagValues` of their own, so that reading a command
line neither needs nor changes the process-wide `absl.flags.FLAGS`, and may be
done any number of times in one process. TensorFlow is not imported here.

Settings are taken, later over earlier, from

1. the defaults of `Config`,
2. `flags/<dataset>.cfg`, the table of a data set in `data.DATASETS`,
3. `flags/<preset>.cfg` with `--preset=<preset>`,
4. the arguments of the command line, in order; a `--flagfile=PATH` among them
   counts where it stands.

`experiment.settings` makes a `Config` of them. A command without one defines its
flags in a new `flags.FlagValues()` and works inside `reading`.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import flags

import btcp_tf
from btcp_tf.core import config, interrupt, wording
from btcp_tf.core.config import Config

FIELDS = {field.name: field for field in dataclasses.fields(Config)}

# Headings of --help; each holds the settings from the named one on.
_HEADINGS = {
    "dataset": "What runs, and where the files are",
    "classifier": "Networks",
    "gamma": "Loss",
    "ohem_fraction": "Methods",
    "classifier_epochs": "Training",
    "tau": "Evaluation and output",
}

_HELP_FLAGS = ("-h", "-help", "--help", "--helpshort", "--helpfull")

_VERSION_FLAGS = ("-version", "--version")


class UsageError(ValueError):
    """A command line, or a flag file that it names, that cannot be carried out."""


def define_settings(names: Iterable[str], flag_values: flags.FlagValues) -> None:
    """Defines a flag for each of these settings of `Config`; `read` checks their values."""
    for name in names:
        default = FIELDS[name].default
        # Numbers stay text here: `check` turns them into numbers, and says what it expected.
        special = {bool: flags.DEFINE_boolean, tuple: flags.DEFINE_list}
        define: Any = special.get(type(default), flags.DEFINE_string)
        help = FIELDS[name].metadata["help"]
        define(name, config.to_text(default), help, flag_values=flag_values)


def settings(flag_values: flags.FlagValues) -> dict[str, Any]:
    """The checked values of those settings of `Config` that have a flag here, by name."""
    return {
        name: config.check(field, flag_values[name].value)
        for name, field in FIELDS.items()
        if name in flag_values
    }


def read(flag_values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """Reads arguments and the flag files they name into `flag_values`.

    What an earlier call read is forgotten.

    Args:
      flag_values: The flags that are known.
      arguments: Arguments after the program's name. A later flag wins.

    Returns:
      Arguments that are not flags, in order.

    Raises:
      UsageError: For an unknown flag, a value that its flag does not accept, a
        flag file that is missing, names itself, or holds a line that is not one
        flag. The message names the flag, and the file and line if it stands in
        one.
    """
    flag_values.unparse_flags()
    leftovers = []
    for origin, chunk in _expand(arguments):
        try:
            _check_names(chunk)
            _check_numbers(chunk, flag_values)
            leftovers += flag_values(["", *chunk])[1:]
            # At once, and not only in Config: here the line at fault is known.
            for name in flag_values:
                flag = flag_values[name]
                # Another command may have a flag of that name that is not set by default.
                if name in FIELDS and flag.present:
                    config.check(FIELDS[name], flag.value)
                _check_text(name, flag.value)
            _check_text("PATH", leftovers)
        except flags.UnrecognizedFlagError as error:
            name = error.flagname
            hint = wording.suggestion(name, flag_values)
            if (meant := _OTHER_NAMES.get(name, "")) in flag_values:
                hint = f"; did you mean {meant}?"
            raise UsageError(
                f"{origin}expected a flag of this command (--help lists them), received "
                f"--{name}{hint}"
            ) from None
        except (flags.Error, ValueError) as error:
            # For a bool it says so in the form of a tuple.
            if match := re.fullmatch(
                r"flag --(\w+)=(.*?): \('Non-boolean.*", str(error), re.DOTALL
            ):
                error = ValueError(f"{match[1]}: expected true or false, received {match[2]!r}")
            raise UsageError(f"{origin}{error}") from None
    flag_values.mark_as_parsed()
    return leftovers


_OTHER_NAMES = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "data": "data_dir",
    "input_dir": "data_dir",
    "out": "output_dir",
    "output": "output_dir",
    "outdir": "output_dir",
    "model": "classifier",
    "target_risk": "risk",
}
"""What some flags are called elsewhere, where the names are not alike."""


def _check_text(name: str, value: Any) -> None:
    """ValueError for text that is no name or path here, before any work."""
    for text in value if isinstance(value, list) else (value,):
        if isinstance(text, str) and (wrong := wording.fault(text)):
            raise ValueError(f"{name}: {wrong}")


_LONGEST_FLAG = 100


def _check_names(arguments: Sequence[str]) -> None:
    """ValueError for a flag of so long a name that absl fails where it looks for a similar one."""
    for argument in arguments:
        name, is_flag = argument.lstrip("-").partition("=")[0], argument.startswith("-")
        if argument == "--":
            return
        if is_flag and len(name) > _LONGEST_FLAG:
            raise ValueError(
                f"expected a flag of this command (--help lists them), received "
                f"--{wording.quoted(name)}"
            )


def _check_numbers(arguments: Sequence[str], flag_values: flags.FlagValues) -> None:
    """ValueError for what absl takes for a number, as Python does, and nobody means so."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, text = argument.lstrip("-").partition("=")
        if argument == "--":
            return
        if argument.startswith("-") and name in flag_values:
            if flag_values[name].flag_type() in ("int", "float"):
                value = text if equals else following
                if "_" in value or not value.isascii():
                    raise ValueError(f"{name}: expected a number, received {wording.quoted(value)}")


def _expand(
    arguments: Sequence[str], opened: tuple[str, ...] = ()
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields (origin, arguments) pieces in order, with flag files in place of their names.

    absl itself does not say which line of which flag file is wrong, as the README promises, and
    takes a note behind a value for a part of it.
    """
    piece: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            piece += [argument, *rest]
        elif match := re.fullmatch(r"--?flagfile(?:=(.*))?", argument, re.DOTALL):
            yield "", piece
            piece = []
            path = match[1] if match[1] is not None else next(rest, "")
            yield from _expand_file(path, opened)
        else:
            piece.append(argument)
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
      argv: Arguments after the program's name; None: those of this process.
      flag_values: The command's flags, which hold their values then.
      usage: First line of `--help`.

    Yields:
      Arguments that are not flags, in order.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    answer_questions(arguments, flag_values, usage)
    with exit_on_error():
        yield read(flag_values, arguments)


def check_file(name: str, path: str | os.PathLike, endings: Sequence[str]) -> None:
    """UsageError unless a flag names a file that is there, with one of these endings."""
    path = Path(path)
    if not (path.is_file() and path.suffix.lower() in endings):
        raise UsageError(
            f"{name}: expected a file ({', '.join(endings)}), received {path}"
            + ("" if path.exists() else ", which is not there")
        )


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns a ValueError inside into one line on stderr and exit status 2."""
    try:
        yield
    except ValueError as error:
        fail(error)


def carry_out(action: Callable[[], Any], verbose: int) -> int:
    """Does a command's work in a process that is set up for TensorFlow.

    Args:
      action: The work. What it returns is the exit status; nothing, or 0: all is well.
      verbose: 0 silences warnings.

    Returns:
      The exit status of the action; 1 after an error of the user's or the machine's making, which
      is one line on stderr; 130 after Ctrl-C, 143 after SIGTERM. Other errors are the program's own
      and are raised.
    """
    # Before TensorFlow is imported. The user's own setting wins.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # It tells at length where it keeps its fonts if there is no home folder.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        with interrupt.raised(), plain_warnings(verbose):
            return int(action() or 0)
    except BrokenPipeError:
        _close_stdout()
        return 0
    except (KeyboardInterrupt, Exception) as error:
        if number := interrupt.behind(error):
            word = interrupt.word(number)
            print(f"\n{word}; the same command goes on from here", file=sys.stderr)
            return interrupt.status(number)
        if not is_expected(error):
            raise
        print("error:", wording.one_line(error), file=sys.stderr)
        return 1


@contextlib.contextmanager
def plain_warnings(verbose: int = 1) -> Iterator[None]:
    """Shows warnings inside as one plain line each, without file and line; none if not verbose."""
    usual = warnings.formatwarning
    with warnings.catch_warnings():
        if not verbose:
            warnings.simplefilter("ignore")
        # Pillow's, of images whose size has a limit of its own here, `max_pixels`.
        warnings.filterwarnings("ignore", "Image size .* exceeds limit")
        warnings.formatwarning = lambda message, *_, **__: f"warning: {wording.one_line(message)}\n"
        try:
            yield
        finally:
            warnings.formatwarning = usual


def is_expected(error: BaseException) -> bool:
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
            with interrupt.at_once(shown):
                yield
        except BaseException:
            kept.seek(0)
            os.write(shown, kept.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


def fail(error: object) -> NoReturn:
    """Ends the process with status 2 and one line on stderr."""
    print("error:", wording.one_line(error), file=sys.stderr)
    sys.exit(2)


def answer_questions(
    arguments: Sequence[str], flag_values: flags.FlagValues, usage: str, about: Sequence[str] = ()
) -> None:
    """Ends the process with status 0 if `--help` or `--version` is among the arguments.

    Args:
      arguments: Arguments after the program's name.
      flag_values: The command's flags.
      usage: First line of the help.
      about: Lines of the help between its first line and the flags.
    """
    arguments = list(arguments)
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if any(argument in _HELP_FLAGS for argument in before):
        _show(help_text(flag_values, usage, about))
    if any(argument in _VERSION_FLAGS for argument in before):
        _show(f"btcp_tf {btcp_tf.__version__}")


def _show(answer: str) -> NoReturn:
    try:
        print(answer, flush=True)
    except BrokenPipeError:
        _close_stdout()
    sys.exit(0)


def _close_stdout() -> None:
    """After its reader (`| head`) has seen enough: the interpreter must not flush again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def help_text(flag_values: flags.FlagValues, usage: str, about: Sequence[str] = ()) -> str:
    """The help of a command: all its flags with their defaults, in groups.

    absl's own help lists flags by module and does not say what a setting accepts.

    Args:
      flag_values: The command's flags: those of `define_flags`, others, or both.
      usage: What stands behind "usage:".
      about: Lines between the usage and the flags.
    """
    lines = [f"usage: {usage}", *(["", *about] if about else []), "", "This command:"]
    for name in flag_values:
        if name not in FIELDS:
            lines += _help_of(flag_values[name])
    lines += _entry("--flagfile=PATH", "Flags from a file, one --name=value a line.")
    lines += _entry("--help", "This text.")
    lines += _entry("--version", "The version of btcp_tf.")
    heading = ""
    for name in FIELDS:
        heading = _HEADINGS.get(name, heading)
        if name in flag_values:
            if heading:
                lines += ["", f"{heading}:"]
                heading = ""
            lines += _help_of(flag_values[name])
    return "\n".join(lines)


def _help_of(flag: flags.Flag) -> list[str]:
    default = tuple(flag.default) if isinstance(flag.default, list) else flag.default
    text = flag.help
    if flag.name in FIELDS and (rule := config.accepted(FIELDS[flag.name])):
        text = f"{text} [{rule}]"
    return _entry(f"--{flag.name}={config.to_text(default)}", text)


def _entry(head: str, text: str) -> list[str]:
    column = 36
    body = textwrap.wrap(text, width=100 - column, break_on_hyphens=False)
    if len(head) + 4 > column:
        return [f"  {head}", *(" " * column + line for line in body)]
    return [f"  {head}".ljust(column) + body[0], *(" " * column + line for line in body[1:])]
