"""ViT of vit-pytorch (https://github.com/lucidrains/vit-pytorch); compared with 1.26.11.

Versions of the library that use the same names share one layout, which is named after the first of them. Linear weights
are (out, in), query, key and value one matrix without bias, patches are flattened (row, column, channel) as here, eps
is 1e-5, GELU exact. Mean pooling includes the class token up to 1.15; from 1.16 on it does without a class token.
Before 0.6.7 attention was scaled by the width of a token, not of a head: another function under the same names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vit_jax.config.fields import pair
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Json, Layout, Names, Refusal, always, count, length
from ..operations import TRANSPOSE, Order, zeros
from ..rules import Row
from .modules import Tensors, module_rows
from .plain_vit import PLAIN_VIT


@dataclass(frozen=True)
class Modules:
    """The names of modules in versions since `since`; those of `block` come after transformer.layers.I."""

    since: str
    patch: str
    block: Mapping[str, str]
    norm: str  # the norm after the blocks
    head: str
    stem_norms: tuple[str, str] | None = None  # norms of a patch's pixels, and of its token
    tokens: str = "1 1 d"  # axes of the class token
    positions: str = "1 n d"
    prefix: str = ""

    def layer(self, index: int, name: str) -> str:
        """The name of a module in one block."""
        return f"{self.prefix}transformer.layers.{index}.{self.block[name]}"

    def all(self, depth: int) -> dict[str, str]:
        """{our module: theirs, with a dot} of a network; modules of DistillWrapper itself have no prefix."""
        top = {"patch": self.patch, "norm": self.norm, "head_norm": self.norm, "head": self.head}
        if self.stem_norms:
            top |= dict(zip(("patch.pre_norm", "patch.norm"), self.stem_norms, strict=True))
        blocks = {f"blocks.{i}.{name}": f"{self.layer(i, name)}." for i in range(depth) for name in self.block}
        return (
            {ours: f"{self.prefix}{theirs}." for ours, theirs in top.items()}
            | blocks
            | {"distill_norm": f"{SECOND_NORM}.", "distill_head": f"{SECOND_HEAD}."}
        )


def block(norm1: str, qkv: str, out: str, norm2: str, fc1: str, fc2: str) -> dict[str, str]:
    """The names of a block's modules -> {our module: theirs}."""
    return {
        "norm1": norm1,
        "attention.query": qkv,
        "attention.out": out,
        "norm2": norm2,
        "mlp.fc1": fc1,
        "mlp.fc2": fc2,
    }


NESTED = block("0.fn.norm", "0.fn.fn.to_qkv", "0.fn.fn.to_out.0", "1.fn.norm", "1.fn.fn.net.0", "1.fn.fn.net.3")
WRAPPED = block("0.norm", "0.fn.to_qkv", "0.fn.to_out.0", "1.norm", "1.fn.net.0", "1.fn.net.3")
PLAIN = block("0.norm", "0.to_qkv", "0.to_out.0", "1.net.0", "1.net.1", "1.net.4")
TOKEN, SECOND_NORM, SECOND_HEAD = "distillation_token", "distill_mlp.0", "distill_mlp.1"  # DistillWrapper's
STEM = ("to_patch_embedding.1", "to_patch_embedding.3")

OLD_SCALE = (
    "before 0.6.7 attention was scaled by the width of a token and not of a head, which no network here does; "
    "multiply the query rows of every to_qkv by sqrt(dim_head / dim), give all tensors the names of 0.6.7 "
    "(to_out.0, not to_out), and give the file as vit-pytorch@0.6.7"
)

VERSIONS = (
    Modules("0.6.7", "patch_to_embedding", NESTED, "mlp_head.0", "mlp_head.1"),
    Modules("0.7", "to_patch_embedding.1", NESTED, "mlp_head.0", "mlp_head.1"),
    Modules("0.10", "to_patch_embedding.1", WRAPPED, "mlp_head.0", "mlp_head.1"),
    Modules("1.0", "to_patch_embedding.2", WRAPPED, "mlp_head.0", "mlp_head.1", STEM),
    Modules("1.4", "to_patch_embedding.2", PLAIN, "transformer.norm", "mlp_head", STEM),
    Modules("1.16", "to_patch_embedding.2", PLAIN, "transformer.norm", "mlp_head", STEM),
    Modules("1.16.1", "to_patch_embedding.2", PLAIN, "transformer.norm", "mlp_head", STEM, "1 d", "n d"),
)


def rows(config: ViTConfig, modules: Modules = VERSIONS[-1]) -> list[Row]:
    """The rows of a network under the names of these versions."""
    m, packed = (
        modules,
        [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(config.depth)],
    )
    tensors: Tensors = {
        "patch.kernel": (f"{m.prefix}{m.patch}.weight", TRANSPOSE),
        "position": (f"{m.prefix}pos_embedding", Order(m.positions, "n d")),
        "cls_token": (f"{m.prefix}cls_token", Order(m.tokens, "d")),
        "distill_token": (TOKEN, Order(m.tokens, "d")),
    }
    made = module_rows(config, m.all(config.depth), packed, tensors)
    if config.position_stored and not config.cls_token:  # the file has a class token of no rows
        none = (1,) * (len(m.tokens.split()) - 2) + (0, config.width)
        made.append(Row((f"{m.prefix}cls_token",), (), (), (zeros(none),)))
    return made


# ------------------------------------------------------------------------------------------ fields


def sizes(m: Modules) -> dict[str, Field]:
    """Fields that shapes show, and those that have to be stated: image, patch, heads."""

    def channels(names: Names, known: Json) -> int:
        rows, columns = pair(tuple(known["patch"]) if isinstance(known["patch"], list) else known["patch"])
        pixels = length(f"{m.prefix}{m.patch}.weight", 1, 0)(names)
        return int(pixels // max(rows * columns, 1))

    def head_width(names: Names, known: Json) -> int:
        heads, inner = max(known["heads"], 1), int(length(f"{m.layer(0, 'attention.query')}.weight", 0, 0)(names) // 3)
        return 0 if inner == known["width"] and inner % heads == 0 else inner // heads

    return {
        "width": Field(solve=length(f"{m.prefix}{m.patch}.weight", 0)),
        "hidden": Field(solve=length(f"{m.layer(0, 'mlp.fc1')}.weight", 0)),
        "depth": Field(
            solve=lambda names: count(names, rf"{re.escape(m.prefix)}transformer\.layers\.(\d+)\..*") or None
        ),
        "classes": Field(solve=length(f"{m.prefix}{m.head}.weight", 0)),
        "image": Field(),
        "patch": Field(),
        "heads": Field(),
        "channels": Field(follow=channels),
        "head_width": Field(follow=head_width),
        "eps": always(1e-5),
        "activation": always("gelu"),
        "stem_pre_norm": always(bool(m.stem_norms)),
        "stem_norm": always(bool(m.stem_norms)),
        "query_bias": always(False),
        "key_bias": always(False),
        "value_bias": always(False),
    }


def fields(m: Modules) -> dict[str, Field]:
    """Where config fields come from. Before 1.4 the last norm is after pooling: the same with a class token."""
    table = PLAIN_VIT | sizes(m)
    if ends_before(m, "1.16"):
        table["pool"] = Field(("cls", "mean_all"))
    else:
        table["cls_token"] = Field((True, False), lambda names: tokens(names, m) != 0)
        table["pool"] = Field(("cls", "mean"), lambda names: "mean" if tokens(names, m) == 0 else "cls")
    if ends_before(m, "1.4"):
        table["final_norm"] = Field((True, False), follow=lambda names, known: known["pool"] == "cls")
        table["head_norm"] = Field((True, False), follow=lambda names, known: known["pool"] != "cls")
    return table


def cannot_hold(m: Modules, c: ViTConfig) -> list[str]:
    """Clauses for a network that these versions cannot be, although each field has a possible value."""
    reasons = []
    if not c.classes:
        reasons.append("classes is 0, but without a head the layout's network ends before pooling")
    if (
        ends_before(m, "1.4")
        and not c.distill_token
        and (c.final_norm, c.head_norm) != (c.pool == "cls", c.pool != "cls")
    ):
        reasons.append("the layout has final_norm with pool 'cls', and head_norm with pool 'mean_all'")
    if not ends_before(m, "1.16") and c.cls_token != (c.pool == "cls"):
        reasons.append("the layout has a class token with pool 'cls', and none with pool 'mean'")
    if ends_before(m, "0.10") and (len({*pair(c.image)}), len({*pair(c.patch)})) != (1, 1):
        reasons.append("the layout has only square images and patches")
    if m.since == "1.16" and c.cls_token:
        reasons.append("with a class token the files are those of vit-pytorch@1.4")
    return reasons


def cannot_state(m: Modules, c: ViTConfig) -> list[str]:
    """Why the class does not build a network, although tensors can hold it (see `unreadable`). A clause each; empty
    where the class builds it.
    """
    no_projection = m.since != "0.6.7" and c.heads == 1 and c.resolved_head_width == c.width
    return (
        ["its one head is as wide as a token, and the library then builds no out projection"] if no_projection else []
    )


def unreadable(m: Modules, names: Names) -> list[str]:
    """A clause for a file without an out projection (one head as wide as a token), which our networks always have."""
    attention, out = f"{m.layer(0, 'attention.query')}.weight", m.layer(0, "attention.out")
    if attention not in names or f"{out}.weight" in names:
        return []
    bare = out.rpartition(".")[0]
    if f"{bare}.weight" in names:
        return [f"its out projection is {bare}.weight, as in the oldest versions, and not {out}.weight; {OLD_SCALE}"]
    return [
        f"it has no {out}.weight (one head as wide as a token), which the network here needs; "
        "add identity matrices and zero biases under these names"
    ]


def tokens(names: Names, m: Modules) -> int | None:
    """A solver: the number of class tokens, where the file has an axis for it."""
    shape = names.get(f"{m.prefix}cls_token", ())
    return shape[-2] if len(shape) > 1 else None


def _other_shapes(m: Modules, names: Names) -> list[str]:
    """Clauses that tell the last three entries of VERSIONS apart: they have the same names and differ in shapes."""
    axes = names.get(f"{m.prefix}cls_token", ())
    if len(axes) != len(m.tokens.split()):
        return [f"its class token has {len(axes)} axes"]
    return [] if m.since == "1.16.1" or (axes[1] == 0) == (m.since == "1.16") else [f"it has {axes[1]} class tokens"]


def signature(m: Modules) -> tuple[str, ...]:
    """The signature: names that no other versions have together, but for the last three (see `_other_shapes`)."""
    named = [m.patch, *(m.stem_norms or ()), m.head, "cls_token"]
    present = [re.escape(f"{m.prefix}{name}") + ("" if name == "cls_token" else r"\.weight") for name in named]
    absent = [] if m.stem_norms else ["!" + re.escape(f"{m.prefix}to_patch_embedding.2.") + ".*"]
    return (
        *present,
        re.escape(m.layer(0, "attention.query")) + r"\.weight",
        re.escape(m.layer(0, "mlp.fc2")) + r"\.weight",
        *absent,
    )


# ---------------------------------------------------------------------------------------- versions


def _version_numbers(version: str) -> tuple[int, ...]:
    """ "1.16.1" as (1, 16, 1). Raises ValueError."""
    return tuple(int(part) for part in version.split("."))


def ends_before(m: Modules, version: str) -> bool:
    """Whether versions with these names all come before another version."""
    return _version_numbers(m.since) < _version_numbers(version)


def layout_of_version(dialect: str, version: str, layouts: Sequence[Layout], why: str) -> Layout:
    """The layout of a library's version."""
    try:
        given = _version_numbers(version)
    except ValueError:
        raise UserError(
            f"{dialect}@{version}",
            f"{version!r} is not a version of vit-pytorch",
            f"give one as in {dialect}@{layouts[-1].version}",
        ) from None
    if older := [layout for layout in layouts if _version_numbers(layout.version) <= given]:
        return older[-1]
    raise UserError(f"{dialect}@{version}", why)


def layout_for(version: str) -> Layout:
    """The layout of a version of vit-pytorch's ViT, such as 1.7.3."""
    return layout_of_version("vit-pytorch", version, LAYOUTS, OLD_SCALE)


def refusals(m: Modules) -> tuple[Refusal, ...]:
    """What these versions refuse, by stage."""
    older = "versions before 0.6.7 have the same names and scale attention in another way"
    return (
        Refusal("shapes", functools.partial(_other_shapes, m)),
        *([Refusal("choice", older)] if m.since == "0.6.7" else []),
        Refusal("file", functools.partial(unreadable, m)),
        Refusal("network", functools.partial(cannot_hold, m)),
        Refusal("statement", functools.partial(cannot_state, m)),
    )


def _layout(m: Modules) -> Layout:
    return Layout(
        dialect="vit-pytorch",
        version=m.since,
        title=f"vit-pytorch's ViT from version {m.since} on",
        network=ViTConfig,
        fields=fields(m),
        rows=functools.partial(rows, modules=m),
        signature=signature(m),
        containers=("torch", "safetensors"),
        refusals=refusals(m),
        proven="" if ends_before(m, "1.4") else "vit-pytorch 1.26.11",
    )


LAYOUTS = tuple(_layout(m) for m in VERSIONS)
