"""Ours against the originals of torch.nn: Transformer, its stacks and layers, MultiheadAttention, with every option.

torch's masks are True where *not* to look. Weights are moved by the names in `names_*`: packed q, k, v
rows, (out, in) matrices.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn

from convert.verify.checks import Check, gradients, values
from convert.verify.sides import Ours
from convert.write.program.network import on_cpu
from vit_jax.models.attention import Attention, attention_mask
from vit_jax.models.decoder import Decoder, DecoderBlock
from vit_jax.models.transformer import Encoder, EncoderBlock
from vit_jax.models.transformer_config import TransformerConfig

from .sides import ByMap, ours
from .weights import MASKS, Inputs, inputs, masks, weights

TORCH = "torch.nn"
warnings.filterwarnings("ignore", message="enable_nested_tensor is True")  # and not used, with the fast path off
Tensors = dict[str, Tensor]
Mapping = Callable[[Tensors], Tensors]
# Functions: torch turns an activation that is a module into ReLU when it copies a layer into a stack.
ACTIVATIONS: dict[str, Any] = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": nn.functional.silu,
    "gelu_tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
}

VECTORS = TransformerConfig(
    width=8,
    heads=2,
    hidden=12,
    encoder_depth=1,
    decoder_depth=2,
    position="none",
    max_length=0,
    activation="relu",
    eps=1e-5,
    norm_first=False,
)


# ---------------------------------------------------------------------------- names, ours to torch's


def from_torch_mask(mask, heads=0):
    """A boolean mask of torch, True = ignore, in our form, True = attend: [B, Nk], or with heads 4-D."""
    keep = ~jnp.asarray(mask)
    if not heads:
        return keep
    return keep[None, None] if keep.ndim == 2 else keep.reshape(-1, heads, *keep.shape[1:])


def names_linear(p: Tensors, ours: str, theirs: str) -> Tensors:
    out = {f"{theirs}weight": p[f"{ours}.kernel"].T}
    return out | ({f"{theirs}bias": p[f"{ours}.bias"]} if f"{ours}.bias" in p else {})


def names_norm(p: Tensors, ours: str, theirs: str) -> Tensors:
    out = {f"{theirs}weight": p[f"{ours}.scale"]}
    return out | ({f"{theirs}bias": p[f"{ours}.bias"]} if f"{ours}.bias" in p else {})


def names_attention(p: Tensors, ours: str, theirs: str) -> Tensors:
    """q, k, v packed where they have one width, apart where not; their biases always packed."""
    parts = [f"{ours}{part}" for part in ("query", "key", "value")]
    kernels = [p[f"{part}.kernel"].T for part in parts]
    if len({k.shape for k in kernels}) == 1:
        out = {f"{theirs}in_proj_weight": torch.cat(kernels)}
    else:
        out = {f"{theirs}{letter}_proj_weight": k for letter, k in zip("qkv", kernels, strict=True)}
    if f"{parts[0]}.bias" in p:
        out[f"{theirs}in_proj_bias"] = torch.cat([p[f"{part}.bias"] for part in parts])
    return out | names_linear(p, f"{ours}out", f"{theirs}out_proj.")


def names_layer(p: Tensors, ours: str, theirs: str) -> Tensors:
    """One layer of the encoder or the decoder."""
    if f"{ours}attention.out.kernel" in p:
        out, norms = names_attention(p, f"{ours}attention.", f"{theirs}self_attn."), 2
    else:
        out, norms = names_attention(p, f"{ours}self_attention.", f"{theirs}self_attn."), 3
        out |= names_attention(p, f"{ours}cross_attention.", f"{theirs}multihead_attn.")
    for n in range(1, norms + 1):
        out |= names_norm(p, f"{ours}norm{n}", f"{theirs}norm{n}.")
    for n in (1, 2):
        out |= names_linear(p, f"{ours}mlp.fc{n}", f"{theirs}linear{n}.")
    return out


def names_stack(p: Tensors, ours: str, theirs: str) -> Tensors:
    out: Tensors = {}
    depth = len({k[len(ours) :].split(".")[1] for k in p if k.startswith(f"{ours}blocks.")})
    for i in range(depth):
        out |= names_layer(p, f"{ours}blocks.{i}.", f"{theirs}layers.{i}.")
    return out | (names_norm(p, f"{ours}norm", f"{theirs}norm.") if f"{ours}norm.scale" in p else {})


# ------------------------------------------------------------------------------------ comparisons


def both(
    name: str,
    mine: Ours,
    theirs: ByMap,
    given: Inputs,
    steep: bool,
    keep: Callable[[np.ndarray], np.ndarray] = lambda y: y,
) -> Iterator[Check]:
    """The outputs in mine.dtype and, if `steep`, the gradients."""
    y, expected = mine.forward(given), theirs.forward(given)
    yield values(name, TORCH, mine.dtype, {"output": keep(y)}, {"output": keep(expected)}, mine.dtype)
    if steep:
        cotangent = np.random.default_rng(1).standard_normal(y.shape)
        yield from gradients(name, TORCH, mine.gradients(given, cotangent), theirs.gradients(given, cotangent))


def torch_masks(which: Inputs, length: int) -> dict[str, Any]:
    """Our masks by nn.Transformer's names, True = ignore; a mask per head has its heads in the batch axis."""
    pairs = dict(
        source_padding="src_key_padding_mask",
        target_padding="tgt_key_padding_mask",
        memory_padding="memory_key_padding_mask",
        source_mask="src_mask",
        target_mask="tgt_mask",
        memory_mask="memory_mask",
    )
    out = {pairs[k]: torch.from_numpy(~v) for k, v in which.items() if k in pairs}
    out = {k: v.flatten(0, 1) if v.ndim == 4 else v for k, v in out.items()}
    if which.get("causal"):
        out["tgt_mask"] = torch.ones(length, length, dtype=torch.bool).triu(1)
    return out


def transformer(
    c: TransformerConfig, which: str, *, steep: bool = False, dtype: str = "float64", numbers: str = "A"
) -> Iterator[Check]:
    """nn.Transformer: vectors to vectors, final norms in both stacks."""
    module = nn.Transformer(
        c.width,
        c.heads,
        c.encoder_depth,
        c.decoder_depth,
        c.hidden,
        0.0,
        ACTIVATIONS[c.activation],
        layer_norm_eps=c.eps,
        batch_first=True,
        norm_first=c.norm_first,
        bias=c.bias,
    )
    p, chosen = weights(c, numbers), masks(c, which)
    given = {k: v for k, v in inputs(c, which=numbers).items() if k in ("source", "target")}

    def call(model: Any, source: Tensor, target: Tensor) -> Tensor:
        return model(source, target, **torch_masks(chosen, target.shape[1]))

    mine = ours(c, p, dtype)
    mine.call = lambda model, source, target: model(
        source, target, **{"memory_padding": None, **{k: _ours(v) for k, v in chosen.items()}}
    )
    theirs = ByMap(
        module,
        p,
        lambda p: names_stack(p, "encoder.", "encoder.") | names_stack(p, "decoder.", "decoder."),
        call,
        dtype,
    )
    order = "pre" if c.norm_first else "post"
    name = f"Transformer {order}-norm {c.activation} {'bias' if c.bias else 'no bias'} eps {c.eps:g}, {which}"
    yield from both(name, mine, theirs, given, steep)


def _ours(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def transformers() -> Iterator[Check]:
    """norm order x activation x bias x eps x masks; gradients with every mask in both orders, with bias and without."""
    for norm_first, activation, bias, eps, which in itertools.product(
        (False, True), ACTIVATIONS, (True, False), (1e-5, 1e-6, 1e-3), MASKS
    ):
        c = _config(norm_first=norm_first, activation=activation, bias=bias, eps=eps)
        yield from transformer(c, which, steep=activation == "gelu" and eps == 1e-5)
    for norm_first, which in itertools.product((False, True), MASKS):
        yield from transformer(_config(norm_first=norm_first), which, dtype="float32")
        yield from transformer(_config(norm_first=norm_first), which, numbers="B")


def _config(bias: bool = True, **fields: Any) -> TransformerConfig:
    return replace(VECTORS, bias=bias, norm_bias=bias, **fields)


def layers() -> Iterator[Check]:
    """One encoder layer, one decoder layer, the bare stacks with a final norm and without."""
    for norm_first, bias, which in itertools.product(
        (False, True), (True, False), ("none", "both", "empty rows", "per head")
    ):
        c = _config(norm_first=norm_first, bias=bias, activation="gelu")
        common = dict(
            dropout=0.0, activation="gelu", layer_norm_eps=c.eps, batch_first=True, norm_first=norm_first, bias=bias
        )
        encoder = nn.TransformerEncoderLayer(c.width, c.heads, c.hidden, **common)
        decoder = nn.TransformerDecoderLayer(c.width, c.heads, c.hidden, **common)
        title = f"{'pre' if norm_first else 'post'}-norm {'bias' if bias else 'no bias'}, {which}"
        for final in (False, True):
            norm = nn.LayerNorm(c.width, c.eps, bias=bias) if final else None
            c = _config(norm_first=norm_first, bias=bias, activation="gelu", final_norm=final)
            suffix = " with norm" if final else ""
            module = nn.TransformerEncoder(encoder, 1, norm, enable_nested_tensor=False)
            yield from _encoding(
                f"TransformerEncoder{suffix}, {title}", c, Encoder, "encoder.", module, names_stack, which
            )
            module = nn.TransformerDecoder(decoder, 2, norm)
            yield from _decoding(
                f"TransformerDecoder{suffix}, {title}", c, Decoder, "decoder.", module, names_stack, which
            )
        yield from _encoding(
            f"TransformerEncoderLayer, {title}", c, EncoderBlock, "encoder.blocks.0.", encoder, names_layer, which
        )
        yield from _decoding(
            f"TransformerDecoderLayer, {title}", c, DecoderBlock, "decoder.blocks.0.", decoder, names_layer, which
        )


def _below(c: TransformerConfig, prefix: str) -> dict[str, np.ndarray]:
    return {k[len(prefix) :]: v for k, v in weights(c).items() if k.startswith(prefix)}


def _part(cls: type, c: TransformerConfig, p: dict[str, np.ndarray], call: Callable[..., Any]) -> Ours:
    with on_cpu("float64"):
        return Ours(cls(c, jnp.float64), p, call=call)


def _encoding(
    name: str, c: TransformerConfig, cls: type, prefix: str, module: nn.Module, names: Any, which: str
) -> Iterator[Check]:
    p, chosen, source = _below(c, prefix), masks(c, which), inputs(c)["source"]
    batch, length = source.shape[:2]

    def call(model: Any, x: Any) -> Any:
        mask = attention_mask(
            batch, length, length, padding=_ours(chosen.get("source_padding")), mask=_ours(chosen.get("source_mask"))
        )
        return model(x, mask)

    given = torch_masks(chosen, 1)
    first = "src_mask" if cls is EncoderBlock else "mask"
    keywords = {first: given.get("src_mask"), "src_key_padding_mask": given.get("src_key_padding_mask")}
    theirs = ByMap(module, p, lambda p: names(p, "", ""), lambda model, x: model(x, **keywords))
    yield from both(name, _part(cls, c, p, call), theirs, {"x": source}, True)


def _decoding(
    name: str, c: TransformerConfig, cls: type, prefix: str, module: nn.Module, names: Any, which: str
) -> Iterator[Check]:
    p, chosen, both_inputs = _below(c, prefix), masks(c, which), inputs(c)
    memory, target = both_inputs["source"], both_inputs["target"]
    batch, length = target.shape[:2]

    def call(model: Any, x: Any, memory: Any) -> Any:
        padding, mask = _ours(chosen.get("target_padding")), _ours(chosen.get("target_mask"))
        own = attention_mask(batch, length, length, padding=padding, mask=mask, causal=chosen["causal"])
        padding, mask = _ours(chosen.get("memory_padding")), _ours(chosen.get("memory_mask"))
        return model(x, memory, own, attention_mask(batch, length, memory.shape[1], padding=padding, mask=mask))

    keywords = {k: v for k, v in torch_masks(chosen, length).items() if not k.startswith("src")}
    theirs = ByMap(module, p, lambda p: names(p, "", ""), lambda model, x, memory: model(x, memory, **keywords))
    yield from both(name, _part(cls, c, p, call), theirs, {"x": target, "memory": memory}, True)


def attentions() -> Iterator[Check]:
    """nn.MultiheadAttention: heads, biases, kdim, vdim, and torch's own masks through `from_torch_mask`."""
    rng = np.random.default_rng(0)
    given = {
        "query": rng.standard_normal((3, 4, 8)),
        "key": rng.standard_normal((3, 5, 8)),
        "value": rng.standard_normal((3, 5, 8)),
    }
    two, three, padding = rng.random((4, 5)) < 0.4, rng.random((3, 2, 4, 5)) < 0.4, rng.random((3, 5)) < 0.4
    three[1, :, 2], padding[2] = True, True  # a row, and an example, with nothing to look at
    for bias, (kdim, vdim) in itertools.product((True, False), ((8, 8), (6, 8), (8, 7), (6, 7))):
        shaped = {**given, "key": given["key"][..., :kdim], "value": given["value"][..., :vdim]}
        heads = three.reshape(6, 4, 5)
        for title, attn, pad in (
            ("none", None, None),
            ("2-D", two, None),
            ("per head", heads, None),
            ("padding", None, padding),
            ("both", two, padding),
        ):
            module = nn.MultiheadAttention(8, 2, bias=bias, kdim=kdim, vdim=vdim, batch_first=True)
            with on_cpu("float64"):
                layer = Attention(8, 2, 4, key_width=kdim, value_width=vdim, bias=bias, dtype=jnp.float64)
            p = _random(layer)

            def call(model: Any, query: Any, key: Any, value: Any, attn: Any = attn, pad: Any = pad) -> Any:
                mask = None if attn is None else from_torch_mask(attn, heads=2)
                return model(
                    query,
                    key,
                    value,
                    attention_mask(3, 4, 5, padding=None if pad is None else from_torch_mask(pad), mask=mask),
                )

            keywords = dict(
                attn_mask=None if attn is None else torch.from_numpy(attn),
                need_weights=False,
                key_padding_mask=None if pad is None else torch.from_numpy(pad),
            )
            theirs = ByMap(
                module,
                p,
                lambda p: names_attention(p, "", ""),
                lambda model, query, key, value, kw=keywords: model(query, key, value, **kw)[0],
            )
            name = f"MultiheadAttention {'bias' if bias else 'no bias'} kdim {kdim} vdim {vdim}, {title}"
            yield from both(name, Ours(layer, p, call=call), theirs, shaped, True)


def _random(layer: Any) -> dict[str, np.ndarray]:
    """Random float64 parameters of one layer."""
    from vit_jax.config.trees import flatten
    from vit_jax.models.state import split_model

    rng = np.random.default_rng(0)
    return {
        k: rng.standard_normal(v.shape) / np.sqrt(v.shape[0] if v.ndim == 2 else 4)
        for k, v in flatten(split_model(layer)[1]).items()
    }


def norms() -> Iterator[Check]:
    """nn.LayerNorm on tokens far from zero: the one-pass variance loses all digits there, in float32 already at 100."""
    from vit_jax.models.layers import LayerNorm

    rng = np.random.default_rng(0)
    p = {"scale": 1 + 0.3 * rng.standard_normal(8), "bias": rng.standard_normal(8)}
    for dtype, mean, std, limit in (
        ("float64", 1e3, 1.0, 1e-12),
        ("float64", 0, 0.003, 1e-12),
        ("float32", 10, 1.0, 1e-5),
        ("float32", 100, 1.0, 1e-4),
    ):
        for eps in (1e-5, 1e-6, 1e-12):
            with on_cpu(dtype):
                layer = Ours(LayerNorm(8, eps, dtype=jnp.dtype(dtype)), p, dtype, lambda model, x: model(x))
            theirs = ByMap(
                nn.LayerNorm(8, eps),
                p,
                lambda p: {"weight": p["scale"], "bias": p["bias"]},
                lambda model, x: model(x),
                dtype,
            )
            given = {"x": mean + std * rng.standard_normal((3, 7, 8))}
            out = {"output": layer.forward(given)}, {"output": theirs.forward(given)}
            yield values(
                f"LayerNorm eps {eps:g}, tokens of mean {mean:g}, std {std:g}", TORCH, dtype, *out, dtype, limit
            )
