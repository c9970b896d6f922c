"""timm's Eva: its files told from those of VisionTransformer, its config.json both ways, its angles and its folders."""

import json
from dataclasses import replace

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS
from convert.dialects.architectures import lookup
from convert.layout import Facts
from convert.plan.plan import plan
from convert.recognise.config import resolve
from convert.recognise.layouts import Recognition, which_layout
from convert.recognise.reading import read
from convert.write.write import write
from tests.installed import library
from tests.test_dialect_timm import opened_alike, saved
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

EVA, APART, GATE = (LAYOUTS[name] for name in ("timm-eva", "timm-eva@apart", "timm-eva@gate-apart"))
SMALL = ViTConfig(image=(8, 12), patch=(4, 2), classes=5, width=16, depth=2, heads=2, hidden=20)
NO_KEY = dict(key_bias=False)
DINOV3 = NO_KEY | dict(rotary="axial", position="none", registers=2, layer_scale=1.0, eps=1e-5)
INDICES = dict(rotary="axial", rotary_pairs="neighbours", rotary_places="indices")
EVA02 = NO_KEY | INDICES | dict(rotary_base=1e4, rotary_grid=(3, 2), gated=True, activation="silu")
PE = INDICES | dict(rotary_first="columns", rotary_offset=1.0, rotary_grid=4, eps=1e-5, stem_bias=False, pre_norm=True)
PE |= dict(pool="map_all", pool_heads=1, pool_hidden=24)
MIXED = dict(rotary="mixed", rotary_pairs="neighbours", rotary_places="indices", rotary_first="columns")
FORMS = {
    "EVA-02": (EVA, EVA02),
    "EVA-02 Base": (APART, EVA02 | dict(mlp_norm=True, attention_norm=True, pool="mean")),
    "EVA-02 Enormous": (EVA, NO_KEY | dict(branch_norm=True)),
    "DINOv3": (EVA, DINOV3),
    "DINOv3 with gate": (GATE, DINOV3 | dict(gated=True, activation="silu")),
    "Perception Encoder": (EVA, PE),
    "RoPE-ViT mixed": (EVA, MIXED | dict(position="none", layer_scale=1.0)),
}


def shapes(config, layout=EVA):
    return rules.file_shapes(rules.narrow(layout.rows(config)))


def state(side, names, layout=EVA):
    return resolve(layout, names, [("its config.json", layout.read_side(side).config)], "file")


# --------------------------------------------------------------------------------- whose file it is


@pytest.mark.parametrize("form", ["EVA-02", "EVA-02 Base", "DINOv3", "DINOv3 with gate", "RoPE-ViT mixed"])
def test_names_that_only_this_class_has_are_recognised(form):
    layout, options = FORMS[form]
    names = shapes(replace(SMALL, **options), layout)
    assert which_layout("file", Recognition.of(names), "", "") is layout


def test_a_perception_encoder_is_nobodys_until_something_says_that_it_turns():
    names = shapes(replace(SMALL, **PE))
    found = Recognition.of(names)
    with pytest.raises(UserError, match=r"`layout timm` or `layout timm-eva`"):
        which_layout("file", found, "", "")
    published = lookup("vit_pe_core_base_patch16_224")[0]
    assert which_layout("file", found, "", "", None, lambda layout: published) is EVA
    assert which_layout("file", found, "timm-eva", "") is EVA
    plain = shapes(replace(SMALL, pre_norm=True, stem_bias=False))
    assert which_layout("file", Recognition.of(plain), "", "") is LAYOUTS["timm"]


def test_a_layout_that_is_asked_for_cannot_be_one_without_the_positions_that_are_stated():
    found = Recognition.of(shapes(replace(SMALL, **PE)))
    published = lookup("vit_pe_core_base_patch16_224")[0]
    with pytest.raises(UserError, match=r"layout timm has no network with .*rotary 'axial'.*or name timm-eva$"):
        which_layout("file", found, "timm", "", None, lambda layout: published)
    said = published | {"rotary": "none"}
    assert which_layout("file", found, "timm", "", None, lambda layout: said) is LAYOUTS["timm"]


def test_what_no_tensor_tells_is_asked_for_and_never_guessed():
    config = replace(SMALL, **EVA02)
    said = {name: getattr(config, name) for name in ("image", "heads", "eps", "pool")}
    with pytest.raises(UserError, match=r"cannot tell .*rotary.*branch_norm|cannot tell .*branch_norm.*rotary"):
        resolve(EVA, shapes(config), [("--set", said)], "file")
    with pytest.raises(UserError, match=r"cannot tell rotary_pairs, .*`fields .*rotary_base=.* rotary_grid="):
        resolve(EVA, shapes(config), [("--set", said | {"rotary": "axial", "branch_norm": False})], "file")
    plain = resolve(EVA, shapes(config), [("--set", said | {"rotary": "none", "branch_norm": False})], "file")
    assert plain == replace(config, rotary="none").normal()


# --------------------------------------------------------------------------------------- config.json


@pytest.mark.parametrize("form", FORMS)
def test_a_config_json_says_the_whole_network(form):
    layout, options = FORMS[form]
    config = replace(SMALL, **options).normal()
    side = json.loads(json.dumps(layout.write_side(config, Facts())))
    assert state(side, shapes(config, layout), layout).normal() == config


def test_arguments_go_before_what_the_architecture_says():
    def said(architecture, **args):
        return EVA.read_side({"config.json": {"architecture": architecture, "model_args": args}}).config

    assert said("eva02_tiny_patch14_224")["rotary_grid"] == 16
    assert said("eva02_tiny_patch14_224", ref_feat_shape=[3, 4])["rotary_grid"] == (3, 4)
    assert said("eva02_tiny_patch14_224", use_rot_pos_emb=False)["rotary"] == "none"
    assert said("vit_small_patch16_dinov3", rope_grid_indexing="xy")["rotary_first"] == "columns"
    assert said("vit_pe_core_tiny_patch16_384")["pool_heads"] == 8
    assert said("vit_pe_core_tiny_patch16_384", attn_pool_num_heads=None)["pool_heads"] == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"rope_type": "mrope"}, "rope_type is 'mrope', but the network here has cat, mixed, dinov3"),
        ({"rope_type": "dinov3", "rope_grid_offset": 0.5}, "rope_grid_offset is 0.5 with rope_type 'dinov3'"),
        ({"rope_temperature": "hot"}, "is not as timm writes it"),
    ],
)
def test_arguments_that_the_network_has_not_are_refused(args, message):
    with pytest.raises(UserError, match=message):
        EVA.read_side({"config.json": {"architecture": "eva02_tiny_patch14_224", "model_args": args}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(query_bias=False), "query and value both have biases"),
        (NO_KEY | dict(query_bias=False, value_bias=False, key_bias=True), "key has a bias only with those"),
        (dict(pool="map"), "takes all tokens"),
        (dict(activation="gelu_tanh"), "the layout has only 'gelu' or 'silu'"),
        (dict(activation="silu"), "the mlp has silu, but timm's has silu with a gate and gelu without"),
        (dict(branch_norm=True, layer_scale=1.0), "no layer scale and no qk_norm"),
        (dict(rotary="mixed"), "turn neighbours by indices"),
        (dict(rotary="mixed", rotary_pairs="neighbours", rotary_places="indices", rotary_offset=1.0), "without offset"),
    ],
)
def test_what_timms_class_is_not_is_said(change, message):
    (reason, *_) = EVA.cannot(replace(SMALL, **change))
    assert message in reason


def test_learned_frequencies_of_all_blocks_are_one_tensor_in_the_order_of_axes_and_blocks():
    config = replace(SMALL, **MIXED, position="none", layer_scale=1.0, depth=3)
    whole = np.arange(2 * 3 * 2 * 4.0).reshape(2, 3, 2, 4)
    (found,) = [r for r in EVA.rows(config) if r.theirs == ("rope.freqs",)]
    for i, (name, array) in enumerate(zip(found.ours, found.read([whole]), strict=True)):
        assert name == f"blocks.{i}.attention.frequencies" and np.array_equal(array, whole[:, i])


# --------------------------------------------------------------------------------------- timm itself


@pytest.fixture
def timm():
    return library("timm")


ANGLES = {
    "centres": DINOV3,
    "centres, columns first": DINOV3 | dict(rotary_first="columns", rotary_base=7.0),
    "scaled indices": EVA02,
    "columns first, offset": PE,
}


@pytest.mark.parametrize("name", ANGLES)
def test_the_angles_are_those_of_timm(timm, name):
    """Its own tables are of float32; with float64 in their place the formulas agree to the last digits."""
    from timm.models.eva import Eva

    from convert.verify.libraries.timm_eva import network
    from vit_jax.models import positions

    c = replace(SMALL, width=32, **ANGLES[name])
    reference = c.rotary_grid if isinstance(c.rotary_grid, tuple) else (c.rotary_grid,) * 2
    places = positions.patch_positions(c.grid, c.rotary_places, c.rotary_first, c.rotary_offset, reference)
    angles = positions.axial(places, 16, c.rotary_base)
    spread = (lambda x: np.tile(x, 2)) if c.rotary_pairs == "halves" else (lambda x: np.repeat(x, 2, -1))
    ours = np.concatenate([spread(np.sin(angles)), spread(np.cos(angles))], -1)
    wide = network(c)
    arguments = EVA.write_side(c, Facts())["config.json"]["model_args"]
    own = Eva(**arguments)  # in float32
    assert np.abs(wide.rope.get_embed().numpy() - ours).max() < 1e-14
    assert 0 < np.abs(own.rope.get_embed().numpy() - ours).max() < 2e-6


def test_a_folder_that_timm_saved_needs_no_flag_and_what_we_write_timm_opens(timm, tmp_path):
    sizes = dict(img_size=(32, 48), embed_dim=32, depth=2, num_heads=4, num_classes=5, mlp_ratio=2.0)
    model = saved(timm, tmp_path / "theirs", "vit_pe_core_tiny_patch16_384", **sizes)
    found = read(str(tmp_path / "theirs"))
    with found.source:
        assert (found.layout, found.config.rotary, found.config.rotary_grid) == (EVA, "axial", 24)
        assert (found.config.pool, found.config.pool_heads, found.config.pool_hidden) == ("map_all", 8, 128)
        write(plan(found, "timm-eva"), str(tmp_path / "ours"))
    opened_alike(timm, tmp_path / "ours", model, (32, 48))


@pytest.mark.parametrize("form", ["EVA-02 Base", "RoPE-ViT mixed"])
def test_a_network_of_timm_and_ours_of_its_file_agree(timm, form):
    from convert.verify.checks import FORWARD, relative
    from convert.verify.libraries.timm_eva import network
    from tests.parity.layouts_timm import randomise, run
    from tests.parity.sides import ours

    layout, options = FORMS[form]
    c = replace(SMALL, **options)
    module = randomise(network(c, apart=layout is APART, gate_apart=layout is APART), "A", "float64")
    file = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    read = rules.read(layout.rows(c), file)
    back = rules.write(layout.rows(c), read)
    assert back.keys() == file.keys() and all(back[name].tobytes() == file[name].tobytes() for name in file)
    images = np.random.default_rng(0).standard_normal((2, 8, 12, 3))
    assert relative(ours(c, read).forward({"images": images}), run(module, images)["logits"]) <= FORWARD["float64"]
