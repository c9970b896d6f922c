"""Which layout a file is, by its names and shapes, by what it says itself, or as the user says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.config import nearest
from vit_jax.errors import UserError

from ..containers.source import Tensor
from ..dialects import LAYOUTS, MODULES, refused
from ..layout import Layout, Names
from ..signature import Seen


def shapes(tensors: Mapping[str, Tensor]) -> Names:
    """{name: shape} of tensors."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def recognised(names: Names) -> list[Layout]:
    """The layouts that names and shapes are those of."""
    seen = Seen(names)
    return [layout for layout in LAYOUTS.values() if layout.recognises(seen)]


def known(tensors: Mapping[str, Tensor]) -> bool:
    """Whether any layout, or any that is refused by name, has such tensors."""
    names = shapes(tensors)
    return bool(recognised(names) or refused.why(names))


def why_refused(names: Names) -> str:
    """Why such tensors are refused by name, or nothing. What a layout that knows them leaves out (a teacher) is no reason."""
    aside = {name for layout in recognised(names) for name in layout.left_out(names)}
    return refused.why(name for name in names if name not in aside)


def extras(network: type) -> set[str]:
    """What libraries want beside networks of a kind and only a user may be able to say: ids of special tokens."""
    return {key for layout in LAYOUTS.values() if layout.network is network for key in layout.extras}


def which_layout(path: str, names: Names, asked: str, own: str, config: Any = None) -> Layout:
    """The layout of a file: as asked for, as it says itself, or the only one that recognises its names. Raises UserError.

    `config` is the config.json beside it: where no layout is known, it may name a class.
    """
    if asked:
        found = find(asked, "--from")
        fitting = [
            layout for layout in found if layout.recognises(names) and not (layout.ambiguous and len(found) > 1)
        ] or found
        return fitting[-1]
    if reason := why_refused(names):
        raise UserError(f"{path}: {reason}")
    if own in LAYOUTS:
        return LAYOUTS[own]
    found = recognised(names)
    clear = [layout for layout in found if not layout.ambiguous]
    if len(clear) == 1:
        return clear[0]
    if found and not clear:
        raise UserError(
            f"{path}: {found[-1].ambiguous}; say which it is with --from {' or --from '.join(layout.name for layout in found)}"
        )
    if found:
        raise UserError(f"{path}: its names fit {', '.join(layout.name for layout in found)}; name one with --from")
    some = ", ".join(list(names)[:3])
    named = (
        f" (config.json: model_type {config['model_type'][:60]!r})"
        if isinstance(config, Mapping) and isinstance(config.get("model_type"), str)
        else ""
    )
    raise UserError(
        f"{path}: its {len(names)} tensors ({some}, ...) have no known layout{named or closest(names)}; `python -m convert formats` lists what is known"
    )


def check_accepted(flags: Iterable[str]) -> None:
    """Raise UserError on an --accept that no layout asks for."""
    there = sorted({layout.warns.partition(":")[0] for layout in LAYOUTS.values() if layout.warns})
    for flag in flags:
        if flag not in there:
            raise UserError(f"--accept {flag}: no layout asks for that{nearest(flag, there)}")


def find(name: str, flag: str) -> list[Layout]:
    """The layouts that a --from or --to means: one, or all versions of a dialect. Raises UserError."""
    if name in LAYOUTS and "@" in name:
        return [LAYOUTS[name]]
    dialect, _, version = name.partition("@")
    versions = [layout for layout in LAYOUTS.values() if layout.dialect == dialect]
    if versions and not version:
        return versions
    for module in MODULES:  # a release of a library, whose generation of names its module knows
        if versions and versions[0] in module.LAYOUTS and hasattr(module, "generation"):
            return [module.generation(version)]
    if versions:
        raise UserError(
            f"{flag} {name}: {dialect} has the versions {', '.join(layout.version for layout in versions)}; name one of them, or none"
        )
    raise UserError(
        f"{flag} {name}: there is no such layout{nearest(name, sorted({layout.dialect for layout in LAYOUTS.values()}))}"
    )


def closest(names: Iterable[str]) -> str:
    """A clause naming the layout whose names are most like these."""

    def forms(names: Iterable[str]) -> set[str]:
        return {re.sub(r"\d+", "0", name) for name in names}

    given, shares = forms(names), {}
    for layout in LAYOUTS.values():
        known = {mark.replace("\\", "").replace("d+", "0") for mark in layout.marks if not mark.startswith("!")}
        shares[layout.name] = max(
            (
                len(set(a.split(".")) & set(b.split("."))) / len(set(a.split(".")) | set(b.split(".")))
                for a in given
                for b in known
            ),
            default=0,
        )
    best = max(shares, key=shares.__getitem__, default="")
    best = next(
        (
            name
            for name in reversed(shares)
            if shares[name] == shares[best] and LAYOUTS[name].dialect == LAYOUTS[best].dialect
        ),
        best,
    )
    return f"; the nearest is {best}" if best and shares[best] > 0.3 else ""
