"""Which samples an estimator knows already: those that it, or its classifier, learned from.

A judge that is measured on samples it learned from looks better than it is, and a promise made on
them does not hold. So the hashes of what was seen stay with it. Rows of a table repeat by nature:
a fresh sample may equal one that was seen. How often is estimated twice: from the share of the seen
samples, and of the samples in question, that occur again among themselves. The smaller estimate
counts, as repeating one of them (oversampling) must not pass for nature. Up to that share equal
samples are taken as fresh ones. No TensorFlow here.
"""

import base64
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np

MOST = 0.05
"""No promise is made where more than this share of the samples is known, beyond what repeats by
nature."""

_UNSEEN = 3
"""Repeated samples that may not have been met: the upper 95 % limit of none observed."""

_SIGMAS = 4.0
"""How far above the natural share chance may bring an overlap."""


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Samples that were seen, such as those of `fit`."""

    hashes: np.ndarray
    """Distinct ones, uint64, ascending."""
    rows: int
    """Samples."""
    repeated: int
    """Samples that occur again among the others."""

    @classmethod
    def of(cls, hashes: np.ndarray) -> Self:
        """Of hashes of samples, uint64 `[n]`."""
        distinct, counts = np.unique(hashes.astype(np.uint64), return_counts=True)
        return cls(distinct, len(hashes), int(counts[counts > 1].sum()))

    def to_json(self) -> dict[str, Any]:
        text = base64.b64encode(self.hashes.astype("<u8").tobytes()).decode()
        return {"hashes": text, "rows": self.rows, "repeated": self.repeated}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """What `to_json` made; ValueError for anything else."""
        try:
            raw = base64.b64decode(content["hashes"], validate=True)
            part = cls(
                np.frombuffer(raw, "<u8").astype(np.uint64),
                int(content["rows"]),
                int(content["repeated"]),
            )
            if not 0 <= part.repeated <= part.rows or len(part.hashes) > part.rows:
                raise ValueError("more repeated samples than there are")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"seen: expected hashes, rows and repeated ({error})") from None
        return part

    def holds(self, hashes: np.ndarray) -> np.ndarray:
        """Which of hashes `[n]` were seen; bool `[n]`."""
        if not len(self.hashes):
            return np.zeros(len(hashes), bool)
        place = np.searchsorted(self.hashes, hashes).clip(max=len(self.hashes) - 1)
        return self.hashes[place] == hashes

    def natural_share(self, hashes: np.ndarray) -> float:
        """Share of fresh samples that equal a seen one by nature, as both sides show it.

        Args:
          hashes: Of the samples in question, uint64 `[n]`, n > 0.
        """
        n = len(hashes)
        # Where `r` of n samples occur again among themselves, so many more seen ones hold more.
        r = min((Part.of(hashes).repeated + _UNSEEN) / n, 1.0)
        among_more = 1.0 - (1.0 - r) ** max(self.rows / n, 1.0)
        return min(self.repeated / self.rows, among_more) if self.rows else 0.0

    def expects(self, count: int, hashes: np.ndarray) -> bool:
        """Whether `count` known ones among samples are no more than repeat by nature."""
        n = len(hashes)
        share = self.natural_share(hashes) if n else 0.0
        if not share:
            return not count
        # Twice the variance of single draws: repeated samples come in pairs.
        spread = np.sqrt(2 * share * (1 - share) * (1 / n + 1 / self.rows))
        return bool(count / n <= share + _SIGMAS * spread)


@dataclasses.dataclass(frozen=True, eq=False)
class Overlap:
    """Samples among n that were seen."""

    known: np.ndarray
    """bool `[n]`: seen, more of them than repeat by nature."""
    text: str
    """How many of which part, in one line; "": none."""

    @property
    def share(self) -> float:
        """Share of the samples that were seen, in [0, 1]."""
        return float(self.known.mean()) if len(self.known) else 0.0


def overlap(hashes: np.ndarray, parts: Mapping[str, Part], among: Iterable[str]) -> Overlap:
    """Which samples were seen, and how to say it.

    Args:
      hashes: Of the samples, uint64 `[n]`.
      parts: What was seen, by name.
      among: The names that count; those that are not in `parts` do not.
    """
    known, parts_text = np.zeros(len(hashes), bool), []
    for name in among:
        if name not in parts:
            continue
        held = parts[name].holds(hashes)
        if not (count := int(held.sum())):
            continue
        text = f"{count} of {len(hashes)} samples are among {_NAMES[name]}"
        if parts[name].expects(count, hashes):
            share = parts[name].natural_share(hashes)
            text += f", no more than repeat by nature (about {share:.1%} do)"
        else:
            known |= held
        parts_text.append(text)
    return Overlap(known, "; ".join(parts_text))


_NAMES = {
    "fit": "those of fit",
    "recalibrate": "those of recalibrate",
    "copies": "the copies of fit",
    "reference": "those of the reference",
    "folds": "the held-out ones of the folds",
    "threshold": "those of select_threshold",
}
"""Parts that a judge may have seen."""
