"""The command `python -m vit_jax.train`; imported, this module becomes the function `vit_jax.train`."""

import sys

from . import __getattr__ as public

if __name__ == "__main__":
    from .commands.train import main

    sys.exit(main())

sys.modules[__name__] = public("train")  # type: ignore[assignment]  # Python allows any object here
