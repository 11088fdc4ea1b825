"""All networks of a run: the three phases, the members of the ensemble, the cross-fitting folds."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btcp_tf.core.groups import numbers
from btcp_tf.data.splits import Dataset
from btcp_tf.methods.registry import METHODS

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from btcp_tf.training.phase_model import Recipe
    from btcp_tf.training.phases import Describe, Stage
    from btcp_tf.training.settings import TrainingSettings

Weights = list[np.ndarray]
"""All variables of a network, from `training.snapshot`."""


class Fold(NamedTuple):
    """A classifier that was trained on a part of the training images."""

    weights: Weights
    unseen: np.ndarray
    """Which training images it was not trained on, bool `[n]`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """What the training of a run leaves."""

    network: "keras.Model"
    """The network that takes on the weights."""
    stages: dict[str, "Stage"]
    """From `training.fit`: "classifier", "<method>", "<method>_finetuned"."""
    members: list[Weights] = dataclasses.field(default_factory=list)
    """Of further classifiers of the ensemble."""
    folds: list[Fold] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, eq=False)
class Trainer:
    """Trains networks that are alike on one data set."""

    build: Callable[[int], "keras.Model"]
    """Seed → a new network."""
    dataset: Dataset
    settings: "TrainingSettings"
    folder: Path
    """Where the checkpoints are; those of further classifiers in folders of their own."""
    strategy: "tf.distribute.Strategy"
    adopted: bool = False
    """Whether the run's classifier is trained already."""

    def train(
        self,
        estimators: dict[str, "Recipe"],
        *,
        members: int,
        folds: int,
        describe: "Describe | None" = None,
        after_epoch: Callable[[str, list[dict[str, Any]]], None] = lambda stage, rows: None,
    ) -> Trained:
        """Trains the further classifiers, then the three phases of the run's own network.

        Args:
          estimators: Method → how its estimator is trained, see `recipes`.
          members: See `train_members`.
          folds: See `train_folds`.
          describe: See `training.fit`.
          after_epoch: See `training.fit`.
        """
        from btcp_tf.training import phases

        more = self.train_members(members), self.train_folds(folds)
        network = self.build(self.settings.seed)
        stages = phases.fit(
            network,
            self.dataset,
            self.settings,
            estimators,
            adopted=self.adopted,
            folder=self.folder,
            strategy=self.strategy,
            describe=describe,
            after_epoch=after_epoch,
        )
        return Trained(network, stages, *more)

    def train_members(self, count: int) -> list[Weights]:
        """Trains further classifiers of the ensemble, which differ in their seeds.

        Args:
          count: Size of the ensemble, the run's own classifier included; 0: there is none.
        """
        members = []
        for number in range(2, count + 1):
            if self.settings.verbose:
                print(
                    f"ensemble: member {number} of {count}, a classifier like the first", flush=True
                )
            members.append(self._further(self.dataset, number - 1, f"member{number}"))
        return members

    def train_folds(self, count: int) -> list[Fold]:
        """Trains classifiers on all but one part of the training images each, for `residual`.

        Args:
          count: Number of parts, which are drawn by seed; 0: there are none.

        Raises:
          ValueError: If there are more parts than images.
        """
        images = len(self.dataset.train)
        if count > images:
            raise ValueError(
                f"residual_folds: expected at most the {images} training images, received {count}"
            )
        groups = self.dataset.train.groups
        # Images that belong together are in one part.
        group = np.arange(images) if groups is None else numbers(groups, images)
        number_of = np.random.default_rng(self.settings.seed).permutation(group.max() + 1)
        part = number_of[group] % max(count, 1)
        folds = []
        for number in range(1, count + 1):
            if self.settings.verbose:
                print(f"residual: fold {number} of {count}, training on the others", flush=True)
            unseen = part == number - 1
            rest = _without(self.dataset, unseen, f"without {number} of {count}")
            # Other seeds than those of the ensemble.
            folds.append(Fold(self._further(rest, -number, f"fold{number}"), unseen))
        return folds

    def _further(self, dataset: Dataset, number: int, folder: str) -> Weights:
        """Trains a classifier that is like the run's but for its seed."""
        from btcp_tf.training import phases

        # Far from the seeds that a person would choose for further runs.
        seed = (self.settings.seed + 1_000_003 * number) % 2**31
        stages = phases.fit(
            self.build(seed),
            dataset,
            dataclasses.replace(self.settings, seed=seed),
            {},
            folder=self.folder / folder,
            strategy=self.strategy,
        )
        return stages["classifier"].values


def recipes(methods: tuple[str, ...], ohem_fraction: float) -> dict[str, "Recipe"]:
    """How the estimator of each trained method is trained."""
    from btcp_tf.training.phase_model import Recipe

    return {
        name: Recipe(METHODS[name].gamma, ohem_fraction if METHODS[name].hard_examples else 1.0)
        for name in methods
        if METHODS[name].trained
    }


def _without(dataset: Dataset, rows: np.ndarray, what: str) -> Dataset:
    """The data set without some training images, with fingerprints of its own."""
    return dataclasses.replace(
        dataset,
        train=dataset.train.take(~rows),
        fingerprint=f"{dataset.fingerprint} {what}",
        former_fingerprints=tuple(f"{mark} {what}" for mark in dataset.former_fingerprints),
    )
