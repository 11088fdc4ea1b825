"""Which looks a classifier from elsewhere is given at several costs, and what they gain.

    python -m benchmarks.looks CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR

On the first test images, which serve for development alone. The differences to MCP are those of
nested cross-validation: no image has a part in the choice of looks, the penalty or the weights
behind its own u.
"""

import dataclasses
import sys
from pathlib import Path

from benchmarks import common


def main() -> None:
    parser = common.parser("looks", __doc__)
    parser.add_argument("classifier", type=Path, help="a .keras file that takes pixels, 0 to 255")
    parser.add_argument("--dataset", required=True, help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--images", type=int, default=2000, help="the first of the test images")
    parser.add_argument("--looks", default="auto", help="names with commas between, or auto")
    parser.add_argument("--costs", default="1.15,1.3,1.5,2,3,5", help="passes per image")
    arguments = parser.parse_args()
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn")
    from btcp_tf.attached import held_out, offer
    from btcp_tf.attached.classifier import AttachedClassifier
    from btcp_tf.data import datasets
    from btcp_tf.methods import residual_fit

    costs = [float(text) for text in arguments.costs.split(",")]
    looks = arguments.looks if arguments.looks == "auto" else arguments.looks.split(",")
    try:
        test = datasets.load(arguments.dataset, arguments.data_dir).test
        samples = test.images[: arguments.images], test.labels[: arguments.images]
        parts = AttachedClassifier.take_apart(arguments.classifier)
        classifier = dataclasses.replace(parts, verbose=1)
        offered = offer.make(classifier, looks, max(costs), samples, None, seed=0)
        assert offered is not None
        own = held_out.collect(classifier, samples, None, (), looks=[*offered.looks.values()])
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    table = []
    for cost in costs:
        within = dataclasses.replace(offered, budget=cost)
        fit = residual_fit.fit_residual(own.held_out, offer=within).fit
        print(fit.words, flush=True)
        chosen = ", ".join((*fit.evidence, *fit.looks)) or "none"
        figures = (
            "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(scale * value for value in fit.difference[name]))
            for name, scale in (("aupr_error", 100), ("aurc", 1000))
        )
        table.append((f"{cost:g}", chosen, f"{fit.share:.0%}", f"{fit.cost:.2f}", *figures))
    header = ("budget", "chosen", "share of images", "cost", "AUPR-error", "AURC x 1000")
    common.print_table(header, table)


if __name__ == "__main__":
    main()
