"""How good an uncertainty is: saved predictions, rows of metrics, means over seeds."""

from btcp_tf.core import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "explanations": "EXPLANATIONS_FILE Explanations save_explanations load_explanations",
        "predictions": (
            "REFERENCE ENDINGS Predictions mcp_column mcp_logit check_size save_predictions "
            "load_predictions Answers load_answers about_file"
        ),
        "results": (
            "DIFFERENCES OOD_DIFFERENCES VERDICTS EPOCH_METRICS rows ood_rows epoch_metrics "
            "save_rows load_rows"
        ),
        "seeds": "across_seeds",
    },
)
