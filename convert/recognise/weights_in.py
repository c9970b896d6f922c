"""Which tensors of a file are the network's weights: training checkpoints wrap them, and hold other things as well."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from vit_jax.errors import UserError

from ..containers.source import Marker, Source, Tensor, TreePath, check_amount, check_names

TensorSet = dict[str, Tensor]
Found = TypeVar("Found")  # what is known of a set of tensors: false where that is nothing

# Keys under which files keep weights, and prefixes that modules around a model put before its names.
WRAPPERS = (
    "state_dict", "model", "model_state_dict", "model_state", "model_ema", "state_dict_ema", "ema", "ema_state_dict",
    "ema_model", "ema_params", "module", "net", "network", "student", "teacher", "weights", "params", "opt/target",
    "target", "state", "variables",
)  # fmt: skip
WRAPPER_MODULES = ("module", "_orig_mod")  # DistributedDataParallel and torch.compile: before every name of a model's
PREFIXES = (
    *WRAPPER_MODULES, "model", "net", "backbone", "visual.trunk", "student", "teacher", "ema", "ema_model", "params",
    "opt/target", "target", "img",
)  # fmt: skip
# Parts of names under which an optimizer's moments lie: they have the names and shapes of the weights.
OPTIMIZER = r"opt|opt_.*|optim.*|mu|nu|trace|exp_avg.*|momentum.*"
INSIDE = {
    WRAPPER_MODULES[1],
    "_checkpoint_wrapped_module",
    "_fsdp_wrapped_module",
}  # added within names, around submodules
STRIPPED, SETS = 6, 200  # at most so many wrappers and prefixes around each other, and sets in one file
LOOKED = 20_000  # names in all of these places: comparing them with all layouts takes half a second
PLACES, SHOWN = 30, 5  # prefixes under which weights are looked for that no known wrapper holds; shown of a long list
TOP = "."  # the label of a file's own names
ONE = "choose one with `key LABEL`"
CHUNKED = re.compile(r"(?P<above>(.*[.\0])?)blocks\.(?P<chunk>\d{1,4})\.(?P<block>\d{1,4})\.(?P<rest>.*)")
NEST = "\0"  # between a dictionary's key and what is in it, where names themselves are joined by dots

Members = dict[str, tuple[TreePath, Any]]  # {what is left of a name: (path in the tree, Tensor or Marker)}


class Chosen(NamedTuple, Generic[Found]):
    """The weights of a source, what was left out, and what is known of the tensors."""

    label: str  # where they lie in the source; "." is the top
    tensors: TensorSet
    left_out: list[str]
    found: Found


def choose(source: Source, recognise: Callable[[TensorSet], Found], key: str = "") -> Chosen[Found]:
    """The weights of a source, with wrappers and prefixes off their names.

    The only known set of tensors is taken; where there is none, the largest, so that the caller can name the nearest
    layout. A set with all names and shapes of a known one (its average, under any name) is known, too. Of several sets
    in a run, the preferred one is taken where there is no `key`.
    """
    key = key or source.preferred
    members = _members(source)
    check_amount(members, source.path)
    sets = _sets(source, members, TOP, recognise, key)
    sets |= _equals(source, sets)
    if key and not any(label == key or label.startswith(key + source.separator) for label in sets):
        sets |= _sets(source, under, key, recognise, key) if (under := _under(source, members, key)) else {}
    known = [label for label, (_, found) in sets.items() if found]
    if key:
        named = _find_label(source, key, sets, known)
        if named is None:
            there = f"there is {', '.join(known)}" if known else hint(source, recognise) or elsewhere(source)
            there = "it holds one set, leave `key` out" if known == [TOP] else there
            raise UserError(source.path, f"key {key} names no set of weights", there)
        label = named
    elif len(known) > 1:
        raise UserError(source.path, f"has several sets of weights: {', '.join(known)}", ONE)
    else:
        label = known[0] if known else max(sets, key=lambda each: len(_tensors(sets[each][0])))
    members, found = sets[label]
    _check(source, members, bool(found))
    weights = _tensors(members)
    return Chosen(label, weights, _left_out(source, label, {id(tensor) for tensor in weights.values()}), found)


def describe_choice(source: Source, label: str, option: bool = True) -> str:
    """Which step of a run was opened, and which weights of it are taken. In words; empty for other sources."""
    if not source.chosen:
        return ""
    kind = {"model": "raw", "ema": "averaged"}.get(label, label)
    return f"{source.chosen}, its {kind} weights" + (f" (`key {label}`)" if option else "")


def hint(source: Source, recognise: Callable[[TensorSet], Any]) -> str:
    """Where in a source its weights lie, if no known wrapper is around them. A clause naming the prefixes; empty where
    there is none.
    """
    separator = source.separator
    every = {
        name.replace(NEST, separator): value
        for name, (_, value) in _members(source).items()
        if isinstance(value, Tensor)
    }
    counts: Counter[str] = Counter()
    for name in every:
        parts = name.split(separator)
        counts.update(separator.join(parts[:i]) for i in range(1, min(len(parts), STRIPPED)))
    found: list[str] = []
    looked = 0
    for label, count in sorted(counts.most_common(PLACES), key=lambda each: each[0].count(separator)):
        prefix = label + separator
        if any(prefix.startswith(outer + separator) for outer in found) or looked + count > LOOKED:
            continue
        looked += count
        if recognise({n.removeprefix(prefix): t for n, t in every.items() if n.startswith(prefix)}):
            found.append(label)
    if not found:
        return ""
    options = " or ".join(f"`key {label}`" for label in found)
    return f"its weights lie under {', '.join(found)}; add {options}"


def elsewhere(source: Source) -> str:
    """A clause saying where the tensors of a file lie that has none under names of weights, and what to do."""
    if {"state", "param_groups"} <= source.tree.keys():
        return "is the state of an optimizer; give the file of the weights"
    separator = source.separator
    counts = Counter(
        separator.join(map(str, path[:-1])) for path, value in _values(source.tree) if isinstance(value, Tensor)
    ).most_common()
    if not counts:
        return "holds no tensors with names; give the file of the weights"
    more = f" and {len(counts) - SHOWN} more places" if len(counts) > SHOWN else ""
    places = ", ".join(f"{label} ({count})" for label, count in counts[:SHOWN])
    return f"its tensors lie under {places}{more}; name the weights with `key {counts[0][0]}`"


def tied_names(source: Source, weights: TensorSet) -> list[tuple[str, ...]]:
    """The names that are one storage, of those alone that the weights have."""
    chosen = {tensor.name for tensor in weights.values()}
    kept = [tuple(name for name in names if name in chosen) for names in source.tied]
    return [names for names in kept if len(names) > 1]


def _members(source: Source) -> Members:
    """All there is, a dictionary's key and what is in it joined by NEST."""
    separator = source.separator
    nest = NEST if separator == "." else separator
    members: Members = {}
    for path, value in _values(source.tree):
        name = nest.join(_plain(str(part), separator) for part in path)
        if name in members:
            shown = name.replace(NEST, separator)[:200]
            raise UserError(
                source.path, f"{shown!a} is there with and without a wrapper's prefix", "save the unwrapped model"
            )
        members[name] = path, value
    return _join_chunks(members)


def _join_chunks(members: Members) -> Members:
    """The members with the blocks of a ViT that were saved in chunks, blocks.CHUNK.I, under blocks.I.

    DINOv2 and DINOv3 train so. I counts over all chunks there; where it begins anew in each, blocks follow each other.
    """
    chunks: dict[str, set[tuple[int, int]]] = {}
    for name in members:
        if found := CHUNKED.fullmatch(name):
            chunks.setdefault(found["above"], set()).add((int(found["chunk"]), int(found["block"])))
    places = {
        above: {block: number for number, block in enumerate(sorted(blocks))}
        for above, blocks in chunks.items()
        if f"{above}patch_embed.proj.weight" in members and _follow_each_other(blocks)
    }
    if not places:
        return members

    def join(name: str) -> str:
        found = CHUNKED.fullmatch(name)
        if not found or found["above"] not in places:
            return name
        number = places[found["above"]][int(found["chunk"]), int(found["block"])]
        return f"{found['above']}blocks.{number}.{found['rest']}"

    return {join(name): member for name, member in members.items()}


def _follow_each_other(blocks: set[tuple[int, int]]) -> bool:
    """Whether the numbers (chunk, block) are those of all blocks from 0 on, or of all in each chunk."""
    numbers: dict[int, list[int]] = {}
    for chunk, block in sorted(blocks):
        numbers.setdefault(chunk, []).append(block)
    every = [block for each in numbers.values() for block in each]
    whole = [*numbers] == list(range(len(numbers)))
    anew = all(each == list(range(len(each))) for each in numbers.values())
    return whole and (anew or every == list(range(len(every))))


def _under(source: Source, members: Members, key: str) -> Members:
    """The members whose names begin with a key, without it."""
    separator = source.separator
    start = re.compile(f"[{NEST}{separator}]".join(map(re.escape, key.split(separator))) + f"[{NEST}{separator}]")
    return {name[m.end() :]: member for name, member in members.items() if (m := start.match(name))}


def _sets(
    source: Source, members: Members, top: str, recognise: Callable[[TensorSet], Found], key: str
) -> dict[str, tuple[Members, Found]]:
    """{label: (its direct members, what is known of them)}, outermost first, of members that lie at a label."""
    separator = source.separator
    nest = NEST if separator == "." else separator
    prefixes = dict.fromkeys(
        [*(w + nest for w in WRAPPERS), *(p.replace(".", separator) + separator for p in PREFIXES)]
    )
    sets: dict[str, tuple[Members, Found]] = {}
    waiting = {top: (members, 0)}  # by label, outermost first
    while waiting:
        label, (members, stripped) = next(iter(waiting.items()))
        del waiting[label]
        direct = {name: member for name, member in members.items() if NEST not in name}
        tensors = _tensors(direct)
        known = recognise(tensors)
        sets[label] = direct, known
        for prefix in prefixes if stripped < STRIPPED else ():
            inner = {name.removeprefix(prefix): member for name, member in members.items() if name.startswith(prefix)}
            where = prefix.rstrip(NEST + separator)
            where = where if label == TOP else f"{label}{separator}{where}"
            if not inner or (
                known and not prefix.endswith(NEST) and where != key
            ):  # the names of a known set are its own, unless a part is asked for
                continue
            waiting[where + separator if where in waiting else where] = inner, stripped + 1
        if len(sets) + len(waiting) > SETS:
            raise UserError(
                source.path, f"has more than {SETS} sets of tensors inside each other", "save model.state_dict() alone"
            )
    return sets


def _equals(source: Source, sets: Mapping[str, tuple[Members, Found]]) -> dict[str, tuple[Members, Found]]:
    """What has all names and shapes of a known set and is no such set itself, nor moments: {label: as in `sets`}."""
    separator = source.separator
    every = {
        separator.join(part for each in path if (part := _plain(str(each), separator))): (path, value)
        for path, value in _values(source.tree)
    }
    known = [(_tensors(members), what) for members, what in sets.values() if what]
    taken = {id(tensor) for weights, _ in known for tensor in weights.values()}
    equal: dict[str, tuple[Members, Found]] = {}
    for weights, what in known:
        first = separator + next(iter(weights))
        for label in [name.removesuffix(first) for name in every if name.endswith(first)]:
            prefix = label + separator
            others = [(every.get(prefix + name, ((), None))[1], tensor.shape) for name, tensor in weights.items()]
            if label in equal or any(re.fullmatch(OPTIMIZER, part) for part in label.split(separator)):
                continue
            if all(isinstance(o, Tensor) and o.shape == shape and id(o) not in taken for o, shape in others):
                equal[label] = {n.removeprefix(prefix): each for n, each in every.items() if n.startswith(prefix)}, what
            if len(equal) > SETS:
                raise UserError(
                    source.path, f"has more than {SETS} sets of the same tensors", "save model.state_dict() alone"
                )
    return equal


def _find_label(source: Source, key: str, sets: Mapping[str, tuple[Members, Any]], known: list[str]) -> str | None:
    """The label that a user means: itself, or the beginning of that of one known set; None where there is none."""
    inside = [label for label in known if label.startswith(key + source.separator)]
    if key in known or (key in sets and not inside):
        return key
    if len(inside) > 1:
        raise UserError(source.path, f"key {key} has several sets of weights: {', '.join(inside)}", ONE)
    return inside[0] if inside else None


def _check(source: Source, members: Members, known: bool) -> None:
    """Raise UserError on keys that are no text, on names that no honest file has, and on values of other kinds."""
    check_names(members, source.path)
    for name, (path, value) in members.items():
        if odd := [part for part in path if not isinstance(part, str)]:
            key = repr(odd[0])[:100]
            raise UserError(source.path, f"the weights have the key {key}, which is no text", "save model.state_dict()")
        if known and isinstance(value, Marker):
            raise UserError(
                source.path, f"{name!a} among the weights is a {value.kind}", "save model.state_dict() alone"
            )


def _left_out(source: Source, label: str, chosen: set[int]) -> list[str]:
    """What holds tensors beside the chosen ones: "optimizer (212 tensors)"."""
    separator = source.separator
    inside = [] if label == TOP else label.split(separator)
    counts: dict[str, int] = {}
    for path, value in _values(source.tree, lists=True):
        if isinstance(value, Tensor) and id(value) not in chosen:
            parts = separator.join(map(str, path)).split(separator)
            apart = next((i for i, part in enumerate(parts) if i >= len(inside) or part != inside[i]), 0)
            group = separator.join(parts[: apart + 1])
            counts[group] = counts.get(group, 0) + 1
    return [f"{group} ({count} {'tensor' if count == 1 else 'tensors'})" for group, count in counts.items()]


def _values(value: Any, path: TreePath = (), lists: bool = False) -> Iterator[tuple[TreePath, Any]]:
    """Tensors and Markers of nested dictionaries (and lists, which hold no weights), with their paths."""
    if isinstance(value, (Tensor, Marker)):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _values(each, (*path, key), lists)
    elif lists and isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _values(each, (*path, i), lists)


def _tensors(members: Members) -> TensorSet:
    return {name: value for name, (_, value) in members.items() if isinstance(value, Tensor)}


def _plain(name: str, separator: str) -> str:
    return separator.join(part for part in name.split(separator) if part not in INSIDE)
