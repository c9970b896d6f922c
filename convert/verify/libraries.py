"""Networks of other libraries, each built from a file's own tensors, and where their inner values are found.

A library that is not installed, or whose installed version has other names, builds nothing: torch_ref then stands in.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vit_jax.config import TransformerConfig, ViTConfig, network_of, pair

from .. import rules
from ..dialects import LAYOUTS
from ..dialects import torch_ref as twin_names
from ..layout import Facts
from ..rules import Row
from .weights import Weights

Places = dict[str, tuple[str, str]]  # {our name of a value: (a module's path, "in" or "out")}
# Where torch_ref's networks have values that are not the outputs of a module of their name.
TWIN: Places = {"tokens": ("blocks.0", "in"), "features": ("norm", "out"), "memory": ("encoder", "out")}


class Unavailable(Exception):
    """Why a library cannot be asked about a network, in a clause."""


class Refused(Exception):
    """Why a library that should load a file does not, in a clause."""


@dataclass
class Built:
    """A torch module in evaluation mode, loaded. `rows` name its parameters; `call(module, inputs)` gives logits."""

    library: str
    module: Any
    rows: list[Row]
    call: Callable[[Any, dict[str, Any]], Any]
    places: Places = field(default_factory=dict)


def build(weights: Weights) -> tuple[Built, str]:
    """The network by its layout's library, else by torch_ref, and then why. Raises Refused where the library does not take the file."""
    library = LIBRARIES.get(weights.layout.dialect)
    if library is None:
        return twin(
            weights
        ), "" if weights.layout.dialect == "torch-ref" else f"no library is known to build {weights.layout.name}"
    try:
        return library(weights), ""
    except ImportError as error:
        return twin(weights), f"its library cannot be imported ({error})"
    except Unavailable as error:
        return twin(weights), str(error)


def load(library: str) -> Any:
    """A library. Raises ImportError where it is not installed or does not start.

    A torchvision built for another torch misses two operators that no network here uses: they are
    declared, so that it and what needs it (timm, transformers, vit-pytorch) start all the same.
    """
    _declare_operators()
    try:
        return importlib.import_module(library)
    except RuntimeError as error:
        raise ImportError(f"{library} does not start: {error}", name=library) from error


@functools.cache
def _declare_operators() -> Any:
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError:
        declared = importlib.import_module("torch").library.Library(
            "torchvision", "DEF"
        )  # as long as it is referred to
        for name in ("nms", "qnms"):
            declared.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return declared
    return None


def twin(weights: Weights) -> Built:
    """torch_ref's network, from our reading of the tensors. Raises Unavailable where it has none."""
    c: Any = weights.config
    row = network_of(c)
    if not row.torch:
        raise Unavailable(f"torch_ref has no twin of a {row.name}")
    import torch_ref

    wide = {n: a.astype(np.float64) for n, a in weights.parameters.items()}
    module = torch_ref.load(torch_ref.build(c).double(), wide)
    inside, inputs = dict(module.named_modules()), row.inputs(c)
    places = {n: at for n in row.captured(c) if (at := TWIN.get(n, (n, "out")))[0] in inside}

    def call(module: Any, given: dict[str, Any]) -> Any:
        sides = [given[one.name].permute(0, 3, 1, 2) if one.kind == "pixels" else given[one.name] for one in inputs]
        return module(*sides, **{one.padding: given[one.padding] for one in inputs if one.padding})

    return Built("torch_ref", module, twin_names.rows(c), call, places)


def _images(module: Any, given: dict[str, Any]) -> Any:
    return module(given["images"].permute(0, 3, 1, 2))  # [B, h, w, C] -> [B, C, h, w]


def _state(weights: Weights) -> dict[str, Any]:
    """The file's tensors as torch's, in float64, in which what a file holds is exact."""
    import torch

    return {
        n: torch.from_numpy(np.array(a, a.dtype if a.dtype.kind in "iub" else np.float64, order="C"))
        for n, a in weights.tensors.items()
    }


def _loaded(module: Any, weights: Weights, state: dict[str, Any] | None = None) -> Any:
    """The module in float64 with the file's tensors. Raises Refused where it does not take them."""
    module = module.double()
    try:
        module.load_state_dict(_state(weights) if state is None else state)
    except RuntimeError as error:
        raise Refused(" ".join(str(error).split())[:300]) from error
    return module


def _version(library: str) -> str:
    from importlib.metadata import version

    return f"{library} {version(library.replace('_', '-'))}"


# ------------------------------------------------------------------------------------ one a dialect


def timm(weights: Weights) -> Built:
    """timm's VisionTransformer, or its distilled one."""
    load("timm")
    from torch import nn

    c = weights.config
    assert isinstance(c, ViTConfig)
    layers = importlib.import_module("timm.layers")
    acts = {
        "gelu": nn.GELU,
        "gelu_tanh": functools.partial(nn.GELU, approximate="tanh"),
        "relu": nn.ReLU,
        "silu": nn.SiLU,
    }
    options: dict[str, Any] = dict(  # timm cuts width times mlp_ratio down to a whole number
        img_size=pair(c.image),
        patch_size=pair(c.patch),
        in_chans=c.channels,
        num_classes=c.classes,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        mlp_ratio=(c.hidden + 0.5) / c.width,
        qkv_bias=c.query_bias,
        proj_bias=c.out_bias,
        qk_norm=c.qk_norm,
        init_values=c.layer_scale or None,
        pre_norm=c.pre_norm,
        norm_layer=functools.partial(nn.LayerNorm, eps=c.eps, bias=c.norm_bias),
        act_layer=acts.get(c.activation) or layers.get_act_layer(c.activation),
        embed_norm_layer=functools.partial(nn.LayerNorm, eps=c.eps) if c.stem_norm else None,
    )
    if c.gated and any(".fc1_g." in n for n in weights.tensors):
        options["mlp_layer"] = layers.SwiGLU
    elif c.gated:
        options |= {
            "mlp_layer": functools.partial(layers.SwiGLUPacked, act_layer=options["act_layer"]),
            "mlp_ratio": (2 * c.hidden + 0.5) / c.width,
        }
    if c.distill_head:
        module = importlib.import_module("timm.models.deit").VisionTransformerDistilled(**options)
    else:
        pool = {"cls": "token", "mean": "avg", "mean_all": "avg", "map": "map"}
        if c.pool not in pool:
            raise Unavailable(f"timm has no pooling {c.pool!r} with one head")
        module = importlib.import_module("timm.models.vision_transformer").VisionTransformer(
            global_pool=pool[c.pool],
            pool_include_prefix=c.pool == "mean_all",
            class_token=c.cls_token,
            reg_tokens=c.registers,
            fc_norm=c.head_norm,
            final_norm=c.final_norm or c.head_norm,
            no_embed_class=bool(c.prefix) and c.position_rows == c.patches,
            **options,
        )
    rows, state = weights.rows, None
    if rules.file_shapes(rows) != {
        n: tuple(t.shape) for n, t in module.state_dict().items()
    }:  # an older file, which its own reader knows
        state = importlib.import_module("timm.models.vision_transformer").checkpoint_filter_fn(_state(weights), module)
        rows = rules.narrow(LAYOUTS["timm"].rows(c), module.state_dict())
    module = _loaded(module, weights, state)
    places: Places = {"tokens": ("blocks.0", "in"), **{f"blocks.{i}": (f"blocks.{i}", "out") for i in range(c.depth)}}
    return Built(
        _version("timm"), module, rows, _images, places | ({"features": ("norm", "out")} if c.final_norm else {})
    )


def torchvision(weights: Weights) -> Built:
    """torchvision's VisionTransformer, which renames the older mlp names itself."""
    load("torchvision")
    from torch import nn

    c = weights.config
    assert isinstance(c, ViTConfig)
    hidden = dict(representation_size=c.head_hidden) if c.head_hidden else {}
    module = importlib.import_module("torchvision.models.vision_transformer").VisionTransformer(
        pair(c.image)[0],
        pair(c.patch)[0],
        c.depth,
        c.heads,
        c.width,
        c.hidden,
        num_classes=c.classes,
        norm_layer=functools.partial(nn.LayerNorm, eps=c.eps),
        **hidden,
    )
    if c.channels != 3:  # its constructor knows no other
        module.conv_proj = nn.Conv2d(c.channels, c.width, pair(c.patch), pair(c.patch))
    module = _loaded(module, weights)
    blocks = "encoder.layers.encoder_layer_"
    places: Places = {
        "tokens": (f"{blocks}0", "in"),
        **{f"blocks.{i}": (f"{blocks}{i}", "out") for i in range(c.depth)},
        "features": ("encoder.ln", "out"),
    }
    newest = [layout for layout in LAYOUTS.values() if layout.dialect == "torchvision"][-1]
    return Built(_version("torchvision"), module, newest.rows(c), _images, places)


def huggingface(weights: Weights) -> Built:
    """ViT and DeiT of transformers, by the config.json that we write and from_pretrained's own reading of names."""
    c = weights.config
    assert isinstance(c, ViTConfig)
    module = _pretrained(weights, **({} if c.classes else {"add_pooling_layer": bool(c.head_hidden)}))
    body = next((name for name, _ in module.named_children() if name in ("vit", "deit")), "")
    at = f"{body}." if body else ""
    places: Places = {
        "tokens": (f"{at}layers.0", "in"),
        **{f"blocks.{i}": (f"{at}layers.{i}", "out") for i in range(c.depth)},
        "features": (f"{at}layernorm", "out"),
    }
    rows = rules.narrow(LAYOUTS["huggingface@v5"].rows(c), module.state_dict())

    def call(module: Any, given: dict[str, Any]) -> Any:
        out = module(pixel_values=given["images"].permute(0, 3, 1, 2))
        return out.logits if c.classes else out.pooler_output if c.head_hidden else out.last_hidden_state[:, 0]

    return Built(_version("transformers"), module, rows, call, places)


def sequences(weights: Weights) -> Built:
    """Marian, BART and mBART of transformers."""
    c = weights.config
    assert isinstance(c, TransformerConfig)
    module = _pretrained(weights)
    _whole_gradients(module)
    _exact_sinusoids(module, c)
    body = "model." if c.outputs else ""
    places: Places = {
        f"{s}.blocks.{i}": (f"{body}{s}.layers.{i}", "out")
        for s, n in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth))
        for i in range(n)
    }

    def call(module: Any, given: dict[str, Any]) -> Any:
        out = module(
            input_ids=given["source"],
            attention_mask=given["source_padding"].long(),
            decoder_input_ids=given["target"],
            use_cache=False,
        )
        return out.logits if c.outputs else out.last_hidden_state

    return Built(_version("transformers"), module, weights.rows, call, places)


def _whole_gradients(module: Any) -> None:
    """Of every row of an embedding: torch drops that of the padding's, which no other function of the weights does."""
    import torch

    for each in module.modules():
        if isinstance(each, torch.nn.Embedding):
            each.padding_idx = None


def _exact_sinusoids(module: Any, c: TransformerConfig) -> None:
    """Marian's table is computed in float32: where it is the sinusoids of its paper, they take its place in float64."""
    import torch

    if c.position != "concatenated":
        return
    angles = np.arange(c.max_length)[:, None] * 10000.0 ** (-2 * np.arange(c.width // 2) / c.width)
    exact = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))
    for stack in (module.get_encoder(), module.get_decoder()):
        table = stack.embed_positions.weight
        if table.shape == exact.shape and (table - exact).abs().max() < 1e-4:
            table.data = exact


def _pretrained(weights: Weights, **more: Any) -> Any:
    """A model of transformers from our side files. Raises Refused where it does not take every tensor."""
    transformers = load("transformers")
    extra = {**dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=2), **weights.facts.extra}
    said = weights.layout.write_side(weights.config, Facts(extra=extra))["config.json"]
    architecture = said.pop("architectures")[0]
    config = transformers.AutoConfig.for_model(**said)
    torch, log = importlib.import_module("torch"), importlib.import_module("transformers.utils.logging")
    with (
        tempfile.TemporaryDirectory() as room,
        _silent(log),
    ):  # from_pretrained reads files: only it knows the older names
        importlib.import_module("safetensors.torch").save_file(
            _state(weights), f"{room}/model.safetensors", {"format": "pt"}
        )
        config.save_pretrained(room)
        options: dict[str, Any] = dict(
            dtype=torch.float64, attn_implementation="sdpa", output_loading_info=True
        )  # its eager attention casts to float32
        module, loaded = getattr(transformers, architecture).from_pretrained(room, **options, **more)
    bad = {what: sorted(map(str, names)) for what, names in loaded.items() if names and what != "error_msgs"}
    if bad:
        raise Refused(f"transformers reports {bad}")
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


def vit_pytorch(weights: Weights) -> Built:
    """vit-pytorch's ViT or SimpleViT, of the installed version's names."""
    c = weights.config
    assert isinstance(c, ViTConfig)
    load("vit_pytorch")
    if reasons := weights.layout.unstated(c):
        raise Unavailable("; ".join(reasons))
    common = dict(
        image_size=pair(c.image),
        patch_size=pair(c.patch),
        num_classes=c.classes,
        dim=c.width,
        depth=c.depth,
        heads=c.heads,
        mlp_dim=c.hidden,
        channels=c.channels,
        dim_head=c.resolved_head_width,
    )
    if c.position == "learned":
        module = importlib.import_module("vit_pytorch").ViT(pool="cls" if c.pool == "cls" else "mean", **common)
    else:
        simple = importlib.import_module("vit_pytorch.simple_vit")
        module = simple.SimpleViT(**common)
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # its table is float32 otherwise
        module.pos_embedding = simple.posemb_sincos_2d(*c.grid, c.width, dtype=torch.float64)
        torch.set_default_dtype(before)
    newest = [layout for layout in LAYOUTS.values() if layout.dialect == weights.layout.dialect][-1]
    try:
        module = _loaded(module, weights)
    except Refused:
        if weights.layout.name == newest.name:
            raise
        raise Unavailable(f"the installed version has the names of {newest.name}") from None
    places: Places = {
        "tokens": ("transformer.layers.0.0", "in"),
        **{f"blocks.{i}": (f"transformer.layers.{i + 1}.0", "in") for i in range(c.depth - 1)},
    }
    places |= {f"blocks.{c.depth - 1}": ("transformer.norm", "in"), "features": ("transformer.norm", "out")}
    return Built(_version("vit_pytorch"), module, weights.rows, _images, places)


def torch_transformer(weights: Weights) -> Built:
    """torch.nn.Transformer, with the masks that our config implies."""
    import torch

    c = weights.config
    assert isinstance(c, TransformerConfig)
    acts: dict[str, Any] = {
        "gelu": torch.nn.functional.gelu, "relu": torch.nn.functional.relu, "silu": torch.nn.functional.silu,
        "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"), "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    }  # fmt: skip
    common: dict[str, Any] = dict(
        activation=acts[c.activation], layer_norm_eps=c.eps, batch_first=True, norm_first=c.norm_first, bias=c.bias
    )
    with warnings.catch_warnings(action="ignore"):  # it says which of its fast paths it will not take
        if not c.decoder_depth:
            norm = torch.nn.LayerNorm(c.width, c.eps, bias=c.norm_bias) if c.final_norm else None
            encoder = torch.nn.TransformerEncoder(
                torch.nn.TransformerEncoderLayer(c.width, c.heads, c.hidden, 0.0, **common), c.encoder_depth, norm
            )
            layers: Places = {f"encoder.blocks.{i}": (f"layers.{i}", "out") for i in range(c.encoder_depth)}
            return Built(f"torch {torch.__version__}", _loaded(encoder, weights), weights.rows, _encoder, layers)
        module = torch.nn.Transformer(c.width, c.heads, c.encoder_depth, c.decoder_depth, c.hidden, 0.0, **common)
    places: Places = {
        f"{s}.blocks.{i}": (f"{s}.layers.{i}", "out")
        for s, n in (("encoder", c.encoder_depth), ("decoder", c.decoder_depth))
        for i in range(n)
    }

    def call(module: Any, given: dict[str, Any]) -> Any:
        hidden, t = ~given["source_padding"], given["target"].shape[1]
        future = torch.ones(t, t, dtype=torch.bool).triu(1) if c.causal else None
        return module(
            given["source"],
            given["target"],
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )

    return Built(
        f"torch {torch.__version__}",
        _loaded(module, weights),
        weights.rows,
        call,
        places | {"memory": ("encoder", "out")},
    )


def _encoder(module: Any, given: dict[str, Any]) -> Any:
    return module(given["source"], src_key_padding_mask=~given["source_padding"])


LIBRARIES: dict[str, Callable[[Weights], Built]] = {
    "timm": timm, "torchvision": torchvision, "huggingface": huggingface, "vit-pytorch": vit_pytorch, "simple-vit": vit_pytorch,
    "torch-transformer": torch_transformer, "marian": sequences, "bart": sequences, "mbart": sequences,
}  # fmt: skip
