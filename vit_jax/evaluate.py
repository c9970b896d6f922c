"""The command `python -m vit_jax.evaluate`; imported, this module becomes the function `vit_jax.evaluate`."""

import sys

from . import __getattr__ as public

if __name__ == "__main__":
    from .commands.evaluate import main

    sys.exit(main())

sys.modules[__name__] = public("evaluate")  # type: ignore[assignment]  # Python allows any object here
