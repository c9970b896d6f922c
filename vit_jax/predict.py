"""`python -m vit_jax.predict ...`; when imported, this module becomes the function `vit_jax.predict`."""

import sys

if __name__ == "__main__":
    from .commands.predict import main

    sys.exit(main())

from .commands.prediction.function import predict

sys.modules[__name__] = predict  # type: ignore[assignment]  # Python allows any object here
