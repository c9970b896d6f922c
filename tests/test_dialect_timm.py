"""timm's files: its config.json both ways, its own folders and transforms, what is asked for and what is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert import rules
from convert.dialects import LAYOUTS, refused, timm_folder
from convert.dialects.architectures import lookup, names, table
from convert.layout import Facts
from convert.plan.plan import plan
from convert.plan.shared import members
from convert.recognise.config import resolve
from convert.recognise.layouts import Recognition, which_layout
from convert.recognise.reading import Options, read
from convert.write.write import write
from tests.installed import library
from tests.random_weights import weights
from vit_jax.config.dotted import replace_fields
from vit_jax.config.fields import pair
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

TIMM = LAYOUTS["timm"]
SMALL = ViTConfig(image=(8, 12), patch=(4, 2), classes=5, width=12, depth=2, heads=3, hidden=20)
CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 5,
    "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 4},
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.5, 0.5],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "num_classes": 5,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "fixed_input_size": True,
    },
}


def shapes(config, layout=TIMM):
    return rules.file_shapes(rules.narrow(layout.rows(config)))


def changed(**args):
    """CONFIG with other model_args."""
    return {"config.json": {**CONFIG, "model_args": {**CONFIG["model_args"], **args}}}


# ------------------------------------------------------------------------------------- config.json


def test_a_config_json_by_hand_says_what_tensors_do_not():
    facts = TIMM.read_side({"config.json": {**CONFIG, "label_names": ["a", "b", "c", "d", "e"]}})
    config = ViTConfig(image=32, patch=8, classes=5, width=24, depth=2, heads=4, hidden=96)
    assert resolve(TIMM, shapes(config), [("its config.json", facts.config)], "file") == config
    assert facts.outputs.names == ["a", "b", "c", "d", "e"]
    expected = Preprocess((32, 32), 3, "crop", 35, "bicubic", 0, (0.5,) * 3, (0.25, 0.5, 0.5))
    assert facts.preprocess == expected.to_dict()


def test_what_a_pretrained_cfg_leaves_out_is_what_timm_takes():
    """Seven eighths of a bicubic 256: its evaluation of old."""
    facts = TIMM.read_side(
        {"config.json": {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"mean": [0.485, 0.456, 0.406]}}}
    )
    expected = Preprocess((224, 224), 3, "crop", 256, "bicubic", 0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert facts.preprocess == expected.to_dict()


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        ({"global_pool": "avg"}, "pool", "mean"),
        ({"global_pool": "avg", "pool_include_prefix": True}, "pool", "mean_all"),
        ({"global_pool": "map"}, "pool", "map"),
        ({"global_pool": "map", "pool_include_prefix": True}, "pool", "map_all"),
        ({"act_layer": "quick_gelu"}, "activation", "quick_gelu"),
        ({"norm_layer": "layer_norm"}, "eps", 1e-6),
        ({"norm_layer": "rmsnorm"}, "norm_kind", "rms"),
        ({"pos_embed": "none"}, "position", "none"),
    ],
)
def test_arguments_go_before_what_the_architecture_says(args, field, value):
    assert TIMM.read_side(changed(**args)).config[field] == value


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"global_pool": "avgmax"}, "global_pool is 'avgmax'"),
    ],
)
def test_what_the_network_has_not_is_refused(args, said):
    with pytest.raises(UserError, match=said):
        TIMM.read_side(changed(**args))


def test_a_network_of_another_class_is_refused_by_its_architecture():
    with pytest.raises(UserError, match="vit_dwee_patch16_reg1_gap_256 has differential attention"):
        TIMM.read_side({"config.json": {"architecture": "vit_dwee_patch16_reg1_gap_256", "pretrained_cfg": {}}})


def test_an_unknown_architecture_says_only_its_arguments():
    said = TIMM.read_side({"config.json": {**CONFIG, "architecture": "my_vit"}}).config
    with pytest.raises(UserError, match=r"cannot tell .*activation"):
        resolve(TIMM, shapes(replace(SMALL, image=32, patch=8)), [("its config.json", said)], "file")


def test_a_config_json_that_contradicts_itself_on_pooling_leaves_the_question_open():
    facts = TIMM.read_side({"config.json": {**CONFIG, "global_pool": "avg"}})
    assert "pool" not in facts.config
    assert facts.config["heads"] == 4


@pytest.mark.parametrize(
    "change",
    [
        {"model_args": [1]},
        {"pretrained_cfg": "x"},
        {"label_names": {"a": "b"}},
        {"pretrained_cfg": {"mean": 0.5}},
        {"pretrained_cfg": {"input_size": 3}},
        {"pretrained_cfg": {"mean": [0.5] * 3, "crop_pct": 0}},
        {"pretrained_cfg": {"mean": ["x"] * 3}},
    ],
)
def test_a_config_json_of_the_wrong_kinds_is_refused_in_one_sentence(change):
    with pytest.raises(UserError, match=r"^config\.json: is not as timm writes it"):
        TIMM.read_side({"config.json": {**CONFIG, **change}})


def test_another_librarys_config_json_says_nothing():
    assert TIMM.read_side({"config.json": {"model_type": "vit", "hidden_size": 8}}) == Facts()


def test_every_network_that_timm_can_state_comes_back_from_its_config_json():
    seen = set()
    for config, _ in zip(members(TIMM), range(60), strict=False):
        side = json.loads(json.dumps(TIMM.write_side(config, Facts())))
        again = resolve(TIMM, shapes(config), [("its config.json", TIMM.read_side(side).config)], "file")
        assert again.normal() == config.normal()
        seen.add(side["config.json"]["architecture"])
    assert len(seen) >= 3


@pytest.mark.parametrize(
    "name",
    ["vit_small_patch16_224", "vit_large_patch14_clip_quickgelu_336", "vit_base_patch14_reg4_dinov2",
     "deit_small_distilled_patch16_224", "aimv2_huge_patch14_336", "eva02_small_patch14_336",
     "vit_pe_core_base_patch16_224", "vit_large_patch16_dinov3", "vit_medium_patch16_rope_reg1_gap_256"],
)  # fmt: skip
def test_a_written_config_json_names_the_architecture_that_it_is(name):
    """With another head as well; one of other images has the name of a network that differs in nothing else."""
    layouts = [
        LAYOUTS[each] for each in ("timm", "timm@gate-apart", "timm-eva", "timm-eva@gate-apart", "timm-eva@apart")
    ]
    config = replace_fields(ViTConfig(), {**lookup(name)[0], "classes": 3})
    layout = next(each for each in layouts if not each.cannot(config))
    assert layout.write_side(config, Facts())["config.json"]["architecture"] == name
    smaller = replace_fields(config, {"image": 2 * pair(config.patch)[0]})
    other = layout.write_side(smaller, Facts())["config.json"]["architecture"]
    theirs, fields = lookup(other)[0], lookup(name)[0]
    assert {k: v for k, v in theirs.items() if k != "image"} == {k: v for k, v in fields.items() if k != "image"}
    none = replace_fields(config, {"depth": config.depth + 1})
    assert layout.write_side(none, Facts())["config.json"]["model_args"]["depth"] == config.depth + 1


# --------------------------------------------------------------------------------------- its limits


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(eps=1e-12), "eps is 1e-12, but the layout has only 1e-06 or 1e-05"),
        (dict(stem_bias=False), "stem_bias and pre_norm"),
        (dict(key_bias=False), "all have biases or all have none"),
        (dict(registers=2), "all have positions or all have none"),
        (dict(head_norm=True), "norms before pooling or after it, not both"),
        (dict(pool="map", cls_token=False, mlp_bias=False, out_bias=False), "attention pooling has a plain mlp"),
        (dict(heads=5, head_width=4), "head_width is 4"),
        (dict(norm_first=False), "norm_first is False"),
        (dict(eps=1e-5, stem_norm=True), "eps is 1e-05, but with a norm in the stem"),
    ],
)
def test_what_timm_cannot_be_told_is_said(change, said):
    (reason, *_) = TIMM.cannot(replace(SMALL, **change))
    assert said in reason


def test_bare_weights_may_have_any_epsilon():
    assert not TIMM.cannot(replace(SMALL, eps=1e-12), weights_only=True)
    assert not TIMM.cannot(replace(SMALL, eps=1e-5, gated=True), weights_only=True)
    names, said = shapes(SMALL), {f: getattr(SMALL, f) for f in ("image", "heads", "activation", "pool", "position")}
    assert resolve(TIMM, names, [("--set", {**said, "eps": 1e-3})], "file").eps == 1e-3


def test_a_norm_after_the_class_token_is_ours_before_it_and_keeps_its_name():
    ours = weights(SMALL)
    usual = rules.write(TIMM.rows(SMALL), ours)
    file = {
        name.replace("norm.", "fc_norm.", 1) if name.startswith("norm.") else name: value
        for name, value in usual.items()
    }
    assert file.keys() - usual.keys() == {"fc_norm.weight", "fc_norm.bias"}
    read = rules.read(TIMM.rows(SMALL), file)
    assert all(np.array_equal(read[name], ours[name]) for name in ours)
    assert rules.write(TIMM.rows(SMALL), ours, names=file).keys() == file.keys()


def test_a_file_with_a_mask_token_or_maes_decoder_is_the_encoder():
    extra = ["mask_token", "decoder_embed.weight", "decoder_blocks.0.attn.qkv.weight"]
    assert TIMM.recognises({**shapes(SMALL), **{name: (1, 1, 12) for name in extra}})
    assert TIMM.left_out([*shapes(SMALL), *extra]) == extra


HEADS = {
    "MoCo v3's": {"head.0.weight": (32, 12), "head.1.running_mean": (32,), "head.1.num_batches_tracked": ()},
    "DINO's": {"head.mlp.0.weight": (32, 12), "head.last_layer.weight_g": (99, 1), "head.last_layer.weight_v": (99, 8)},
    "a user's": {"head.fc.weight": (5, 12), "head.fc.bias": (5,)},
}


@pytest.mark.parametrize("layout", ["timm", "huggingface@v4", "dinov2"])
@pytest.mark.parametrize("whose", HEADS)
def test_a_head_of_another_kind_is_left_out_only_where_the_head_is_dropped(layout, whose, tmp_path):
    config = replace(SMALL, patch=4, image=8, classes=0, registers=2 if layout == "dinov2" else 0)
    own = {"timm": "head", "huggingface@v4": "classifier", "dinov2": "dino_head"}[layout]
    made = shapes(config, LAYOUTS[layout])
    strange = {name.replace("head", own, 1): shape for name, shape in HEADS[whose].items()}
    arrays = {name: np.ones(shape, np.float32) for name, shape in (made | strange).items()}
    save_file(arrays, tmp_path / "x.safetensors")
    stated = dict(layout=layout, sets={"heads": 3, "eps": 1e-6, "activation": "gelu", "image": 8, "pool": "cls"})
    with pytest.raises(UserError, match=rf"has a head .*{re.escape(own)}\..*; leave it out with `adapt head=drop"):
        read(str(tmp_path / "x.safetensors"), Options(**stated))
    reading = read(str(tmp_path / "x.safetensors"), Options(**stated, headless=True))
    with reading.source:
        assert reading.tensors.keys() == made.keys()
        assert reading.left_out == [
            f"{own.partition('.')[0]} ({len(strange)} tensors, another head than the network's)"
        ]


def test_layer_scales_as_gamma_are_nobodys_until_said_whose():
    config = replace(SMALL, layer_scale=1.0)
    names = shapes(config, LAYOUTS["timm@deit3"])
    with pytest.raises(UserError, match=r"`layout timm@deit3` or `layout timm-eva"):
        which_layout("file", Recognition.of(names), "", "")
    assert which_layout("file", Recognition.of(names), "timm@deit3", "") is LAYOUTS["timm@deit3"]


def test_norms_are_where_clip_has_them():
    """ln_1 before attention, ln_2 before the mlp (clip/model.py)."""
    clip = replace(SMALL, depth=1, stem_bias=False, pre_norm=True, head_bias=False)
    found = {name: r for r in LAYOUTS["clip"].rows(clip) for name in r.theirs}
    for theirs, ours in (("ln_1.weight", "norm1.scale"), ("ln_1.bias", "norm1.bias"), ("ln_2.weight", "norm2.scale")):
        assert found[f"transformer.resblocks.0.{theirs}"].ours == (f"blocks.0.{ours}",)


def test_clip_and_dinov2_are_told_from_timm():
    clip = replace(SMALL, image=8, patch=4, depth=1, stem_bias=False, pre_norm=True, eps=1e-5, head_bias=False)
    text = [
        "token_embedding.weight",
        "positional_embedding",
        "transformer.resblocks.0.ln_1.weight",
        "ln_final.bias",
        "text_projection",
        "logit_scale",
    ]
    whole = LAYOUTS["clip@whole"]
    assert whole.left_out([*shapes(clip, whole), *text]) == text
    assert which_layout("file", Recognition.of(shapes(clip, whole)), "", "") is whole
    assert which_layout("file", Recognition.of(shapes(clip, LAYOUTS["clip"])), "", "") is LAYOUTS["clip"]
    dino = replace(SMALL, classes=0, registers=2, layer_scale=1.0)
    assert which_layout("file", Recognition.of(shapes(dino, LAYOUTS["dinov2"])), "", "") is LAYOUTS["dinov2"]
    assert LAYOUTS["dinov2"].cannot(replace(dino, registers=0)) == [
        "without registers and a gated mlp DINOv2's names are those of timm"
    ]


# -------------------------------------------------------------------------------------- timm itself


@pytest.fixture
def timm():
    return library("timm")


SIZES = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=4, num_classes=5)


def saved(timm, folder, name, stated=None, **sizes):
    """A network of timm with random weights, which it has saved in a folder."""
    import torch

    torch.manual_seed(0)
    model = timm.create_model(name, **sizes).eval()
    for p in model.parameters():
        p.data += torch.randn_like(p) * 0.1
    timm.models.save_for_hf(model, str(folder), model_config=stated, safe_serialization=True)
    return model


def opened_alike(timm, folder, model, size=(32, 32)):
    """What timm opens in a folder, once it has computed what a network computes."""
    import torch

    opened, images = timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), torch.randn(2, 3, *size)
    with torch.no_grad():
        assert torch.equal(opened(images), model(images))
    return opened


def test_a_folder_that_timm_saved_needs_no_flag_and_what_we_write_timm_opens(timm, tmp_path):
    model = saved(timm, tmp_path / "theirs", "vit_medium_patch16_reg4_gap_256", {"label_names": [*"abcde"]}, **SIZES)
    found = read(str(tmp_path / "theirs"))
    with found.source:
        c = found.config
        assert (c.pool, c.heads, c.registers, c.cls_token) == ("mean", 4, 4, False)
        write(plan(found, "timm"), str(tmp_path / "ours"))
    theirs, ours = (opened_alike(timm, tmp_path / place, model) for place in ("theirs", "ours"))
    assert ours.pretrained_cfg["label_names"] == list("abcde")
    before, after = (timm.data.resolve_data_config({}, model=m) for m in (theirs, ours))
    assert after.pop("crop_pct") == pytest.approx(
        before.pop("crop_pct"), abs=0.02
    )  # both come to the same size in pixels
    assert {k: list(v) for k, v in after.items()} == {k: list(v) for k, v in before.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("aimv2_large_patch14_224", dict(norm_kind="rms", eps=1e-5, stem_norm=True, gated=True)),
        ("beit3_base_patch16_224", dict(attention_norm=True, mlp_norm=True, eps=1e-5)),
        ("test_vit3", dict(pool="map_all", registers=1)),
    ],
)
def test_networks_of_other_norms_are_read_from_their_folder_and_go_back(timm, tmp_path, name, options):
    model = saved(timm, tmp_path / "theirs", name, {"model_args": SIZES}, **SIZES)
    found = read(str(tmp_path / "theirs"))
    with found.source:
        assert {field: getattr(found.config, field) for field in options} == options
        write(plan(found, found.layout.name), str(tmp_path / "ours"))
    opened_alike(timm, tmp_path / "ours", model)


@pytest.mark.parametrize(
    ("layout", "options", "said"),
    [
        ("timm", dict(norm_kind="rms", eps=1e-5), "with RMS norms timm's config.json can only state 1e-06"),
        ("timm", dict(branch_norm=True, gated=True), "no architecture of timm has a gated mlp and norms after its"),
        ("timm", dict(branch_norm=True, layer_scale=1.0), "timm's block has no layer scale"),
    ],
)
def test_norms_that_no_folder_of_timm_states_are_refused(layout, options, said):
    assert said in "; ".join(LAYOUTS[layout].cannot(replace(SMALL, **options)))


@pytest.mark.parametrize("given", [(37, 53), (53, 37), (16, 16), (9, 9)])
@pytest.mark.parametrize(
    "how",
    [
        dict(image=[8, 8], fit="crop", size=9),
        dict(image=[8, 8], fit="crop", size=0, interpolation="bilinear"),
        dict(image=[8, 12], fit="stretch", size=8),
        dict(image=[8, 12], fit="pad", size=0, background=128),
    ],
)
def test_the_pixels_are_those_of_timms_transform(timm, how, given):
    image = pytest.importorskip("PIL.Image")
    p = {
        "channels": 3,
        "interpolation": "bicubic",
        "background": 0,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.5, 0.5],
        **how,
    }
    cfg = timm_folder.write_side(replace(SMALL, image=tuple(p["image"])), Facts({}, p))["config.json"]["pretrained_cfg"]
    picture = image.fromarray(np.random.default_rng(0).integers(0, 256, (*given, 3), dtype=np.uint8))
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, pretrained_cfg=cfg), is_training=False)
    theirs = transform(picture).numpy().transpose(1, 2, 0)
    ours = (Preprocess.from_dict(p).apply(picture) / 255 - p["mean"]) / p["std"]
    assert np.abs(ours - theirs).max() < 1e-6


def test_the_size_that_crop_scales_to_survives_the_share_that_timm_states():
    for edge in (8, 224, 518):
        for size in range(edge, 3 * edge):
            stated = Preprocess((edge, edge), 1, "crop", size, "bicubic", 0, (0.5,), (0.5,))
            cfg = timm_folder.crop(stated.to_dict())
            back, notes = timm_folder.preprocessing({**timm_folder.DEFAULTS, **cfg, "input_size": [1, edge, edge]})
            assert (back["size"], notes) == (size, ())


def test_preprocessing_that_ours_is_not_is_noted_and_not_taken():
    for change in (
        {"crop_mode": "squash", "crop_pct": 0.95},
        {"crop_mode": "spiral"},
        {"interpolation": "lanczos"},
        {"input_size": [1, 8, 8]},
    ):
        found, notes = timm_folder.preprocessing({**timm_folder.DEFAULTS, **change})
        assert found is None
        assert len(notes) == 1


# ------------------------------------------------------------------------------------- public names


def test_names_say_what_is_published_of_them():
    fields, preprocess = lookup("vit_base_patch16_224")
    expected = dict(heads=12, width=768, depth=12, hidden=3072, eps=1e-6, activation="gelu")
    assert {name: fields[name] for name in expected} == expected
    assert (preprocess["mean"], preprocess["size"]) == ([0.5] * 3, 248)
    siglip = lookup("vit_so400m_patch14_siglip_224")[0]
    assert (siglip["heads"], siglip["pool"]) == (16, "map")
    clip = lookup("ViT-B/32")[0]
    assert (clip["eps"], clip["activation"], clip["pre_norm"], clip["stem_bias"]) == (1e-5, "quick_gelu", True, False)
    assert lookup("deit3_base_patch16_224")[0]["cls_position"] is False
    assert lookup("vit_h_14")[0]["image"] == 518
    assert not {"classes", "channels", "head_bias"} & fields.keys()


def test_a_name_that_is_not_known_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"nearest: .*vit_base_patch16_224"):
        lookup("vit_base_patch_16_224")
    with pytest.raises(UserError, match="no weights 'imagenet'"):
        lookup("vit_base_patch16_224.imagenet")
    with pytest.raises(UserError, match="has differential attention, which no layout here holds yet"):
        lookup("vit_dwee_patch16_reg1_gap_256")


def test_the_table_has_every_name_once():
    """Either as a network that converts, or with what no layout here holds; torchvision's five among the former."""
    listed, others = names(), table()["others"]
    assert {"vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"} <= set(listed)
    assert not set(listed) & set(others) and all(others.values())
    assert {n for n in listed if lookup(n)[0]} == set(listed)
    assert any(n.startswith("vit_") for n in others) and any(n.startswith("deit") for n in listed)


FEW = [
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_base_patch16_siglip_gap_224",
    "vit_xsmall_patch16_clip_224",
    "vit_small_patch14_reg4_dinov2",
    "eva02_tiny_patch14_224",
    "vit_small_patch16_rope_mixed_ape_224",
    "vit_tiny_r_s16_p8_224",
    "vit_dwee_patch16_reg1_gap_256",
    "vit_base_patch16_rpn_224",
    "test_vit3",
]


def test_a_few_of_the_table_are_as_timm_has_them(timm):
    from tests.architectures import timm_entries

    for name, entry in timm_entries(FEW):
        if isinstance(entry, str):
            assert table()["others"][name] == entry
        else:
            fields, tags = entry
            assert table()["architectures"][name]["fields"] == fields
            assert {tag: lookup(f"{name}.{tag}")[1] for tag in tags} == tags


@pytest.mark.slow
def test_the_whole_table_is_as_the_libraries_have_it(timm):
    from tests.architectures import table as generated

    assert generated() == table()


# ------------------------------------------------------------------------------------------ refused


def test_no_layouts_own_names_are_refused():
    for layout in LAYOUTS.values():
        for config, _ in zip(members(layout), range(4), strict=False):
            assert refused.why(shapes(config, layout)) == "", layout.name


OTHERS = {
    "vit_tiny_r_s16_p8_224": "hybrid",
    "swin_tiny_patch4_window7_224": "Swin",
    "beit_base_patch16_224": "BEiT",
    "vit_relpos_small_patch16_224": "relative",
    "vit_base_patch16_sapiens2": "grouped",
    "vit_dwee_patch16_reg1_gap_256": "differential",
    "vit_small_patch16_18x2_224": "side by side",
    "samvit_base_patch16": "relative",
    "resnet50d": "another stem",
    "resnet50_gn": "without batch norm",
    "seresnet50": "other blocks",
    "convmixer_768_32": "ConvMixer",
    "resmlp_12_224": "ResMLP",
    "cait_xxs24_224": "CaiT",
    "hiera_tiny_224": "Hiera",
    "convnext_atto": "convolutional",
    "mobilenetv3_small_050": "convolutional",
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_timm_has_beside_is_refused_by_name(timm, name):
    model = timm.create_model(name, device="meta")
    assert OTHERS[name] in refused.why(model.state_dict())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["conv_root/kernel", "gn_root/scale", "embedding/kernel"], "Google's hybrid"),
        (["class_token", "linear_mapper.weight", "blocks.0.norm1.weight"], "MNIST"),
        (["visual.attnpool.positional_embedding", "visual.layer1.0.conv1.weight"], "CLIP with a ResNet"),
        (["token_embedding.weight", "transformer.resblocks.0.ln_1.weight", "text_projection"], "text tower"),
        (
            ["vision_model.embeddings.patch_embedding.weight", "text_model.embeddings.token_embedding.weight"],
            "Hugging Face",
        ),
        (["cls_token", "blocks.0.0.norm1.weight"], "chunks"),
        (["layer.0.q.qweight", "layer.0.q.qzeros", "layer.0.q.scales", "layer.0.q.g_idx"], "by GPTQ"),
        (["layer.0.q.qweight", "layer.0.q.qzeros", "layer.0.q.scales"], "by AWQ"),
        (["layer.0.q.weight", "layer.0.q.weight.absmax", "layer.0.q.weight.quant_state.bitsandbytes__nf4"], "4 bits"),
        (["layer.0.q.weight_packed", "layer.0.q.weight_scale", "layer.0.q.weight_shape"], "compressed-tensors"),
        (["base_model.model.vit.q.lora_A.weight", "base_model.model.vit.q.lora_B.weight"], "`adapt lora=merge"),
        (["base_model.model.q.base_layer.weight", "base_model.model.q.lora_A.default.weight"], "merge_and_unload()"),
        (["blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.lora_A"], "factors of LoRA"),
        (["1.weight", "2.0.fn.0.weight", "2.0.norm.weight", "2.1.fn.3.weight"], "MLP-Mixer"),
        (["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight"], "GPT-2"),
        (["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"], "LLaMA"),
        (["model.decoder.embed_tokens.weight", "model.decoder.layers.0.self_attn.q_proj.weight"], "OPT"),
        (["bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.attention.self.query.weight"], "BERT"),
        (["model.encoder.conv2.weight", "model.decoder.layers.0.fc1.weight"], "Whisper"),
        (["backbone.layers.0.mixer.A_log"], "Mamba"),
        (["encoder.encoder.layer.0.layernorm_before.weight", "decoder.transformer.wte.weight"], "VisionEncoderDecoder"),
    ],
)
def test_files_of_other_networks_are_refused_by_name(names, said):
    assert said in refused.why(names)


def test_a_vit_beside_a_language_model_is_not_refused_for_its_neighbour():
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"]
    assert not refused.why([*names, "model.vision_tower.patch_embed.proj.weight"])


def test_every_refusal_has_a_title_and_a_reason():
    assert len(set(refused.titles())) == len(refused.REFUSED)
    assert all(one.title and one.why for one in refused.REFUSED)


def test_a_field_without_effect_is_no_reason():
    """A tower without its projection has no bias of it either."""
    config = ViTConfig(
        image=8, patch=4, classes=0, width=8, depth=1, heads=2, hidden=12, eps=1e-5, stem_bias=False, pre_norm=True
    )
    assert LAYOUTS["clip"].cannot(config) == ["classes is 0, but the layout always has a projection"]
