"""What type checkers are told of the public functions: the networks that names decide, and README's own code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import vit_jax
from vit_jax.presets.images import ImageName
from vit_jax.presets.table import FINETUNE, PRESETS
from vit_jax.presets.text import CaptionName, TextName

ROOT = Path(__file__).parents[1]
TYPED = """
import numpy as np
import vit_jax
from typing import assert_type

assert_type(vit_jax.preset("digits").run.model, vit_jax.ViTConfig)
assert_type(vit_jax.preset("numbers").run.model, vit_jax.TransformerConfig)
assert_type(vit_jax.preset("shapes").run.model, vit_jax.CaptionerConfig)
assert_type(vit_jax.build("vit-s16", classes=10), vit_jax.ViT)
assert_type(vit_jax.build(vit_jax.preset("numbers").run), vit_jax.Transformer)
assert_type(vit_jax.build("shapes"), vit_jax.Captioner)
assert_type(vit_jax.train("digits")["folder"], str)
net = vit_jax.load("digits")
assert_type(vit_jax.export(net, to="timm"), dict[str, np.ndarray])
reveal_type(net)
"""


def test_each_preset_is_named_with_its_network():
    names = {vit_jax.ViTConfig: ImageName, vit_jax.TransformerConfig: TextName, vit_jax.CaptionerConfig: CaptionName}
    for network, literal in names.items():
        assert all(type(vit_jax.preset(name).run.model) is network for name in get_args(literal))
    assert {name for literal in names.values() for name in get_args(literal)} >= PRESETS.keys() - {FINETUNE}


@pytest.mark.slow
def test_the_library_block_of_the_readme_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    (tmp_path / "readme.py").write_text("\n".join(blocks), encoding="utf-8")
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    theirs = ["--disable-error-code", "import-untyped"]  # scikit-learn and optax state no types
    command = [sys.executable, "-m", "mypy", "--strict", *theirs, "--cache-dir", str(tmp_path / "cache")]
    run = {"cwd": tmp_path, "env": {**os.environ, "MYPYPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--follow-imports", "silent", "readme.py", "typed.py"], **run, timeout=600)
    revealed = [line for line in done.stdout.splitlines() if ": note: Revealed type" in line]
    assert done.returncode == 0, done.stdout
    assert len(revealed) == 1 and 'Predictor"' in revealed[0]
