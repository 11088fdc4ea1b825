"""How one gets an uncertainty: one function for each method."""

from btcp_tf.core import lazy

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "answers": "RELU_LAMBDA mcp entropy margin doctor temperature relu max_logit energy",
        "controls": "constant random mcp_cubed tcp_oracle squash",
        "features": "KNN_NEIGHBORS trust_score knn mahalanobis relative_mahalanobis vim",
        "outputs": "Outputs Reference Score",
        "registry": "Method METHODS",
        "residual_scores": "residual residual_no_index residual_looks ResidualScore",
        "rivals": "looks_mean looks_move",
        "sampled": "mc_dropout ensemble mc_dropout_few ensemble_few",
        # Further answers of a classifier, which a method may read.
        "btcp_tf.networks.looks": "LOOKS",
    },
)
