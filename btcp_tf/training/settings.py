"""The settings of the three phases, as one small value."""

import dataclasses
from typing import Any, Self

from btcp_tf.core import config, wording


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """What the three phases need of a run's settings.

    The fields have the names of `btcp_tf.Config`, which says what each means and accepts.

    >>> from btcp_tf import Config
    >>> settings = TrainingSettings.of(Config("digits", estimator_epochs=5))
    >>> settings.estimator_epochs, settings.batch_size
    (5, 32)
    """

    seed: int
    verbose: int
    finetuned: tuple[str, ...]
    """Methods that phase 3 trains."""

    # Networks and loss.
    estimator_activation: str
    gamma: str
    gamma_max: float
    epsilon: float
    density: str
    scope: str
    fine_bins: int
    cross_entropy_weight: float
    dfl_weight: float

    # Epochs and steps.
    classifier_epochs: int
    estimator_epochs: int
    finetune_epochs: int
    learning_rate: float
    estimator_learning_rate: float
    finetune_learning_rate: float
    batch_size: int
    test_batch_size: int
    optimizer: str
    schedule: str
    momentum: float
    weight_averaging: str
    ema_momentum: float
    sam_rho: float
    weight_decay: float
    steps_per_execution: int

    @classmethod
    def of(cls, settings: config.Config) -> Self:
        """Copies the fields of a run's settings."""
        return cls(**{name: getattr(settings, name) for name in _names(cls)})

    @classmethod
    def from_defaults(cls, **changes: Any) -> Self:
        """The defaults of `btcp_tf.Config`, some of them changed.

        Args:
          **changes: Values by name of the setting.

        Raises:
          ValueError: If there is no such training setting, or it does not accept the value.

        >>> TrainingSettings.from_defaults(gamma=2).gamma
        '2.0'
        >>> TrainingSettings.from_defaults(gama=2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: settings: expected some of ..., received gama; did you mean gamma?
        """
        names = [name for name in _names(cls) if name != "finetuned"]
        if unknown := sorted(changes.keys() - set(names)):
            raise ValueError(
                f"settings: expected some of {', '.join(sorted(names))}, received "
                f"{', '.join(unknown)}" + wording.suggestion(unknown[0], names)
            )
        declared = {field.name: field for field in dataclasses.fields(config.Config)}
        values = {
            name: config.check(declared[name], changes.get(name, declared[name].default))
            for name in names
        }
        return cls(finetuned=(), **values)


def _names(cls: type[TrainingSettings]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]
