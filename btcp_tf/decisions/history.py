"""What `btcp_tf.monitor` tested before, as its `monitor.json` keeps it.

A test in the order of rows holds however often one looks, but only if the rows that were judged
keep their places. A test of a fixed sample holds for one look. Both are about earlier looks, so a
digest of what was judged goes into the file of each.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from btcp_tf import metrics
from btcp_tf.core import json_files
from btcp_tf.thresholds import PREDICTED, GroupThreshold, Threshold


@dataclasses.dataclass(frozen=True)
class Stream:
    """The accepted answers with a label that a test in their order has seen."""

    rows: int
    """How many, at least 1."""
    sha256: str
    """Of their digests, one after another."""
    tau: float | str
    """The threshold; where each predicted class or group has its own, `mark` of it."""
    limit: float


@dataclasses.dataclass(frozen=True)
class Look:
    """What a report said."""

    scores: str
    """The file."""
    state: str
    """See `Findings.state`."""
    data: str
    """The verdict about the data, see `Assumption.verdict`."""
    rows: int
    """Answers."""
    accepted: int
    """Accepted answers with a label."""
    errors: int
    """Wrong ones among `accepted`."""


@dataclasses.dataclass(frozen=True)
class History:
    """Earlier looks of one output folder."""

    samples: tuple[str, ...] = ()
    """The fixed samples that were tested, each once, as `sample_digest`."""
    stream: Stream | None = None
    """None: no test in the order of rows."""
    looks: tuple[Look, ...] = ()
    """What each report in the folder said, the last one last."""

    @property
    def earlier_looks(self) -> int:
        """Tests of other rows or limits before a test of a fixed sample, which is the last one."""
        return len(self.samples) - 1 + (self.stream is not None)

    def with_look(self, look: Look) -> "History":
        """With one more report, unless it says what the last one said."""
        if self.looks[-1:] == (look,):
            return self
        return dataclasses.replace(self, looks=(*self.looks, look))

    def with_sample(self, digest: str) -> "History":
        """With one more look at a fixed sample, unless it is one of those."""
        if digest in self.samples:
            return self
        return dataclasses.replace(self, samples=(*self.samples, digest))

    def with_stream(self, digests: Sequence[bytes], tau: float | str, limit: float) -> "History":
        """With the rows that a test in their order sees now.

        Args:
          digests: Of accepted answers with a label, in their order, at least one.
          tau: From `mark`.
          limit: Error rate under test.

        Raises:
          ValueError: If the rows that were judged before are not the first of these, or were judged
            by another threshold or limit.
        """
        running, before = hashlib.sha256(), ""
        for number, digest in enumerate(digests, 1):
            running.update(digest)
            if self.stream is not None and number == self.stream.rows:
                before = running.hexdigest()
        now = Stream(len(digests), running.hexdigest(), tau, limit)
        if (then := self.stream) is not None:
            anew = "for a new stream name another --output_dir, or delete the old one"
            if (then.tau, then.limit) != (tau, limit):
                raise ValueError(
                    f"output_dir: expected the threshold and limit of the earlier look there, tau "
                    f"{_text(then.tau)} and {then.limit:.4g}, received {_text(tau)} and "
                    f"{limit:.4g}; "
                    f"{anew}"
                )
            if then.sha256 != before:
                raise ValueError(
                    f"scores: expected the {then.rows:,} accepted answers with a label that the "
                    "earlier look in output_dir judged, first, with the same labels and in the "
                    f"same order, received {len(digests):,} of which the first are others; add "
                    f"rows and labels at the end only; {anew}"
                )
        return dataclasses.replace(self, stream=now)


NONE = History()


def mark(threshold: Threshold) -> float | str:
    """What tells a threshold from others: its tau, or for one by class or group a digest."""
    if threshold.tau is not None:
        return threshold.tau
    assert isinstance(threshold, GroupThreshold)
    taus = {name: part.tau for name, part in threshold.parts.items()}
    text = json.dumps(taus, sort_keys=True)
    by = "predicted class" if threshold.by == PREDICTED else threshold.by
    return f"by {by}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _text(tau: float | str) -> str:
    return tau if isinstance(tau, str) else f"{tau:.6g}"


def sample_digest(digests: Sequence[bytes], tau: float | str, limit: float) -> str:
    """Of a fixed sample and what it is tested for; the order of the rows is no part of it."""
    head = f"{tau!r} {limit!r} ".encode()
    return hashlib.sha256(head + b"".join(sorted(digests))).hexdigest()


def load(file: Path) -> History:
    """Reads what a `monitor.json` says of earlier looks; there are none if there is no file.

    Raises:
      ValueError: If it is damaged.
      OSError: If it cannot be opened.
    """
    try:
        content = json_files.parse(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}")
        # Version 0.1.0 kept no history, and others no looks.
        return _from_json(content["history"]) if "history" in content else NONE
    except (FileNotFoundError, NotADirectoryError):
        return NONE
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: expected what btcp_tf.monitor wrote, whose earlier looks count, received "
            f"something else ({' '.join(str(error).split())}); delete the file, or name another "
            "--output_dir"
        ) from None


def _from_json(content: Mapping[str, Any]) -> History:
    samples, stream = content["samples"], content["stream"]
    if not isinstance(samples, list) or not all(isinstance(one, str) for one in samples):
        raise ValueError("history: samples")
    looks = tuple(Look(**look) for look in content.get("looks", ()))
    if stream is None:
        return History(tuple(samples), None, looks)
    last = Stream(**stream)
    metrics.whole_number("history: rows", last.rows, "a whole number >= 1", 1)
    numbers = {"limit": last.limit} if isinstance(last.tau, str) else {"tau": last.tau}
    for name, value in (numbers | {"limit": last.limit}).items():
        metrics.number(f"history: {name}", value, "a finite number", math.isfinite)
    return History(tuple(samples), last, looks)
