"""DINOv3 under Meta's own names: the masked bias of keys, and periods that are checked against what is stated."""

import itertools
import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert import rules
from convert.dialects import LAYOUTS
from convert.operations import same
from convert.plan.plan import plan
from convert.recognise.config import MissingFields
from convert.recognise.reading import Options, read
from convert.write.write import write
from tests.random_weights import weights as parameters
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig
from vit_jax.weights.export import export_weights

META = LAYOUTS["dinov3"]
CONFIG = ViTConfig(
    image=8,
    patch=4,
    classes=0,
    width=16,
    depth=2,
    heads=2,
    hidden=12,
    registers=2,
    layer_scale=1.0,
    eps=1e-5,
    key_bias=False,
    position="none",
    rotary="axial",
    rotary_periods="bfloat16",
)
GATED = replace(CONFIG, gated=True, activation="silu", query_bias=False, value_bias=False, rotary_periods="exact")
EXACT = np.array([1.0, 100**0.5], np.float32)  # of heads 8 wide


def tensors(config):
    """A file with all that Meta's have: a mask token, and a norm that only training uses."""
    file = rules.write(META.rows(config), parameters(config))
    more = {"mask_token": (1, 16), "local_cls_norm.weight": (16,), "local_cls_norm.bias": (16,)}
    return file | {name: np.full(shape, 0.5, np.float32) for name, shape in more.items()}


@pytest.mark.parametrize("config", [CONFIG, GATED])
def test_a_file_comes_back_to_the_bit_with_what_only_training_needs(config):
    file = tensors(config)
    back = rules.read(META.rows(config), file)
    again = rules.write(META.rows(config), back, names=file)
    assert again.keys() == file.keys() and all(same(again[n], file[n]) for n in file)
    mine = parameters(config)
    assert all(same(back[n], mine[n]) for n in mine)
    assert back.keys() - mine.keys() == {f"carried.{n}" for n in file if re.fullmatch(r"mask.*|local.*|.*qkv\.bias", n)}


def test_a_bias_of_keys_is_carried_along_or_zero_and_masked():
    file = tensors(CONFIG)
    q, k, v = np.split(file["blocks.1.attn.qkv.bias"], 3)
    assert not k.any() and q.any() and v.any()
    assert file["blocks.1.attn.qkv.bias_mask"].tolist() == [1.0] * 16 + [0.0] * 16 + [1.0] * 16
    file["blocks.1.attn.qkv.bias"] = np.arange(48, dtype=np.float32)
    read = rules.read(META.rows(CONFIG), file)
    assert (read["carried.blocks.1.attn.qkv.bias"] == np.arange(16, 32)).all()
    assert (read["blocks.1.attention.value.bias"] == np.arange(32, 48)).all()
    again = rules.write(META.rows(CONFIG), read, names=file)
    assert again.keys() == file.keys() and all(same(again[n], file[n]) for n in file)


def test_a_bias_of_keys_goes_through_our_own_layout_to_the_bit(tmp_path):
    """Where it lies beside the weights, with the mask token."""
    file = tensors(replace(CONFIG, rotary_periods="exact"))
    rng = np.random.default_rng(1)
    file |= {n: rng.standard_normal(48).astype(np.float32) for n in file if n.endswith("qkv.bias")}
    save_file(file, tmp_path / "meta.safetensors")
    sets = {"image": 8, "rotary_periods": "exact"}
    for source, stated, target, to in (
        ("meta.safetensors", sets, "ours.safetensors", "vit-jax"),
        ("ours.safetensors", {}, "back.safetensors", "dinov3"),
    ):
        found = read(str(tmp_path / source), Options(sets=stated))
        with found.source:
            write(plan(found, to), str(tmp_path / target))
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == file.keys() and all(same(back[n], file[n]) for n in file)


def test_periods_are_powers_of_the_base_exact_or_in_bfloat16():
    assert (tensors(GATED)["rope_embed.periods"] == EXACT).all()
    config = replace(CONFIG, heads=1)
    found = tensors(config)["rope_embed.periods"]
    exact = (100.0 ** (np.arange(4) / 4)).astype(np.float32)
    assert (found == exact.astype(ml_dtypes.bfloat16).astype(np.float32)).all() and (found != exact).any()


def test_which_periods_a_file_has_is_asked_for_and_never_guessed(tmp_path):
    save_file(tensors(CONFIG), tmp_path / "meta.safetensors")
    path = str(tmp_path / "meta.safetensors")
    with pytest.raises(MissingFields, match=r"rotary_periods, image; .*`fields rotary_periods=\.\.\."):
        read(path)
    with read(path, Options(sets={"image": 8, "rotary_periods": "bfloat16"})).source as source:
        assert source.path == path


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("rope_embed.periods", np.array([1, 3.0, 10, 31.0]), r"periods are not 100\^\(4k/16\), bfloat16"),
        ("rope_embed.periods", 100.0 ** (np.arange(4) / 4), r"periods are not 100\^\(4k/16\), bfloat16"),
        ("blocks.1.attn.qkv.bias_mask", np.ones(48), "its mask is not 1 for query and value and 0 for key"),
        ("blocks.1.attn.qkv.bias_mask", np.full(48, np.nan), "its mask is not 1 for query and value and 0 for key"),
    ],
)
def test_other_periods_masks_and_masked_values_are_refused_in_one_sentence(name, value, told):
    config = replace(CONFIG, heads=1)
    with pytest.raises(UserError, match=told) as error:
        rules.read(META.rows(config), tensors(config) | {name: value.astype(np.float32)})
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (replace(CONFIG, key_bias=True), "key_bias is True"),
        (replace(CONFIG, query_bias=False), "query and value both have biases"),
        (replace(CONFIG, activation="gelu_tanh"), "activation is 'gelu_tanh'"),
        (replace(CONFIG, activation="silu"), "the mlp is gated by SiLU"),
        (replace(CONFIG, classes=3), "classes is 3"),
        (replace(CONFIG, rotary_pairs="neighbours"), "rotary_pairs is 'neighbours'"),
    ],
)
def test_what_the_class_does_not_have_is_refused(config, told):
    (reason,) = META.cannot(config)
    assert told in reason


@pytest.mark.parametrize("name", ["huggingface-dinov3", "timm-eva"])
def test_rounded_periods_do_not_go_to_libraries_that_compute_exact_ones(name):
    assert "rotary_periods is 'bfloat16', but the layout has only 'exact'" in "; ".join(LAYOUTS[name].cannot(CONFIG))


@pytest.mark.slow
def test_three_libraries_compute_equal_tokens_of_one_set_of_weights_from_each_to_each(tmp_path):
    """As Hugging Face's class, timm's `_qkvb` and Meta's names, at 224 and 512 pixels, in float64."""
    pytest.importorskip("torch")
    from convert.verify import Weights
    from convert.verify.checks import FORWARD, relative
    from convert.verify.libraries import build
    from convert.verify.sides import ByRows, Ours

    sizes = dict(image=224, patch=16, width=32, hidden=64, registers=4, rotary_periods="exact")
    config = replace(CONFIG, **sizes)
    places = {"huggingface-dinov3": "hf", "timm-eva": "timm", "dinov3": "meta.safetensors"}
    drawn = parameters(config)  # kernels of a size that keeps what they take
    weights = {n: x / np.sqrt(len(x), dtype=np.float32) if n.endswith("kernel") else x for n, x in drawn.items()}
    files = {}
    for layout, place in places.items():
        export_weights((config, weights), str(tmp_path / place), layout, {}, {})
        files[layout] = tensors_at(tmp_path / place)
    for source, target in itertools.permutations(places, 2):
        found = read(str(tmp_path / places[source]))
        with found.source:
            assert found.layout.name == source and found.config.normal() == config.normal()
            out = tmp_path / f"{source} {places[target]}"
            write(plan(found, target), str(out))
        made = tensors_at(out)
        assert made.keys() == files[target].keys() and all(same(made[n], files[target][n]) for n in made)

    images = np.random.default_rng(1).standard_normal((2, 512, 512, 3))
    for size in (224, 512):
        c, given = replace(config, image=size), {"images": images[:, :size, :size]}
        computed = {}
        for layout, file in files.items():
            built, why = build(Weights(layout, LAYOUTS[layout], c, file))
            assert built is not None, why
            computed[layout] = ByRows(built, c).capture(given)["features"]
        ours = Ours.network(c, weights).capture(given)["features"]
        assert ours.shape == (2, 1 + 4 + (size // 16) ** 2, 32)
        for layout, theirs in computed.items():
            assert relative(theirs, ours) <= FORWARD["float64"], (layout, size)
        rounded = Ours.network(replace(c, rotary_periods="bfloat16"), weights).capture(given)["features"]
        apart = relative(rounded, ours)
        print(f"{size} px: periods rounded to bfloat16 move the tokens by {apart:.1e} of the largest value")
        assert 1e-5 < apart < 1e-2


def tensors_at(path):
    return load_file(path / "model.safetensors" if path.is_dir() else path)
