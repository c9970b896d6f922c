"""Hugging Face's vision encoders: what config.json states and leaves out, what each class cannot be, preprocessing."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert import rules
from convert.dialects import LAYOUTS, refused
from convert.layout import Facts
from convert.recognise.config import resolve
from convert.recognise.reading import Options, identify, read
from tests.random_weights import tensors
from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

PLAIN = ViTConfig(image=8, patch=4, classes=5, width=8, depth=2, heads=2, hidden=16)
DINOV2 = replace(PLAIN, layer_scale=1.0, pool="cls_mean")
GATED = dict(gated=True, activation="silu")
DINOV3 = replace(PLAIN, width=16, layer_scale=1.0, position="none", rotary="axial", key_bias=False, classes=0, eps=1e-5)
SIGLIP = replace(PLAIN, cls_token=False, pool="map", classes=0, activation="gelu_tanh")
CLIP = replace(PLAIN, stem_bias=False, pre_norm=True, head_bias=False, eps=1e-5, activation="quick_gelu")
CONFIGS = [
    ("huggingface-dinov2@v4", DINOV2),
    (
        "huggingface-dinov2@v4",
        replace(DINOV2, **GATED, registers=3, query_bias=False, key_bias=False, value_bias=False),
    ),
    ("huggingface-dinov2@v5", replace(DINOV2, **GATED, classes=0, pool="cls", patch=(4, 2))),
    ("huggingface-dinov3", replace(DINOV3, registers=2)),
    ("huggingface-dinov3", replace(DINOV3, **GATED, image=(8, 4), patch=(4, 2), rotary_base=1000.0)),
    ("huggingface-dinov3", replace(DINOV3, key_bias=True, query_bias=False, out_bias=False, mlp_bias=False)),
    ("huggingface-siglip", SIGLIP),
    ("huggingface-siglip", replace(SIGLIP, classes=5, pool="mean")),
    ("huggingface-siglip2", SIGLIP),
    ("huggingface-siglip2", replace(SIGLIP, classes=5, pool="mean", image=12)),
    ("huggingface-clip", CLIP),
    ("huggingface-clip", replace(CLIP, classes=0, head_bias=True, activation="gelu")),
    ("huggingface-clip", replace(CLIP, pool="mean", final_norm=False, head_bias=True)),
]
MODELS = {name: config for name, config in reversed(CONFIGS)}


def shapes(name, config):
    return {n: array.shape for n, array in tensors(LAYOUTS[name], config).items()}


def side(name, config, **facts):
    """The JSON files that we write, as they are read again."""
    return json.loads(json.dumps(LAYOUTS[name].write_side(config, Facts(**facts))))


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_a_config_that_is_written_is_read_again(name, config):
    assert not LAYOUTS[name].cannot(config)
    names = shapes(name, config)
    assert [layout.name for layout in LAYOUTS.values() if layout.recognises(names)] == [name]
    said = LAYOUTS[name].read_side(side(name, config)).config
    assert resolve(LAYOUTS[name], names, [("its config.json", said)], "file").normal() == config.normal()


@pytest.mark.parametrize(("name", "config"), MODELS.items())
def test_class_names_and_preprocessing_are_written_and_read(name, config):
    h = w = 8
    images = dict(
        image=[h, w], channels=3, fit="crop", size=10, interpolation="bicubic", background=255,
        mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225],
    )  # fmt: skip
    if name == "huggingface-siglip2":  # whose processor has no crop
        images |= dict(fit="stretch", size=8)
    config = replace(config, classes=0, pool="cls") if name.endswith("v5") else config
    names = [f"class {k}" for k in range(config.classes)]
    facts = LAYOUTS[name].read_side(side(name, config, preprocess=images, outputs=Outputs("", tuple(names))))
    assert facts.preprocess == images and facts.outputs.names == tuple(names)


def test_a_gated_mlp_has_silu_whatever_config_json_says():
    """As in the public files of DINOv2 giant: use_swiglu_ffn with hidden_act gelu."""
    name, config = "huggingface-dinov2@v4", replace(DINOV2, **GATED)
    files = side(name, config)
    files["config.json"]["hidden_act"] = "gelu"
    said = LAYOUTS[name].read_side(files).config
    assert resolve(LAYOUTS[name], shapes(name, config), [("its config.json", said)], "file") == config


@pytest.mark.parametrize(("family", "patch", "registers"), [("dinov2", 14, 0), ("dinov2_with_registers", 16, 4)])
def test_what_a_config_json_of_dinov2_leaves_out_is_what_the_library_takes(family, patch, registers):
    config = replace(DINOV2, image=224, patch=patch, heads=12, width=24, hidden=96, registers=registers)
    name = "huggingface-dinov2@v4"
    given = {"model_type": family, "hidden_size": 24, "num_hidden_layers": 2, "image_size": 224}
    said = LAYOUTS[name].read_side({"config.json": given}).config
    assert resolve(LAYOUTS[name], shapes(name, config), [("its config.json", said)], "file") == config


@pytest.mark.parametrize(("width", "ratio", "hidden"), [(1536, 4, 4096), (8, 2, 16), (12, 1, 8)])
def test_the_width_of_a_gated_mlp_is_two_thirds_of_the_ratio_in_eights(width, ratio, hidden):
    config = replace(DINOV2, **GATED, width=width, hidden=hidden)
    assert side("huggingface-dinov2@v4", config)["config.json"]["mlp_ratio"] == ratio


@pytest.mark.parametrize("body", ["dinov2.", "dinov2_with_registers."])
def test_a_body_without_classes_may_be_named_and_its_mask_token_comes_back(body):
    config = replace(DINOV2, classes=0, pool="cls", registers=2 * ("registers" in body))
    layout = LAYOUTS["huggingface-dinov2@v4"]
    state = {f"{body}{n}": array for n, array in tensors(layout, config).items()}
    state[f"{body}embeddings.mask_token"] = np.ones((1, 8), np.float32)
    assert layout.recognises({n: array.shape for n, array in state.items()})
    back = rules.read(layout.rows(config), state)
    again = rules.write(layout.rows(config), back, names=state)
    assert again.keys() == state.keys() and all(np.array_equal(again[n], state[n]) for n in state)


def test_blocks_of_dinov3_may_have_their_names_in_memory_and_an_empty_tensor_of_registers_comes_back():
    layout, config = LAYOUTS["huggingface-dinov3"], DINOV3
    state = {f"model.{n}" if n.startswith("layer.") else n: a for n, a in tensors(layout, config).items()}
    state |= {"embeddings.mask_token": np.ones((1, 1, 16)), "embeddings.register_tokens": np.ones((1, 0, 16))}
    assert layout.recognises({n: array.shape for n, array in state.items()})
    again = rules.write(layout.rows(config), rules.read(layout.rows(config), state), names=state)
    assert again.keys() == state.keys() and all(np.array_equal(again[n], state[n]) for n in state)


def test_what_a_config_json_of_dinov3_leaves_out_is_what_the_library_takes():
    config = replace(DINOV3, image=224, patch=16, heads=6, width=24, rotary_base=100.0)
    given = {"model_type": "dinov3_vit", "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 16}
    layout = LAYOUTS["huggingface-dinov3"]
    said = layout.read_side({"config.json": given}).config
    assert resolve(layout, shapes(layout.name, config), [("its config.json", said)], "file") == config
    whole = layout.read_side({"config.json": given | {"rope_theta": 100}}).config
    assert resolve(layout, shapes(layout.name, config), [("its config.json", whole)], "file") == config


def test_a_processor_that_resizes_floats_is_told_apart():
    given = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": {"height": 8, "width": 8}}
    facts = LAYOUTS["huggingface-dinov3"].read_side({"preprocessor_config.json": given})
    assert facts.preprocess["interpolation"] == "bilinear" and facts.preprocess["fit"] == "stretch"
    assert facts.preprocess["mean"] == [0.485, 0.456, 0.406]
    (note,) = facts.notes
    assert "pixels differ by up to 1/255" in note


TEXT = {
    "text_model.embeddings.token_embedding.weight": (7, 4),
    "text_model.encoder.layers.0.self_attn.q_proj.weight": (4, 4),
    "logit_scale": (),
}


@pytest.mark.parametrize(
    ("name", "config", "more"),
    [
        ("huggingface-siglip", SIGLIP, {"logit_bias": (1,)}),
        ("huggingface-clip", CLIP, {"text_projection.weight": (5, 4), "vision_model.embeddings.position_ids": (1, 5)}),
    ],
)
def test_of_two_towers_that_of_texts_is_left_out_and_named(tmp_path, name, config, more):
    others = {n: np.zeros(shape, np.float32) for n, shape in (TEXT | more).items()}
    inner = side(name, config)["config.json"]
    whole = {"model_type": inner.pop("model_type").partition("_")[0], "vision_config": inner, "text_config": {}}
    save_file(tensors(LAYOUTS[name], config) | others, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with read(str(tmp_path)).source as source:
        found = identify(source, Options())
    assert found.layout.name == name and found.config.normal() == config.normal()
    assert "text_model (2 tensors, no part of the network)" in found.left_out


@pytest.mark.parametrize("name", ["huggingface-siglip", "huggingface-clip"])
def test_a_tower_alone_may_have_its_prefix_or_none_and_goes_back_as_it_came(name):
    config, layout = (
        replace(MODELS[name], classes=0, **({} if name.endswith("clip") else {"pool": "map"})),
        LAYOUTS[name],
    )
    config = replace(config, pool="cls", final_norm=True) if name.endswith("clip") else config
    for body in ("", "vision_model."):
        state = {body + n.removeprefix("vision_model."): array for n, array in tensors(LAYOUTS[name], config).items()}
        assert layout.recognises({n: array.shape for n, array in state.items()})
        assert (
            rules.write(layout.rows(config), rules.read(layout.rows(config), state), names=state).keys() == state.keys()
        )


def test_older_files_of_clip_state_their_tower_twice_and_the_second_counts():
    inner = side("huggingface-clip", CLIP)["config.json"]
    files = {"model_type": "clip", "vision_config": inner | {"layer_norm_eps": 1.0}, "vision_config_dict": inner}
    assert LAYOUTS["huggingface-clip"].read_side({"config.json": files}).config["eps"] == CLIP.eps


def test_the_grid_of_siglip_2_is_the_square_of_its_positions_and_patches_are_in_our_order():
    layout, config = LAYOUTS["huggingface-siglip2"], replace(SIGLIP, image=12)
    files = side(layout.name, config)
    assert files["config.json"]["num_patches"] == 9 and "image_size" not in files["config.json"]
    names = shapes(layout.name, config)
    said = layout.read_side(files).config
    assert resolve(layout, names, [("its config.json", said)], "file").image == 12
    names |= {"vision_model.embeddings.position_embedding.weight": (10, 8)}
    with pytest.raises(UserError, match="cannot tell image"):
        resolve(layout, names, [("its config.json", said)], "file")
    weight = np.random.default_rng(0).standard_normal((8, 4 * 4 * 3)).astype(np.float32)
    (projection,) = [r for r in layout.rows(config) if r.ours == ("patch.kernel",)]
    assert np.array_equal(projection.read([weight])[0], weight.T)


def test_the_processor_of_siglip_2_is_that_of_a_square_picture_and_none_where_it_makes_something_else():
    layout, config = LAYOUTS["huggingface-siglip2"], replace(SIGLIP, image=16)
    given = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 4, "max_num_patches": 17}
    facts = layout.read_side({"preprocessor_config.json": given})
    assert facts.preprocess["image"] == [16, 16] and facts.preprocess["interpolation"] == "bilinear"
    assert (facts.preprocess["fit"], facts.preprocess["mean"]) == ("stretch", [0.5] * 3)
    assert "keeps the proportions of a picture" in facts.notes[0]
    files = side(layout.name, config, preprocess=facts.preprocess)["preprocessor_config.json"]
    assert (files["max_num_patches"], files["patch_size"], "size" in files) == (16, 4, False)
    assert len(side(layout.name, config, preprocess=facts.preprocess | {"fit": "crop"})) == 1
    for bad in ({"max_num_patches": "16"}, {"patch_size": 0}, {"max_num_patches": True}):
        found = layout.read_side({"preprocessor_config.json": given | bad})
        assert found.preprocess is None and "has no counterpart here" in found.notes[0]


@pytest.mark.parametrize(
    ("kind", "size"), [("Siglip", {"height": 8, "width": 8}), ("SiglipImageProcessorFast", None), ("CLIP", None)]
)
def test_what_a_processor_leaves_out_is_what_the_library_takes(kind, size):
    kind = kind if kind.endswith("Fast") else f"{kind}ImageProcessor"
    given = {"image_processor_type": kind} | ({"size": size} if size else {})
    given |= {"image_mean": [0.1] * 3, "image_std": [0.2] * 3} if kind.startswith("CLIP") else {}
    facts = LAYOUTS["huggingface-siglip"].read_side({"preprocessor_config.json": given})
    assert not facts.notes
    assert facts.preprocess["image"] == ([8, 8] if size else [224, 224])
    assert facts.preprocess["interpolation"] == "bicubic"
    assert facts.preprocess["fit"] == ("crop" if kind.startswith("CLIP") else "stretch")


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("before", "inside", "told"),
    [
        ("", "self_attn.qkv.weight", "a relative of CLIP"),
        ("vision_model.", "self_attn.qkv.weight", "a relative of CLIP"),
        ("vision_tower.vision_model.", "self_attn.q_proj.weight", "only its tower can be read"),
    ],
)
def test_relatives_with_clip_s_names_are_refused_by_name(before, inside, told):
    names = ["embeddings.patch_embedding.weight", f"encoder.layers.0.{inside}"]
    assert told in refused.why(before + name for name in names)


@pytest.mark.parametrize(
    ("name", "config", "told"),
    [
        ("huggingface-dinov2", replace(DINOV2, image=(8, 4)), "image is 8x4, but the class resizes its positions"),
        ("huggingface-dinov2", replace(DINOV2, pool="cls"), "the classifier reads class token and mean"),
        ("huggingface-dinov2", replace(DINOV2, classes=0), "without classes the feature is the class token"),
        ("huggingface-dinov2", replace(DINOV2, gated=True), "the gated mlp has 'silu'"),
        ("huggingface-dinov2", replace(DINOV2, key_bias=False), "query, key and value"),
        (
            "huggingface-dinov2",
            replace(DINOV2, hidden=20),
            "hidden is 20, which config.json states as a whole multiple",
        ),
        ("huggingface-dinov3", replace(DINOV3, classes=5), "classes is 5"),
        ("huggingface-siglip", replace(SIGLIP, classes=5), "its classifier takes the mean of the tokens"),
        ("huggingface-clip", replace(CLIP, head_bias=True), "to a projection without a bias"),
        ("huggingface-clip", replace(CLIP, final_norm=False), "the class token goes through the last norm"),
        ("huggingface-clip", replace(CLIP, pool="mean", head_bias=True), "without a norm before it"),
    ],
)
def test_what_no_class_computes_or_states_is_refused(name, config, told):
    for layout in (layout for layout in LAYOUTS.values() if layout.dialect == name):
        (reason,) = layout.cannot(config)
        assert told in reason


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (
            "huggingface-dinov2@v4",
            {"model_type": "vit"},
            "model_type is 'vit', but the tensors have the names of dinov2",
        ),
        ("huggingface-dinov2@v4", {"hidden_size": 8}, "model_type is None"),
        ("huggingface-dinov2@v4", {"model_type": "dinov2", "mlp_ratio": "4"}, "mlp_ratio is '4'"),
        ("huggingface-siglip", {"model_type": "siglip", "vision_config": [1]}, r"vision_config is \[1\]"),
        ("huggingface-clip", {"model_type": "metaclip_2"}, "model_type is 'metaclip_2'"),
    ],
)
def test_another_network_s_config_json_is_refused(name, given, told):
    with pytest.raises(UserError, match=told):
        LAYOUTS[name].read_side({"config.json": given})
