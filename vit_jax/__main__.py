"""The command `python -m vit_jax`: that of `vit-jax`."""

import sys

from .commands.cli import main

if __name__ == "__main__":
    sys.exit(main("python -m vit_jax"))
