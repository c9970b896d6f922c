"""vit-pytorch's DistillWrapper around a DistillableViT: the student, and the token and head by which it learns from a teacher.

The student without the token is a plain ViT (`student.` alone is such a file). With the token, which joins the
sequence last and has no position, it is ours with a distillation token: attention does not see the order, so
ours may put it second. The logits are the student's; the second head is the one that the teacher corrects.
The teacher's tensors are no part of it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vit_jax.config import ViTConfig
from vit_jax.errors import UserError

from ..layout import Field, Layout, Names, always, has
from ..rules import Row
from . import vit_pytorch
from .vit_pytorch import SECOND_HEAD, SECOND_NORM, TOKEN, Modules, before

# From 1.16.1 to 1.16.4 the student's class token had an axis less than the wrapper wanted: it did not run.
SINCE = {"0.7": "0.7", "0.10": "0.10", "1.0": "1.0", "1.4": "1.4", "1.16.1": "1.16.5"}
GENERATIONS = tuple(
    replace(m, since=SINCE[m.since], prefix="student.") for m in vit_pytorch.GENERATIONS if m.since in SINCE
)


def rows(config: ViTConfig, modules: Modules = GENERATIONS[-1]) -> list[Row]:
    """The tensors of student, token and second head under the names of a run of versions."""
    return vit_pytorch.rows(config, modules)


def fields(m: Modules) -> dict[str, Field]:
    """Where the config comes from: the student's, but that its last norm, where it comes after pooling, is not the token's.

    Before 1.16 a mean would be over class token and patches without the distillation token, which ours has not.
    """
    table = vit_pytorch.fields(m) | {
        "distill_token": always(True),
        "distill_head": always(True),
        "distill_position": always(False),
    }
    if before(m, "1.16"):
        table |= {
            "pool": always("cls"),
            "final_norm": always(not before(m, "1.4")),
            "head_norm": always(before(m, "1.4")),
        }
    norm = always(True) if before(m, "1.4") else Field((True, False), has(f"{SECOND_NORM}.weight"))
    return table | {"distill_norm": norm}


def fits(m: Modules, names: Names) -> bool:
    """The last two have the same names; tokens have an axis less in the newer."""
    return len(names.get(TOKEN, ())) == len(m.tokens.split())


def generation(version: str) -> Layout:
    """The layout of a version of vit-pytorch's DistillWrapper. Raises UserError before 0.7 and where the wrapper did not run."""
    if re.fullmatch(r"1\.16\.[1-4]", version):
        raise UserError(
            f"vit-pytorch-distill@{version}: this version's wrapper cannot run its student; name the version that trained the file"
        )
    why = "wrappers are known from 0.7 on; take the student alone, as vit-pytorch@0.6.7 where it is of 0.6.7 or 0.6.8"
    return vit_pytorch.held("vit-pytorch-distill", version, LAYOUTS, why)


def _layout(m: Modules) -> Layout:
    return Layout(
        "vit-pytorch-distill",
        m.since,
        f"vit-pytorch's DistillWrapper with its student, from version {m.since} on",
        ViTConfig,
        fields(m),
        lambda c: rows(c, m),
        (*vit_pytorch.marks(m), TOKEN, SECOND_HEAD.replace(".", r"\.") + r"\.weight"),
        ("torch", "safetensors"),
        lambda c: vit_pytorch.limits(m, c),
        lambda c: vit_pytorch.unstated(m, c),
        refuses=lambda names: vit_pytorch.refuses(m, names),
        beside=(r"teacher\..*",),
        lacks="the teacher is not in it: load it into a DistillWrapper with strict=False",
        fits=lambda names: fits(m, names),
        proven="vit-pytorch 1.26.11" if m is GENERATIONS[-1] else "",
    )


LAYOUTS = tuple(_layout(m) for m in GENERATIONS)
