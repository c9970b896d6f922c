"""What the outputs of a network are: as side files state it, as its layout knows it, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vit_jax.config.network import NetworkConfig
from vit_jax.config.outputs import UNSTATED, Outputs
from vit_jax.errors import UserError
from vit_jax.kinds.table import EMBEDDING, KINDS, class_of

from ..layout import Layout

TARGET = "target"  # what --set calls the kind of the outputs


def count(c: NetworkConfig) -> int:
    """The outputs of a network's head; 0 of one without a head, and of a network of texts."""
    return int(getattr(c, "classes", 0)) if "classes" in c.marked("from_data") else 0


def target(sets: Mapping[str, Any]) -> str:
    """The kind of outputs that --set states. One of them; empty where none is stated."""
    kind = sets.get(TARGET, "")
    if kind and kind not in (kinds := [*KINDS, EMBEDDING]):
        raise UserError(f"fields {TARGET}={kind}", "there is no such kind", f"give one of {', '.join(kinds)}")
    return str(kind)


def of_class(layout: Layout, c: NetworkConfig, stated: Outputs) -> Outputs:
    """The outputs that are stated of a file, but those that its library's class computes where it has one kind."""
    (only,) = kinds if len(kinds := [*layout.outputs(c)]) == 1 else [""]
    return Outputs(only) if only and count(c) else stated


def settle(c: NetworkConfig, stated: Outputs, asked: str, own: bool) -> Outputs:
    """The outputs of a network; their kind stays open where it has one output of which nobody states what it is."""
    if not count(c):
        if asked not in ("", EMBEDDING):
            raise UserError(f"fields {TARGET}={asked}", "this network has no head", "leave it out")
        return Outputs(EMBEDDING) if "classes" in c.marked("from_data") else UNSTATED
    if count(c) == 1 and not own and "class" in (asked, stated.kind):
        if asked == "class":
            raise UserError(f"fields {TARGET}=class", "this network has one output, and one class is no choice")
        stated = replace(stated, kind="")
    kind = asked or stated.kind or ("class" if own or count(c) > 1 else "")
    if kind == stated.kind != EMBEDDING:
        return stated
    return Outputs(kind, () if kind == EMBEDDING else stated.names)


def unsettled(path: str, c: NetworkConfig, outputs: Outputs) -> UserError | None:
    """The error where it has to be known what a network's outputs are, and nothing states it; else None."""
    if outputs.kind or not count(c):
        return None
    ways = " or ".join(f"`fields {TARGET}={kind}`" for kind in ("number", "set"))
    return UserError(
        path,
        "has one output, and does not say whether that is a number, or a label that is there or not",
        f"say which with {ways}",
    )


def note_contradicted(stated: Outputs, asked: str) -> list[str]:
    """A sentence where the kind of outputs that the user states, empty for none, is not the one of the source."""
    if not asked or not stated.kind or asked == stated.kind:
        return []
    theirs, ours = (f"{kind} ({class_of(kind).says})" for kind in (stated.kind, asked))
    told = f"the source states outputs of the kind {theirs}, and they are read as {ours}"
    return [f"{told}, as `fields {TARGET}={asked}` says"]


def note_assumed(source: Layout, target: Layout, c: NetworkConfig, stated: Outputs, outputs: Outputs) -> list[str]:
    """A sentence where the target states that outputs are classes, and the source could have said otherwise."""
    if stated.kind or outputs.kind != "class" or len({*source.outputs(c)} & {*target.outputs(c)}) < 2:
        return []
    ways = " or ".join(f"`fields {TARGET}={kind}`" for kind in ("set", "number"))
    told = f"the source does not state problem_type, so its {count(c)} outputs are written as those of classes"
    return [f"{told}; change it with {ways}"]


def unstated(layout: Layout, c: NetworkConfig, outputs: Outputs) -> list[str]:
    """What a target leaves out: the kind of outputs, where files of its layout cannot state it."""
    kind = outputs.kind
    if not count(c) or kind in ("", "class") or layout.holds_all or kind in layout.outputs(c):
        return []
    return [f"outputs ({kind}: files of {layout.name} do not state that they are {class_of(kind).says})"]
