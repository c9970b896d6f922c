"""What type checkers are told of the public functions: the networks that names decide, and docs/python.md's code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import vit_jax
from vit_jax.presets.images import ImageName
from vit_jax.presets.table import FINETUNE, PRESETS, VARIANTS
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
    named = {name for literal in names.values() for name in get_args(literal)}
    assert named >= (PRESETS.keys() - {FINETUNE}) | VARIANTS.keys()


@pytest.mark.slow
def test_the_library_block_of_the_page_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    library, *loops = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    files = {"library.py": library, "whole.py": "\n".join([library, *loops]), "typed.py": TYPED}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")

    def check(*words):
        theirs = ["--disable-error-code", "import-untyped"]  # scikit-learn and optax state no types
        command = [sys.executable, "-m", "mypy", "--strict", *theirs, "--follow-imports", "silent", *words]
        env = {**os.environ, "MYPYPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    strict = check("library.py", "typed.py")
    assert strict.returncode == 0, strict.stdout
    revealed = [line for line in strict.stdout.splitlines() if ": note: Revealed type" in line]
    assert len(revealed) == 1 and 'Predictor"' in revealed[0]
    # Functions of the reader's own may be without types.
    whole = check("--allow-untyped-defs", "--allow-untyped-calls", "whole.py")
    assert whole.returncode == 0, whole.stdout
