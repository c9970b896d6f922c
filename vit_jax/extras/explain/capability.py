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
from ...tasks.capability import Capability
from .methods import BATCH, IMAGES, SUFFIXES, TEXTS

# {class of predictors: how they, and those of classes derived from it, are explained}
KINDS = {
    "Classifier": Plugin("vit_jax.extras.explain.classify:OfImages"),
    "Describer": Plugin("vit_jax.extras.explain.texts:OfCaptions"),
    "Translator": Plugin("vit_jax.extras.explain.texts:OfTranslations"),
}
NONE = {"FeatureDescriber": ("the inputs of this network are vectors, which have no patches or words", "leave it out")}


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
        kind = _of(KINDS, type(predictor))
        self.kind = kind.load()(predictor) if kind else predictor.refuse("explanations", _of(NONE, type(predictor)))

    @classmethod
    def asked(cls, options: Any, stated: Sequence[str]) -> bool:
        """Whether --explain is given. Raises UserError where only what goes with it is."""
        for name, given in (("class", options.class_), ("explain_to", "explain_to" in stated)):
            if given and not options.explain:
                raise UserError(Field(name), "is for an explanation, and none is asked for", "add --explain ig")
        return bool(options.explain)

    @classmethod
    def outputs(cls, options: Any) -> Sequence[Mapping[str, str]]:
        """The picture, the table and the arrays."""
        return [{"explain_to": f"{options.explain_to}{suffix}"} for suffix in SUFFIXES]

    def check(self, options: Any) -> None:
        """Raise UserError where the network cannot be explained so, or has no such class."""
        self.kind.check(options.explain, options.class_)

    def explain(self, inputs: Any, method: str = "ig", class_name: str = "", *how: Any, **options: Any) -> Any:
        """As the `explain` of the predictor, which calls it."""
        self.kind.check(method, class_name)
        return self.kind.explain(inputs, method, class_name, *how, **options)

    def after_answers(self, options: Any, inputs: Sequence[Any], caption: str) -> Iterator[tuple[str, str]]:
        """Explain the first inputs, and say how far that can be trusted."""
        if not inputs:
            raise UserError(f"--explain {options.explain}", "no input is left to explain", "give one that can be read")
        how = {"class_name": options.class_, "batch": min(options.batch, BATCH)}
        found = self.predictor.explain(inputs[: self.kind.most], options.explain, **how)
        yield "explain", found.sentence
        for remark in found.notes:
            yield "score", remark
        yield "written", ", ".join(found.write(options.explain_to, caption))

    @classmethod
    def draw(cls, task: Any, network: Any, data: Any, result: Any, plots: Path, caption: str) -> Sequence[Sections]:
        """What counted in the worst images, or in the first for each word."""
        kind = _of(KINDS, task.predictor)
        sections = kind.load().draw(task, network, data, result, plots, caption) if kind else None
        return () if sections is None else [Sections(sections, "explanations")]


def _of(table: Mapping[str, Any], predictor: type) -> Any:
    """The entry of a class of predictors, or of the nearest above it; None if there is none."""
    return next((table[each.__name__] for each in predictor.__mro__ if each.__name__ in table), None)
