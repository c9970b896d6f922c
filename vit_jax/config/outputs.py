"""What the outputs of a network mean, as runs and converted files hold it: a class, a set of labels, or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .fields import are_texts

# {kind: what the outputs of a network of that kind are}. Only those of `class` are weighed against each other.
KINDS = {
    "class": "classes, one an image",
    "set": "a set of labels, any number an image",
    "number": "numbers",
    "embedding": "an embedding",
}


@dataclass(frozen=True)
class Outputs:
    """The K outputs of a network.

    Args:
        kind: a key of KINDS; empty where nothing states it.
        names: of the classes, labels or numbers, in order; empty where they have none.
    """

    kind: str = ""
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """The outputs that metadata states; where it has no entry `outputs`, they are classes, or without any kind."""
        if "outputs" in metadata:
            return cls(metadata["outputs"]["kind"], tuple(metadata["outputs"].get("names", ())))
        names = metadata.get("class_names") or ()
        return cls("class" if names else "", tuple(names))

    def to_metadata(self) -> dict[str, Any]:
        """The entry of metadata that states them: `class_names` of classes, else `outputs`; none of classes without."""
        names = list(self.names)
        if self.kind in ("", "class"):
            return {"class_names": names} if names else {}
        return {"outputs": {"kind": self.kind, **({"names": names} if names else {})}}


UNSTATED = Outputs()


def are_outputs(value: Any) -> bool:
    """Whether a JSON value is what `Outputs.to_metadata` writes as `outputs`."""
    return (
        isinstance(value, dict)
        and {"kind"} <= value.keys() <= {"kind", "names"}
        and value["kind"] in [*KINDS]
        and are_texts(value.get("names", []))
    )
