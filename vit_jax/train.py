"""`python -m vit_jax.train ...`; when imported, this module becomes the function `vit_jax.train`."""

import sys

if __name__ == "__main__":
    from .commands.train import main

    sys.exit(main())

from .training.train import train

sys.modules[__name__] = train  # type: ignore[assignment]  # Python allows any object here
