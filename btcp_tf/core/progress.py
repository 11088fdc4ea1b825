"""One line that says how far a piece of work is: moving on a terminal, still in a log."""

import shutil
import sys
import time


def say(line: str, verbose: int = 1) -> None:
    """Prints what is done from here on, which may take a while; nothing where `verbose` is 0."""
    if verbose:
        print(line, flush=True)


_LONG = 20.0
"""Seconds, below which nobody needs to be told how long something takes."""


class Bar:
    """A line that is drawn again and again on a terminal, within its width.

    Where standard output is no terminal but a file, a pipe or a notebook, there is one line at the
    start in its place, one more where the rest will take long, and neither backspaces nor carriage
    returns. How long is concluded from the steps behind the first, which takes longer than others.
    """

    def __init__(self, title: str, total: int, *, shown: bool = True) -> None:
        """
        Args:
          title: What is done.
          total: Steps until the end.
          shown: Whether anything is printed.
        """
        self._title, self._total = title, total
        self._live = shown and sys.stdout.isatty()
        self._untold = shown and not self._live
        self._started = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._done, self._drawn, self._width = 0, 0.0, 0
        if shown and not self._live:
            print(title, flush=True)

    @property
    def due(self) -> bool:
        """Whether an update would be seen: a few times a second are enough."""
        return self._live and time.monotonic() - self._drawn >= 0.1

    def add(self, steps: int) -> None:
        """So many steps more are done."""
        self.update(self._done + steps)

    def update(self, done: int, text: str = "") -> None:
        """So many steps are done; the last one ends the line."""
        self._done, now = done, time.monotonic()
        self._first = self._first or (done, now)
        if self._untold and (left := self._left(now)):
            self._untold = False
            print(f"{self._title}: about {left:.0f} s", flush=True)
        if self._live and (done >= self._total or self.due):
            self._draw(text)
            if done >= self._total:
                self.end()

    def _left(self, now: float) -> float:
        """The seconds until the end; 0: not known, or too few to tell."""
        done, then = self._first or (self._done, now)
        if self._done <= done:
            return 0.0
        left = (now - then) / (self._done - done) * (self._total - self._done)
        return left if left >= _LONG else 0.0

    def end(self, text: str = "") -> None:
        """Leaves the line as it is, or with a text behind the title and the time."""
        if self._live:
            if text:
                self._draw(text)
            print(flush=True)
            self._live = False

    def _draw(self, text: str) -> None:
        self._drawn = time.monotonic()
        share = min(1.0, self._done / max(self._total, 1))
        left = self._left(self._drawn)
        more = f", {left:.0f} s left" if left else ""
        behind = f" {share:4.0%} {self._drawn - self._started:.0f} s{more}  {text}".rstrip()
        # The last column stays free: some terminals begin a new line behind it.
        columns = shutil.get_terminal_size().columns - 1
        room = min(30, columns - len(self._title) - len(behind) - 1)
        full = round(share * room)
        bar = f" {'━' * full}{'─' * (room - full)}" if room >= 5 else ""
        line = f"{self._title}{bar}{behind}"[:columns]
        print(f"\r{line.ljust(self._width)}", end="", flush=True)
        self._width = len(line)
