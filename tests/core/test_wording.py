import errno
import os
import unicodedata

import pytest

from btcp_tf.core import wording
from btcp_tf.core.wording import LONGEST_NAME

SEPARATORS = ["\r", "\n", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\x07", "\x7f"]


@pytest.mark.parametrize("mark", SEPARATORS[:8])
def test_names_of_a_list_with_other_line_ends_are_cleaned_with_a_note(mark):
    names, note = wording.class_names([f"cat{mark}", "hot dog", f" {mark}eel"], "list")
    assert names == ("cat", "hot dog", "eel")
    assert "2 cleaned" in note and note.isprintable()


def test_names_that_need_no_cleaning_stay_as_they_are():
    names = ["n/a", "AC/DC", "Größe 3", "人", "a..b", "x" * LONGEST_NAME]
    assert wording.class_names(names, "list") == (tuple(names), "")
    assert wording.class_names(["e\u0301"], "list")[0] == ("\u00e9",)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        *((["a", f"b{mark}c"], f"U+{ord(mark):04X}") for mark in SEPARATORS),
        (["a", ""], "a name for each class"),
        (["a", " \t"], "a name for each class"),
        (["a", "."], "a name for each class"),
        (["a", ".."], "a name for each class"),
        (["a", None], "received None"),
        (["a", "x" * 8000], "(8,000 characters)"),
        (["a", "\ud800"], "UTF-8"),
        (["a", "b", "a"], "'a' 2 times"),
        (["cat", "cat\r"], r"(as 'cat', 'cat\r')"),
        (["\u00e9", "e\u0301"], r"(as '\xe9', 'e\u0301')"),
        (["cat", "c\u200bat"], r"(as 'cat', 'c\u200bat')"),
        (["cat", "c\u200dat"], r"(as 'cat', 'c\u200dat')"),
        (["a", "\u200b\u200d "], "a name for each class"),
    ],
)
def test_names_that_are_none_are_refused_in_one_line(names, told):
    with pytest.raises(ValueError, match="^list: expected ") as caught:
        wording.class_names(names, "list")
    assert told in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "word",
    [
        *(f"a{mark}b" for mark in SEPARATORS),
        *(f"{scheme}://bucket/runs" for scheme in ("gs", "s3", "hdfs", "file", "https", "abfs")),
        "gs:/bucket",
        "x" * 256,
        "é" * 128,
        "x/" * 2048,
    ],
)
def test_what_is_no_path_of_this_machine_is_a_fault_in_one_line(word):
    told = wording.fault(word)
    assert told.startswith("expected ") and told.isprintable() and len(told) < 250


@pytest.mark.parametrize(
    "word", ["", "../a b/c", "C:/x", "./gs:/x", "x" * 255, "x/" * 2047, "人/é", "a:b", "0.5"]
)
def test_paths_of_this_machine_are_no_fault(word):
    assert wording.fault(word) == ""


def test_invisible_marks_are_no_part_of_a_name_and_joiners_are():
    woman_cooking, word = "\U0001f469\u200d\U0001f373", "\u0645\u06cc\u200c\u062e"
    names, note = wording.class_names(
        ["\ufeffc\u200bat\u2060", woman_cooking, word, "\u202edog", "owl\u200d"], "list"
    )
    assert names == ("cat", woman_cooking, word, "dog", "owl") and "3 cleaned" in note


class ResourceExhaustedError(Exception):
    __module__ = "tensorflow.python.framework.errors_impl"
    filename = None


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhaustedError(f"/x/data-0; {os.strerror(errno.ENOSPC)} [Op:SaveV2]"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/models/x"),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        OSError("1048576 requested and 4096 written"),
    ],
)
def test_a_full_disk_is_called_so(error):
    words = wording.one_line(error)
    assert words.startswith("the disk is full (") and words.endswith("is kept: make room")
    assert "Errno" not in words and (not error.filename or error.filename in words)
    assert "disk is full" not in wording.one_line(OSError(errno.EACCES, "no"))
    # Ours say already what to do.
    ours = OSError(f"expected room, received none ({os.strerror(errno.ENOSPC)})")
    assert wording.one_line(ours) == str(ours)


def test_what_was_meant_is_suggested():
    known = ["mnist", "fashion_mnist", "cifar10"]
    assert "did you mean mnist?" in wording.suggestion("minst", known)
    assert "did you mean fashion_mnist?" in wording.suggestion("Fashion-MNIST", known)
    both = wording.suggestion("epochs", ["classifier_epochs", "estimator_epochs"])
    assert "did you mean classifier_epochs or estimator_epochs?" in both
    assert wording.suggestion("photos", known) == wording.suggestion("", known) == ""


def test_figures_can_draw_every_character():
    whole = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010), *range(0xFE00, 0x10000)]))
    left = wording.drawable(whole)
    assert "\n" in left and "é" in left and len(wording.drawable("a\x1cb")) == 3
    unfit = {unicodedata.category(character) for character in left.replace("\n", "")}
    assert not unfit & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (
            "Graph execution error:\n\nDetected at node map/while/DecodeImage defined at (most "
            "recent call last):\n<stack traces unavailable>\nUnknown image file format.\n\t "
            "[[{{node map/while/DecodeImage}}]] [Op:__inference_f_54]",
            "Unknown image file format.",
        ),
        (
            "Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
            '  File "/x/y.py", line 6, in <module>\n\nBad rows.\n\t [[{{node a/b}}]]',
            "Bad rows.",
        ),
        (
            "{{function_node __inference_<lambda>_60}} u: NaN values\n\t [[{{node C}}]] "
            "[Op:__inference_<lambda>_60]",
            "u: NaN values",
        ),
        ("In[0]: [2,3], In[1]: [2,3] [Op:MatMul] name: ", "In[0]: [2,3], In[1]: [2,3]"),
        (
            "Exception encountered when calling MaxPooling2D.call().\n\n\x1b[1mToo small.\x1b[0m\n"
            "\nArguments received by MaxPooling2D.call():\n  • args=()",
            "Too small.",
        ),
        ("x: expected [n], received\n  [2, 3]", "x: expected [n], received [2, 3]"),
    ],
)
def test_of_errors_in_graphs_the_cause_is_left(raw, told):
    assert wording.one_line(ValueError(raw)) == told
    assert wording.one_line(ValueError()) == "ValueError"


def test_one_line_shows_controls_and_bytes_and_keeps_every_other_letter():
    assert wording.one_line("a \n\tb\u00a0c") == "a b c"
    assert wording.one_line("\x1b[31m\udcff\x00\u202e") == r"\x1b[31m\udcff\x00\u202e"
    # Of a name nothing is taken for noise, nor is a joiner of letters a control.
    assert wording.one_line("{{node x}} \u0646\u200c\u0647") == "{{node x}} \u0646\u200c\u0647"
    assert wording.one_line("") == ""
