"""Features of images for search and detection: values, places, files, and what is refused; and those of timm and of
Hugging Face's backbones."""

import json
import zipfile
from dataclasses import replace

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax.commands import predict
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError
from vit_jax.models.build import definition
from vit_jax.models.state import merge
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.classify.use import Classifier

C = ViTConfig(image=(8, 12), patch=4, classes=3, width=8, depth=3, heads=2, hidden=16, registers=4)
PREFIX, GRID = 5, (2, 3)
FILES = [f"images/{i}.png" for i in range(7)]


def export(c, path):
    """Write a network whose parameters are all random."""
    rng = np.random.default_rng(0)
    parameters = {name: np.float32(rng.normal(size=shape) * 0.3) for name, shape in c.shapes().items()}
    model = merge(definition(c), jax.tree.map(jax.numpy.asarray, unflatten(parameters)))
    vit_jax.export(model, path, fields={"mean": [0.5] * 3, "std": [0.25] * 3})


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory, quick_compilation):
    """A folder with seven images, a network with a head and registers, and one without a head."""
    folder = tmp_path_factory.mktemp("features")
    (folder / "images").mkdir()
    rng = np.random.default_rng(1)
    for file in FILES:
        Image.fromarray(rng.integers(0, 256, (8, 12, 3), np.uint8)).save(folder / file)
    export(C, folder / "vit.safetensors")
    export(replace(C, classes=0, final_norm=False), folder / "bare.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def normed(net, x):
    """LayerNorm in numpy."""
    x = np.float64(x)
    centred = x - x.mean(-1, keepdims=True)
    scale, bias = (np.asarray(getattr(net.model.norm, part)[...]) for part in ("scale", "bias"))
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + C.eps) * scale + bias


@pytest.mark.parametrize("norm", [True, False])
def test_maps_have_the_patches_where_they_lie_and_the_other_tokens_apart(norm):
    """Cut token by token from what the network captures; with the last norm, or as they are."""
    net = vit_jax.load("vit.safetensors")
    names = ["pooled", "blocks.0", "blocks.2"]
    inside, found = net.capture(FILES, names), net.features(FILES, blocks=[-1, 0, 2], norm=norm, batch=3)
    assert [*found] == ["pooled", "maps.0", "prefix.0", "maps.2", "prefix.2"]
    np.testing.assert_allclose(found["pooled"], inside["pooled"], rtol=1e-5, atol=1e-6)
    for block in (0, 2):
        tokens = normed(net, inside[f"blocks.{block}"]) if norm else inside[f"blocks.{block}"]
        assert found[f"maps.{block}"].shape == (7, *GRID, 8) and found[f"prefix.{block}"].shape == (7, PREFIX, 8)
        np.testing.assert_allclose(found[f"prefix.{block}"], tokens[:, :PREFIX], rtol=1e-4, atol=1e-5)
        for row, column in np.ndindex(*GRID):
            token = tokens[:, PREFIX + row * GRID[1] + column]
            np.testing.assert_allclose(found[f"maps.{block}"][:, row, column], token, rtol=1e-4, atol=1e-5)


def test_a_network_without_a_last_norm_has_its_maps_as_they_are():
    net = vit_jax.load("bare.safetensors")
    either = [net.features(FILES[:2], blocks=[2], norm=norm) for norm in (True, False)]
    assert all(np.array_equal(either[0][name], either[1][name]) for name in either[0])


# -------------------------------------------------------------------------------------- the door


def test_the_file_has_what_python_gives_with_the_names_of_the_images(tmp_path, capsys):
    """Whatever the batch; and of a network without a head, which has nothing to predict."""
    for weights in ("vit.safetensors", "bare.safetensors"):
        out = tmp_path / f"{weights}.npz"
        arguments = [weights, "images", "--features", str(out), "--blocks", "-1,0", "--batch", "3"]
        assert predict.command(arguments) == 0
        of_blocks = ", ".join(f"maps.{i} [7, 2, 3, 8], prefix.{i} [7, 5, 8]" for i in (0, 2))
        assert capsys.readouterr().out == f"{out}: files [7], pooled [7, 8], {of_blocks}\n"
        found, expected = dict(np.load(out)), vit_jax.load(weights).features(FILES, blocks=[0, 2])
        assert found.pop("files").tolist() == FILES and [*found] == [*expected]
        for name, array in found.items():
            assert array.dtype == np.float32
            np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bare.safetensors.npz", "vit.safetensors.npz"]


def test_norm_is_applied_unless_it_is_left_out(tmp_path):
    net = vit_jax.load("vit.safetensors")
    inside = net.capture(FILES[:1], ["blocks.1"])["blocks.1"]
    for flag, tokens in (("--norm", normed(net, inside)), ("--no-norm", inside)):
        out = str(tmp_path / f"{flag}.NPZ")
        assert predict.command(["vit.safetensors", FILES[0], "--features", out, "--blocks", "all", flag]) == 0
        found = np.load(out)
        assert {"maps.0", "maps.1", "maps.2"} <= {*found}
        np.testing.assert_allclose(found["prefix.1"], tokens[:, :PREFIX], rtol=1e-4, atol=1e-5)


def test_pooled_features_alone_need_no_blocks(tmp_path):
    assert predict.command(["vit.safetensors", *FILES[:2], "--features", str(tmp_path / "a.npz")]) == 0
    found = np.load(tmp_path / "a.npz")
    assert {name: array.shape for name, array in found.items()} == {"files": (2,), "pooled": (2, 8)}


def test_one_batch_at_a_time_is_in_memory_and_an_image_that_cannot_be_read_leaves_no_file(tmp_path, monkeypatch):
    sizes, inputs = [], Classifier.inputs
    monkeypatch.setattr(Classifier, "inputs", lambda net, files: sizes.append(len(files)) or inputs(net, files))
    (tmp_path / "7.png").write_text("no image")
    arguments = ["vit.safetensors", "images", str(tmp_path / "7.png"), "--features", str(tmp_path / "a.npz")]
    with pytest.raises(UserError, match=r"7\.png: not a JPEG"):
        predict.command([*arguments, "--batch", "2", "--blocks", "0"])
    assert sizes == [2, 2, 2, 2] and [p.name for p in tmp_path.iterdir()] == ["7.png"]


def test_a_file_is_overwritten_by_force_alone(tmp_path):
    out = tmp_path / "a.npz"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"features .*a\.npz: exists already; add `force"):
        predict.command(["vit.safetensors", FILES[0], "--features", str(out)])
    assert out.read_text() == "mine"
    assert predict.command(["vit.safetensors", FILES[0], "--features", str(out), "--force"]) == 0
    assert zipfile.is_zipfile(out)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--features a.npy", r"--features a\.npy: features are written as \.npz"),
        (
            "--features ./a.npz",
            r"--features \./a\.npz: in a folder of weights",
        ),
        ("--features no/a.npz", r"features no/a\.npz: its folder does not exist"),
        ("--blocks 1", "blocks is 1, .*: add --features"),
        ("--features a.npz --no-norm", "norm: is for the outputs of blocks"),
        ("--features a.npz --blocks 3", "there is no block 3; give 0 to 2, or -1 .the last. to -3"),
        ("--features a.npz --blocks=-4", "there is no block -4; give 0 to 2"),
        ("--features a.npz --blocks 1,x", "blocks is 1,x: give numbers"),
        ("--features a.npz --csv a.csv", "csv: is for predictions"),
        ("--features a.npz --beam 2", "this network generates nothing"),
    ],
)
def test_what_is_refused_before_anything_is_computed(flags, says, place, capsys, monkeypatch):
    monkeypatch.setattr(Classifier, "inputs", lambda *_: pytest.fail("computed"))
    before = sorted(place.iterdir())
    weights = "." if "./a.npz" in flags else "vit.safetensors"
    with pytest.raises(UserError, match=says) as told:
        predict.command([weights, FILES[0], *flags.split()])
    assert not capsys.readouterr().out and sorted(place.iterdir()) == before and len(str(told.value)) < 200


@pytest.mark.parametrize("blocks", [3, "0", [0.5], [None], ["1"]])
def test_blocks_that_python_cannot_give(blocks):
    with pytest.raises(UserError, match=r"^blocks"):
        vit_jax.load("vit.safetensors").features(FILES[0], blocks=blocks)


def test_attention_lies_on_its_patches_behind_registers_and_without_a_head(tmp_path, monkeypatch):
    """Of a network whose class token attends to bright patches, on images with one of them."""
    from vit_jax.figures import attention

    c = replace(C, classes=0, depth=1, heads=1)
    parameters = {name: np.zeros(shape, np.float32) for name, shape in c.shapes().items()}
    parameters["patch.kernel"][:, 0] = 1
    parameters["blocks.0.norm1.scale"][:] = parameters["blocks.0.attention.query.bias"][:] = 1
    parameters["blocks.0.attention.key.kernel"][0] = 1
    model = merge(definition(c), jax.tree.map(jax.numpy.asarray, unflatten(parameters)))
    vit_jax.export(model, tmp_path / "bright.safetensors", fields={"mean": [0.5] * 3, "std": [0.25] * 3})
    places, drawn, put = [*np.ndindex(*GRID)], [], attention.put
    for i, (row, column) in enumerate(places):
        pixels = np.zeros((8, 12, 3), np.uint8)
        pixels[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 255
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    monkeypatch.setattr(attention, "put", lambda ax, x, *a, **how: (drawn.append(x), put(ax, x, *a, **how)))
    images = [str(tmp_path / f"{i}.png") for i in range(len(places))]
    arguments = [str(tmp_path / "bright.safetensors"), *images, "--attention", str(tmp_path / "a.png")]
    assert predict.command(arguments) == 0
    maps = [x for x in drawn if x.shape == GRID]
    assert len(maps) == 2 * len(places)  # of the layer, and the rollout
    for (row, column), each in zip(np.repeat(places, 2, axis=0), maps, strict=True):
        assert np.unravel_index(each.argmax(), GRID) == (row, column) and np.sort(each.ravel())[-2] < 0.5
    with Image.open(tmp_path / "a.png") as picture:
        assert min(picture.size) > 100
    with pytest.raises(UserError, match="this network has no head and no classes"):
        predict.command(["bare.safetensors", FILES[0]])


# ------------------------------------------------------------------------------------- libraries


def library(name):
    from convert.verify.libraries import load

    try:
        return load(name)
    except ImportError as error:
        pytest.skip(str(error))


def in_double(c, module, layout):
    """(our network with the weights of a library's module in float64, random images [2, h, w, C])."""
    from convert import rules
    from convert.dialects import LAYOUTS
    from vit_jax.config.fields import pair

    state = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    parameters = rules.read(rules.narrow(LAYOUTS[layout].rows(c), state), state)
    parameters = {name: x for name, x in parameters.items() if not name.startswith(rules.CARRIED)}
    model = merge(definition(c, dtype="float64"), jax.tree.map(jax.numpy.asarray, unflatten(parameters)))
    return model, np.random.default_rng(2).normal(size=(2, *pair(c.image), c.channels))


def same(ours, theirs):
    """Of arrays in float64."""
    assert ours.dtype == np.float64 and ours.shape == theirs.shape
    assert np.abs(ours - theirs).max(initial=0) < 1e-12 * max(1, np.abs(theirs).max(initial=0))


@pytest.mark.slow
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        dict(image=(8, 12)),
        dict(registers=4, cls_position=False, layer_scale=0.1, pool="mean"),
        dict(registers=4, eva=True),
        dict(cls_token=False, pool="map", eva=False),
    ],
    ids=str,
)
def test_features_are_those_of_timms_forward_intermediates(fields, norm):
    library("timm")
    import torch

    from convert.verify.libraries import timm, timm_eva
    from tests.parity.layouts_timm import randomise
    from vit_jax.tasks.classify.use import features

    fields = dict(image=12, patch=4, classes=3, width=16, depth=3, heads=2, hidden=24) | fields
    rotary = fields.pop("eva", False)
    if rotary:  # DINOv3
        fields |= dict(position="none", rotary="axial", rotary_places="centres", rotary_pairs="halves")
        fields |= dict(rotary_base=100.0, key_bias=False, eps=1e-5, layer_scale=0.1)
    c = ViTConfig(**fields)
    with jax.enable_x64(True), torch.no_grad():
        module = randomise(timm_eva.network(c) if rotary else timm.network(c), "A", "float64")
        model, images = in_double(c, module, "timm-eva" if rotary else "timm")
        given = torch.from_numpy(images).permute(0, 3, 1, 2)
        last, maps = module.forward_intermediates(given, [0, -1], return_prefix_tokens=True, norm=norm)
        ours = features(model, jax.numpy.asarray(images), (0, 2), norm)
        prefix = sum(count for _, count, _ in c.prefix)
        for block, found in zip((0, 2), maps, strict=True):
            found, tokens = found if prefix else (found, torch.zeros(2, 0, 16))
            same(np.asarray(ours[f"maps.{block}"]), found.permute(0, 2, 3, 1).numpy())
            same(np.asarray(ours[f"prefix.{block}"]), tokens.double().numpy())
        same(np.asarray(ours["pooled"]), module.forward_head(last, pre_logits=True).numpy())


def backbone(folder, family, **settings):
    """A backbone of Hugging Face of random float64 weights, saved with a preprocessing that makes images of 12 px."""
    transformers = library("transformers")

    from convert.verify.libraries.transformers_encoders import exact_angles
    from tests.parity.layouts_encoders import randomise

    sizes = dict(image_size=12, patch_size=4, hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
    sizes |= dict(intermediate_size=24) if family == "DINOv3ViT" else dict(mlp_ratio=2)
    sizes |= {} if family == "Dinov2" else dict(num_register_tokens=4)
    config = getattr(transformers, f"{family}Config")(
        **sizes, out_features=["stage1", "stage3"], attn_implementation="sdpa", **settings
    )
    module = randomise(getattr(transformers, f"{family}Backbone")(config)).double().eval()
    module.save_pretrained(folder)
    said = dict(do_resize=True, size={"height": 12, "width": 12}, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    said |= dict(do_center_crop=False, do_normalize=True, do_rescale=True, rescale_factor=1 / 255, resample=2)
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    exact_angles(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("family", ["Dinov2", "Dinov2WithRegisters", "DINOv3ViT"])
def test_features_are_those_of_hugging_faces_backbones(family, norm, tmp_path):
    """Of the folder that the library saves, opened as a user opens it, on the same pixels."""
    module = backbone(tmp_path, family, apply_layernorm=norm)
    import torch

    with jax.enable_x64(True), torch.no_grad():
        net = vit_jax.load(tmp_path)
        images = np.random.default_rng(3).integers(0, 256, (3, 12, 12, 3), np.uint8)
        found = net.features(images, blocks=[0, 2], norm=norm)
        pixels = torch.from_numpy(np.array(net.inputs(images))).permute(0, 3, 1, 2)
        assert pixels.dtype == torch.float64
        theirs = module(pixels, output_hidden_states=True)
        first, last = (maps.permute(0, 2, 3, 1).numpy() for maps in theirs.feature_maps)
        same(found["maps.0"], first)
        if family != "DINOv3ViT" or norm:  # its backbone has the norm of the last block at any rate
            same(found["maps.2"], last)
        if family == "Dinov2":
            same(found["pooled"], module.layernorm(theirs.hidden_states[-1])[:, 0].numpy())
