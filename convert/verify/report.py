"""What a verification found: on the terminal, as Markdown, as JSON, and as the certificate beside a written file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata

from vit_jax.config.network import NetworkConfig
from vit_jax.runs.values import to_dict

from ..layout import Json
from .checks import Check, failures
from .libraries import OURS
from .weights import Weights

VERSIONED = ("vit-jax", "numpy", "jax", "flax", "torch", "timm", "torchvision", "transformers", "vit-pytorch")


@dataclass
class Report:
    """Two files, what was compared of them, and what could not be.

    `computed` names the files that a library computed independently of our table of their layout; `changed` are those
    of the adaptations that make another function, and `rounded` the dtype in which A's values became others.
    """

    a: Weights
    b: Weights
    config: NetworkConfig  # A's, adapted: the one that B has to have
    adaptations: Sequence[str]
    paths: tuple[str, str] = ("", "")
    hashes: tuple[str, str] = ("", "")
    chosen: tuple[str, str] = ("", "")  # of runs: which step and weights were taken, in words
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    computed: set[str] = field(default_factory=set)
    changed: Sequence[str] = ()
    rounded: str = ""

    @property
    def same(self) -> bool:
        """Whether every comparison is within its limit."""
        return not failures(self.checks)

    @property
    def where(self) -> str:
        """The first layer or tensor beyond its limit, of a forward pass where one fails; empty where all pass."""
        faults = failures(self.checks)
        passes = [c.where for c in faults if c.quantity.startswith("forward")]
        return (passes or [c.where for c in faults] or [""])[0]

    @property
    def verdict(self) -> str:
        """In words."""
        if self.same:
            up_to = f" up to {self.rounded}" if self.rounded else ""
            if self._tables:
                return f"the same tensors{up_to}; {self._tables}"
            after = f", after --adapt {' --adapt '.join(self.changed)}" if self.changed else ""
            return (f"equal{up_to}" if self.rounded else "the same function") + after
        if refused := [c for c in self.checks if c.quantity == "loading"]:
            return f"not compared: its own library does not load {refused[0].subject}"
        passes = [c for c in self.checks if c.quantity.startswith("forward")]
        if passes and not failures(passes):
            first = failures(self.checks)[0]
            return f"the same outputs, but not the same: {first.quantity} ({first.where})"
        return f"different, first at {self.where}" if self.where else "different"

    @property
    def _tables(self) -> str:
        """How far the tables are proven of those files that were not computed independently; empty where all were."""
        layouts = {w.layout.name: w.layout for w in (self.a, self.b) if w.name not in self.computed}
        if not layouts:
            return ""
        clauses = [
            f"the table of {name} " + (f"was compared with {layout.proven}" if layout.proven else "is unproven")
            for name, layout in layouts.items()
            if layout.dialect not in OURS
        ]
        if not self.computed:
            clauses = clauses or ["no forward pass was compared"]
        return " and ".join(clauses) or f"{' and '.join(layouts)} was not computed independently"

    @property
    def _files(self) -> list[tuple[Weights, str, str]]:
        """(the weights, the path, the layout and what was chosen) of each."""
        what = (
            ", ".join(filter(None, (w.layout.name, said)))
            for w, said in zip((self.a, self.b), self.chosen, strict=True)
        )
        return list(zip((self.a, self.b), self.paths, what, strict=True))

    def text(self) -> str:
        """For a terminal."""
        files = sorted(self._files, key=lambda file: file[0].name)
        lines = [f"{w.name:9} {path}: {what}" for w, path, what in files if path]
        lines += [f"{'same' if c.passed else 'DIFFERS':9} {c}" for c in self.checks] + [
            f"note      {note}" for note in self.notes
        ]
        return "\n".join([*lines, f"verdict   {self.verdict}"])

    def markdown(self) -> str:
        """As a page."""
        cells = [
            (
                c.subject,
                c.against,
                c.quantity,
                f"{c.difference:.1e}",
                f"{c.limit:.0e}",
                c.where or "-",
                "yes" if c.passed else "**no**",
            )
            for c in self.checks
        ]
        lines = ["# Two networks, compared", "", f"Verdict: {self.verdict}.", ""]
        lines += [
            f"- {w.name}: `{path}`, {what}, sha256 {sha}"
            for (w, path, what), sha in zip(self._files, self.hashes, strict=True)
            if path
        ]
        lines += [f"- adapted: `--adapt {text}`" for text in self.adaptations] + [f"- {note}" for note in self.notes]
        table = [
            "| what | with | quantity | difference | allowed | where | within |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        return "\n".join([*lines, "", *table, *(f"| {' | '.join(row)} |" for row in cells), ""])

    def json(self) -> Json:
        """The certificate, and every check."""
        checks = [{**asdict(c), "difference": _finite(c.difference), "passed": c.passed} for c in self.checks]
        return {**self.certificate(), "checks": checks}

    def certificate(self) -> Json:
        """What TARGET.certificate.json holds: the same files give the same text, whenever it is made."""
        files = [
            {"sha256": sha, "layout": w.layout.name, "keys": len(w.tensors), **({"weights": said} if said else {})}
            for w, sha, said in zip((self.a, self.b), self.hashes, self.chosen, strict=True)
        ]
        names = {self.a.name: "source", self.b.name: "target"}
        differences: dict[str, float] = {}
        for c in self.checks:
            of = next(
                (f"{word}{c.subject.removeprefix(name)}" for name, word in names.items() if c.subject.startswith(name)),
                c.subject,
            )
            key, found = f"{of}: {c.quantity}", math.inf if math.isnan(c.difference) else c.difference
            differences[key] = max(differences.get(key, 0.0), found)
        return {
            "format": 1,
            "source": files[0],
            "target": files[1],
            "config": {"network": self.config.name, "fields": to_dict(self.config)},
            "adaptations": list(self.adaptations),
            "differences": {key: _finite(difference) for key, difference in differences.items()},
            "versions": versions(),
            "verdict": self.verdict,
            "notes": list(self.notes),
        }


def versions() -> dict[str, str]:
    """The versions of the libraries that may compute here, as far as they are installed."""
    out = {}
    for name in VERSIONED:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if value < float("inf") else None
