"""The command `python -m vit_jax.predict`; imported, this module becomes the function `vit_jax.predict`."""

import sys

from . import __getattr__ as public

if __name__ == "__main__":
    from .commands.predict import main

    sys.exit(main())

sys.modules[__name__] = public("predict")  # type: ignore[assignment]  # Python allows any object here
