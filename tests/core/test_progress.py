import sys
import time

from terminal import Terminal

from btcp_tf.core.progress import Bar


def test_a_bar_is_one_line_within_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    bar = Bar("Epoch 12/20", 3)
    for step, words in enumerate(("a long one " * 20, "cross_entropy 0.5534", "loss 1.0"), 1):
        bar._drawn = 0.0  # As if it had been drawn long ago.
        bar.update(step, words)
    row, rest = terminal.rows
    assert row.startswith("Epoch 12/20 ━━━") and row.endswith("100% 0 s  loss 1.0") and not rest
    assert all(len(drawn) < 80 for drawn in terminal.getvalue().split("\r"))
    assert "\b" not in terminal.getvalue()


def test_a_log_has_a_line_and_no_marks_of_a_terminal(capsys):
    bar = Bar("photos: 3 images", 3)
    for _ in range(3):
        bar.add(1)
    Bar("nothing", 1, shown=False).update(1)
    assert capsys.readouterr().out == "photos: 3 images\n"


def test_how_long_it_will_take_is_told_from_the_steps_behind_the_first(monkeypatch, capsys):
    """The first one takes 30 s, each of the others 2 s."""
    clock = iter([0.0, 30.0, 32.0, 34.0, 36.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    bar = Bar("photos", 100)
    for _ in range(4):
        bar.add(1)
    assert capsys.readouterr().out == "photos\nphotos: about 196 s\n"
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    clock = iter([0.0, 30.0, 30.0, 30.0, 40.0, 40.0, 40.0])
    bar = Bar("photos", 100)
    bar.update(1)
    bar.update(11, "loss 1.0")
    assert terminal.rows[0].endswith("11% 40 s, 89 s left  loss 1.0")
