"""Weights whose preprocessing makes images of another size than their config states, as DINOv2's public files have it.

Their library resizes the positions in each call. So networks are used and fine-tuned at the size of the preprocessing,
with positions as the library resizes them; and convert keeps both as they are.
"""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from convert.adapt import adaptations
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.recognise.reading import read
from convert.write.program.stablehlo import open_stablehlo
from tests.random_weights import tensors
from vit_jax.commands import train as command
from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import preset
from vit_jax.weights import fitting, opening
from vit_jax.weights import start as starting
from vit_jax.weights.load import complete

STATISTICS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSOR = STATISTICS | {
    "image_processor_type": "BitImageProcessor",
    "do_center_crop": True,
    "crop_size": {"height": 16, "width": 16},
    "size": {"shortest_edge": 20},
    "resample": 3,
}
DINOV2 = ViTConfig(
    image=28, patch=4, classes=3, width=16, depth=2, heads=2, hidden=64, layer_scale=1.0, pool="cls_mean"
)
DINOV3 = ViTConfig(
    image=28,
    patch=4,
    classes=0,
    width=16,
    depth=1,
    heads=2,
    hidden=32,
    layer_scale=1.0,
    position="none",
    rotary="axial",
    key_bias=False,
    eps=1e-5,
)
RESIZED = "positions are resampled by {} from 7x7 to 4x4, as its library computes images of the size that its"


def folder(path, layout="huggingface-dinov2@v4", config=DINOV2, processor=PROCESSOR):
    """A folder as Hugging Face leaves it, of random weights."""
    path.mkdir()
    layout = LAYOUTS[layout]
    save_file({name: 0.5 * array for name, array in tensors(layout, config).items()}, path / "model.safetensors")
    for name, content in layout.write_side(config, Facts(outputs=Outputs("", ("a", "b", "c")))).items():
        (path / name).write_text(json.dumps(content))
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


@pytest.fixture
def photos(tmp_path):
    """A folder of pictures of three classes."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "photos" / "abc"[i % 3] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (18, 30, 3), np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def theirs(working_folder, tmp_path, monkeypatch):
    """A folder of DINOv2 for images of 28x28 with a processor to 16x16, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return folder(tmp_path / "theirs")


def parsed(text):
    """The run that a command line gives."""
    return command.parse(shlex.split(text))[1].run()


# ------------------------------------------------------------------------------------ used and trained


@pytest.mark.parametrize(("registers", "kernel"), [(0, "hf"), pytest.param(2, "timm", marks=pytest.mark.slow)])
def test_it_computes_what_its_library_does_of_the_same_pixels(tmp_path, capsys, registers, kernel):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.parity.libraries import load

    transformers = load("transformers")
    family = "Dinov2WithRegisters" if registers else "Dinov2"
    more = {"num_register_tokens": registers} if registers else {}
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=4, num_labels=3)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForImageClassification")(
        getattr(transformers, f"{family}Config")(**sizes, **more)
    ).eval()
    for p in model.parameters():
        p.data += 0.5 * torch.randn_like(p)
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    capsys.readouterr()
    net = vit_jax.load(tmp_path / "theirs")
    told = capsys.readouterr().err
    assert RESIZED.format(kernel) in told and told.count("\n") == 1
    pixels = np.asarray(net.inputs(np.random.default_rng(0).integers(0, 256, (4, 18, 30, 3), np.uint8)))
    assert pixels.shape == (4, 16, 16, 3) and pixels.dtype == np.float32
    with torch.no_grad():
        expected = model(pixel_values=torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())).logits.numpy()
    found = np.asarray(net.model(pixels))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    with read(str(tmp_path / "theirs")).source as source:  # the other kernel is another function
        positions = source.tree[next(name for name in source.tree if name.endswith("position_embeddings"))].read()[0]
    other = {"hf": "timm", "timm": "hf"}[kernel]
    (resize,) = adaptations(replace(DINOV2, registers=registers), [f"resize=16x16:{other}"])
    table = np.asarray(net.model.position[...])
    assert np.abs(resize.steps[0].apply([positions])[0] - table).max() > 1e-2


def test_predict_evaluate_and_training_take_the_size_of_the_preprocessing_and_say_so(theirs, photos, inside):
    picture = next(photos.rglob("*.png"))
    for words in (f"predict theirs {picture}", f"evaluate theirs --data.source folder:{photos}"):
        done = inside(*shlex.split(words), cwd=theirs.parent)
        assert done.returncode == 0 and done.stderr.count(RESIZED.format("hf")) == 1, done.stderr
    used = np.asarray(vit_jax.load(theirs).model.position[...])
    line = f"train --init theirs --data.source folder:{photos} --batch 4 --max-steps 1 --optim.lr 1e-30 --name tuned"
    done = inside(*shlex.split(line), cwd=theirs.parent)
    assert done.returncode == 0, done.stderr
    assert RESIZED.format("hf") in re.sub(r"\s+", " ", done.stdout)
    tuned = vit_jax.load("runs/tuned", which="last")
    assert tuned.run.model.image == 16 and tuned.metadata["preprocess"]["size"] == 20
    assert np.array_equal(np.asarray(tuned.model.position[...]), used)


@pytest.mark.slow
def test_a_program_takes_images_of_the_size_of_the_preprocessing(theirs, inside):
    done = inside("convert", theirs, "net.stablehlo", "--takes", "images", cwd=theirs.parent)
    assert done.returncode == 0 and "images [batch, 16, 16, 3] to logits [batch, 3]" in done.stdout, done.stderr
    vit_jax.export(str(theirs), "again.stablehlo", takes="images")
    images = np.random.default_rng(0).standard_normal((2, 16, 16, 3), np.float32)
    for name in ("net.stablehlo", "again.stablehlo"):
        assert json.loads((theirs.parent / f"{name}.json").read_text())["preprocess"]["image"] == [16, 16]
        found = open_stablehlo(theirs.parent / name)(images)
        assert found == pytest.approx(np.asarray(vit_jax.load(theirs).model(images)), abs=1e-5)
    done = inside(
        "convert", theirs, "other.stablehlo", "--takes", "images", "--adapt", "resize=24x24:timm", cwd=theirs.parent
    )
    assert "images [batch, 24, 24, 3]" in done.stdout and "4x4" not in done.stdout
    assert json.loads((theirs.parent / "other.stablehlo.json").read_text())["preprocess"]["image"] == [24, 24]


@pytest.mark.parametrize(
    ("flags", "image", "size", "says"),
    [
        ("", 16, 20, "by hf from 7x7 to 4x4"),
        ("--model.image 28", 28, 35, "image is 28x28 already"),
        ("--model.image 16 --init-resize timm", 16, 20, "by timm from 7x7 to 4x4"),
        ("--model.image 24 --init-resize timm", 24, 30, "by timm from 7x7 to 6x6"),
    ],
)
def test_another_size_is_fitted_from_the_positions_of_the_file(theirs, flags, image, size, says):
    run = parsed(f"--init theirs --data.source digits {flags}")
    assert run.model.image == image and run.data.size == size and run.augment.mean == (0.485, 0.456, 0.406)
    with opening.opened_for(run, {}) as weights:
        (said,) = fitting.change_for(run, weights).says
    assert says in said


def test_the_encoder_of_a_captioner_takes_the_size_of_its_preprocessing(theirs):
    run = starting.filled_encoder(replace(preset("shapes").run, init_encoder="theirs"), {})
    assert run.model.vit.image == 16 and run.data.size == 20
    begun = starting.start(run, {})
    assert begun.parameters["vit.position"].shape == (17, 16) and RESIZED.format("hf") in begun.description


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--model.image 24", "here it is 24; add `init_resize timm"),
        ("--model.image 18 --init-resize hf", "model.image 18x18 is not divisible by patch 4x4"),
        ("--model.heads 4", "here it is 4; give `model.heads 2"),
        ("--model.pool cls", "here it is cls; give `model.pool cls_mean"),
        (
            "--init turns --model.rotary-base 7",
            "here it is 7.0; give `model.rotary_base",
        ),
    ],
)
def test_what_contradicts_the_weights_is_refused_in_one_sentence(theirs, inside, flags, said):
    folder(theirs.parent / "turns", "huggingface-dinov3", DINOV3)
    init = "" if "turns" in flags else "--init theirs"
    done = inside(*shlex.split(f"train {init} --data.source digits --dry-run {flags}"), cwd=theirs.parent)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_size_that_the_network_cannot_take_is_said_and_left_out(tmp_path):
    size, why = 8192, "is larger than 4096 pixels"
    path = folder(tmp_path / "theirs", processor=STATISTICS | {"size": {"height": size, "width": size}, "resample": 2,
                  "do_center_crop": False})  # fmt: skip
    with read(str(path)).source as source:
        (note,) = read(str(path)).facts.notes
        assert why in note and source
    with pytest.raises(
        UserError, match=f"^{path}/model.safetensors: the preprocessing given beside the weights is left out: .*{why}"
    ):
        complete(str(path))


def test_heads_that_rotary_positions_cannot_turn_are_refused_in_one_sentence(theirs, inside):
    path = folder(theirs.parent / "turns", "huggingface-dinov3", DINOV3)
    stated = json.loads((path / "config.json").read_text()) | {"num_attention_heads": 8}
    (path / "config.json").write_text(json.dumps(stated))
    said = "rotary is axial, which needs heads of a width"
    for words in ("convert turns x.safetensors", "train --init turns --data.source digits"):
        done = inside(*shlex.split(words), cwd=theirs.parent)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (theirs.parent / "x.safetensors").exists()


def test_what_is_prepared_otherwise_than_in_the_library_is_said_where_weights_are_used(tmp_path, capsys):
    """SigLIP 2 keeps the proportions of a picture, and takes the size of its processor."""
    config = ViTConfig(
        image=16, patch=4, classes=3, width=16, depth=1, heads=2, hidden=32, cls_token=False, pool="mean",
        activation="gelu_tanh",
    )  # fmt: skip
    processor = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 4, "max_num_patches": 9}
    net = vit_jax.load(folder(tmp_path / "theirs", "huggingface-siglip2", config, processor))
    resized, squeezed = capsys.readouterr().err.splitlines()
    assert "by flexi from 4x4 to 3x3" in resized and "here it is stretched to a square" in squeezed
    assert net.run.model.image == 12 and net.inputs(np.zeros((1, 6, 9, 3), np.uint8)).shape == (1, 12, 12, 3)


def test_a_network_without_positions_takes_the_size_of_its_preprocessing(tmp_path, capsys):
    processor = STATISTICS | {"image_processor_type": "DINOv3ViTImageProcessor", "size": {"height": 8, "width": 12}}
    path = folder(tmp_path / "theirs", "huggingface-dinov3", DINOV3, processor)
    with vit_jax.weights.interop.open_weights(str(path)) as found:
        assert found.to_use()
    assert found.config.image == (8, 12) and found.facts.preprocess["image"] == [8, 12]
    assert found.resized.startswith("image 28x28 becomes 8x12: there are no positions")


# ------------------------------------------------------------------------------------------ converted


def test_convert_keeps_positions_and_preprocessing_where_the_target_takes_both(theirs, inside):
    done = inside("convert", "theirs", "again", "--to", "huggingface-dinov2", cwd=theirs.parent)
    assert done.returncode == 0 and "left out" not in done.stdout, done.stdout + done.stderr
    again = theirs.parent / "again"
    first, second = (load_file(path / "model.safetensors") for path in (theirs, again))
    assert first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
    assert json.loads((again / "config.json").read_text())["image_size"] == 28
    assert json.loads((again / "preprocessor_config.json").read_text())["crop_size"] == {"height": 16, "width": 16}
    images = np.random.default_rng(0).integers(0, 256, (2, 18, 30, 3), np.uint8)
    a, b = (np.asarray(net.model(net.inputs(images))) for net in map(vit_jax.load, (theirs, again)))
    assert np.array_equal(a, b)
    assert "images     image 16x16" in inside("convert", "inspect", "theirs", cwd=theirs.parent).stdout


def test_a_target_of_one_size_says_how_to_keep_the_preprocessing(theirs, inside):
    told = "the network of vit-jax@vit takes 28x28 alone; keep it with `adapt"
    done = inside("convert", "theirs", "x.safetensors", cwd=theirs.parent)
    assert done.returncode == 0 and f"{told} resize=16x16:hf" in done.stdout, done.stdout + done.stderr
    kept = inside("convert", "theirs", "y.safetensors", "--adapt", "resize=16x16:hf", cwd=theirs.parent)
    assert kept.returncode == 0 and "left out" not in kept.stdout
    images = np.random.default_rng(0).integers(0, 256, (2, 18, 30, 3), np.uint8)
    a, b = (np.asarray(net.model(net.inputs(images))) for net in map(vit_jax.load, (theirs, "y.safetensors")))
    assert np.array_equal(a, b)
    run = inside("convert", "theirs", "runs/x", cwd=theirs.parent)
    assert run.returncode == 2 and told in run.stderr and run.stderr.count("\n") == 1
