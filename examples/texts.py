"""The texts of the notebooks: what all of them say, and figures and verdicts computed from the stored scores.

A text has {name} where one of PARAGRAPHS belongs, {minutes}, and claims about variants. Each claim about a price says
what the table says of it, so that a text cannot contradict the table below which it stands:

    {costs: VARIANT}            its price in points, without the sign; an error unless the table says "costs"
    {gains: VARIANT}            likewise; so are {unclear: VARIANT} and {little: VARIANT} ("next to nothing")
    {verdict: VARIANT; VARIANT} the word of the table; an error unless it is the same for all of them
    {score: VARIANT}            the mean over seeds in percent; {least: VARIANT} and {greatest: VARIANT} of one seed

VARIANT may be followed by "| METRIC" (without: the first one), or by "| METRIC for METRIC", the price of reading the
first metric instead of the second of the same networks. Another file of prices is named before the colon.
"""

from __future__ import annotations

import re
import statistics

import prices

PARAGRAPHS = {
    "about": """
A *variant* is one network and the way in which it is trained. The scores of all variants are stored in
`examples/prices/`, so running this page does not train them again. If you change the code of a variant, or a number or
an image that it uses, it is trained on your machine, and its scores are kept in `examples/prices/own/`. Above a table
one line for each variant says where its scores come from: *as shipped* means that they were stored. Words that are new
to you are in the [glossary](../docs/glossary.md). How to run this page is in the [README](README.md).
""",
    "preset": """
It is a preset: a named set of settings for network, data and training.
""",
    "run": """
It writes into a temporary folder; the figures of its last line are pictures, which are shown below it. What the words
of its output mean (*best*, *raw weights*, *balanced*, *top-5*, *f1*, *calibrated temperature*) is in the
[glossary](../docs/glossary.md).
""",
    "prices": """
The *price* of a fault is the score of the right network minus the score with the fault, in points (hundredths), as a
mean over the seeds. So a plus is a loss, and a minus a gain. In brackets stands the 95 % interval of this mean
(Student's t): if everything were repeated with other seeds, 95 of 100 such intervals would contain the true price. The
last column says what follows:

- *costs*: the whole interval is above zero;
- *gains*: the whole interval is below zero;
- *next to nothing*: zero is in the interval, and all of it lies within one point of zero;
- *unclear*: zero is in the interval, which is wider than that. These seeds are too few to tell.
""",
    "verify": """
`--verify` builds the networks of both files, gives them the same inputs, and compares outputs and gradients. It prints
a line for each comparison: `A` is the original file, `B` the new one, `ours` the network in JAX, and `torch_ref` the
same network in PyTorch, which belongs to this project. The result is kept beside the new file as its certificate. (This
needs PyTorch.)
""",
    "unproven": """
*Unproven* in the last lines does not mean that a comparison failed. All tensors were copied exactly, and JAX and
PyTorch compute the same from them. But both read the file by our own table, which says what each name of the original
means. `convert` knows no other library that builds this network, so nothing but our own code has confirmed that table.
""",
    "exercises": """
Write your answers into the first cell below and run both cells: the second one says which answers are right.
""",
    "help": """
If a network of yours does not learn, [this page](../docs/learning.md) helps.
""",
}
WORDS = {"costs": "costs", "gains": "gains", "unclear": "unclear", "little": "next to nothing"}
_CLAIM = re.compile(
    rf"\{{({'|'.join((*WORDS, 'verdict', 'score', 'least', 'greatest', 'minutes'))})(?:\s+(\w+))?(?::\s+([^{{}}]+))?\}}"
)


def filled(text: str, name: str) -> str:
    """A text with its paragraphs, figures and verdicts.

    Args:
        text: Markdown.
        name: of the prices, where a claim names none.

    Raises:
        ValueError: for a claim that the stored scores contradict.
    """
    text = re.sub(r"\{(" + "|".join(PARAGRAPHS) + r")\}", lambda found: PARAGRAPHS[found[1]].strip(), text)
    return _CLAIM.sub(lambda found: _answer(found, name), text)


def _answer(found: re.Match[str], name: str) -> str:
    """What stands in place of a claim."""
    kind, other, about = found[1], found[2], " ".join((found[3] or "").split())
    race = prices.shipped(other or name)
    if kind == "minutes":
        return f"{sum(race.core_seconds.values()) / 60:.0f}"
    if kind == "verdict":
        verdicts = {_price(race, each).verdict for each in about.split("; ")}
        if len(verdicts) > 1:
            raise ValueError(f"{found[0]}: the table says {' and '.join(sorted(verdicts))}")
        return f"*{verdicts.pop()}*"
    if kind in WORDS:
        price = _price(race, about)
        if price.verdict != WORDS[kind]:
            raise ValueError(f"{found[0]}: the table says {price.verdict}")
        return f"{abs(100 * price.mean):.1f}"
    title, _, metric = about.partition("| ")
    of = {"score": statistics.fmean, "least": min, "greatest": max}[kind]
    return f"{100 * of(race.scores[title][metric or race.metrics[0]]):.1f}"


def _price(race: prices.Race, about: str) -> prices.Price:
    """The price of "VARIANT", "VARIANT| METRIC" or "VARIANT| METRIC for METRIC"."""
    title, _, metric = about.partition("| ")
    one, instead, other = metric.partition(" for ")
    if instead:
        return prices.price(race.scores[title][other], race.scores[title][one])
    return race.price(title, metric)
