"""vit-pytorch's ViT (https://github.com/lucidrains/vit-pytorch), one layout for each run of versions with the same names.

Linear weights are (out, in), query, key and value one matrix without bias, patches flattened (row, column,
channel) as ours. Every version norms with eps 1e-5 and has the erf GELU. Mean pooling takes the class token in
up to 1.15; from 1.16 on there is then no class token. Before 0.6.7 attention was scaled by the width of a token,
not of a head: the same names, another function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vit_jax.config import ViTConfig, pair
from vit_jax.errors import UserError

from ..layout import PLAIN_VIT, Field, Json, Layout, Names, always, count, length
from ..rules import TRANSPOSE, Order, Row, zeros
from .modules import Tensors, module_rows


@dataclass(frozen=True)
class Modules:
    """What a run of versions calls the modules. Those of `block` stand under transformer.layers.I."""

    since: str
    patch: str
    block: Mapping[str, str]
    norm: str  # the last one
    head: str
    stem_norms: tuple[str, str] | None = None  # over a patch's pixels, over its token
    tokens: str = "1 1 d"  # axes of the class token
    positions: str = "1 n d"
    prefix: str = ""

    def layer(self, index: int, name: str) -> str:
        """A module of one block."""
        return f"{self.prefix}transformer.layers.{index}.{self.block[name]}"

    def all(self, depth: int) -> dict[str, str]:
        """{our module: theirs} of a whole network; a DistillWrapper's own lie beside its student."""
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
    """The modules of a block; `qkv` is found under our query."""
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
TOKEN, SECOND_NORM, SECOND_HEAD = "distillation_token", "distill_mlp.0", "distill_mlp.1"  # of DistillWrapper
STEM = ("to_patch_embedding.1", "to_patch_embedding.3")

GENERATIONS = (
    Modules("0.6.7", "patch_to_embedding", NESTED, "mlp_head.0", "mlp_head.1"),
    Modules("0.7", "to_patch_embedding.1", NESTED, "mlp_head.0", "mlp_head.1"),
    Modules("0.10", "to_patch_embedding.1", WRAPPED, "mlp_head.0", "mlp_head.1"),
    Modules("1.0", "to_patch_embedding.2", WRAPPED, "mlp_head.0", "mlp_head.1", STEM),
    Modules("1.4", "to_patch_embedding.2", PLAIN, "transformer.norm", "mlp_head", STEM),
    Modules("1.16", "to_patch_embedding.2", PLAIN, "transformer.norm", "mlp_head", STEM),
    Modules("1.16.1", "to_patch_embedding.2", PLAIN, "transformer.norm", "mlp_head", STEM, "1 d", "n d"),
)


def rows(config: ViTConfig, modules: Modules = GENERATIONS[-1]) -> list[Row]:
    """The tensors of a network under the names of a run of versions."""
    m, packed = (
        modules,
        [tuple(f"blocks.{i}.attention.{part}" for part in ("query", "key", "value")) for i in range(config.depth)],
    )
    tensors: Tensors = {
        "patch.kernel": (f"{m.prefix}{m.patch}.weight", TRANSPOSE), "position": (f"{m.prefix}pos_embedding", Order(m.positions, "n d")),
        "cls_token": (f"{m.prefix}cls_token", Order(m.tokens, "d")), "distill_token": (TOKEN, Order(m.tokens, "d")),
    }  # fmt: skip
    made = module_rows(config, m.all(config.depth), packed, tensors)
    if config.position_stored and not config.cls_token:  # a class token of no rows
        none = (1,) * (len(m.tokens.split()) - 2) + (0, config.width)
        made.append(Row((f"{m.prefix}cls_token",), (), (), (zeros(none),)))
    return made


# ------------------------------------------------------------------------------------------ fields


def sizes(m: Modules) -> dict[str, Field]:
    """The fields that shapes tell, and those that have to be said: image, patch, heads."""

    def channels(names: Names, said: Json) -> int:
        rows, columns = pair(tuple(said["patch"]) if isinstance(said["patch"], list) else said["patch"])
        pixels = length(f"{m.prefix}{m.patch}.weight", 1, 0)(names)
        return int(pixels // max(rows * columns, 1))

    def head_width(names: Names, said: Json) -> int:
        heads, inner = max(said["heads"], 1), int(length(f"{m.layer(0, 'attention.query')}.weight", 0, 0)(names) // 3)
        return 0 if inner == said["width"] and inner % heads == 0 else inner // heads

    return {
        "width": Field(solve=length(f"{m.prefix}{m.patch}.weight", 0)), "hidden": Field(solve=length(f"{m.layer(0, 'mlp.fc1')}.weight", 0)),
        "depth": Field(solve=lambda names: count(names, rf"{re.escape(m.prefix)}transformer\.layers\.(\d+)\..*") or None),
        "classes": Field(solve=length(f"{m.prefix}{m.head}.weight", 0)), "image": Field(), "patch": Field(), "heads": Field(),
        "channels": Field(follow=channels), "head_width": Field(follow=head_width), "eps": always(1e-5), "activation": always("gelu"),
        "stem_pre_norm": always(bool(m.stem_norms)), "stem_norm": always(bool(m.stem_norms)),
        "query_bias": always(False), "key_bias": always(False), "value_bias": always(False),
    }  # fmt: skip


def fields(m: Modules) -> dict[str, Field]:
    """Where the config of a ViT comes from. Before 1.4 the last norm comes after pooling; with a class token that is one function."""
    table = PLAIN_VIT | sizes(m)
    if before(m, "1.16"):
        table["pool"] = Field(("cls", "mean_all"))
    else:
        table["cls_token"] = Field((True, False), lambda names: tokens(names, m) != 0)
        table["pool"] = Field(("cls", "mean"), lambda names: "mean" if tokens(names, m) == 0 else "cls")
    if before(m, "1.4"):
        table["final_norm"] = Field((True, False), follow=lambda names, said: said["pool"] == "cls")
        table["head_norm"] = Field((True, False), follow=lambda names, said: said["pool"] != "cls")
    return table


def limits(m: Modules, c: ViTConfig) -> list[str]:
    """Why a version's ViT cannot be a config whose fields all are its own."""
    told = []
    if not c.classes:
        told.append("classes is 0, and without a head it ends before pooling")
    if before(m, "1.4") and not c.distill_token and (c.final_norm, c.head_norm) != (c.pool == "cls", c.pool != "cls"):
        told.append("its last norm is `norm` with pool 'cls' and `head_norm` with 'mean_all'")
    if not before(m, "1.16") and c.cls_token != (c.pool == "cls"):
        told.append("it has a class token with pool 'cls' and none with 'mean'")
    if before(m, "0.10") and (len({*pair(c.image)}), len({*pair(c.patch)})) != (1, 1):
        told.append("it knows only square images and patches")
    if m.since == "1.16" and c.cls_token:
        told.append("with a class token its files are those of vit-pytorch@1.4")
    return told


def unstated(m: Modules, c: ViTConfig) -> list[str]:
    """What its class does not build: a file extended as `refuses` says is read all the same."""
    whole = m.since != "0.6.7" and c.heads == 1 and c.resolved_head_width == c.width
    return ["one head is as wide as a token, and it then leaves the out projection away"] if whole else []


def refuses(m: Modules, names: Names) -> list[str]:
    """A file of one head as wide as a token has no out projection; our networks always have one."""
    attention, out = f"{m.layer(0, 'attention.query')}.weight", m.layer(0, "attention.out")
    if attention in names and f"{out}.weight" not in names:
        return [
            f"it has no {out}.weight (one head as wide as a token), which our network has; add identity matrices and zero biases under these names"
        ]
    return []


def tokens(names: Names, m: Modules) -> int | None:
    """How many class tokens a file has, where it says."""
    shape = names.get(f"{m.prefix}cls_token", ())
    return shape[-2] if len(shape) > 1 else None


def fits(m: Modules, names: Names) -> bool:
    """The last three have the same names, and 1.16 differs from 1.4 where there is no class token."""
    axes = names.get(f"{m.prefix}cls_token", ())
    return len(axes) == len(m.tokens.split()) and (m.since == "1.16.1" or (axes[1] == 0) == (m.since == "1.16"))


def marks(m: Modules) -> tuple[str, ...]:
    """Names that no other run of versions has together (but the last three, which differ in shapes)."""
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


def number(version: str) -> tuple[int, ...]:
    """ "1.16.1" as (1, 16, 1). Raises ValueError."""
    return tuple(int(part) for part in version.split("."))


def before(m: Modules, version: str) -> bool:
    """Whether a run of versions ends before this version begins another."""
    return number(m.since) < number(version)


def held(dialect: str, version: str, layouts: Sequence[Layout], why: str) -> Layout:
    """The layout of a library's version. Raises UserError where it is older than all of them (`why` says what was otherwise) or no version."""
    try:
        given = number(version)
    except ValueError:
        raise UserError(
            f"{dialect}@{version}: {version!r} is no version of vit-pytorch; give one as {dialect}@{layouts[-1].version}"
        ) from None
    if older := [layout for layout in layouts if number(layout.version) <= given]:
        return older[-1]
    raise UserError(f"{dialect}@{version}: {why}")


def generation(version: str) -> Layout:
    """The layout of a version of vit-pytorch's ViT, as vit-pytorch@1.7.3 names it. Raises UserError before 0.6.7."""
    why = (
        "before 0.6.7 attention was scaled by the width of a token and not of a head, which ours cannot; where the names are those of 0.6.7, "
        "multiply the query rows of every to_qkv by sqrt(dim_head / dim) and give the file as vit-pytorch@0.6.7"
    )
    return held("vit-pytorch", version, LAYOUTS, why)


def _layout(m: Modules) -> Layout:
    ambiguous = "versions before 0.6.7 have the same names and scale attention otherwise"
    return Layout(
        "vit-pytorch",
        m.since,
        f"vit-pytorch's ViT from version {m.since} on",
        ViTConfig,
        fields(m),
        lambda c: rows(c, m),
        marks(m),
        ("torch", "safetensors"),
        lambda c: limits(m, c),
        lambda c: unstated(m, c),
        refuses=lambda names: refuses(m, names),
        fits=lambda names: fits(m, names),
        ambiguous=ambiguous if m.since == "0.6.7" else "",
        proven="vit-pytorch 1.26.11" if m is GENERATIONS[-1] else "",
    )


LAYOUTS = tuple(_layout(m) for m in GENERATIONS)
