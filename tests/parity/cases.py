"""Which networks are compared: every preset, shrunk, and every value of every option.

Both come from the presets and from the configs' own type hints, so that a new one is compared the
moment it exists; a field that no rule covers is an error.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, replace
from typing import Any, Literal

from vit_jax.config.dotted import field_types
from vit_jax.config.fields import pair
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import PRESETS

Config = ViTConfig | TransformerConfig | CaptionerConfig

# Small, and no two sizes alike that a fault could mistake for each other: image and patch are not square,
# grid 2 x 3, S != T, D, H*Dh, F, K and V all differ where their options let them.
VIT = ViTConfig(image=(4, 3), patch=(2, 1), classes=5, width=8, depth=2, heads=2, hidden=12)
TRANSFORMER = TransformerConfig(
    width=8,
    heads=2,
    hidden=12,
    encoder_depth=2,
    decoder_depth=2,
    source_vocabulary=11,
    target_vocabulary=9,
    outputs=7,
    max_length=6,
)

# The memory has four sorts of tokens: two of the prefix, then the grid.
CAPTIONER = CaptionerConfig(
    vit=replace(VIT, classes=0, width=6, hidden=10, registers=1),
    text=replace(TRANSFORMER, encoder_depth=0, source_vocabulary=0),
)

# At these lengths all buckets are used.
T5 = replace(
    TRANSFORMER,
    head_width=3,
    decoder_depth=1,
    source_vocabulary=9,
    outputs=9,
    tie="all",
    activation="relu",
    norm_kind="rms",
    bias=False,
    position="none",
    max_length=0,
    scale_attention=False,
    relative="shared",
    relative_buckets=4,
    relative_distance=5,
    scale_output=True,
    output_bias=False,
    init="t5",
    embedding_std=1.0,
)
T5_1 = replace(T5, activation="gelu_tanh", gated=True, tie="embeddings", scale_output=False)


@dataclass(frozen=True)
class Case:
    """A network under a name; `start` means that its weights are its own initial ones."""

    name: str
    config: Config
    start: bool = False


def shrink(c: Config) -> Config:
    """The same network in small: every option, activation and eps stays, and a head width that is not width/heads.

    Widths become 8 (12 inside the mlp, 6 inside the head, 5, 6, ... in the stem), depths at most 2,
    heads 2 (1 where there was 1), images 4x3 in patches of 2x1 (each times the stride of the stem),
    vocabularies 11 and 9, classes and outputs 5. What was 0, one channel, or two equal sizes, stays so.
    """
    if isinstance(c, CaptionerConfig):
        return replace(c, vit=shrink(c.vit), text=shrink(c.text), memory_width=min(c.memory_width, 6))
    if not hasattr(c, "heads"):
        return c
    heads = min(c.heads, 2)
    odd = c.heads * c.resolved_head_width != c.width
    common = dict(
        width=8,
        heads=heads,
        head_width=3 if odd else c.head_width and 8 // heads,
        hidden=8 if c.hidden == c.width else 12,
    )
    if isinstance(c, ViTConfig):
        stride = 2 ** len(c.stem)
        return replace(
            c,
            image=(4 * stride, 3 * stride),
            patch=(2 * stride, stride),
            stem=tuple(range(5, 5 + len(c.stem))),
            channels=min(c.channels, 3),
            classes=c.classes and 5,
            depth=min(c.depth, 2),
            registers=min(c.registers, 2),
            head_hidden=c.head_hidden and 6,
            **common,
        )
    target = c.target_vocabulary and 9
    same = c.source_vocabulary == c.target_vocabulary
    return replace(
        c,
        encoder_depth=min(c.encoder_depth, 2),
        decoder_depth=min(c.decoder_depth, 2),
        source_vocabulary=target if same else c.source_vocabulary and 11,
        target_vocabulary=target,
        outputs=target if c.outputs == c.target_vocabulary else c.outputs and 5,
        max_length=c.max_length and 6,
        position_offset=min(c.position_offset, 2),
        **common,
    )


def presets() -> list[Case]:
    """Every preset's network, shrunk. A run on text takes vocabularies and head from its data."""
    out = []
    for name, preset in PRESETS.items():
        run = preset().run
        c = run.model
        if isinstance(c, TransformerConfig) and run.task == "translate":
            c = replace(
                c,
                source_vocabulary=c.source_vocabulary or 11,
                target_vocabulary=c.target_vocabulary or 11,
                outputs=c.outputs or c.target_vocabulary or 11,
            )
        elif isinstance(c, CaptionerConfig):
            c = replace(c, text=replace(c.text, target_vocabulary=9, outputs=9)).with_data()
        out.append(Case(name, shrink(c)))
    return out


# Numbers have no list of values in their type: these are the ones compared, beside the default.
NUMBERS: dict[type, dict[str, tuple[Any, ...]]] = {
    ViTConfig: dict(
        image=((6, 3),),
        channels=(1,),
        patch=((1, 3), (2, 3), 1),
        classes=(0,),
        width=(12,),
        depth=(1, 3),
        heads=(1, 4),
        head_width=(3, 5),
        hidden=(8,),
        registers=(1, 2),
        eps=(1e-5, 1e-3, 1e-12),
        layer_scale=(1e-4,),
        stem=((6,), (5, 6)),
        stem_kernel=(3,),
        head_hidden=(6,),
        pool_heads=(1,),
        pool_hidden=(6,),
        embedding_dropout=(0.2,),
        patch_dropout=(0.2,),
        attention_dropout=(0.2,),
        dropout=(0.2,),
        activation_dropout=(0.2,),
        head_dropout=(0.2,),
        drop_path=(0.2,),
        rotary_base=(7.0,),
        rotary_offset=(1.0,),
        rotary_grid=((3, 5),),
        init_std=(0.1,),
        token_std=(1.0,),
        position_std=(1.0,),
    ),
    TransformerConfig: dict(
        width=(12,),
        heads=(1, 4),
        head_width=(3, 5),
        hidden=(8,),
        encoder_depth=(0, 1, 3),
        decoder_depth=(0, 1, 3),
        eps=(1e-5, 1e-3, 1e-12),
        dropout=(0.2,),
        attention_dropout=(0.2,),
        activation_dropout=(0.2,),
        embedding_dropout=(0.2,),
        final_dropout=(0.2,),
        relative_buckets=(4, 6),
        relative_distance=(3,),
        source_vocabulary=(0,),
        target_vocabulary=(0,),
        position_offset=(2,),
        max_length=(0,),
        outputs=(0,),
        init_std=(0.1,),
        embedding_std=(1.0,),
        position_std=(1.0,),
    ),
}

# Two frequencies for each axis, so that the base counts.
ROTARY: dict[str, Any] = dict(rotary="axial", head_width=8)
INDICES: dict[str, Any] = dict(**ROTARY, rotary_places="indices")

# What a value needs beside it to be valid, or to be used at all.
COMPANIONS: dict[type, dict[tuple[str, Any], dict[str, Any]]] = {
    ViTConfig: {
        ("stem", (6,)): dict(image=(8, 6), patch=(4, 2)),
        ("stem", (5, 6)): dict(image=(8, 12), patch=(4, 4)),
        ("stem_kernel", 3): dict(image=(8, 6), patch=(4, 2), stem=(6,)),
        ("cls_token", False): dict(pool="mean"),
        ("position", "sincos1d"): dict(position_trained=False),
        ("position_trained", False): dict(position="sincos2d"),
        ("distill_position", False): dict(distill_token=True),
        ("distill_position", True): dict(distill_token=True),
        ("register_position", True): dict(registers=2),
        ("register_position", False): dict(registers=2),
        ("pool", "cls_distill"): dict(distill_token=True),
        ("pool", "map_all"): dict(registers=2),
        ("pool", "cls_mean"): dict(registers=2),
        ("pool_heads", 1): dict(pool="map"),
        ("pool_hidden", 6): dict(pool="map"),
        ("distill_head", True): dict(distill_token=True, pool="cls_distill"),
        ("distill_norm", True): dict(distill_token=True, distill_head=True, pool="cls_distill"),
        **{("head_activation", value): dict(head_hidden=6) for value in ("none", "tanh", "relu")},
        ("head_bias", False): dict(distill_token=True, distill_head=True, pool="cls_distill"),
        ("gated", True): dict(activation="silu"),
        **{("rotary", value): dict(head_width=8) for value in ("axial", "mixed")},
        **{("rotary_pairs", value): ROTARY for value in ("halves", "neighbours")},
        **{("rotary_places", value): ROTARY for value in ("centres", "indices")},
        **{("rotary_first", value): ROTARY for value in ("rows", "columns")},
        ("rotary_base", 7.0): ROTARY,
        **{("rotary_periods", value): ROTARY for value in ("exact", "bfloat16")},
        ("rotary_offset", 1.0): INDICES,
        ("rotary_grid", (3, 5)): INDICES,
        ("init_std", 0.1): dict(init="normal"),
    },
    TransformerConfig: {
        ("position_offset", 2): dict(position="learned"),
        ("relative_buckets", 4): dict(relative="shared", relative_distance=5),
        ("relative_buckets", 6): dict(relative="blocks", relative_distance=5),
        ("relative_distance", 3): dict(relative="shared", relative_buckets=4),
        ("gated", True): dict(activation="silu"),
        ("encoder_depth", 0): dict(source_vocabulary=0),
        ("decoder_depth", 0): dict(target_vocabulary=0, outputs=0),
        **{("tie", value): dict(source_vocabulary=9, outputs=9) for value in ("embeddings", "decoder", "all")},
        ("init_std", 0.1): dict(init="normal"),
        ("position_std", 1.0): dict(position="learned"),
    },
}

MIXED: dict[str, Any] = dict(rotary="mixed", rotary_pairs="neighbours", rotary_first="columns")

# Slots that say how weights start: their cases are compared from those very weights.
STARTS = {"init", "attention_init", "init_std", "token_std", "position_std", "embedding_std", "head_zero"}


def alternatives(cls: type, name: str, hint: Any) -> tuple[Any, ...]:
    """The values of an option, from its type; LookupError where it is a number that NUMBERS does not list."""
    if hint is bool:
        return (False, True)
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    if name not in NUMBERS[cls]:
        raise LookupError(f"{cls.__name__}.{name}: add values to compare to NUMBERS in tests/parity/cases.py")
    return NUMBERS[cls][name]


def options(base: Config) -> list[Case]:
    """One case for every value of every option, each a step away from the base network."""
    cls, hints, out = type(base), field_types(type(base)), []
    for field in dataclasses.fields(base):
        for value in alternatives(cls, field.name, hints[field.name]):
            companions = COMPANIONS[cls].get((field.name, value), {})
            if value == getattr(base, field.name) and not companions and value is not False:
                continue  # the base itself
            c = replace(base, **{**companions, field.name: value})
            c.check()
            if c != base or field.name in STARTS:
                out.append(Case(f"{field.name}={value}", c, field.name in STARTS))
    return out


# Slots that meet: each pair has interacted wrongly in some port.
def combinations() -> list[Case]:
    """Networks that use many options at once."""
    v, t = VIT, TRANSFORMER
    tied = replace(t, source_vocabulary=9, outputs=9, tie="all", eps=1e-5)
    return [
        Case("vit base", v),
        Case("transformer base", t),
        Case("qk_norm without norm_bias", replace(v, qk_norm=True, norm_bias=False)),
        Case(
            "post-norm, layer scale, registers",
            replace(v, norm_first=False, layer_scale=0.1, registers=2, final_norm=False),
        ),
        Case(
            "all prefix tokens, mean of patches",
            replace(v, distill_token=True, registers=2, register_position=True, cls_position=False, pool="mean"),
        ),
        Case(
            "DINOv3: rotary positions of centres, registers, no key bias",
            replace(v, **ROTARY, position="none", registers=2, key_bias=False, layer_scale=0.1, eps=1e-5),
        ),
        Case(
            "EVA-02: rotary positions of scaled indices beside learned ones, q/k norm",
            replace(v, **INDICES, rotary_pairs="neighbours", rotary_grid=4, rotary_base=1e4, qk_norm=True),
        ),
        Case(
            "RoPE-ViT: mixed rotary positions, columns first",
            replace(v, **INDICES | MIXED),
        ),
        Case(
            "RMS norms everywhere, before the branches and inside",
            replace(v, norm_kind="rms", qk_norm=True, attention_norm=True, mlp_norm=True, gated=True, pool="map_all"),
        ),
        Case(
            "norms of branches, class token and mean",
            replace(v, branch_norm=True, layer_scale=0.1, pool="cls_mean", head_norm=True, registers=1),
        ),
        Case("map pooling, gated, odd heads", replace(v, pool="map", gated=True, activation="silu", head_width=3)),
        Case(
            "sinusoids 2-D behind a class token", replace(v, position="sincos2d", position_trained=False, registers=1)
        ),
        Case(
            "stem norms, no biases",
            replace(
                v,
                image=(8, 6),
                patch=(4, 2),
                stem=(6,),
                stem_pre_norm=True,
                stem_norm=True,
                stem_bias=False,
                query_bias=False,
                key_bias=False,
                value_bias=False,
            ),
        ),
        Case(
            "transformer of vectors",
            replace(
                t, source_vocabulary=0, target_vocabulary=0, outputs=0, position="none", activation="relu", eps=1e-5
            ),
        ),
        Case(
            "post-norm transformer, odd heads",
            replace(t, norm_first=False, final_norm=False, head_width=3, activation="relu", position="one_frequency"),
        ),
        Case(
            "Marian",
            replace(
                tied,
                norm_first=False,
                final_norm=False,
                activation="silu",
                position="concatenated",
                scale_embedding=True,
            ),
        ),
        Case("mBART", replace(tied, position="learned", position_offset=2, embedding_norm=True)),
        Case("M2M-100", replace(tied, position="fairseq", position_offset=2, output_bias=False, scale_embedding=True)),
        Case("T5", T5),
        Case("T5 1.1", T5_1),
        Case("UMT5", replace(T5_1, relative="blocks", scale_output=True)),
        Case("captioner, all tokens, projected", CAPTIONER),
        Case("captioner, patches", replace(CAPTIONER, memory="patches", vit=replace(CAPTIONER.vit, width=8))),
        Case(
            "captioner, as ViT and GPT-2 in Hugging Face",
            replace(
                CAPTIONER,
                vit=replace(CAPTIONER.vit, width=8, registers=0, eps=1e-12),
                text=replace(
                    CAPTIONER.text,
                    activation="gelu_tanh",
                    eps=1e-5,
                    position="learned",
                    outputs=9,
                    tie="decoder",
                    output_bias=False,
                ),
            ),
        ),
        Case(
            "captioner of vectors, post-norm",
            replace(
                CAPTIONER,
                memory="vectors",
                memory_width=5,
                text=replace(CAPTIONER.text, norm_first=False, final_norm=False, activation="relu"),
            ),
        ),
    ]


def all_cases() -> list[Case]:
    """Presets, values of options, and combinations."""
    return [*presets(), *combinations(), *options(VIT), *options(TRANSFORMER)]


def grid(c: ViTConfig) -> tuple[int, int, int]:
    """Height, width and channels of a network's images."""
    return (*pair(c.image), c.channels)
