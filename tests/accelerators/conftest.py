"""These tests are for environments with the compiler of a GPU or a TPU: `make test-accelerators` sets them up."""

from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.machine.targets import check_compiler, read_target


def there(name: str) -> bool:
    """Whether the compiler of a target is installed."""
    try:
        check_compiler(read_target(name))
    except UserError:
        return False
    return True


def need(name: str) -> None:
    """Skip a test where the compiler of a target is not installed."""
    if not there(name):
        pytest.skip(f"the compiler of {name.partition(':')[0]} is not installed in this environment")


collect_ignore_glob = [] if there("h100") or there("v5e:2x2") else ["test_*.py"]


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a small network for images of 32 x 32, to learn from."""
    import vit_jax

    config = vit_jax.ViTConfig(image=32, patch=8, classes=10, width=64, depth=1, heads=2, hidden=64)
    path = tmp_path_factory.mktemp("teacher") / "teacher.safetensors"
    vit_jax.export(vit_jax.ViT(config), path, fields={"mean": [0.5] * 3, "std": [0.5] * 3})
    return path


@pytest.fixture(autouse=True)
def small() -> None:
    """What a test has compiled leaves memory."""
    yield
    import jax

    jax.clear_caches()
