"""The command `python -m vit_jax`: that of `vit-jax`."""

import sys

from .hiding import end_if_hidden

try:
    from .commands.cli import main
except (AttributeError, ImportError):
    end_if_hidden()
    raise

if __name__ == "__main__":
    try:
        sys.exit(main("python -m vit_jax"))
    except (AttributeError, ImportError):  # of what a command imports
        end_if_hidden()
        raise
