"""Text that people give: names of classes, choices and paths; what is wrong with it, and what it
may have meant."""

import collections
import difflib
import errno
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

LONGEST_NAME = 200
"""Characters that the name of a class may have."""

_LONGEST_PART, _LONGEST_PATH = 255, 4095
"""Bytes of a file's name and of a path, on the usual file systems."""

_SHOWN = 80


def quoted(value: object) -> str:
    """A value as in code, on one line, the middle of a long one left out.

    Example:
      >>> quoted("mnist")
      "'mnist'"
    """
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN // 2]}…{text[-10:]} ({len(str(value)):,} characters)"


def suggestion(received: object, known: Iterable[str]) -> str:
    """`; did you mean mnist?` for what is nearly one of the known words, else nothing.

    A word that is a part of some of them (`epochs` of `classifier_epochs`) may stand for these.

    Example:
      >>> suggestion("minst", ["mnist", "cifar10"])
      '; did you mean mnist?'
    """
    word, known = str(received).lower().replace("-", "_"), list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    near = near or [name for name in known if word in name.split("_")][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def expected_one_of(what: str, known: Iterable[str], received: object) -> str:
    """The message of an error: `what` is none of the words that are known.

    Example:
      >>> expected_one_of("dataset", ["mnist", "digits"], "digit")
      "dataset: expected one of mnist, digits, received 'digit'; did you mean digits?"
    """
    known = list(known)
    shown = quoted(received) if received else "none"
    hint = suggestion(received, known)
    return f"{what}: expected one of {', '.join(known)}, received {shown}{hint}"


def number(text: str) -> float:
    """The number that a text is, as everybody writes it.

    Raises:
      ValueError: If it is none. Python's own `float` takes 0.1_5 for 0.15, and digits of all
        scripts, which nobody means so.

    >>> number(" 1e-3 ")
    0.001
    >>> number("0.1_5")
    Traceback (most recent call last):
    ValueError: expected a number, received '0.1_5'
    """
    if "_" in text or not text.strip().isascii():
        raise ValueError(f"expected a number, received {quoted(text)}")
    return float(text)


_LONGEST = 60  # Letters of a name among others.


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first of some names, each shortened to 60 letters, and how many there are.

    >>> some(["cat", "dog", "cow"], shown=2)
    'cat, dog and 1 more'
    >>> len(some([99 * "x"]))
    60
    """
    more = len(names) - shown
    texts = [one_line(name) for name in names[:shown]]
    texts = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in texts]
    return ", ".join(texts) + (f" and {more:,} more" if more > 0 else "")


def shape_text(sizes: Sequence[object], unknown: str = "any") -> str:
    """A shape as in `[n, 28, 28]`; `unknown` stands for sizes that are None.

    Example:
      >>> shape_text(("n", 28, None))
      '[n, 28, any]'
    """
    return f"[{', '.join(unknown if size is None else str(size) for size in sizes)}]"


def from_one(labels: Collection[int], classes: int) -> str:
    """The end of an error about labels: what to do if they count classes from 1; "": they do not.

    Example:
      >>> from_one([3, 1, 2], 3)
      '; subtract 1 if they count from 1'
    """
    counts_from_one = len(labels) and min(labels) >= 1 and max(labels) == classes
    return "; subtract 1 if they count from 1" if counts_from_one else ""


def fault(text: str) -> str:
    """Why no setting, file or folder of this program can be called so; "" if one can.

    Example:
      >>> fault("gs://bucket/run")[:35]
      'expected a path on this machine, re'
      >>> fault("runs/digits")
      ''
    """
    if strange := _control(text):
        return f"expected text without control characters, received {strange} in {quoted(text)}"
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        return (
            f"expected a path on this machine, received the address {quoted(text)}; nothing is "
            "read from or written to other places: mount it, or copy"
        )
    if text.startswith("~") and os.path.expanduser(text) == text:
        return (
            f"expected a path without ~, as there is no such home folder (HOME), received "
            f"{quoted(text)}; ./~ is a name that starts so"
        )
    sizes = [len(part.encode("utf-8", "replace")) for part in text.split("/")]
    if max(sizes) > _LONGEST_PART or sum(sizes) + len(sizes) - 1 > _LONGEST_PATH:
        return (
            f"expected at most {_LONGEST_PART} bytes between slashes and {_LONGEST_PATH:,} in all, "
            f"received {quoted(text)}"
        )
    return ""


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold it: not so a file's name of other bytes, as Python has it."""
    return text.encode("utf-8", "ignore").decode() == text


def strange_byte(text: str) -> str:
    r"""The first byte that is not UTF-8, of text that was read with it as half a character; "" if
    there is none.

    Example:
      >>> strange_byte("caf\udce9"), strange_byte("café")
      ('0xe9', '')
    """
    found = re.search("[\udc80-\udcff]", text)
    return f"{ord(found[0]) - 0xDC00:#04x}" if found else ""


def _control(text: str) -> str:
    """The first character that cannot stand in one line of text, as U+001C; "" if there is none."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            return f"U+{ord(character):04X}"
    return ""


_INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Marks of places for a break, of direction and of order, which no name needs. Joiners (U+200C and
U+200D) stay inside: they tell words and emoji apart."""


def clean(name: str) -> str:
    r"""A name without white space at its ends, such as the \r of a list from Windows, without
    invisible marks and in its composed form (NFC): two of one meaning are equal then."""
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", name)).strip(f"{_JOINERS}{_SPACE}")


_JOINERS = "\u200c\u200d"

_SPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())


def class_names(names: Sequence[object], where: str) -> tuple[tuple[str, ...], str]:
    """Checks names of classes, cleaned where they can be meant in only one way.

    Args:
      names: As they are given.
      where: What errors are about, such as a file and its array.

    Returns:
      The names as `clean` has them, and a note of what was changed, "" for nothing.

    Raises:
      ValueError: If one is no text, empty, `.` or `..`, has a control character inside, is not
        UTF-8 or longer than `LONGEST_NAME`, or two are equal.
    """
    cleaned, changed = [], []
    for given in names:
        if not isinstance(given, str):
            raise ValueError(f"{where}: expected names of classes, received {quoted(given)}")
        cleaned.append(name := clean(given))
        if fault := _name_fault(name):
            raise ValueError(f"{where}: expected {fault}{quoted(given)}")
        if name != given:
            changed.append(given)
    # Joiners alone do not tell two names apart that a person reads.
    seen = [re.sub(f"[{_JOINERS}]", "", name) for name in cleaned]
    name, times = collections.Counter(seen).most_common(1)[0] if seen else ("", 0)
    if times > 1:
        alike = [str(given) for given, own in zip(names, seen, strict=True) if own == name]
        forms = ", ".join(ascii(form) for form in alike[:3])
        raise ValueError(
            f"{where}: expected each name once, received {quoted(name)} {times} times"
            + (f" (as {forms})" if len(set(alike)) > 1 else "")
        )
    if not changed:
        return tuple(cleaned), ""
    some = ", ".join(ascii(given)[:_SHOWN] for given in changed[:3])
    return tuple(cleaned), (
        f"names of classes: {len(changed):,} cleaned of white space at their ends, invisible "
        f"marks and decomposed letters ({some}{' …' if len(changed) > 3 else ''})"
    )


def _name_fault(name: str) -> str:
    """What is expected in the place of a class's name, up to the name itself; "": it is one."""
    if name in ("", ".", ".."):
        return "a name for each class, received "
    if strange := _control(name):
        return f"names without control characters, received {strange} in "
    if len(name) > LONGEST_NAME:
        return f"names of at most {LONGEST_NAME} characters, received "
    return "" if is_utf8(name) else "names in UTF-8, received "


_NOISE = re.compile(
    r"\x1b\[[\d;]*m"
    r"|Graph execution error:"
    r"|Detected at node .*? defined at \(most recent call last\):"
    r"|<stack traces unavailable>"
    r"|^ *File \".*\", line \d+, in .*$"
    r"|^ *\(\d+\) [A-Z_ ]+: "
    r"|^\d+ (root error\(s\) found|successful operations|derived errors ignored)\."
    r"|\{\{function_node .*?\}\}"
    r"|\[\[\{\{node .*?\}\}\]\]"
    r"|\[Op:.*?\]( name:.*$)?"
    r"|^Exception encountered when calling .*?\.call\(\)\."
    r"|^Arguments received by \S+\.call\(\):(?s:.*)",
    re.MULTILINE,
)
"""What TensorFlow and Keras put around the cause of an error: places in graphs and in code."""

_PICKLED = {
    r"Object arrays cannot be loaded when allow_pickle=False": (
        "it holds an array of Python objects, which to load would run code; save numbers, or text "
        "as numpy.asarray(x, str)"
    ),
    # NumPy says so of whatever is not in its format.
    r"(This file contains pickled|Cannot load file containing pickled).*": (
        "it is not in NumPy's format"
    ),
}
"""Where NumPy advises to load a file unsafely: a pattern of its text, and ours for it."""


def cause(error: object) -> str:
    r"""What an error or a warning says, without the places in TensorFlow's graphs around it and
    without advice that nobody should follow.

    Example:
      >>> cause("Graph execution error:\nx: expected [n]")
      'x: expected [n]'
    """
    if full := _full_disk(error):
        return full
    text = _NOISE.sub("", str(error))
    for theirs, ours in _PICKLED.items():
        text = re.sub(theirs, ours, text)
    return "\n".join(filter(None, map(str.strip, text.splitlines())))


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors for want of room on a disk."""


def is_full_disk(error: object) -> bool:
    """Whether an error of the system, TensorFlow or NumPy is one of a full disk."""
    return bool(_full_disk(error))


def _full_disk(error: object) -> str:
    """What an error of the system, TensorFlow or NumPy says of a full disk; "": nothing."""
    text = f"{error} " if isinstance(error, Exception) else ""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        why = os.strerror(error.errno)
    elif type(error).__module__.startswith("tensorflow"):
        why = next((os.strerror(code) for code in NO_ROOM if os.strerror(code) in text), "")
    else:
        # NumPy's own count of what could be written.
        why = "a part was written" if re.match(r"\d+ requested and \d+ written ", text) else ""
    if not why:
        return ""
    # TensorFlow writes the file's name before the reason.
    theirs = re.search(rf"(/[^;\n]*); {re.escape(why)}", text)
    place = getattr(error, "filename", None) or (theirs and theirs[1])
    where = f": {place}" if place else ""
    return f"the disk is full ({why}{where}); what was saved before is kept: make room"


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Controls, among them those of terminals and of the direction of text, and half characters."""


def one_line(value: object) -> str:
    r"""Text, or what an error says, on one line that every encoding and terminal can show.

    Args:
      value: An exception, of which `cause` is taken, or its type where it says nothing; or anything
        else, as `str` has it.

    Returns:
      White space is a single space; controls and bytes that are not UTF-8 are written as escapes.

    Example:
      >>> one_line(ValueError("x: expected [n], received\n  [2, 3]"))
      'x: expected [n], received [2, 3]'
      >>> print(one_line("caf\udce9\x1b.png"))
      caf\udce9\x1b.png
    """
    is_error = isinstance(value, BaseException)
    text = (cause(value) or type(value).__name__) if is_error else str(value)
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], " ".join(text.split()))


def drawable(text: str) -> str:
    """Text as a figure can show it, whatever it holds; line breaks stay.

    What has no shape, and what libraries that draw text fail on, becomes U+FFFD or nothing.
    """
    # Marks of direction and joining, of the category Cf, have no shape of their own.
    drawn = dict.fromkeys(("Cc", "Cs", "Zl", "Zp"), "\ufffd") | {"Cf": ""}
    return "".join(
        character if character == "\n" else drawn.get(unicodedata.category(character), character)
        for character in text
    )


def percent_text(share: float, interval: tuple[float, float]) -> str:
    """A share and its interval in percent, such as `5.00 % [3.10, 7.90]`.

    Example:
      >>> percent_text(0.05, (0.0164, 0.1128))
      '5.00 % [1.64, 11.28]'
    """
    return f"{100 * share:.2f} % {interval_text(interval)}"


def interval_text(interval: tuple[float, float]) -> str:
    """An interval of shares in percent, such as `[3.10, 7.90]`."""
    return f"[{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"


def p_text(value: float) -> str:
    """A p-value with four decimals, such as `0.0312` or `< 0.0001`."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"
