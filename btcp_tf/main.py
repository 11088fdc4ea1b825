"""One run: train a classifier and estimators of its uncertainty, and say which answers are wrong.

python -m btcp_tf.main --dataset=fashion_mnist
"""

import sys
from collections.abc import Sequence

from btcp_tf.core import command
from btcp_tf.experiment import run, settings


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and runs it; returns the exit status.

    Args:
      argv: Arguments after the program's name; None: those of this process.
    """
    config = settings.parse(argv)
    return command.carry_out(lambda: run.run(config), config.verbose)


if __name__ == "__main__":
    sys.exit(main())
