"""Libraries of others, where they are installed."""

from typing import Any

import pytest


def library(name: str) -> Any:
    """A library, or the test is skipped; a torchvision that was built for another torch is no reason."""
    pytest.importorskip("torch")
    from convert.verify.libraries import load

    try:
        return load(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
