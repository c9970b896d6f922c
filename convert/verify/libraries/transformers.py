"""transformers: ViT, DeiT, Marian, BART, mBART, M2M-100, T5, captioners, of torch and of its former Flax files."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

from ... import rules
from ...dialects import LAYOUTS, vision_encoder_decoder
from ...layout import Facts
from ..weights import Weights
from .built import Built, NotLoaded, Places, load, tensors, with_version

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
    "quick_gelu": "quick_gelu",
}


def network(c: ViTConfig) -> Any:
    """A classifier of ViT or DeiT of a config, with random weights."""
    transformers = load("transformers")
    family = "DeiT" if c.distill_token else "ViT"
    config = getattr(transformers, f"{family}Config")(
        image_size=c.image, patch_size=c.patch, num_channels=c.channels, hidden_size=c.width,
        num_hidden_layers=c.depth, num_attention_heads=c.heads, intermediate_size=c.hidden, num_labels=c.classes,
        layer_norm_eps=c.eps, qkv_bias=c.query_bias, hidden_act=ACTIVATIONS[c.activation],
        attn_implementation="sdpa",  # its eager attention casts to float32
    )  # fmt: skip
    teacher = "WithTeacher" if c.distill_head else ""
    return getattr(transformers, f"{family}ForImageClassification{teacher}")(config)


def images(weights: Weights) -> Built:
    """ViT and DeiT, by the config.json that we write and from_pretrained's own reading of names."""
    c: Any = weights.config
    module = load_pretrained(weights, **({} if c.classes else {"add_pooling_layer": bool(c.head_hidden)}))
    body = next((name for name, _ in module.named_children() if name in ("vit", "deit")), "")
    at = f"{body}." if body else ""
    places: Places = {
        "tokens": (f"{at}layers.0", "in"),
        **{f"blocks.{i}": (f"{at}layers.{i}", "out") for i in range(c.depth)},
        "features": (f"{at}layernorm", "out"),
    }
    rows = rules.narrow(LAYOUTS["huggingface@v5"].rows(c), module.state_dict())

    def call(module: Any, images: Any) -> Any:
        out = module(pixel_values=images.permute(0, 3, 1, 2))
        return out.logits if c.classes else out.pooler_output if c.head_hidden else out.last_hidden_state[:, 0]

    return Built(with_version("transformers"), module, rows, call, places)


def sentences(weights: Weights) -> Built:
    """Marian, BART, mBART, M2M-100 and T5."""
    c: Any = weights.config
    module = load_pretrained(weights)
    _whole_gradients(module)
    exact_sinusoids(module, c)
    exact_norms(module)
    t5 = hasattr(module.get_encoder(), "block")
    body, blocks = ("", "block") if t5 else ("model." if c.outputs else "", "layers")
    places: Places = {
        f"{stack}.blocks.{i}": (f"{body}{stack}.{blocks}.{i}", "out")
        for stack, depth in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth))
        for i in range(depth)
    }

    def call(module: Any, source: Any, target: Any, source_padding: Any) -> Any:
        ids = {"input_ids": source, "decoder_input_ids": target}
        out = module(**ids, attention_mask=source_padding.long(), use_cache=False)
        return out.logits if c.outputs else out.last_hidden_state

    def encode(module: Any, source: Any, source_padding: Any) -> Any:
        return module(input_ids=source, attention_mask=source_padding.long()).last_hidden_state

    version = "@encoder" if not c.decoder_depth else "" if c.outputs else "@base"
    layout = LAYOUTS[module.config.model_type.replace("_", "-") + version]
    rows = rules.narrow(layout.rows(c), module.state_dict())
    return Built(with_version("transformers"), module, rows, call if c.decoder_depth else encode, places)


def captions(weights: Weights) -> Built:
    """VisionEncoderDecoder of ViT or DeiT and GPT-2."""
    c: Any = weights.config
    d = c.vit.width
    pooler = {"encoder.pooler.dense.weight": np.zeros((d, d)), "encoder.pooler.dense.bias": np.zeros(d)}  # not read
    module = load_pretrained(replace(weights, tensors={**pooler, **weights.tensors}))
    places: Places = {
        "vit.tokens": ("encoder.layers.0", "in"),
        **{f"vit.blocks.{i}": (f"encoder.layers.{i}", "out") for i in range(c.vit.depth)},
        "vit.features": ("encoder.layernorm", "out"),
        "memory": ("enc_to_dec_proj", "out") if c.projected else ("encoder.layernorm", "out"),
        **{f"decoder.blocks.{i}": (f"decoder.transformer.h.{i}", "out") for i in range(c.text.decoder_depth)},
    }

    def call(module: Any, source: Any, target: Any, target_padding: Any = None) -> Any:
        kept = {} if target_padding is None else {"decoder_attention_mask": target_padding.long()}
        images = source.permute(0, 3, 1, 2)
        return module(pixel_values=images, decoder_input_ids=target, use_cache=False, **kept).logits

    named = rules.narrow(vision_encoder_decoder.rows(c, "v5"), module.state_dict())
    return Built(with_version("transformers"), module, named, call, places)


def flax_images(weights: Weights) -> Built:
    """ViT of its former Flax classes."""
    return images(replace(weights, tensors=_from_flax(weights.tensors)))


def flax_sentences(weights: Weights) -> Built:
    """Marian, BART, mBART and T5 of its former Flax classes."""
    return sentences(replace(weights, tensors=_from_flax(weights.tensors)))


def _from_flax(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A Flax file's arrays under torch's names, by the rule of transformers 4 (load_flax_weights_in_pytorch_model)."""
    out = {}
    for name, array in arrays.items():
        path, _, leaf = name.rpartition("/")
        if leaf == "kernel":
            array = array.transpose((3, 2, 0, 1) if array.ndim == 4 else None)
        leaf = "weight" if leaf in ("kernel", "scale", "embedding") else leaf
        out[f"{path}/{leaf}".lstrip("/").replace("/", ".")] = array
    return out


def _whole_gradients(module: Any) -> None:
    """Of every row of an embedding: torch drops that of the padding's, which no other function of the weights does."""
    import torch

    for each in module.modules():
        if isinstance(each, torch.nn.Embedding):
            each.padding_idx = None


def exact_sinusoids(module: Any, c: TransformerConfig) -> None:
    """Put exact sinusoids in the place of the tables of Marian and M2M-100, which hold them rounded to float32.

    M2M-100 takes the positions of all but padding, by its id; here an id means nothing: every token has its place.
    """
    import torch

    if c.position not in ("concatenated", "fairseq"):
        return
    half, first = c.width // 2, c.position_offset
    powers = np.linspace(0, 1, half) if c.position == "fairseq" else np.arange(half) / half
    angles = np.arange(first + c.max_length)[:, None] * 10000.0**-powers
    exact = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))

    def every_place(ids: Any, padding: int, past: int = 0) -> Any:
        return (torch.arange(ids.shape[1]) + padding + 1 + past).repeat(len(ids), 1)

    for stack in (module.get_encoder(), module.get_decoder()):
        positions = stack.embed_positions
        table = positions.weights if c.position == "fairseq" else positions.weight
        positions.create_position_ids_from_input_ids = every_place  # which Marian does not ask for
        if table.shape == exact.shape and (table - exact)[first:].abs().max() < 1e-4:
            table.data = exact.to(next(stack.parameters()).dtype)


def exact_norms(module: Any) -> None:
    """Let the norms of a T5 compute in the dtype of what they are given: its own take the mean square in float32."""
    import torch

    def forward(norm: Any, x: Any) -> Any:
        return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    for each in module.modules():
        if type(each).__name__ in ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm"):
            each.forward = types.MethodType(forward, each)


def load_pretrained(weights: Weights, **more: Any) -> Any:
    """A model of transformers from our side files."""
    transformers = load("transformers")
    extra = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 2, **weights.facts.extra}
    side = weights.layout.write_side(weights.config, Facts(extra=extra))["config.json"]
    architecture = side.pop("architectures")[0]
    config = transformers.AutoConfig.for_model(**side)
    torch, log = importlib.import_module("torch"), importlib.import_module("transformers.utils.logging")
    # It reads files, and nothing but from_pretrained knows the older names.
    with tempfile.TemporaryDirectory() as folder, _silent(log):
        save = importlib.import_module("safetensors.torch").save_file
        save(tensors(weights.tensors), f"{folder}/model.safetensors", {"format": "pt"})
        config.save_pretrained(folder)
        # Its eager attention casts to float32.
        options: dict[str, Any] = {"dtype": torch.float64, "attn_implementation": "sdpa", "output_loading_info": True}
        module, loaded = getattr(transformers, architecture).from_pretrained(folder, **options, **more)
    bad = {what: sorted(map(str, names)) for what, names in loaded.items() if names and what != "error_msgs"}
    if bad:
        raise NotLoaded(f"transformers reports {bad}")
    return module


@contextlib.contextmanager
def _silent(log: Any) -> Iterator[None]:
    """transformers without warnings and progress bars."""
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
