"""The segments of a run: what it was trained with at first, and with what it went on after its end.

config.json has the config that holds now, and of a run of several segments their list, `segments`: after which step
each began, what the learning rate does in it, and of the earlier ones the config and the summary that they ended with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..config.run import RunConfig
from .values import from_dict, to_dict

Continuation = Literal["", "constant", "again", "extended"]
SEGMENT_FIELDS = ("epochs", "patience")  # of the identity, which may be others in another segment
MOST = 1000  # segments of a run


@dataclass(frozen=True)
class Segment:
    """A part of a run that is trained with one config."""

    run: RunConfig
    after: int = 0  # the step after which it begins
    continuation: Continuation = ""  # what the learning rate does in it; "" in the first
    ended: dict[str, Any] = field(default_factory=dict)  # the summary at its end, if the run came to one

    @property
    def text(self) -> str:
        """What it is, in a few words."""
        return f"{self.continuation} to {self.run.epochs} epochs" if self.continuation else f"{self.run.epochs} epochs"


def segments_of(record: Mapping[str, Any]) -> list[Segment]:
    """The segments of a run by the content of its config.json, which is one of a run; the last holds now."""
    now = from_dict(RunConfig, record["config"])
    listed = record.get("segments") or [{"after": 0, "continue": ""}]
    return [
        Segment(
            from_dict(RunConfig, each["config"]) if "config" in each else now,
            each["after"],
            each["continue"],
            each.get("ended", {}),
        )
        for each in listed
    ]


def with_segments(record: Mapping[str, Any], segments: list[Segment]) -> dict[str, Any]:
    """The content of config.json of a run with these segments."""
    listed: list[dict[str, Any]] = [
        {"after": each.after, "continue": each.continuation, "config": to_dict(each.run), "ended": each.ended}
        for each in segments[:-1]
    ]
    listed.append({"after": segments[-1].after, "continue": segments[-1].continuation})
    several = {"segments": listed} if len(segments) > 1 else {}
    rest = {name: value for name, value in record.items() if name != "segments"}
    return {**rest, "config": to_dict(segments[-1].run), **several}


def are_segments(value: Any) -> bool:
    """Whether a JSON value is the list of segments of a run; the configs are not looked at."""
    return (
        isinstance(value, list)
        and 1 < len(value) <= MOST
        and all(isinstance(each, dict) and type(each.get("after")) is int for each in value)
        and [each["after"] for each in value] == sorted(each["after"] for each in value)
        and value[0]["after"] == 0
        and all(each.get("continue") in get_args(Continuation) for each in value)
        and all(isinstance(each.get("ended", {}), dict) for each in value)
        and ["config" in each for each in value] == [True] * (len(value) - 1) + [False]
        and all(isinstance(each["config"], dict) for each in value[:-1])
    )
