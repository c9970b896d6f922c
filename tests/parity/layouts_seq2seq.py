"""Encoder-decoder layouts against the libraries that they are named after, by the layout's rows there and back.

Each network is built by its own library, from the files that we write where it reads files; its outputs
are compared with ours, and what it saves is recognised, resolved and read back to the bit.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convert import rules
from convert.dialects import LAYOUTS
from convert.layout import Facts, Layout
from convert.recognise.config import resolve
from convert.verify.checks import Check, bits, values
from convert.verify.libraries.transformers import exact_norms, exact_sinusoids
from convert.verify.weights import Arrays
from vit_jax.models.transformer_config import TransformerConfig

from .cases import T5, T5_1, TRANSFORMER
from .libraries import absent, load
from .sides import ours
from .torch_nn import ACTIVATIONS, torch_masks
from .weights import Inputs, inputs, masks, weights

DTYPES = ("float64", "float32")
Call = Callable[[Inputs, str], Arrays]  # inputs, dtype -> {name: output}, of theirs


def reading(
    name: str, layout: Layout, state: Mapping[str, np.ndarray], said: dict[str, Any]
) -> tuple[TransformerConfig, Arrays]:
    """A state dict as the one layout that recognises it, of the config that its shapes and what is said give.

    Layouts that only --from chooses may recognise it too.
    """
    names = {key: value.shape for key, value in state.items()}
    found = [other for other in LAYOUTS.values() if other.recognises(names)]
    found = [
        other.name for other in found if other is layout or not (other.refuses("choice") or layout.refuses("choice"))
    ]
    if found != [layout.name]:
        raise ValueError(f"{name}: its names are those of {found}, not of {layout.name}")
    config = resolve(layout, names, [("--set", said)], name)
    return config, rules.read(layout.rows(config), state)


def returned(
    subject: str,
    against: str,
    layout: Layout,
    state: Mapping[str, np.ndarray],
    config: TransformerConfig,
    p: Arrays,
    said: dict[str, Any],
) -> Iterator[Check]:
    """What the library holds, read: the same config, the same tensors; and written again as it was."""
    found, back = reading(subject, layout, state, said)
    yield Check(
        subject,
        against,
        "config",
        float(replace(found, **_training(config)).normal() != config.normal()),
        0.0,
        str(found),
    )
    yield bits(subject, against, back, p)
    yield bits(subject, f"{against}, written", rules.write(layout.rows(found), back, names=state), state)


def _training(c: TransformerConfig) -> dict[str, Any]:
    """What only training reads, which no file of a library states."""
    return {name: getattr(c, name) for name in c.marked("training_only")}


def compared(
    subject: str, against: str, config: TransformerConfig, p: Arrays, given: Inputs, theirs: Call
) -> Iterator[Check]:
    """The outputs in both dtypes: the memory where the source is not padding, and the logits."""
    for dtype in DTYPES:
        seen, expected = ours(config, p, dtype).capture(given), theirs(given, dtype)
        rows = given.get("source_padding", np.ones(seen["memory"].shape[:2], bool))
        pair = [{k: side[k][rows] if k == "memory" else side[k] for k in expected} for side in (seen, expected)]
        yield values(subject, against, dtype, *pair, dtype)


def numpy_state(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


# ------------------------------------------------------------------------------------ Hugging Face

HF = replace(TRANSFORMER, decoder_depth=1, source_vocabulary=9, outputs=9, tie="all", eps=1e-5)
MARIAN = replace(HF, norm_first=False, final_norm=False, position="concatenated")
BART = replace(HF, norm_first=False, final_norm=False, position="learned", position_offset=2, embedding_norm=True)
MBART = replace(BART, norm_first=True, final_norm=True)
M2M = replace(HF, position="fairseq", position_offset=2, output_bias=False, scale_embedding=True)
UMT5 = replace(T5_1, relative="blocks", scale_output=True)
T5_BASE = replace(T5, tie="embeddings", outputs=0, scale_output=False, output_bias=True)
T5_ENCODER = replace(T5, decoder_depth=0, target_vocabulary=0, outputs=0, tie="none")
HUGGINGFACE: list[tuple[str, str, TransformerConfig]] = [
    ("Marian, swish, scaled embeddings", "marian", replace(MARIAN, activation="silu", scale_embedding=True)),
    ("Marian, two tables", "marian", replace(MARIAN, tie="decoder", source_vocabulary=11, activation="relu")),
    ("Marian, two tables and a head", "marian", replace(MARIAN, tie="none", source_vocabulary=11)),
    ("BART", "bart", BART),
    ("mBART, tanh GELU, scaled embeddings", "mbart", replace(MBART, activation="gelu_tanh", scale_embedding=True)),
    ("M2M-100", "m2m-100", replace(M2M, activation="relu")),
    ("Marian without a head, two tables", "marian@base", replace(MARIAN, tie="none", source_vocabulary=11, outputs=0)),
    ("Marian without a head", "marian@base", replace(MARIAN, tie="embeddings", outputs=0)),
    ("BART without a head", "bart@base", replace(BART, tie="embeddings", outputs=0)),
    ("mBART without a head", "mbart@base", replace(MBART, tie="embeddings", outputs=0)),
    ("M2M-100 without a head", "m2m-100@base", replace(M2M, tie="embeddings", outputs=0)),
    ("T5", "t5", T5),
    ("T5 1.1", "t5", T5_1),
    ("T5 1.1 with a tied head", "t5", replace(T5_1, tie="all")),
    ("UL2: T5 with SiLU gates", "t5", replace(T5_1, activation="silu")),
    ("T5 without a head", "t5@base", T5_BASE),
    ("T5, the encoder alone", "t5@encoder", T5_ENCODER),
    ("mT5", "mt5", T5_1),
    ("UMT5", "umt5", UMT5),
    ("UMT5, the encoder alone", "umt5@encoder", replace(T5_ENCODER, relative="blocks")),
]
IDS = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1, "forced_eos_token_id": 0}


def huggingface() -> Iterator[Check]:
    """Each folder loaded by the library's own class with nothing missing or left over; saved by it, and read again."""
    transformers = load("transformers")
    transformers.utils.logging.disable_progress_bar()
    for subject, name, config in HUGGINGFACE:
        layout, p = LAYOUTS[name], weights(config)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), layout, config, p)
            architecture = json.loads(Path(folder, "config.json").read_text())["architectures"][0]
            made = getattr(transformers, architecture)
            model, info = made.from_pretrained(folder, output_loading_info=True, attn_implementation="sdpa")
            odd = [f"{fault} {sorted(map(str, keys))}" for fault, keys in info.items() if keys]
            yield Check(subject, "transformers", "keys missing or left over", float(len(odd)), 0.0, "; ".join(odd))
            model.save_pretrained(folder)
            saved = {
                key: value.numpy()
                for key, value in load("safetensors.torch").load_file(f"{folder}/model.safetensors").items()
            }
            beside = [file for file in ("config.json", "generation_config.json") if Path(folder, file).exists()]
            side = layout.read_side({file: json.loads(Path(folder, file).read_text()) for file in beside})
        ids = {k: i for k, i in IDS.items() if config.outputs or hasattr(model.config, k)}  # M2M100Config forces no end
        ids = {k: i for k, i in ids.items() if k != "forced_eos_token_id" or config.relative == "none"}
        ids = {k: i for k, i in ids.items() if k in layout.extras or name != "t5@encoder"}
        yield Check(
            subject,
            "transformers",
            "ids of special tokens",
            float({k: side.extra[k] for k in ids} != ids),
            0.0,
            str(side.extra),
        )
        whole = numpy_state(model)
        if config.tie == "all" and config.relative != "none" and not config.scale_output:
            del whole["lm_head.weight"]  # a copy, which no file beside it tells from a head of its own
        for state in (saved, whole):  # without copies and sinusoids, and with
            yield from returned(subject, "transformers", layout, state, config, p, side.config)
        yield from compared(
            subject,
            "transformers",
            config,
            p,
            some(config),
            lambda given, dtype, model=model, c=config: seq2seq(model, c, given, dtype),
        )


def some(c: TransformerConfig) -> Inputs:
    """Ids and the source's padding; a row that is all padding has another context here than there."""
    given = inputs(c)
    return {
        "source": given["source"],
        **({"target": given["target"]} if c.decoder_depth else {}),
        "source_padding": np.arange(5) < np.array([[5], [3], [1]]),
    }


def write(folder: Path, layout: Layout, config: TransformerConfig, p: Arrays) -> None:
    """A folder as the library reads it."""
    state = {name: torch.from_numpy(value) for name, value in rules.write(layout.rows(config), p).items()}
    load("safetensors.torch").save_file(state, folder / "model.safetensors", {"format": "pt"})
    for file, content in layout.write_side(config, Facts(extra=IDS)).items():
        (folder / file).write_text(json.dumps(content))


def seq2seq(model: Any, c: TransformerConfig, given: Inputs, dtype: str) -> Arrays:
    """Memory and logits, which without a head are the decoder's output.

    Marian's table of sinusoids is rounded to float32 even in a float64 model: there it is computed anew.
    """
    model = model.to(getattr(torch, dtype))
    exact_sinusoids(model, c)
    exact_norms(model)
    ids = {
        name: torch.from_numpy(given[side]).long()
        for name, side in (("input_ids", "source"), ("decoder_input_ids", "target"))
        if side in given
    }
    with torch.no_grad():
        out = model(**ids, attention_mask=torch.from_numpy(given["source_padding"]).long())
    if not c.decoder_depth:
        return {"memory": out.last_hidden_state.numpy()}
    return {
        "memory": out.encoder_last_hidden_state.numpy(),
        "logits": (out.logits if "logits" in out else out.last_hidden_state).numpy(),
    }


# ---------------------------------------------------------------------------- torch.nn.Transformer

VECTORS = replace(
    TRANSFORMER,
    decoder_depth=1,
    source_vocabulary=0,
    target_vocabulary=0,
    outputs=0,
    position="none",
    max_length=0,
    eps=1e-5,
)


def torch_transformers() -> Iterator[Check]:
    """Both norm orders, with biases and without, and what a state dict does not show: heads, activation, eps, masks."""
    layout = LAYOUTS["torch-transformer"]
    for norm_first, bias, activation, which in (
        (False, True, "relu", "both"),
        (True, False, "silu", "causal"),
        (True, True, "gelu", "none"),
    ):
        c = replace(
            VECTORS, norm_first=norm_first, bias=bias, norm_bias=bias, activation=activation, causal=which != "none"
        )
        module = (
            nn.Transformer(
                c.width,
                c.heads,
                c.encoder_depth,
                c.decoder_depth,
                c.hidden,
                0.0,
                ACTIVATIONS[activation],
                layer_norm_eps=c.eps,
                batch_first=True,
                norm_first=norm_first,
                bias=bias,
            )
            .double()
            .eval()
        )
        p, subject = (
            weights(c),
            f"Transformer, {'pre' if norm_first else 'post'}-norm, {activation}{'' if bias else ', no bias'}",
        )
        module.load_state_dict(
            {name: torch.from_numpy(value) for name, value in rules.write(layout.rows(c), p).items()}
        )
        said = {name: getattr(c, name) for name in ("heads", "activation", "norm_first", "eps", "causal")}
        yield from returned(subject, "torch.nn", layout, numpy_state(module), c, p, said)
        chosen = masks(c, which)

        def call(given: Inputs, dtype: str, module: nn.Module = module, chosen: Inputs = chosen) -> Arrays:
            source, target = (torch.from_numpy(given[side]).to(getattr(torch, dtype)) for side in ("source", "target"))
            return {
                "logits": module.to(source.dtype)(source, target, **torch_masks(chosen, target.shape[1]))
                .detach()
                .numpy()
            }

        paddings = {k: v for k, v in chosen.items() if k.endswith("padding")}
        given = {k: v for k, v in inputs(c).items() if k in ("source", "target")}
        yield from compared(subject, "torch.nn", c, p, {**given, "memory_padding": None, **paddings}, call)


def torch_encoders() -> Iterator[Check]:
    """TransformerEncoder, with a norm at its end and without."""
    layout = LAYOUTS["torch-transformer@encoder"]
    for final_norm in (False, True):
        c = replace(VECTORS, decoder_depth=0, final_norm=final_norm, norm_first=final_norm)
        layer = nn.TransformerEncoderLayer(
            c.width, c.heads, c.hidden, 0.0, "gelu", c.eps, batch_first=True, norm_first=c.norm_first
        )
        module = (
            nn.TransformerEncoder(
                layer, c.encoder_depth, nn.LayerNorm(c.width, c.eps) if final_norm else None, enable_nested_tensor=False
            )
            .double()
            .eval()
        )
        p, subject = weights(c), f"TransformerEncoder{' with norm' if final_norm else ''}"
        module.load_state_dict(
            {name: torch.from_numpy(value) for name, value in rules.write(layout.rows(c), p).items()}
        )
        said = {name: getattr(c, name) for name in ("heads", "activation", "norm_first", "eps")}
        yield from returned(subject, "torch.nn", layout, numpy_state(module), c, p, said)
        given: Inputs = {
            "source": inputs(c)["source"],
            "target": None,
            "source_padding": np.arange(5) < np.array([[5], [3], [1]]),
        }

        def call(given: Inputs, dtype: str, module: nn.Module = module) -> Arrays:
            x = torch.from_numpy(given["source"]).to(getattr(torch, dtype))
            return {
                "memory": module.to(x.dtype)(x, src_key_padding_mask=torch.from_numpy(~given["source_padding"]))
                .detach()
                .numpy()
            }

        yield from compared(subject, "torch.nn", c, p, given, call)


# -------------------------------------------------------------------------------------- a notebook


class Attention(nn.Module):
    """Heads that are Linears of their own, side by side, and a Linear over all of them."""

    def __init__(self, width: int, heads: int, head_width: int):
        super().__init__()
        self.heads = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(width, head_width) for name in "qkv"}) for _ in range(heads)
        )
        self.linear = nn.Linear(heads * head_width, width)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        done = []
        for head in self.heads:
            q, k, v = head["q"](query), head["k"](memory), head["v"](memory)  # type: ignore[index, operator]
            done.append(torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v)
        return self.linear(torch.cat(done, -1))


class Residual(nn.Module):
    """What a sublayer makes of its input, added to it, and normed."""

    def __init__(self, sublayer: nn.Module, width: int):
        super().__init__()
        self.sublayer, self.norm = sublayer, nn.LayerNorm(width)

    def forward(self, x: Tensor, *memory: Tensor) -> Tensor:
        return self.norm(x + self.sublayer(x, *memory))


class Notebook(nn.Module):
    """The notebook's encoder-decoder, by its description: names, shapes and order of operations."""

    def __init__(self, c: TransformerConfig):
        super().__init__()

        def attention() -> Residual:
            return Residual(Attention(c.width, c.heads, c.resolved_head_width), c.width)

        def feed_forward() -> Residual:
            return Residual(
                nn.Sequential(nn.Linear(c.width, c.hidden), nn.ReLU(), nn.Linear(c.hidden, c.width)), c.width
            )

        encoder = [
            nn.ModuleDict(dict(attention=attention(), feed_forward=feed_forward())) for _ in range(c.encoder_depth)
        ]
        decoder = [
            nn.ModuleDict(dict(attention_1=attention(), attention_2=attention(), feed_forward=feed_forward()))
            for _ in range(c.decoder_depth)
        ]
        self.encoder = nn.ModuleDict(dict(layers=nn.ModuleList(encoder)))
        self.decoder = nn.ModuleDict(dict(layers=nn.ModuleList(decoder), linear=nn.Linear(c.width, c.width)))

    def forward(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        x, y = (tokens + waves(tokens) for tokens in (source, target))
        for layer in self.encoder["layers"]:  # type: ignore[union-attr]
            x = layer["feed_forward"](layer["attention"](x, x))
        for layer in self.decoder["layers"]:  # type: ignore[union-attr]
            y = layer["feed_forward"](layer["attention_2"](layer["attention_1"](y, y), x))
        return {"memory": x, "logits": self.decoder["linear"](y)}  # type: ignore[operator]


NOTEBOOK = replace(
    VECTORS,
    heads=3,
    head_width=2,
    norm_first=False,
    final_norm=False,
    activation="relu",
    position="one_frequency",
    outputs=8,
    causal=False,
)


def waves(tokens: Tensor) -> Tensor:
    """sin(t) in even columns, cos(t) in odd ones."""
    t = torch.arange(tokens.shape[1], dtype=tokens.dtype)[:, None]
    return torch.where(torch.arange(tokens.shape[2]) % 2 == 0, t.sin(), t.cos())


def notebooks() -> Iterator[Check]:
    """A twin with the notebook's names."""
    c, subject, layout = NOTEBOOK, "the notebook's encoder-decoder", LAYOUTS["notebook-transformer"]
    p = weights(c)
    twin = Notebook(c).double()
    twin.load_state_dict({name: torch.from_numpy(value) for name, value in rules.write(layout.rows(c), p).items()})
    yield from returned(subject, "a twin", layout, numpy_state(twin), c, p, {})

    def call(given: Inputs, dtype: str) -> Arrays:
        source, target = (torch.from_numpy(given[side]).to(getattr(torch, dtype)) for side in ("source", "target"))
        return {name: value.detach().numpy() for name, value in twin.to(source.dtype)(source, target).items()}

    yield from compared(
        subject, "a twin", c, p, {k: v for k, v in inputs(c).items() if k in ("source", "target")}, call
    )


def layouts() -> Iterator[Check]:
    """All of them."""
    yield from torch_transformers()
    yield from torch_encoders()
    yield from notebooks()
    if "transformers" not in absent():
        yield from huggingface()
