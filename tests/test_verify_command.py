"""verify as a command and after a conversion: what it prints, leaves and refuses; and the pictures that it is given."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch", reason="PyTorch cannot be imported, so no other forward pass can be compared")

from convert import rules
from convert.dialects import LAYOUTS
from convert.verify.command import images
from tests.test_verify import VIT, available, ours
from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = replace(VIT, image=4, depth=2)
PREPROCESS = {
    "image": [6, 4],
    "channels": 3,
    "fit": "stretch",
    "size": 4,
    "interpolation": "bicubic",
    "background": 0,
    "mean": [0.5] * 3,
    "std": [0.25] * 3,
}


@pytest.fixture
def timm():
    available("timm")


def files(tmp_path, parameters=None):
    """A state dict of torchvision's, and one of timm's with the same weights, as files."""
    import torch

    paths = []
    for name in ("torchvision@2", "timm"):
        tensors = rules.write(LAYOUTS[name].rows(SMALL), parameters if parameters and name == "timm" else ours(SMALL))
        paths.append(tmp_path / f"{name}.pth")
        torch.save({n: torch.from_numpy(a.copy()) for n, a in tensors.items()}, paths[-1])
    return paths


def door(*arguments):
    """`python -m convert ...` in this process: its exit code."""
    from convert.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["convert", *map(str, arguments)])
        return main()


SAID = ("--set", "heads=2", "--set", "image=4", "--set", "mean=0.5", "--set", "std=0.5")


def test_verify_compares_two_files_and_leaves_what_was_asked_for(timm, tmp_path, capsys):
    a, b = files(tmp_path)
    np.save(tmp_path / "images.npy", np.random.default_rng(0).standard_normal((2, 4, 4, 3)))
    asked = {"--json": "v.json", "--markdown": "v.md", "--images": "images.npy"}
    assert door("verify", a, b, *SAID, *(word for flag, name in asked.items() for word in (flag, tmp_path / name))) == 0
    out = capsys.readouterr().out
    assert "B does not state its config: it was read by that of A" in out
    verdict, *left = out.splitlines()[-3:]
    assert verdict == "verdict   the same function"
    assert left == [f"left      {tmp_path / name}" for name in ("v.json", "v.md")]
    said = json.loads((tmp_path / "v.json").read_text())
    assert (
        said["verdict"] == "the same function"
        and len(said["source"]["sha256"]) == 64
        and said["target"]["layout"] == "timm"
    )
    assert {"torchvision", "timm"} <= {
        c["subject"].split(" in ")[1].split()[0] for c in said["checks"] if " in " in c["subject"]
    }
    assert f"- B: `{b}`, timm, sha256 {said['target']['sha256']}" in (tmp_path / "v.md").read_text()


def test_verify_exits_with_3_and_names_the_layer(timm, tmp_path, capsys):
    damaged = ours(SMALL)
    damaged["blocks.1.mlp.fc2.bias"][3] += 1e-4
    assert door("verify", *files(tmp_path, damaged), *SAID) == 3
    assert capsys.readouterr().out.endswith("verdict   different, first at blocks.1\n")


def test_a_verified_conversion_leaves_a_certificate_and_can_be_verified_again(timm, tmp_path, capsys, monkeypatch):
    (a, _), b = files(tmp_path), tmp_path / "b.safetensors"
    more = "--to timm --adapt fold=cls_position --adapt activation=relu --dtype bfloat16 --verify"
    assert door(a, b, *SAID, *more.split()) == 0
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "the change moves outputs by" in line)
    assert 0.01 < float(said.split()[-4]) < 1
    certificate = json.loads((tmp_path / "b.safetensors.certificate.json").read_text())
    assert (
        certificate["adaptations"] == ["fold=cls_position", "activation=relu"]
        and certificate["config"]["fields"]["activation"] == "relu"
    )
    assert (
        certificate["differences"]["target: tensors under our names"] == 0
        and certificate["verdict"] == "equal up to bfloat16, after --adapt activation=relu"
    )
    monkeypatch.setitem(sys.modules, "torch", None)
    assert door("verify", a, b, *SAID) == 0, "what B says of its making is done to A before they are compared"


def test_what_was_rounded_is_equal_up_to_its_dtype_whoever_rounded_it(timm, tmp_path, capsys, monkeypatch):
    """Also by another program, in either order; but not what was only stored in fewer bytes, nor what is another."""
    import torch

    (a, _), short = files(tmp_path), tmp_path / "short.safetensors"
    assert door(a, short, "--to", "timm", *SAID, "--dtype", "float16", "--verify") == 0
    assert capsys.readouterr().out.splitlines()[-2] == "verdict   equal up to float16"
    save_file(load_file(short), short)  # without what it says of its making
    for order, more in (((a, short), ()), ((short, a), ("pool=cls", "eps=1e-6", "activation=gelu"))):
        assert door("verify", *order, *SAID, *(word for text in more for word in ("--set", text))) == 0
        assert capsys.readouterr().out.endswith("verdict   equal up to float16\n")
    whole, others = torch.load(a), {"stored": lambda x: x.half().float(), "other": lambda x: x + 1e-2}
    for name, change in others.items():
        torch.save({key: change(tensor) for key, tensor in whole.items()}, tmp_path / f"{name}.pth")
    monkeypatch.setitem(sys.modules, "torch", None)  # tensors alone tell these
    for name, code, verdict in (("stored", 0, "the same tensors"), ("other", 3, "different, first")):
        assert door("verify", tmp_path / f"{name}.pth", short, *SAID) == code
        assert f"verdict   {verdict}" in capsys.readouterr().out


def test_what_b_says_of_its_making_is_done_to_no_other_file(tmp_path, monkeypatch):
    """A is adapted as B was only where it is the file that B was made from; else two functions would be called one."""
    import torch

    (a, _), b, other = files(tmp_path), tmp_path / "b.safetensors", tmp_path / "other.pth"
    assert door(a, b, "--to", "timm", *SAID, "--adapt", "resize=8x8:timm", "--dtype", "float64") == 0
    made = rules.write(LAYOUTS["torchvision@2"].rows(SMALL), ours(SMALL))
    torch.save({n: torch.from_numpy(array + 1) for n, array in made.items()}, other)
    np.save(tmp_path / "images.npy", np.zeros((2, 8, 8, 3)))
    done = []

    def compare(a, b, adapt, dtype, inputs, *rest):
        done.append((list(adapt), dtype, None if inputs is None else inputs["images"].shape))
        return SimpleNamespace(same=True, notes=[], text=str)

    monkeypatch.setattr(sys.modules["convert.verify.command"], "verify", compare)
    assert door("verify", a, b, *SAID, "--images", tmp_path / "images.npy") == 0
    assert door("verify", other, b, *SAID) == 0
    assert done == [(["resize=8x8:timm"], np.dtype("float64"), (2, 8, 8, 3)), ([], None, None)]


def test_what_was_adapted_from_a_file_without_a_config_names_the_order_that_can_be_compared(
    tmp_path, capsys, monkeypatch
):
    (a, _), b = files(tmp_path), tmp_path / "b.safetensors"
    assert door(a, b, "--to", "timm", *SAID, "--adapt", "resize=8x8:timm") == 0
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "torch", None)  # tensors alone are compared
    assert door("verify", b, a) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"vit-jax: error: {a}: does not state its config, and {b} was made from it by --adapt; ")
    assert told.endswith(f"python -m convert verify {a} {b} --set ...\n") and told.count("\n") == 1
    assert door("verify", a, b, *SAID) == 0


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (None, "no such file"),
        (np.zeros((2, 4, 4, 3), np.uint8), "uint8 [2, 4, 4, 3] is not [B, 4, 4, 3] of floating-point numbers"),
        (np.zeros((0, 4, 4, 3)), "float64 [0, 4, 4, 3] is not [B, 4, 4, 3]"),
        (np.full((1, 4, 4, 3), np.inf), "holds NaN or infinity"),
    ],
)
def test_images_of_another_shape_are_refused_in_a_sentence(tmp_path, array, sentence):
    if array is not None:
        np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=re.escape(sentence)):
        images(str(tmp_path / "x.npy"), replace(VIT, image=4), None)


def test_images_that_claim_more_than_their_file_holds_are_refused(tmp_path):
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 36, 4, 4, 3)}
        )
    with pytest.raises(UserError, match="cannot be read"):
        images(str(tmp_path / "x.npy"), replace(VIT, image=4), None)


def test_a_picture_of_too_many_pixels_is_refused_without_a_warning(tmp_path, monkeypatch, recwarn):
    from PIL import Image

    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(UserError, match="24 pixels"):
        images(str(tmp_path / "a.png"), VIT, PREPROCESS)
    assert not recwarn.list


def test_pictures_are_prepared_as_the_file_says(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    given = images(str(tmp_path), VIT, PREPROCESS)["images"]
    assert np.allclose(given, (pixels[None] / 255 - 0.5) / 0.25, rtol=0, atol=1e-12)
    with pytest.raises(UserError, match="says nothing of its preprocessing"):
        images(str(tmp_path), VIT, None)
    with pytest.raises(UserError, match="takes none"):
        images(str(tmp_path), TransformerConfig(), PREPROCESS)
