"""The paper's comparison: every method on one classifier for each data set and seed.

    python -m btcp_tf.study --dataset=fashion_mnist,mnist --preset=fast --seeds=5

A study is a folder of runs, one for each data set and seed, and of ablations: runs that train
another estimator on the classifier of the first seed. Each leaves its own rows; the study gathers
them into `results.json`, tables, figures and a report. Killed at any time, the same command goes
on; with more seeds or data sets it adds to what is there. A run that fails is reported at the end
and does not stop the others. With `--ray_address` the runs go side by side, on several machines.
"""

import sys
from collections.abc import Sequence

from absl import flags

from btcp_tf.core import command
from btcp_tf.experiment import settings, studies
from btcp_tf.experiment.studies import USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and carries out the study; returns the exit status.

    Args:
      argv: Arguments after the program's name; None: those of this process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    flag_values = define_flags()
    command.answer_questions(arguments, flag_values, USAGE, settings.help_lines())
    with command.exit_on_error():
        study = studies.plan(arguments, flag_values)
    return command.carry_out(lambda: int(studies.run(study) > 0), study.verbose)


def define_flags() -> flags.FlagValues:
    """The flags of a run and those of a study."""
    flag_values = settings.define_flags()
    flag_values[
        "output_dir"
    ].help = "The study's folder. Default: runs/study-<data sets>[-<preset>]."
    flags.DEFINE_integer(
        "seeds",
        5,
        "Runs of each data set, with seeds from --seed on.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_boolean(
        "ablation",
        True,
        "Also train btcp with other settings of its loss on the classifier of the first seed.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "ray_address",
        "",
        "Carries out the runs side by side as tasks of Ray: auto (the cluster of this machine), "
        "local (one that ends with the study) or HOST:PORT. Empty: one after the other here.",
        flag_values=flag_values,
    )
    flags.DEFINE_integer(
        "ray_cpus",
        1,
        "Cores, and threads, of each run with --ray_address.",
        lower_bound=1,
        flag_values=flag_values,
    )
    flags.DEFINE_float(
        "ray_gpus",
        0.0,
        "GPUs of each run with --ray_address; 0.5: two runs share one.",
        lower_bound=0.0,
        flag_values=flag_values,
    )
    return flag_values


if __name__ == "__main__":
    sys.exit(main())
