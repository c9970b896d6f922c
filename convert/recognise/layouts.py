"""Which layout a file has: by its names and shapes, as it states itself, or as the user states."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vit_jax.config.dotted import value_at
from vit_jax.config.hints import nearest
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError
from vit_jax.runs.values import from_dict

from ..containers.kinds import PROGRAMS, SUFFIXES
from ..containers.source import Tensor
from ..dialects import LAYOUTS, MODULES, refused
from ..dialects.other_names import FAMILIES, canonical
from ..layout import Layout, Names

LONGEST, PARTS = 200, 24  # characters and parts of a name that may belong to a layout: expressions try them all
ALIKE = 0.6  # share of the parts of names: renamed or prefixed layouts have more, convolutional networks less
FIRST, FORMS = 5_000, 500  # names that are compared for a hint


def _is_short(name: str) -> bool:
    """Whether a name may be one of a layout's; others would only cost time."""
    return len(name) <= LONGEST and name.count(".") + name.count("/") < PARTS


def shapes(tensors: Mapping[str, Tensor]) -> Names:
    """{name: shape} of tensors."""
    return {name: tensor.shape for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Recognition:
    """What tensors are by their names and shapes: the layouts that have such files, or why they are refused by name."""

    names: Names
    layouts: tuple[Layout, ...]
    refusal: str  # a clause; empty where no layout that is refused by name has such tensors

    def __bool__(self) -> bool:
        return bool(self.layouts or self.refusal)

    @classmethod
    def of(cls, names: Names) -> Recognition:
        """The recognition of {name: shape}; a tensor that a layout leaves out (a teacher's) is no reason to refuse."""
        some = {name: shape for name, shape in names.items() if _is_short(name)}
        layouts = tuple(layout for layout in LAYOUTS.values() if layout.recognises(some))
        aside = {name for layout in layouts for name in layout.left_out(some)}
        return cls(names, layouts, refused.why(name for name in some if name not in aside))


def recognise(tensors: Mapping[str, Tensor]) -> Recognition:
    """The recognition of a file's tensors."""
    return Recognition.of(shapes(tensors))


def extras(network: type) -> set[str]:
    """Keys that --set may give beside fields of a network's config: what side files need, such as ids of tokens."""
    return {key for layout in LAYOUTS.values() if layout.network is network for key in layout.extras}


def which_layout(
    path: str,
    found: Recognition,
    asked: str,
    own: str,
    config: Any = None,
    said: Callable[[Layout], Mapping[str, Any]] = lambda layout: {},
) -> Layout:
    """The layout of a file: as asked for, as the file states itself, or the only one that recognises its names."""
    several = len(found.layouts) > 1
    fits = [each for each in found.layouts if not _contradictions(each, said(each))] if several else []
    if asked:
        versions = find(asked, "layout")
        fitting = [layout for layout in versions if layout in found.layouts]
        fitting = [layout for layout in fitting if layout.dialect == versions[-1].dialect] or fitting
        clear = [layout for layout in fitting if not layout.refuses("choice", found.names)]
        layout = ((clear if len(versions) > 1 else fitting) or versions)[-1]
        if fits and layout in found.layouts and layout not in fits:
            what = ", ".join(f"{name} {value!r}" for name, value in _contradictions(layout, said(layout)).items())
            raise UserError(
                path,
                f"layout {asked} has no network with {what}, which this file declares",
                f"leave `layout` out or name {' or '.join(each.name for each in fits)}",
            )
        return layout
    if found.refusal:
        raise UserError(path, found.refusal)
    if own in LAYOUTS:
        return LAYOUTS[own]
    if len(fits) == 1:
        return fits[0]
    unclear = {layout.name: "; ".join(layout.refuses("choice", found.names)) for layout in found.layouts}
    clear = [layout for layout in found.layouts if not unclear[layout.name]]
    if len(clear) == 1:
        return clear[0]
    if found.layouts and not clear:
        choices = " or ".join(f"`layout {name}`" for name in unclear)
        raise UserError(path, list(unclear.values())[-1], f"name the right one with {choices}")
    if found.layouts:
        raise UserError(path, f"its names fit {', '.join(unclear)}", "name one with `layout`")
    raise UserError(path, unknown(found.names, config), "`python -m convert formats` lists what is known")


def _contradictions(layout: Layout, said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these {field: value} that show in no tensor and that no network of a layout has."""
    names = sorted({*layout.network.marked("not_in_weights")} & layout.fields.keys() & said.keys())
    try:
        config = from_dict(layout.network, unflatten({name: said[name] for name in names})).normal()
    except UserError:
        return {}  # a value of a wrong type is told of where the config is made
    return {name: value for name in names if not layout.fields[name].allows(value := value_at(config, name))}


def unknown(names: Names, config: Any) -> str:
    """A clause about tensors that no layout has: the class that config.json names, or the layout that is most alike."""
    some = ", ".join(list(names)[:3])
    model = config.get("model_type") if isinstance(config, Mapping) else None
    maybe = f" (config.json: model_type {model[:60]!r})" if isinstance(model, str) else closest(names)
    return f"its {len(names)} tensors ({some}, ...) have no known layout{maybe}"


def check_accept_flags(flags: Iterable[str]) -> None:
    """Raise UserError on an --accept that no layout asks for."""
    there = sorted({flag for layout in LAYOUTS.values() for flag in layout.flags})
    for flag in flags:
        if flag not in there:
            raise UserError(f"accept {flag}", f"no layout asks for that{nearest(flag, there)}")


def find(name: str, option: str) -> list[Layout]:
    """The layouts that a name stands for."""
    given, at, version = name.partition("@")
    dialect = canonical(given)
    if (whole := f"{dialect}{at}{version}") in LAYOUTS and at:
        return [LAYOUTS[whole]]
    versions = [layout for layout in LAYOUTS.values() if layout.dialect == dialect]
    if versions and not version:
        family = FAMILIES.get(dialect, ())
        return [*(layout for layout in LAYOUTS.values() if layout.dialect in family), *versions]
    for module in MODULES:  # a release of a library, whose generation of names its module knows
        if versions and versions[0] in module.LAYOUTS and hasattr(module, "layout_for"):
            return [module.layout_for(version)]
    if versions:
        known = [layout.version for layout in versions if layout.version]
        has = f"has the version{'s' * (len(known) > 1)} {', '.join(known)}" if known else "has no versions"
        ways = " or ".join(f"`{option} {way}`" for way in (dialect, *(f"{dialect}@{v}" for v in known[-1:])))
        raise UserError(f"{option} {name}", f"{dialect} {has}", f"give {ways}")
    dialects = sorted({layout.dialect for layout in LAYOUTS.values()})
    if f".{dialect}" in (*SUFFIXES, *PROGRAMS) and option == "to":
        remedy = f"give DST the suffix .{dialect}, and here a layout such as timm, or nothing"
        raise UserError(f"{option} {name}", "is a kind of file and no layout", remedy)
    raise UserError(f"{option} {name}", f"there is no such layout{nearest(name, dialects)}")


def closest(names: Iterable[str]) -> str:
    """The layout whose names are most like those of a file, compared by their parts between dots. A clause naming it;
    empty where none is like them.
    """

    def parts(names: Iterable[str]) -> list[frozenset[str]]:
        return list(dict.fromkeys(frozenset(re.sub(r"\d+", "0", name).split(".")) for name in names))

    given = parts(itertools.islice(filter(_is_short, names), FIRST))[:FORMS]
    likeness = {}
    for layout in LAYOUTS.values():
        plain = parts(p.replace("\\", "").replace("d+", "0") for p in layout.signature if not p.startswith("!"))
        shares = [max((len(a & b) / len(a | b) for a in given), default=0) for b in plain]
        likeness[layout] = sum(shares) / max(len(shares), 1)
    best = max(likeness, key=likeness.__getitem__)
    newest = [each for each in likeness if each.dialect == best.dialect and likeness[each] == likeness[best]][-1]
    return f"; the nearest is {newest.name}" if likeness[best] > ALIKE else ""
