"""Draws docs/images/risk_coverage.svg from the predictions that a run saved.

    python docs/scripts/draw_risk_coverage.py RUN docs/images/risk_coverage.svg

The run of the picture in the README, of version 0.2.0:
`python -m btcp_tf.main --dataset=fashion_mnist --preset=fast --seed=0
--method=mcp,residual,residual_no_index --residual_folds=2 --finetune_epochs=0`.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from btcp_tf import metrics
from btcp_tf.evaluation.predictions import load_predictions

LINES = {
    "mcp": ("MCP (1 − largest probability)", "#757575", "--"),
    "residual": ("residual estimator (btcp_tf)", "#3f51b5", "-"),
}


def main(run: str, output: str) -> None:
    """Writes the figure."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "btcp_tf"})
    found = load_predictions(Path(run) / "predictions.npz")
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    ax = figure.subplots()
    for name, (label, color, style) in LINES.items():
        curve = metrics.risk_coverage_curve(found.is_error, found.uncertainty[name])
        coverage, risk = np.asarray(curve.coverage), np.asarray(curve.risk)
        # Of 10,000 steps as many as the eye can see.
        wanted = np.unique(
            np.searchsorted(coverage, np.linspace(0.02, 1, 200)).clip(0, len(risk) - 1)
        )
        ax.plot(100 * coverage[wanted], 100 * risk[wanted], style, color=color, label=label)
    wrong = 100 * found.is_error.mean()
    ax.set(
        xlabel="answers accepted, most trusted first (%)",
        ylabel="wrong among them (%)",
        xlim=(0, 100),
        ylim=(0, None),
        title=f"Fashion-MNIST, {len(found.is_error):,} test images, {wrong:.2f} % wrong in all",
    )
    ax.title.set_fontsize(11)
    ax.grid(alpha=0.3)
    ax.legend(loc="upper left")
    figure.savefig(output, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
