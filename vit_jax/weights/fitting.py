"""What given weights decide of a run, how they follow another image or other channels, and what does not fit them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..config.dotted import leaves, replace_fields, value_at
from ..config.fields import Size, pair
from ..config.groups import all_but
from ..config.network import NetworkConfig
from ..config.run import RunConfig
from ..errors import Field, UserError, fields_inside
from ..runs.values import flat
from ..tasks.table import task_spec
from .interop import Change, Weights, cannot_hold, plan_change, task_metadata
from .opening import RULES, Unfit, differences, errors_about, known_fields, stated_by, text

LAYER_DECAY, RATE, EXAMPLES = 0.75, 1e-3, 256  # of full: the rate is for so many examples a batch
HEAD_RATE = 1e-2  # of head, whatever the batch: see benchmarks/finetune.py


class OtherNetwork(Unfit):
    """A run's network is not that of its weights."""

    given: NetworkConfig
    wanted: NetworkConfig
    fields: list[str]  # those that differ and that neither a rule nor the data can make equal


def decide_fields(task: str, change: Change, stated: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """{field of a run: value} that weights decide, after a change, and what lies in their folder."""
    given = task_metadata(change.facts, task, change.config)
    from_data = change.config.marked("from_data")
    model = {f"model.{name}": value for name, value in known_fields(change.config).items() if name not in from_data}
    beside = task_spec(task).data.fields_with_weights(folder)
    if stated.get("data.task"):  # whose own prefix is the one that texts need, not that of the task before
        beside.pop("data.prefix", None)
    return model | task_spec(task).prepared_as(given, stated) | beside


def change_for(run: RunConfig, weights: Weights) -> Change:
    """What makes the weights those of the run's image and channels, by its rules."""
    texts = []
    wanted, given = run.model.normal(), weights.config.normal()
    for name, rule in RULES.items():
        if getattr(run, rule) != "none" and name not in wanted.function_fields():
            raise Unfit(Field(rule), f"is {getattr(run, rule)}, but a {wanted.name} has no model.{name}", "set none")
    if "image" in wanted.function_fields():
        text = _resize(run, value_at(wanted, "image"), value_at(given, "image"), weights.resize)
        texts += [text] if text else []
    if run.init_channels != "none" and (channels := value_at(wanted, "channels")) != value_at(given, "channels"):
        texts.append(f"channels={channels}")
    with errors_about(run.init), fields_inside("model"):
        return plan_change(weights, texts)


def _resize(run: RunConfig, wanted: Size, given: Size, library: str) -> str:
    """The --adapt for images of the size `wanted`, of weights for `given`; empty where there is no rule for it.

    `library` is that of the weights' own library for the images of their preprocessing, of another size than `given`,
    or empty. The preprocessing follows the size that is wanted.
    """
    own, size = ("x".join(map(str, pair(each))) for each in (given, wanted))
    prepared, _, kernel = library.removeprefix("resize=").partition(":")
    if run.init_resize != "none":
        kernel = run.init_resize
    elif size not in (own, prepared):
        return ""
    return f"resize={size}:{kernel}" if kernel and (size != own or prepared) else ""


def check_fit(run: RunConfig, given: NetworkConfig, change: Change) -> None:
    """Raise OtherNetwork where a run's network is not that of its weights; sizes that data will determine are free."""
    from_data, of_head = given.marked("from_data"), given.marked("of_head")
    sizes = {name: value_at(given, name) for name in from_data if not value_at(run.model, name)}
    wanted, there = replace_fields(run.model, sizes).normal(), change.config.normal()
    free = _of_any_head(there, {name: value_at(wanted, name) for name in of_head})
    different = [
        name
        for name in wanted.function_fields()
        if value_at(there, name) != value_at(wanted, name) and not (run.new_head and name in free)
    ]
    if not different:
        return
    if "image" in different:  # no rule makes weights those of a size that the patch does not divide
        with fields_inside("model"):
            wanted.check()
    own = [name for name in different if name not in RULES and name not in from_data]
    hints = []
    if own:
        hints.append(f"give {' and '.join(stated_by(name, value_at(there, name)) for name in own)}")
        if {*own} <= free:
            hints[0] += ", or add `new_head True` to start with a new head of that kind"
    hints += [_following(name) for name in RULES if name in different]
    of_data = [name for name in different if name in from_data]
    if any(name in of_head for name in of_data):
        hints.append("add `new_head True` to start with a new head")
    if any(name not in of_head for name in of_data):
        hints.append("start from weights that were trained with the same words")
    what = differences(different, there, wanted)
    error = OtherNetwork(f"init {run.init}", what, " and ".join(hints))
    error.given, error.wanted, error.fields = there, wanted, own
    raise error


def _of_any_head(there: NetworkConfig, values: Mapping[str, Any]) -> set[str]:
    """Those of {field: value} that a network's new head may have: they need no parameter but the head's that it lacks.

    So a pool by attention may give way to a mean, and not the reverse.
    """
    known = there.parameters().keys()
    free = {*there.marked("from_data")} & values.keys()  # sizes of the head itself
    for name, value in values.items():
        with contextlib.suppress(UserError):  # the network cannot have it
            other = replace_fields(there, {name: value})
            other.check()
            if all(each.head for name, each in other.parameters().items() if name not in known):
                free.add(name)
    return free


def about_head(run: RunConfig, given: NetworkConfig) -> list[str]:
    """A clause on the new head of a run, and in which fields it is of another kind."""
    if not run.new_head:
        return []
    kinds = [name for name in given.marked("of_head") if name not in given.marked("from_data")]
    both = {name: (value_at(run.model, name), value_at(given, name)) for name in kinds}
    other = [f"{name} {text(own)} in place of {text(its)}" for name, (own, its) in both.items() if own != its]
    return [f"the head is new, with {' and '.join(other)}" if other else "the head is new"]


def going_back(run: RunConfig, layout: str, given: NetworkConfig) -> list[str]:
    """A clause where the layout of a run's weights cannot hold the network as it is trained, and what helps."""
    if not (why := cannot_hold(layout, run.model)):
        return []
    whose = f"{layout}, the layout of its weights"
    helping = (
        stated_by(*way)
        for way in _other_heads(run, given)
        if not cannot_hold(layout, replace_fields(run.model, dict([way])))
    )
    if better := next(helping, ""):
        return [f"with {better} it could go back to {whose}; as it is it cannot: {why}"]
    return [f"it cannot go back to {whose}: {why}"]


def _other_heads(run: RunConfig, given: NetworkConfig) -> Iterator[tuple[str, Any]]:
    """(field, value) of other heads that a run with a new head may have, each of which differs in one field."""
    own = run.model.normal()
    for name in own.marked("of_head") if run.new_head else ():
        hint = leaves(type(own))[name].hint
        for value in () if name in own.marked("from_data") else (True, False) if hint is bool else get_args(hint):
            with contextlib.suppress(UserError):  # a network cannot have it
                other = replace_fields(own, {name: value})
                other.check()
                if other != own and _of_any_head(given, {name: value}):
                    yield name, value


def _following(name: str) -> str:
    """How weights can follow a field, by the values of its rule."""
    rule = RULES[name]
    first, *others = [value for value in get_args(get_type_hints(RunConfig)[rule]) if value != "none"]
    more = f" (or {', '.join(others)})" if others else ""
    return f"add `{rule} {first}`{more} to fit the weights to that"


def check_metadata(run: RunConfig, given: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Raise UserError where metadata of the weights, in a folder, conflicts with that of the run's data."""
    beside = task_spec(run.task).data.fields_with_weights(folder)
    is_its_own = all(value_at(run, name) == value for name, value in beside.items())
    if (clause := task_spec(run.task).other_outputs(given, wanted)) and not run.new_head:
        raise UserError(f"init {run.init}", clause, "add `new_head True` to start with a new head")
    for name, entry in task_spec(run.task).metadata.items():
        if getattr(run.data, "spoken", None) and is_its_own and name in given and entry.in_files(given[name]):
            continue  # the tokenizer of the weights, for texts in other languages
        both = name in given and (name in wanted or entry.optional)
        clause = entry.conflict(given[name], wanted.get(name)) if both else ""
        if clause and not (run.new_head and entry.of_head):
            remedy = (
                "add `new_head True` to start with a new head"
                if entry.of_head
                else "start from weights that were trained with the same ones"
            )
            raise UserError(f"init {run.init}", clause, remedy)


# ----------------------------------------------------------------------------------------------- modes of fine-tuning


def apply_tuning(run: RunConfig, mode: str, stated: Collection[str] = ()) -> RunConfig:
    """A run with the fields that a mode of fine-tuning sets.

    full: all weights train, at rates that fall towards the input: layer decay 0.75 and the rate 1e-3 for each 256
    examples of a batch, as in He et al. 2022 (arXiv 2111.06377), table 9. head: all but the head is frozen, and nothing
    decays (a linear probe); the rate 1e-2 is ours. attention: attention, positions and the head train, as in Touvron et
    al. 2022 (arXiv 2203.09795); the rate stays that of the run.
    """
    if not run.init:
        raise UserError(Field("tune"), f"is {mode} but init is empty", "name the weights to start from")
    modes = run.model.tuning_modes
    if mode not in modes:
        known = f"choose one of {', '.join(modes)}" if modes else "give `optim.freeze` and `optim.lr`"
        raise UserError(Field("tune"), f"is {mode}, but a {run.model.name} has no such mode", known)
    fields: dict[str, Any] = {"optim.freeze": all_but(modes[mode], run.model.with_data().parameters())}
    if run.lora.rank and fields["optim.freeze"] and "optim.freeze" not in stated:
        raise UserError(
            Field("tune"),
            f"is {mode} and lora.rank is {run.lora.rank}, but each decides what trains",
            "leave one of them out",
        )
    if mode == "full":
        fields |= {"optim.layer_decay": LAYER_DECAY, "optim.lr": RATE * run.batch / EXAMPLES}
    if mode == "head":
        fields |= {"optim.lr": HEAD_RATE, "optim.weight_decay": 0.0}
    return replace_fields(run, {name: value for name, value in fields.items() if name not in stated})


def describe_tuning(run: RunConfig, mode: str) -> str:
    """A line for the user: the fields of a run that a mode sets, as they are."""
    names = ("optim.freeze", "optim.layer_decay", "optim.lr", "optim.weight_decay")
    values = {name: flat(run)[name][0] for name in names}
    return f"tune     {mode}: " + ", ".join(f"{name} {text(value)}" for name, value in values.items())
