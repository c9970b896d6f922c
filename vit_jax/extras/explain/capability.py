"""The capability `explain`: --explain of predict, `explain` of what `load` returns, and pictures in a run's report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...config.fields import option
from ...errors import Field, UserError
from ...figures.parts import Sections
from ...plugins import Plugin
from ...tasks.capability import EXPLAIN_BATCH, Capability

Method = Literal["ig", "rollout"]
WORDS: dict[str, str] = {
    "ig": "integrated gradients",
    "rollout": "attention rollout, which is blind to the class",
}
SUFFIXES = (".png", ".csv", ".npz")  # of the files that an explanation is written to
IMAGES, TEXTS = 64, 8  # most that a command explains
# {class of predictors: how they, and those of classes derived from it, are explained}
KINDS = {
    "vit_jax.tasks.classify.use:Classifier": Plugin("vit_jax.extras.explain.classify:OfImages"),
    "vit_jax.tasks.caption.use:Describer": Plugin("vit_jax.extras.explain.texts:OfCaptions"),
    "vit_jax.tasks.translate.use:Translator": Plugin("vit_jax.extras.explain.texts:OfTranslations"),
}


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    """What is explained, and where that is written."""

    explain: Literal["", "ig", "rollout"] = option(
        "",
        f"also explain the answers for the first {IMAGES} images, or {TEXTS} texts: what of the input counted, by ig "
        "(integrated gradients) or rollout (attention alone, blind to the class); for classes with a score, insertion "
        "minus deletion",
    )
    class_: str = option(
        "",
        "with --explain: the class, label or number that is explained; empty: the most probable of each image",
    )
    explain_to: str = option(
        "explanation",
        "with --explain: the name of the three files that are written, NAME.png (the picture), NAME.csv (a row for "
        "each patch or word) and NAME.npz (arrays)",
    )


class Explain(Capability):
    """What counted in inputs for what a network says of them."""

    flags = ExplainFlags

    def __init__(self, predictor: Any):
        super().__init__(predictor)
        kind = _kind_of(type(predictor)) or predictor.refuse("explanations")
        self.kind = kind.load()(predictor)

    @classmethod
    def asked(cls, options: Any, stated: Sequence[str]) -> bool:
        """Whether --explain is given. Raises UserError where only what goes with it is."""
        for name, given in (("class", options.class_), ("explain_to", "explain_to" in stated)):
            if given and not options.explain:
                raise UserError(Field(name), "is for an explanation, and none is asked for", "add --explain ig")
        return bool(options.explain)

    @classmethod
    def outputs(cls, options: Any) -> Sequence[Mapping[str, str]]:
        return [{"explain_to": f"{options.explain_to}{suffix}"} for suffix in SUFFIXES]

    def check(self, options: Any) -> None:
        self.kind.check(options.explain, options.class_)

    def explain(self, inputs: Any, method: str = "ig", class_name: str = "", *how: Any, **options: Any) -> Any:
        """As the `explain` of the predictor, which calls it."""
        if method not in WORDS:
            raise UserError(Field("explain"), f"is {str(method)[:40]!r}", f"give {' or '.join(WORDS)}")
        self.kind.check(method, class_name)
        return self.kind.explain(inputs, method, class_name, *how, **options)

    def after_answers(self, options: Any, inputs: Sequence[Any], caption: str) -> Iterator[tuple[str, str]]:
        """Explain the first inputs, and say how far that can be trusted."""
        if not inputs:
            raise UserError(f"--explain {options.explain}", "no input is left to explain", "give one that can be read")
        how = {"class_name": options.class_, "batch": min(options.batch, EXPLAIN_BATCH)}
        found = self.predictor.explain(inputs[: self.kind.most], options.explain, **how)
        yield "explain", found.sentence
        for remark in found.notes:
            yield "score", remark
        yield "written", ", ".join(found.write(options.explain_to, caption))

    @classmethod
    def draw(cls, task: Any, network: Any, data: Any, result: Any, plots: Path, caption: str) -> Sequence[Sections]:
        """What counted in the worst images, or in the first for each word."""
        kind = _kind_of(task.predictor)
        sections = kind.load().draw(task, network, data, result, plots, caption) if kind else None
        return () if sections is None else [Sections(sections, "explanations")]


def _kind_of(predictor: type) -> Plugin | None:
    """How a class of predictors is explained; None if it cannot be."""
    names = (f"{each.__module__}:{each.__qualname__}" for each in predictor.__mro__)
    return next((KINDS[name] for name in names if name in KINDS), None)
