"""`python -m vit_jax.evaluate ...`; when imported, this module becomes the function `vit_jax.evaluate`."""

import sys

if __name__ == "__main__":
    from .commands.evaluate import main

    sys.exit(main())

from .commands.evaluate import evaluate

sys.modules[__name__] = evaluate  # type: ignore[assignment]  # Python allows any object here
