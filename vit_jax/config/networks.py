"""The kinds of networks, one `NetworkRow` each: what other code needs to know of a network without building it.

Nothing here imports jax or torch: the classes that compute are named as text. To add a kind of network, write a config
class, a class that computes it, and a row here; no other code asks which kind a network is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import UserError
from .captioner import (
    HEADLESS,
    CaptionerConfig,
    captioner_captured,
    captioner_parameters,
    check_captioner,
    normal_captioner,
)
from .dotted import leaves, replaced, value_at
from .fields import ModelConfig, pair
from .nearest import nearest
from .resnet import (
    CAPTURED,
    ResNetConfig,
    check_resnet,
    normal_resnet,
    resnet_flops,
    resnet_parameters,
)
from .transformer import (
    TransformerConfig,
    check_transformer,
    normal_transformer,
    transformer_captured,
    transformer_parameters,
)
from .tree import Parameter
from .vit import ViTConfig, check_vit, flops, normal_vit, vit_captured, vit_parameters


@dataclass(frozen=True)
class Input:
    """One argument of a network, without its batch axis.

    pixels: normalised images of `shape` (h, w, C). ids: a sequence of integers below `size`. vectors: a sequence of
    vectors of width `size`. `longest` is the maximum length of a sequence (0: no limit). `padding` is the name of the
    boolean argument that is True at real tokens ("": the network has none).
    """

    name: str
    kind: Literal["pixels", "ids", "vectors"]
    shape: tuple[int, ...] = ()
    size: int = 0
    longest: int = 0
    padding: str = ""


@dataclass(frozen=True)
class NetworkRow:
    """One kind of network. The functions take a config of its class; of configs inside it, fields have dotted names."""

    name: str  # its name in files and messages
    config: type[ModelConfig]
    check: Callable[[Any], Any]  # returns the config; raises UserError naming the first invalid field
    normal: Callable[[Any], Any]  # the config in normal form: networks that compute the same function have equal ones
    parameters: Callable[[Any], dict[str, Parameter]]  # {dotted name: Parameter}, in reading order
    describe: Callable[[Any], tuple[str, str]]  # (what it is, what it costs), a few words each
    inputs: Callable[[Any], tuple[Input, ...]]  # its arguments in the order of a call
    # The names that `capture` accepts for any input, in the order of the forward pass; the last is the outputs.
    captured: Callable[[Any], list[str]]
    training: frozenset[str]  # fields that only training uses; they do not change the evaluation pass
    jax: str  # module:class that computes it in jax
    torch: str = ""  # module:class that computes it in PyTorch; empty: there is none
    depths: tuple[str, ...] = ()  # fields that count equal blocks
    # Why such networks are not trained, as a clause; empty: they are.
    frozen: str = ""
    # Floating-point operations of the forward pass of one example, 2 per multiply-add: 0 where data determine them.
    flops: Callable[[Any], int] = lambda c: 0
    # How many numbers the forward pass of one example holds at once, at least: 0 where data determine it.
    activations: Callable[[Any], int] = lambda c: 0
    # How many numbers the largest array has that the forward pass computes of one example: 0 where data determine it.
    largest: Callable[[Any], int] = lambda c: 0
    arguments: tuple[str, ...] = ()  # the positional arguments of a call; one that a config does not use is None
    from_data: tuple[str, ...] = ()  # sizes that the data of a run determines
    heads: tuple[str, ...] = ()  # prefixes of the names of the head's parameters, which --new-head draws at random
    # Fields that may then differ, as far as the weights have all other parameters that they ask for.
    head_fields: tuple[str, ...] = ()
    # The field that is the config of an encoder, whose parameters begin with the same name, and which --init-encoder
    # starts: the config has a property `encoder`, what of it counts. Empty: there is none.
    encoder: str = ""
    # What each recipe of fine-tuning (starting/recipes.py) trains, {its name: patterns of names}; empty: it has none.
    recipes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()  # fields that no name or shape of a parameter depends on
    # Regular expressions that recognise a file of its weights by full names of tensors: each must match one, or with a
    # leading "!" none. Once for our own parameter names, once for the state dict of the PyTorch class.
    names: tuple[str, ...] = ()
    torch_names: tuple[str, ...] = ()
    # config -> what the Hugging Face Hub calls the task of such a network; empty where the network does not tell.
    pipeline: Callable[[Any], str] = lambda c: ""
    # Small values of each numeric field, in order of preference, and combinations of fields to start from. convert
    # searches them for a network that two layouts can both hold.
    examples: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    combinations: tuple[Mapping[str, Any], ...] = ({},)


def _describe_vit(c: ViTConfig) -> tuple[str, str]:
    stem = f", stem {' '.join(map(str, c.stem))}" if c.stem else ""
    what = f"ViT {c.width} x {c.depth}, {c.heads} heads, {c.patches} patches{stem}"
    return what, f"{flops(c) / 1e6:,.1f} MFLOP an image"


def _describe_resnet(c: ResNetConfig) -> tuple[str, str]:
    groups = f", {c.groups} groups" if c.groups > 1 else ""
    what = f"ResNet {c.width} x {' + '.join(map(str, c.stages))} blocks{groups}"
    return what, f"{resnet_flops(c) / 1e6:,.1f} MFLOP an image"


def _vit_activations(c: ViTConfig) -> int:
    images = math.prod(pair(c.image)) * c.channels
    return images + sum(n_out * places for _, n_out, places in c.convolutions) + c.patches * c.width


def _vit_largest(c: ViTConfig) -> int:
    tokens = c.patches + sum(count for _, count, _ in c.prefix)
    # The stem's convolutions multiply the window of each place; their outputs are smaller.
    windows = (c.stem_kernel**2 * n_in * places for n_in, _, places in c.convolutions)
    return max(tokens * max(c.width, c.hidden), c.heads * tokens**2, *windows)


def _pixel_inputs(c: ViTConfig | ResNetConfig) -> tuple[Input, ...]:
    return (Input("images", "pixels", (*pair(c.image), c.channels)),)


def _describe_transformer(c: TransformerConfig) -> tuple[str, str]:
    return f"Transformer {c.width} x {c.encoder_depth}+{c.decoder_depth}, {c.heads} heads", f"{c.outputs:,} output ids"


def _transformer_inputs(c: TransformerConfig) -> tuple[Input, ...]:
    def side(name: str, vocabulary: int, padding: str) -> Input:
        return Input(
            name, "ids" if vocabulary else "vectors", size=vocabulary or c.width, longest=c.max_length, padding=padding
        )

    target = (side("target", c.target_vocabulary, ""),) if c.decoder_depth else ()
    source = side("source", c.source_vocabulary, "source_padding")
    if not c.encoder_depth:  # the memory, to whose vectors no positions are added
        source = Input("source", "vectors", size=c.width, padding="source_padding")
    return (source, *target)


def _describe_captioner(c: CaptionerConfig) -> tuple[str, str]:
    text = f"decoder {c.text.width} x {c.text.decoder_depth}, {c.text.heads} heads"
    if c.encoder is None:
        return f"Captioner of vectors {c.memory_width} wide, {text}", f"{c.text.outputs:,} output ids"
    what, cost = _describe_vit(c.encoder)
    return f"Captioner: {what}; {text}", f"{cost} before the decoder, {c.text.outputs:,} output ids"


def _captioner_inputs(c: CaptionerConfig) -> tuple[Input, ...]:
    if c.encoder is None:
        source = Input("source", "vectors", size=c.memory_width, padding="memory_padding")
    else:
        source = replace(_pixel_inputs(c.encoder)[0], name="source")
    return (source, *_transformer_inputs(c.text)[1:])


_INITIAL = frozenset({"init", "attention_init", "init_std", "position_std"})
_DROPOUT = frozenset({"dropout", "embedding_dropout", "attention_dropout", "activation_dropout"})
# A parameter of every Transformer, also of one without an encoder or without a decoder.
_QUERY = r"(encoder\.blocks\.0\.attention|decoder\.blocks\.0\.cross_attention)\.query"

NETWORKS: dict[str, NetworkRow] = {
    "vit": NetworkRow(
        name="ViT",
        config=ViTConfig,
        check=check_vit,
        normal=normal_vit,
        parameters=vit_parameters,
        describe=_describe_vit,
        inputs=_pixel_inputs,
        captured=vit_captured,
        training=_INITIAL | _DROPOUT | {"token_std", "head_zero", "drop_path", "patch_dropout", "head_dropout"},
        jax="vit_jax.vit:ViT",
        torch="torch_ref.vit:ViT",
        pipeline=lambda c: "image-classification" if c.classes else "image-feature-extraction",
        depths=("depth",),
        flops=flops,
        activations=_vit_activations,
        largest=_vit_largest,
        arguments=("images",),
        from_data=("classes",),
        heads=("head.", "distill_head.", "distill_norm."),
        head_fields=(
            "classes", "head_bias", "distill_head", "distill_norm", "pool", "pool_heads", "pool_hidden",
        ),
        recipes={
            "full": ("*",), "head": ("head.*", "distill_head.*"),
            "attention": ("blocks.*.attention.*", "position", "head.*", "distill_head.*"),
        },
        unseen=frozenset({
            "eps", "activation", "heads", "head_activation", "pool_heads", "rotary", "rotary_pairs", "rotary_places",
            "rotary_first", "rotary_base", "rotary_periods", "rotary_offset", "rotary_grid",
        }),
        names=(r"patch\.kernel", r"blocks\.0\.attention\.query\.kernel"),
        torch_names=(r"patch\.weight", r"blocks\.0\.attention\.query\.weight"),
        examples={
            "image": (8, (8, 12)), "patch": (4, (4, 2), 2), "channels": (3, 1), "classes": (5, 0), "width": (12, 8),
            "depth": (2, 1), "heads": (2, 1), "head_width": (0, 5), "hidden": (20, 16, 24), "registers": (0, 2),
            "stem": ((), (6,)), "stem_kernel": (4, 3),
            "eps": (1e-6, 1e-5, 1e-12, 1e-3), "layer_scale": (0.0, 1.0), "head_hidden": (0, 7, 12),
            "pool_heads": (0, 1), "pool_hidden": (0, 14),
            "rotary_base": (100.0, 1e4), "rotary_offset": (0.0, 1.0), "rotary_grid": (0, (3, 2)),
        },
        combinations=({}, {"cls_token": False, "pool": "mean"}, {"cls_token": False, "pool": "mean_all"}),
    ),
    "transformer": NetworkRow(
        name="Transformer",
        config=TransformerConfig,
        check=check_transformer,
        normal=normal_transformer,
        parameters=transformer_parameters,
        describe=_describe_transformer,
        inputs=_transformer_inputs,
        captured=transformer_captured,
        training=_INITIAL | _DROPOUT | {"embedding_std"},
        jax="vit_jax.transformer:Transformer",
        torch="torch_ref.transformer:Transformer",
        depths=("encoder_depth", "decoder_depth"),
        arguments=("source", "target"),
        from_data=("source_vocabulary", "target_vocabulary", "outputs"),
        heads=("head.",),
        head_fields=("outputs", "output_bias"),
        unseen=frozenset({"eps", "activation", "heads", "scale_embedding", "causal"}),
        names=(rf"{_QUERY}\.kernel", r"!(vit\.patch|memory)\.kernel"),
        torch_names=(rf"{_QUERY}\.weight", r"!(vit\.patch|memory)\.weight"),
        examples={
            "width": (12, 8), "heads": (2, 1), "head_width": (0, 5), "hidden": (20,), "encoder_depth": (2, 1, 0),
            "decoder_depth": (2, 1, 0), "eps": (1e-5, 1e-6), "source_vocabulary": (0, 11, 9),
            "target_vocabulary": (0, 11, 9), "outputs": (0, 11, 9, 12), "position_offset": (0, 2),
            "max_length": (6, 512, 0),
        },
        combinations=(
            {},
            {"source_vocabulary": 11, "target_vocabulary": 11, "outputs": 11, "max_length": 6},
            {"source_vocabulary": 9, "target_vocabulary": 11, "outputs": 11, "max_length": 6},
        ),
    ),
    "resnet": NetworkRow(
        name="ResNet",
        config=ResNetConfig,
        check=check_resnet,
        normal=normal_resnet,
        parameters=resnet_parameters,
        describe=_describe_resnet,
        inputs=_pixel_inputs,
        captured=lambda c: list(CAPTURED),
        training=frozenset(),
        jax="vit_jax.resnet:ResNet",
        pipeline=lambda c: "image-classification",
        frozen="its batch norm uses stored statistics",
        flops=resnet_flops,
        arguments=("images",),
        unseen=frozenset({"image"}),
        names=(r"stem\.kernel", r"stages\.0\.0\.convs\.0\.variance"),
        examples={
            "image": (8, (8, 12)), "channels": (3, 1), "classes": (5,), "stages": ((1, 1, 1, 1), (2, 1, 1, 1)),
            "width": (4, 8), "hidden": (4, 8), "groups": (1, 2),
        },
    ),
}  # fmt: skip

VIT, TEXT = NETWORKS["vit"], NETWORKS["transformer"]
NETWORKS["captioner"] = NetworkRow(
    name="Captioner",
    config=CaptionerConfig,
    check=check_captioner,
    normal=normal_captioner,
    parameters=captioner_parameters,
    describe=_describe_captioner,
    inputs=_captioner_inputs,
    captured=captioner_captured,
    # The pool and the head of the ViT are no part of a captioner.
    training=frozenset(
        {*(f"vit.{name}" for name in (*VIT.training, *HEADLESS)), *(f"text.{name}" for name in TEXT.training)}
    ),
    jax="vit_jax.captioner:Captioner",
    torch="torch_ref.captioner:Captioner",
    pipeline=lambda c: "" if c.encoder is None else "image-to-text",
    encoder="vit",
    depths=("vit.depth", "text.decoder_depth"),
    activations=lambda c: 0 if c.encoder is None else _vit_activations(c.encoder),
    largest=lambda c: 0 if c.encoder is None else _vit_largest(c.encoder),
    arguments=("source", "target"),
    from_data=("text.target_vocabulary", "text.outputs"),
    heads=("head.",),
    head_fields=("text.outputs", "text.output_bias"),
    unseen=frozenset(
        {*(f"vit.{name}" for name in VIT.unseen - {*HEADLESS}), *(f"text.{name}" for name in TEXT.unseen)}
    ),
    names=(r"decoder\.blocks\.0\.cross_attention\.query\.kernel", r"(vit\.patch|memory)\.kernel"),
    torch_names=(r"decoder\.blocks\.0\.cross_attention\.query\.weight", r"(vit\.patch|memory)\.weight"),
    examples={
        **{f"vit.{name}": values for name, values in VIT.examples.items() if name not in HEADLESS},
        **{f"text.{name}": values for name, values in TEXT.examples.items()},
        "text.encoder_depth": (0,), "text.source_vocabulary": (0,), "text.decoder_depth": (2, 1),
        "memory_width": (6, 12),
    },
    combinations=(
        {}, {"text.target_vocabulary": 11, "text.outputs": 11, "text.max_length": 6, "text.tie": "decoder"},
    ),
)  # fmt: skip


def without_dropout(model: ModelConfig) -> ModelConfig:
    """The network's config with all dropout rates and drop_path at 0."""
    return replaced(model, {name: 0.0 for name in leaves(type(model)) if name.endswith(("dropout", "drop_path"))})


def network_of(config: ModelConfig | type[ModelConfig]) -> NetworkRow:
    """The row of a config or of a config class."""
    cls = config if isinstance(config, type) else type(config)
    return next(row for row in NETWORKS.values() if row.config is cls)


def network_named(name: str) -> NetworkRow:
    """The row with this name. Raises UserError with similar names if there is none."""
    found = next((row for row in NETWORKS.values() if row.name == name), None)
    if found is None:
        raise UserError(
            f"the network {name!r} is not known to this version of vit-jax"
            f"{nearest(name, [row.name for row in NETWORKS.values()])}"
        )
    return found


def parameters(config: ModelConfig) -> dict[str, Parameter]:
    """Every parameter of a network as {dotted name: Parameter}, in reading order."""
    return network_of(config).parameters(config)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of a network as {dotted name: shape}, in reading order."""
    return {name: parameter.shape for name, parameter in parameters(config).items()}


def parameter_count(config: ModelConfig) -> int:
    """The number of parameters (of single numbers) of a network, however deep it is, without its whole table."""
    row = network_of(config)
    shallow = replaced(config, {name: min(1, value_at(config, name)) for name in row.depths})
    count = _total(shallow)
    for name in row.depths:
        more = value_at(config, name) - value_at(shallow, name)
        count += more * (_total(replaced(shallow, {name: 2})) - _total(shallow)) if more else 0
    return count


def _total(config: ModelConfig) -> int:
    return sum(map(math.prod, shapes(config).values()))


def check_stack(config: ModelConfig, chosen: Mapping[str, bool]) -> None:
    """Raise UserError where it is `chosen` {field of a run: whether} how blocks are computed, and there are none."""
    row = network_of(config)
    for name, asked in chosen.items():
        if asked and not row.depths:
            raise UserError(f"{name} is chosen, but a {row.name} has no stack of equal blocks: leave it out")


def normal(config: Any) -> Any:
    """A config in normal form: networks that compute the same function have equal ones."""
    return network_of(config).normal(config)


def function_fields(config: ModelConfig | type[ModelConfig]) -> list[str]:
    """The fields of a config or a config class that change the evaluation pass."""
    row = network_of(config)
    return [name for name in leaves(row.config) if name not in row.training]


def with_sizes(config: ModelConfig, sizes: Mapping[str, int]) -> ModelConfig:
    """The config with the sizes that the data of a run determines; other entries of `sizes` are ignored."""
    decided: dict[str, Any] = {name: sizes[name] for name in network_of(config).from_data if name in sizes}
    return replaced(config, decided)


def with_data(config: ModelConfig) -> ModelConfig:
    """The config as a run trains it, as far as is known before its data: sizes that data will determine are 1."""
    return replaced(config, {name: value_at(config, name) or 1 for name in network_of(config).from_data})


def pixels(config: ModelConfig) -> tuple[int, int, int] | None:
    """The shape (h, w, C) of the images that a network takes, or None."""
    found = next((argument.shape for argument in network_of(config).inputs(config) if argument.kind == "pixels"), None)
    return None if found is None else (found[0], found[1], found[2])
