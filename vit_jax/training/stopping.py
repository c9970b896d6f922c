"""What a clock or a signal decides: to save, or to end. Several hosts decide it together, each at the same step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from ..errors import INTERRUPTED
from ..machine.hosts.group import Hosts
from .signals import Caught

VOTES = (*INTERRUPTED, "time", "save")


@dataclass
class Decision:
    """What is to happen after this step. With one host: what that one's signals and clocks say now.

    With several hosts each puts its votes into the inputs of a step, and reads what any of them votes for from the
    results of that step (`read`), so all know the same at the same step, whoever's signal or clock it was.
    """

    hosts: Hosts
    caught: Caught
    deadline: float  # in time.monotonic()
    save_seconds: float  # between two saves
    saved: float = field(default_factory=time.monotonic)  # when the last was
    agreed: frozenset[str] = frozenset()

    def own_votes(self) -> frozenset[str]:
        """What this host votes for now, of VOTES."""
        now = time.monotonic()
        late = {"time"} if now > self.deadline else set()
        due = {"save"} if now - self.saved > self.save_seconds else set()
        return frozenset({*filter(None, [self.caught.name]), *late, *due})

    def votes(self) -> np.ndarray | None:
        """`own_votes` as the input of a step, bool [k]; None with one host."""
        own = self.own_votes()
        return np.array([name in own for name in VOTES]) if self.hosts.several else None

    def read(self, votes: np.ndarray | None) -> None:
        """Take the result of a step with the votes of all hosts, int32 [k]; None: there is none."""
        if votes is not None:
            self.agreed |= {name for name, count in zip(VOTES, votes, strict=True) if count}

    @property
    def known(self) -> frozenset[str]:
        """What was voted for, as far as all know it."""
        return self.agreed if self.hosts.several else self.own_votes()

    @property
    def signal(self) -> str:
        """The signal that ends the run; '' for none."""
        return next((name for name in INTERRUPTED if name in self.known), "")

    @property
    def late(self) -> bool:
        """Whether the time of the budget is over."""
        return "time" in self.known

    @property
    def save_due(self) -> bool:
        """Whether the last save is long enough ago."""
        return "save" in self.known

    def has_saved(self) -> None:
        """The state was saved just now."""
        self.saved, self.agreed = time.monotonic(), self.agreed - {"save"}
