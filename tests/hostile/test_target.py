"""Damaged sources at the door: exit code 2, one sentence, and the target's folder as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from convert import rules
from convert.containers import writer
from convert.containers.source import Spec
from convert.dialects import LAYOUTS
from tests.hostile.child import run
from tests.hostile.converting import convert
from vit_jax.models.vit_config import ViTConfig

CONFIG = ViTConfig(image=8, patch=4, classes=5, width=12, depth=1, heads=2, hidden=20)
SAID = [
    word
    for said in ("heads=2", "eps=1e-6", "activation=gelu", "pool=cls", "image=8", "mean=0.5", "std=0.5")
    for word in ("--set", said)
]
HEAD = np.linspace(-1, 1, 60, dtype=np.float32).reshape(12, 5)


def model(path: Path) -> Path:
    """A whole network as one of timm's files."""
    ours = {
        name: HEAD if name == "head.kernel" else np.ones(shape, np.float32) for name, shape in CONFIG.shapes().items()
    }
    theirs = rules.write(LAYOUTS["timm"].rows(CONFIG), ours)
    writer(str(path))[1](
        str(path), {n: Spec(a.dtype, a.shape) for n, a in theirs.items()}, (((n,), a) for n, a in theirs.items()), {}
    )
    return path


def flip(content: bytes) -> bytes:
    at = content.index(np.ascontiguousarray(HEAD.T).tobytes()) + 100
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "34, 80 flipped value": flip,
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "pointer": lambda content: b"version https://git-lfs.github.com/spec/v1\n",
}


def test_nameless_bytes_are_bfloat16_only_where_the_layout_says_so(tmp_path: Path) -> None:
    source = model(tmp_path / "a.npz")
    with np.load(source) as arrays:
        np.savez(tmp_path / "b.npz", **{name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()})
    for target in ("c.npz", "c.pt", "c.safetensors"):
        code, said = run(convert, str(tmp_path / "b.npz"), str(tmp_path / target), "--to", "timm", *SAID).value
        assert code == 2 and said.count("\n") == 1 and "two bytes without a dtype" in said
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_source_leaves_the_target_as_it_was(damage: str, suffix: str, tmp_path: Path) -> None:
    source, target = model(tmp_path / f"a{suffix}"), tmp_path / "out.safetensors"
    target.write_bytes(b"precious")
    arguments = [str(source), str(target), "--to", "timm", "--force", *SAID]
    content = source.read_bytes()
    source.write_bytes(DAMAGE[damage](content))
    code, said = run(convert, *arguments).value
    assert code == 2 and said.startswith("vit-jax: error: ") and said.count("\n") == 1 and source.name in said, said
    assert (
        sorted(p.name for p in tmp_path.iterdir()) == [source.name, target.name] and target.read_bytes() == b"precious"
    )
    source.write_bytes(content)
    assert run(convert, *arguments).value[0] == 0  # as it was, it converts
