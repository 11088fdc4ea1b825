"""The batches of rows that a command has finished, from which the same command resumes."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from btcp_tf.core import config
from btcp_tf.serving.records import Record


class RowLog:
    """A file of batches that a kill may cut, and a disk damage, at any place.

    Each line is a SHA-256 check sum, a space and JSON: in the first line the settings of the
    command, in the others the rows of a batch. The check sum covers the JSON of its own and all
    earlier lines, so that the file is valid up to the first line whose check sum is wrong.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Opens a log, and cuts off what is not valid.

        A batch is kept as a whole or not at all, since a model may round otherwise in a batch of
        another size.

        Args:
          path: The file; need not exist.
          settings: JSON values that decide what the rows are.

        Raises:
          ValueError: If the log is of a command with other settings.
        """
        self.path = path
        self.done = 0
        """Valid rows."""
        self.damaged = False
        """Whether a line was wrong that no kill had cut."""
        self._settings = settings
        self._digest = hashlib.sha256()
        if not path.exists():
            return
        size = 0
        for line, content in self._valid_lines():
            if size:
                self.done += len(content)
            elif differences := changes(settings, content):
                raise ValueError(
                    f"output: expected the command that began {path.parent}, received one with "
                    f"{differences}; choose another --output, or delete that folder to start again"
                )
            size += len(line)
        os.truncate(path, size)

    def _valid_lines(self) -> Iterator[tuple[bytes, Any]]:
        """Lines and what they hold, up to the first one that is not valid."""
        with open(self.path, "rb") as file:
            for line in file:
                checksum, _, text = line.partition(b" ")
                digest = self._digest.copy()
                digest.update(text)
                if checksum != digest.hexdigest().encode():
                    # A kill leaves a line without its end.
                    self.damaged = line.endswith(b"\n")
                    return
                self._digest = digest
                yield line, json.loads(text)

    def append(self, rows: Sequence[Record]) -> None:
        """Adds the rows of a batch."""
        with open(self.path, "ab") as file:
            for content in (rows,) if file.tell() else (self._settings, rows):
                text = json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n"
                self._digest.update(text)
                file.write(self._digest.hexdigest().encode() + b" " + text)
        self.done += len(rows)

    def batches(self) -> Iterator[list[Record]]:
        """The rows, batch by batch."""
        with open(self.path, "rb") as file:
            next(file)
            for line in file:
                yield json.loads(line.partition(b" ")[2])


_CHANGED = {
    "model": "another model",
    "input": "another or a changed input",
    "true_classes": "other labels in the input",
}

_BEFORE = {"max_pixels": config.MAX_PIXELS}
"""Of settings that files of earlier versions do not name: what is nearest to what was done then."""

_IMPLIED = {"inputs": "input", "true_classes": "labels"}
"""Settings that change with others, which say enough."""


def changes(settings: Mapping[str, Any], saved: Any) -> str:
    """In what a command differs from the one that wrote a file; "" if in nothing.

    Args:
      settings: Settings of the command; a value may be a dict of further ones.
      saved: Those in the file.
    """
    if not isinstance(saved, dict):
        return "something else"
    now, then = _flat(settings), _BEFORE | _flat(saved)
    changed = [name for name in now if now[name] != then.get(name)]
    return ", ".join(
        _CHANGED.get(name)
        or f"{name} {config.to_text(now[name])} in place of {config.to_text(then.get(name))}"
        for name in changed
        if _IMPLIED.get(name) not in changed
    )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
