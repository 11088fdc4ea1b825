"""From an input to probabilities and an uncertainty: Keras models and layers."""

from btcp_tf.core import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "cost": "multiply_adds",
        "dropout_passes": "dropout_models",
        "encoders": "ENCODERS",
        "looks": "Look LOOKS GROUPS AUTO looks_for fixed_dropout",
        "models": (
            "build_model adopt reads_whole_numbers assemble with_logit uncertainty_of "
            "outputs_model build_classifier build_estimator"
        ),
    },
)
