"""BLEU and chrF of translations, by sacrebleu, and ROUGE."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from ...machine.libraries import require
from ...scores.rouge import rouge


def has_scorer() -> bool:
    """Whether sacrebleu is installed."""
    return importlib.util.find_spec("sacrebleu") is not None


def corpus_scores(
    said: Sequence[str], references: Sequence[str], cased: bool, words: str = "13a"
) -> tuple[dict[str, float], tuple[str, ...]]:
    """BLEU and chrF of translations.

    BLEU: Papineni et al. 2002, as defined by Post 2018 (arXiv 1804.08771); chrF: Popović 2015.
    """
    with require("sacrebleu"):
        from sacrebleu.metrics import BLEU, CHRF
    lower = not cased or words == "none"
    # force: sacrebleu would warn of tokens, which it takes for a mistake.
    metrics = {"bleu": BLEU(lowercase=lower, tokenize=words, force=True), "chrf": CHRF(lowercase=lower)}
    metrics |= {} if lower else {"bleu_lower": BLEU(lowercase=True, tokenize=words, force=True)}
    scores = {name: metric.corpus_score(list(said), [list(references)]).score for name, metric in metrics.items()}
    spelled = {"bleu": "BLEU", "chrf": "chrF", "bleu_lower": "BLEU in lower case"}
    signatures = (f"{spelled[name]} is {metric.get_signature()}" for name, metric in metrics.items())
    return scores | rouge(said, references), (*signatures, "ROUGE is F1, of words of a-z and 0-9, without stemming")
