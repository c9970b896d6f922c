"""Words at the door that mean nothing are refused in a sentence that fits a screen, and nothing is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from convert.dialects import LAYOUTS
from convert.verify.command import images
from tests.random_weights import tensors
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

CONFIG = ViTConfig(image=8, patch=4, classes=5, width=12, depth=1, heads=2, hidden=20)
SAID = ["heads=2", "eps=1e-6", "activation=gelu", "pool=cls", "image=8", "mean=0.5", "std=0.5"]
PREPROCESS = Preprocess((8, 8), 3, "stretch", 8, "bicubic", 0, (0.5,) * 3, (0.5,) * 3).to_dict()
SETS = [word for each in SAID for word in ("--set", each)]


@pytest.fixture
def source(tmp_path: Path) -> str:
    save_file(tensors(LAYOUTS["timm"], CONFIG), tmp_path / "a.safetensors")
    return str(tmp_path / "a.safetensors")


@pytest.fixture
def refused(convert):
    """What the command says, which it refuses."""

    def say(*arguments: str) -> str:
        code, _, error = convert(*arguments)
        assert code == 2 and error.count("\n") == 1 and len(error) < 1000 and "Traceback" not in error
        return error

    return say


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--accept", "foo"), "accept foo: no layout asks for that; known: batch-attention"),
        (("--accept", "batch-atention"), "nearest: batch-attention"),
        (("--preset", "digits"), "holds no optimizer's state for it; leave the flag out"),
        (("--model", "nonsense" * 700), "there is no such network; known: "),
        (("--model", "qqqqqq"), " more"),
        (("--set", "eps=1" + "0" * 600 + "x"), "eps"),
        (("--set", "9" * 5000 + "=1"), "there is no such field"),
        (("--from", "x" * 5000), "there is no such layout"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, sentence, source, tmp_path, refused):
    field = words[1].partition("=")[0]
    said = [word for each in SAID if each.partition("=")[0] != field for word in ("--set", each)]
    assert sentence in refused(source, str(tmp_path / "b.safetensors"), "--to", "timm", *said, *words)
    assert not (tmp_path / "b.safetensors").exists()


def test_a_path_of_thousands_of_letters_is_cut_in_its_middle(tmp_path, refused):
    said = refused("begin" + "x" * 5000 + "end", str(tmp_path / "b.safetensors"))
    assert "begin" in said and "xend: " in said


def test_fewer_than_no_steps_are_refused(source, refused):
    assert "--steps -1: give how many steps" in refused("verify", source, source, *SETS, "--steps", "-1")


@pytest.mark.parametrize("name", ["a.png", "a.npy", "folder"])
def test_images_that_would_be_waited_for_are_refused(name, tmp_path):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    os.mkfifo(path / "a.png" if name == "folder" else path)
    with pytest.raises(UserError, match=r"neither a file nor a folder|holds no images"):
        images(str(path), CONFIG, PREPROCESS)
