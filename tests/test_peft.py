"""LoRA adapters of peft: merged they are W + scaling * B A, computed by PyTorch in float64; others are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convert import rules
from convert.adapt import adaptations
from convert.dialects import LAYOUTS
from convert.layout import Facts, Outputs
from convert.plan.groups import stream
from convert.plan.plan import plan
from convert.recognise.reading import read
from vit_jax.errors import UserError
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

VIT = ViTConfig(image=8, patch=4, classes=5, width=12, depth=2, heads=3, hidden=20)
IDS = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
PLAIN = {"peft_type": "LORA", "base_model_name_or_path": "owner/base", "r": 2, "lora_alpha": 6}
QUERY = "vit.encoder.layer.1.attention.attention.query"


def base(folder: Path, layout: str, config) -> dict[str, torch.Tensor]:
    """A network in a layout's own folder, of random float64 numbers: {name: tensor}."""
    torch.manual_seed(0)
    shapes = rules.file_shapes(rules.narrow(LAYOUTS[layout].rows(config)))
    made = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    folder.mkdir()
    save_file(made, folder / "model.safetensors")
    for name, content in LAYOUTS[layout].write_side(config, Facts(extra=IDS)).items():
        (folder / name).write_text(json.dumps(content))
    return made


def adapter(folder: Path, tensors, **config) -> str:
    """The folder of an adapter with these tensors; the value of --adapt that merges it."""
    folder.mkdir()
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | config))
    return f"lora=merge:{folder}"


def factors(layer: str, out: int, *width: int) -> dict[str, torch.Tensor]:
    """Random factors of rank 2 of a layer [out, width...]."""
    ones = [1] * (len(width) - 1)
    return {f"{layer}.lora_A.weight": torch.randn(2, *width), f"{layer}.lora_B.weight": torch.randn(out, 2, *ones)}


def product(tensors, layer: str) -> torch.Tensor:
    """B A of a layer, in float64."""
    a, b = (tensors[f"{layer}.lora_{x}.weight"].double() for x in "AB")
    return (b.flatten(1) @ a.flatten(1)).reshape(len(b), *a.shape[1:])


def merged(folder: Path, layout: str, text: str) -> dict[str, torch.Tensor]:
    """The tensors that a conversion to the same layout writes."""
    reading = read(str(folder))
    with reading.source:
        return {name: torch.from_numpy(np.array(x)) for name, x in stream(plan(reading, layout, [text]))}


TEXT = TransformerConfig(
    width=8, heads=2, hidden=24, encoder_depth=0, decoder_depth=1, activation="gelu_tanh", eps=1e-5,
    position="learned", max_length=9, target_vocabulary=11, outputs=11, tie="decoder", output_bias=False,
)  # fmt: skip
CAPTIONS = CaptionerConfig(vit=replace(VIT, classes=0, eps=1e-12), text=TEXT)
WTE, SQUARE, PACKED = (f"decoder.transformer.{name}" for name in ("wte", "h.0.attn.c_proj", "h.0.attn.c_attn"))
NAMED, IN_MEMORY = "encoder.encoder.layer.1.attention.attention.query", "encoder.layers.1.attention.q_proj"
LAYERS = {  # layout, config, {layer of the adapter: [out, in...]}
    "in files": ("huggingface@v4", VIT, {QUERY: (12, 12), "vit.encoder.layer.0.output.dense": (12, 20)}),
    "in memory": ("huggingface@v4", VIT, {"vit.layers.1.attention.q_proj": (12, 12)}),
    "without a head": ("huggingface@v4", VIT, {QUERY.removeprefix("vit."): (12, 12)}),
    "packed, and patches": ("timm", VIT, {"blocks.0.attn.qkv": (36, 12), "patch_embed.proj": (12, 3, 4, 4)}),
    "stored (in, out)": ("vision-encoder-decoder", CAPTIONS, {SQUARE: (8, 8), PACKED: (24, 8), NAMED: (12, 12)}),
    "a part in memory": ("vision-encoder-decoder", CAPTIONS, {SQUARE: (8, 8), IN_MEMORY: (12, 12)}),
}
IN_FILES = {"vit.layers.1.attention.q_proj": QUERY, QUERY.removeprefix("vit."): QUERY, IN_MEMORY: NAMED}


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("case", LAYERS)
def test_the_product_of_factors_is_added(case, rslora, tmp_path):
    layout, config, layers = LAYERS[case]
    weights = base(tmp_path / "base", layout, config)
    tensors = {name: x for layer, shape in layers.items() for name, x in factors(layer, *shape).items()}
    made = merged(tmp_path / "base", layout, adapter(tmp_path / "lora", tensors, use_rslora=rslora))
    for layer in layers:
        change = (6 / (math.sqrt(2) if rslora else 2)) * product(tensors, layer)
        weights[f"{IN_FILES.get(layer, layer)}.weight"] += change.T if layer in (SQUARE, PACKED) else change
    assert made.keys() == weights.keys()
    assert all((made[name] - x).abs().max() < 1e-13 for name, x in weights.items())


def test_ranks_and_scalings_of_single_layers_lengths_and_embeddings(tmp_path):
    """rank_pattern and alpha_pattern name layers by their ends; DoRA's lengths are those of W + scaling * B A."""
    weights = base(tmp_path / "base", "vision-encoder-decoder", CAPTIONS)
    low, table = torch.randn(3, 11), torch.randn(8, 3)
    tensors = factors(NAMED, 12, 12) | factors(PACKED, 24, 8) | {f"{PACKED}.lora_magnitude_vector": torch.rand(24)}
    tensors |= {f"{WTE}.lora_embedding_A": low, f"{WTE}.lora_embedding_B": table}
    patterns = {"rank_pattern": {"wte": 3}, "alpha_pattern": {"attention.query": 10, "^c_attn": 99}}
    made = merged(tmp_path / "base", "vision-encoder-decoder", adapter(tmp_path / "lora", tensors, **patterns))
    weights[f"{NAMED}.weight"] += 10 / 2 * product(tensors, NAMED)
    weights[f"{WTE}.weight"] += 6 / 3 * (table.double() @ low.double()).T
    turned = weights[f"{PACKED}.weight"].T + 6 / 2 * product(tensors, PACKED)
    lengths = tensors[f"{PACKED}.lora_magnitude_vector"].double()[:, None]
    weights[f"{PACKED}.weight"] = (lengths * turned / turned.norm(dim=1, keepdim=True)).T
    assert all((made[name] - weights[name]).abs().max() < 1e-13 for name in weights)


@pytest.mark.parametrize("classes", [5, 7])
@pytest.mark.parametrize("headless", [False, True])
def test_a_head_of_the_adapters_own_replaces_that_of_the_base(classes, headless, tmp_path):
    weights = base(tmp_path / "base", "huggingface@v4", replace(VIT, classes=0) if headless else VIT)
    own = {"classifier.weight": torch.randn(classes, 12), "classifier.bias": torch.randn(classes)}
    text = adapter(tmp_path / "lora", factors(QUERY, 12, 12) | own, modules_to_save=["classifier"])
    made = merged(tmp_path / "base", "huggingface@v4", text)
    assert all(torch.equal(made[name], x.double()) for name, x in own.items())
    assert len(made) == len(weights) + 2 * headless
    (change,) = adaptations(replace(VIT, classes=0 if headless else 5), [text])
    assert (
        change.config.classes == classes
        and change.facts(Facts(outputs=Outputs("class", ("a",) * 5))).outputs.names == ()
    )


REFUSED = {
    "another kind": ({}, {"peft_type": "IA3"}, "peft_type is 'IA3'.*merge_and_unload"),
    "another start": ({}, {"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    "a rank that is none": ({}, {"r": 0}, "r is 0, which is no positive number"),
    "another rank": ({}, {"r": 4}, r"factors of .*query, \[2, 12\] and \[12, 2\], are not of rank 4"),
    "a pattern of another kind": ({}, {"rank_pattern": ["q"]}, "rank_pattern is no object"),
    "a rank in a text": ({}, {"rank_pattern": {"q": "3"}}, r"rank_pattern\['q'\] is '3'"),
    "an expression": ({}, {"alpha_pattern": {"(a+)+$": 2}}, "alpha_pattern has the expression"),
    "half of the factors": ({f"{QUERY}.lora_B.weight": None}, {}, "has no lora_B"),
    "a bias of B": ({f"{QUERY}.lora_B.bias": torch.ones(12)}, {}, "lora_B.bias is no factor"),
    "another width": (factors(QUERY, 12, 13), {}, r"is for .* \[12, 13\], and here it is \[12, 12\].*owner/base"),
    "another layer": (factors("model.q_proj", 12, 12), {}, "is for a network with model.q_proj.weight.*owner/base"),
    "half of a head": ({"classifier.weight": torch.ones(7, 12)}, {}, "classes than the network's, and head.bias"),
    "NaN": ({f"{QUERY}.lora_A.weight": torch.full((2, 12), math.nan)}, {}, "holds NaN"),
    "whole numbers": ({f"{QUERY}.lora_A.weight": torch.ones(2, 12, dtype=torch.int64)}, {}, "numbers with a point"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_more_or_less_than_factors_is_refused(what, tmp_path):
    tensors, config, says = REFUSED[what]
    every = {name: x for name, x in (factors(QUERY, 12, 12) | tensors).items() if x is not None}
    with pytest.raises(UserError, match=says):
        adaptations(VIT, [adapter(tmp_path / "lora", every, **config)])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            "LORA",
            r"LoRA adapter of peft for owner/base; .*`python -m convert hf://owner/base X\.safetensors --adapt lora",
        ),
        ("IA3", r"adapter of peft \(IA3\) for owner/base; merge it with peft"),
    ],
)
def test_an_adapter_alone_is_named_with_its_base_and_the_way(kind, says, tmp_path):
    adapter(tmp_path / "lora", factors(QUERY, 12, 12), peft_type=kind)
    for path in (tmp_path / "lora", tmp_path / "lora" / "adapter_model.safetensors"):
        with pytest.raises(UserError, match=says):
            read(str(path))
    (tmp_path / "lora" / "adapter_config.json").unlink()
    with pytest.raises(UserError, match=r"LoRA adapter of peft, .*`adapt lora=merge:FOLDER"):
        read(str(tmp_path / "lora"))
    for text, says in (("lora=merge", "give the folder"), (f"lora=merge:{tmp_path}", "no adapter_config.json")):
        with pytest.raises(UserError, match=says):
            adaptations(VIT, [text])
