"""How the paper's three phases are trained."""

from btcp_tf.core import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "checkpoints": "Row snapshot restore weights_id",
        "diagnosis": "collapse constant_class unlearned",
        "distribution": "make_strategy start_devices",
        "inference": "Inference sample_dropout",
        "one_phase": "fit_phase",
        "phase_model": "Recipe LossSettings PhaseModel",
        "phases": "EpochOutputs Stage Describe fit fit_estimator loss_settings",
        "settings": "TrainingSettings",
    },
)
