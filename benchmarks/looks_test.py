"""What looks gain for a classifier from elsewhere, on test images that had no part in any choice.

    python -m benchmarks.looks_test CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR --skip=2000

The images that the classifier has not seen are split several times, at random: some to fit the
estimator at each cost, some to choose a threshold, the rest to test; as `given_classifier` does it.
Beside the estimator stand rivals that learn nothing, `looks_mean` and `looks_move` of
`btcp_tf.methods.rivals`, for `--rivals`.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import common
from benchmarks.given_classifier import RISKS, Tested, differences
from btcp_tf import thresholds
from btcp_tf.methods import rivals
from btcp_tf.networks.mcp import mcp_of

if TYPE_CHECKING:
    from btcp_tf.methods.looks import Offer
    from btcp_tf.methods.residual_fit import HeldOut
    from btcp_tf.methods.seen import Seen


def main() -> None:
    parser = common.parser("looks_test", __doc__)
    add_flags(parser)
    parser.add_argument("--second_costs", default="1.6", help="passes per image, with it, too")
    parser.add_argument("--rivals", default="mirror", help="looks of the rivals; ; between sets")
    parser.add_argument("--draws", type=int, default=1000, help="of the bootstrap")
    arguments = parser.parse_args()
    common.start_tensorflow(arguments.threads)
    common.print_environment("tensorflow", "keras", "scikit-learn")
    try:
        offered, held = answers(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    names = list(offered.looks)
    changes = [name for name in names if offered.looks[name].answer is None]
    plans = {f"cost {cost}": (changes, float(cost)) for cost in arguments.costs.split(",")}
    if arguments.second:
        plans |= {
            f"second, {cost}": (names, float(cost)) for cost in arguments.second_costs.split(",")
        }
    unfitted = [text.split(",") for text in arguments.rivals.split(";") if text]
    parts = np.cumsum([arguments.fit, arguments.calibrate, arguments.test])
    tested = []
    count = len(held.labels)
    for seed in range(arguments.splits):
        order = np.random.default_rng(seed).permutation(count)
        rows = np.split(order, parts)[:3]
        tested.append(_test_split(offered, held, rows, plans, unfitted, seed))
    print()
    common.print_table(common.DIFFERENCES, list(differences(tested, count, arguments.draws)))
    print("\nShare accepted under a guaranteed risk, delta 0.05; mean over the splits")
    covered = [
        (method, *(f"{np.mean([s.coverage[method, risk] for s in tested]):.1%}" for risk in RISKS))
        for method in tested[0].uncertainty
    ]
    common.print_table(("", *(f"{risk:.0%}" for risk in RISKS)), covered)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What is looked at how, and how the images are split."""
    parser.add_argument("classifier", type=Path, help="a .keras file that takes pixels, 0 to 255")
    parser.add_argument("--dataset", required=True, help="a name of tensorflow-datasets")
    parser.add_argument("--data_dir", default="", help="prepared tensorflow-datasets data")
    parser.add_argument("--unseen", choices=("test", "all"), default="test")
    parser.add_argument("--looks", default="auto", help="names with commas between, or auto")
    parser.add_argument("--costs", default="1.3,2", help="passes per image, with --looks")
    parser.add_argument("--second", default="", help="another classifier, as a further look")
    parser.add_argument("--copies", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--skip", type=int, default=0, help="first samples that are left out")
    parser.add_argument("--fit", type=int, default=3000)
    parser.add_argument("--calibrate", type=int, default=1500)
    parser.add_argument("--test", type=int, default=3500)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--threads", type=int, default=common.cores())
    parser.add_argument("--cache", type=Path, help="an npz file that keeps the answers")


def answers(arguments: argparse.Namespace) -> "tuple[Offer, HeldOut]":
    """The offer of all looks, and the classifier's and their answers to all images, and to a random
    copy of each."""
    from btcp_tf.attached import held_out, offer
    from btcp_tf.attached.classifier import AttachedClassifier
    from btcp_tf.data import datasets

    data = datasets.load(arguments.dataset, arguments.data_dir)
    held = [data.test]
    if arguments.unseen == "all":
        held = [data.train, data.validation, data.calibration, data.test]
    x = np.concatenate([part.images for part in held])[arguments.skip :]
    y = np.concatenate([part.labels for part in held])[arguments.skip :]
    parts = AttachedClassifier.take_apart(arguments.classifier)
    classifier = dataclasses.replace(parts, verbose=1)
    looks = arguments.looks
    if arguments.second:
        looks = [] if looks == "" else looks.split(",")
        looks += [arguments.second]
    elif looks != "auto":
        looks = looks.split(",")
    # Of any cost: each plan has a budget of its own.
    offered = offer.make(classifier, looks, 1e9, (x, y), None, seed=0)
    assert offered is not None
    for name, look in offered.looks.items():
        print(f"{name}: {look.cost:.2f} passes", flush=True)
    if arguments.cache and arguments.cache.exists():
        return offered, _read(arguments.cache, list(offered.looks), y)
    copies = held_out.AUTO if arguments.copies else ()
    own = held_out.collect(classifier, (x, y), None, copies, looks=[*offered.looks.values()])
    if arguments.cache:
        _write(arguments.cache, list(offered.looks), own.held_out)
    return offered, own.held_out


def _write(path: Path, names: list[str], held: "HeldOut") -> None:
    arrays = {
        f"{field}{version}": values
        for version, seen in enumerate((held.seen, *held.copies))
        for field, values in seen._asdict().items()
        if values is not None
    }
    np.savez(path, names=names, kinds=np.array(held.kinds), **arrays)


def _read(path: Path, names: list[str], labels: np.ndarray) -> "HeldOut":
    from btcp_tf.methods.residual_fit import HeldOut
    from btcp_tf.methods.seen import Seen

    with np.load(path) as kept:
        if list(kept["names"]) != names:
            raise ValueError(f"{path}: expected {names}")
        seen, *copies = (
            Seen(*(kept.get(f"{field}{at}") for field in Seen._fields))
            for at in range(1 + len(kept["kinds"]))
        )
        return HeldOut(seen, labels, copies=tuple(copies), kinds=tuple(kept["kinds"]))


def some(seen: "Seen", rows: np.ndarray, columns: Sequence[int]) -> "Seen":
    """The answers to some of the images, with the odds of some of the looks."""
    assert seen.odds is not None
    return seen._replace(
        view=None,
        quality=None if seen.quality is None else seen.quality[rows],
        features=seen.features[rows],
        logits=seen.logits[rows],
        odds=seen.odds[rows][:, list(columns)],
    )


def part(held: "HeldOut", rows: np.ndarray, columns: Sequence[int]) -> "HeldOut":
    """Some of the images, with their copies, and some of the looks."""
    return dataclasses.replace(
        held,
        seen=some(held.seen, rows, columns),
        labels=held.labels[rows],
        copies=tuple(some(copy, rows, columns) for copy in held.copies),
        kinds=tuple(kinds[rows] for kinds in held.kinds),
    )


def _test_split(
    offered: "Offer",
    held: "HeldOut",
    rows: Sequence[np.ndarray],
    plans: Mapping[str, tuple[list[str], float]],
    unfitted: Sequence[list[str]],
    seed: int,
) -> Tested:
    """Fits, calibrates and tests on one split: (to fit, to calibrate, to test) of the rows."""
    from btcp_tf.methods import residual_fit

    fit, calibrate, test = rows
    seen, labels, names = held.seen, held.labels, list(offered.looks)
    is_error = seen.logits.argmax(axis=1) != labels
    of_method = {"mcp": mcp_of(seen.logits)}
    for looks in unfitted:
        assert seen.odds is not None
        columns = [names.index(name) for name in looks]
        against = rivals.against(seen.logits, seen.odds[:, columns])
        of_method[f"mean of {', '.join(looks)}"] = rivals.mean_of(against)
        of_method[f"move by {', '.join(looks)}"] = rivals.move_of(against)
    for title, (looks, budget) in plans.items():
        columns = [names.index(name) for name in looks]
        within = dataclasses.replace(
            offered, looks={name: offered.looks[name] for name in looks}, budget=budget
        )
        own = part(held, fit, columns)
        fitted = residual_fit.fit_residual(own, offer=within, seed=seed)
        print(f"split {seed}, {title}: {fitted.fit.words}", flush=True)
        everyone = some(seen, np.arange(len(labels)), columns)
        of_method[title] = residual_fit.score_residual(fitted.layers, fitted.weights, everyone)
    coverage = {}
    for method, u in of_method.items():
        for risk in RISKS:
            chosen = thresholds.target_risk(
                is_error[calibrate], u[calibrate], risk=risk, delta=0.05, min_coverage=0.3
            )
            share = 0.0 if chosen.tau is None else float((u[test] < chosen.tau).mean())
            coverage[method, risk] = share
    return Tested(test, is_error[test], {name: u[test] for name, u in of_method.items()}, coverage)


if __name__ == "__main__":
    main()
