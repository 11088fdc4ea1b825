"""One run: train a classifier and estimators of its uncertainty, and say which answers are wrong.

python -m btcp_tf.main --dataset=fashion_mnist
"""

import sys
from collections.abc import Sequence

from btcp_tf import command, runs


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line and runs it; returns the exit status.

    Args:
      argv: The words after the program's name; None: those of this process.
    """
    config = command.parse(argv)
    return command.carry_out(lambda: runs.run(config), config.verbose)


if __name__ == "__main__":
    sys.exit(main())
