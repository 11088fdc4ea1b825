"""A short run on digits, for tests of runs."""

from btcp_tf.evaluation.keys import Predictor

TUNED = Predictor("btcp", "finetuned")

WORDS = [
    "--dataset=digits",
    "--max_train_images=500",
    "--classifier_epochs=6",
    "--estimator_epochs=6",
    "--finetune_epochs=6",
    "--bootstrap_draws=50",
]


def words(folder, *more):
    return [*WORDS, f"--output_dir={folder}/run", f"--export_dir={folder}/models", *more]
