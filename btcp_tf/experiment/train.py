"""Further classifiers of a run: ensemble members and cross-fitting folds."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.core.config import Config
from btcp_tf.data.splits import Dataset

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def train_members(
    build: Callable[[int], "keras.Model"],
    dataset: Dataset,
    config: Config,
    folder: Path,
    strategy: "tf.distribute.Strategy",
) -> list[list[np.ndarray]]:
    """Trains the further classifiers of the ensemble, alike but for their seed.

    Args:
      build: Seed → a new network.
      dataset: The run's: all members share its split.
      config: Settings.
      folder: Where the checkpoints are; `member<number>/` in it for each.
      strategy: From `training.make_strategy`.

    Returns:
      A snapshot of each network; none where neither `ensemble` nor `residual` needs them.
    """
    members = []
    wanted = "ensemble" in config.method or config.residual_distilled
    for number in range(2, config.ensemble_members + 1) if wanted else ():
        if config.verbose:
            print(f"ensemble: member {number} of {config.ensemble_members}")
        members.append(
            _train_further(build, dataset, config, number - 1, folder / f"member{number}", strategy)
        )
    return members


def train_folds(
    build: Callable[[int], "keras.Model"],
    dataset: Dataset,
    config: Config,
    folder: Path,
    strategy: "tf.distribute.Strategy",
) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Trains classifiers on all but one part of the training images each, for `residual`.

    Args:
      build: Seed → a new network.
      dataset: The run's.
      config: Settings; `residual_folds` parts, drawn by seed.
      folder: Where the checkpoints are; `fold<number>/` in it for each.
      strategy: From `training.make_strategy`.

    Returns:
      For each a snapshot of the network, and which training images it did not see, bool `[n]`.
    """
    folds = []
    count = config.residual_folds
    if count > len(dataset.train):
        raise ValueError(
            f"residual_folds: expected at most the {len(dataset.train)} training images, received "
            f"{count}"
        )
    part = np.random.default_rng(config.seed).permutation(len(dataset.train)) % max(count, 1)
    for number in range(1, count + 1):
        if config.verbose:
            print(f"residual: fold {number} of {count}")
        unseen = part == number - 1
        seen = dataset.train.take(~unseen)
        less = f"without {number} of {count}"
        rest = dataclasses.replace(
            dataset,
            train=seen,
            fingerprint=f"{dataset.fingerprint} {less}",
            former_fingerprints=tuple(f"{mark} {less}" for mark in dataset.former_fingerprints),
        )
        # Other seeds than those of the ensemble.
        values = _train_further(build, rest, config, -number, folder / f"fold{number}", strategy)
        folds.append((values, unseen))
    return folds


def _train_further(
    build: Callable[[int], "keras.Model"],
    dataset: Dataset,
    config: Config,
    number: int,
    folder: Path,
    strategy: "tf.distribute.Strategy",
) -> list[np.ndarray]:
    """Trains a classifier that is like the run's but for its seed; a snapshot of its network."""
    from btcp_tf.training import phases
    from btcp_tf.training.settings import TrainingSettings

    # Far from the seeds that a person would choose for further runs.
    seed = (config.seed + 1_000_003 * number) % 2**31
    stages = phases.fit(
        build(seed),
        dataset,
        TrainingSettings.of(dataclasses.replace(config, seed=seed)),
        {},
        folder=folder,
        strategy=strategy,
    )
    return stages["classifier"].values
