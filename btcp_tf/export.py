"""The name that `python -m btcp_tf.set_threshold` had in version 0.1.0."""

import sys

from btcp_tf.set_threshold import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
