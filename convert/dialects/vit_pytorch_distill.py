"""DistillWrapper of vit-pytorch: a student with the token and the head that learn from a teacher.

Compared with 1.26.11. The student alone is a plain ViT (vit_pytorch.py) under `student.`. The wrapper's distillation
token is the last of the sequence and has no position; attention does not depend on the order, so the network here has
it second. Logits are the student's; the second head is the one trained on the teacher's. The teacher's tensors are
left out.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Field, Layout, Names, Refusal, always, has
from ..rules import Row
from . import vit_pytorch
from .vit_pytorch import SECOND_HEAD, SECOND_NORM, TOKEN, Modules, ends_before

# From 1.16.1 to 1.16.4 the student's class token had one axis less than the wrapper wanted: it did not run.
SINCE = {"0.7": "0.7", "0.10": "0.10", "1.0": "1.0", "1.4": "1.4", "1.16.1": "1.16.5"}
VERSIONS = tuple(replace(m, since=SINCE[m.since], prefix="student.") for m in vit_pytorch.VERSIONS if m.since in SINCE)


def rows(config: ViTConfig, modules: Modules = VERSIONS[-1]) -> list[Row]:
    """The rows of student, token and second head under the names of these versions."""
    return vit_pytorch.rows(config, modules)


def fields(m: Modules) -> dict[str, Field]:
    """Where config fields come from: the student's, except for norms and pooling."""
    table = vit_pytorch.fields(m) | {
        "distill_token": always(True),
        "distill_head": always(True),
        "distill_position": always(False),
    }
    if ends_before(m, "1.16"):
        table |= {
            "pool": always("cls"),
            "final_norm": always(not ends_before(m, "1.4")),
            "head_norm": always(ends_before(m, "1.4")),
        }
    norm = always(True) if ends_before(m, "1.4") else Field((True, False), has(f"{SECOND_NORM}.weight"))
    return table | {"distill_norm": norm}


def _other_shapes(m: Modules, names: Names) -> list[str]:
    """A clause that tells the last two entries of VERSIONS apart: tokens have one axis less in the newer."""
    axes = len(names.get(TOKEN, ()))
    return [] if axes == len(m.tokens.split()) else [f"its distillation token has {axes} axes"]


def refusals(m: Modules) -> tuple[Refusal, ...]:
    """What these versions refuse, by stage: as the student, but by other shapes."""
    return (
        Refusal("shapes", functools.partial(_other_shapes, m)),
        *(refusal for refusal in vit_pytorch.refusals(m) if refusal.stage not in ("shapes", "choice")),
        Refusal("loading", "the file has no teacher: load it into a DistillWrapper with strict=False"),
    )


def layout_for(version: str) -> Layout:
    """The layout of a version of DistillWrapper."""
    if re.fullmatch(r"1\.16\.[1-4]", version):
        raise UserError(
            f"vit-pytorch-distill@{version}",
            "this version's wrapper cannot run its student",
            "give the version that trained the file",
        )
    why = "wrappers are known from 0.7 on; take the student alone, as vit-pytorch@0.6.7 where it is of 0.6.7 or 0.6.8"
    return vit_pytorch.layout_of_version("vit-pytorch-distill", version, LAYOUTS, why)


def _layout(m: Modules) -> Layout:
    return Layout(
        dialect="vit-pytorch-distill",
        version=m.since,
        title=f"vit-pytorch's DistillWrapper with its student, from version {m.since} on",
        network=ViTConfig,
        fields=fields(m),
        rows=functools.partial(rows, modules=m),
        signature=(*vit_pytorch.signature(m), TOKEN, SECOND_HEAD.replace(".", r"\.") + r"\.weight"),
        containers=("torch", "safetensors"),
        refusals=refusals(m),
        outside=(r"teacher\..*",),
        proven="" if ends_before(m, "1.4") else "vit-pytorch 1.26.11",
    )


LAYOUTS = tuple(_layout(m) for m in VERSIONS)
