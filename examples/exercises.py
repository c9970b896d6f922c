"""The exercises of the notebooks: `check_answers` says of each answer whether it is right, and if not, for which input.

An answer is a number or a function. The right values are computed here by another way than the exercise asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from prices import price
from scipy.special import rel_entr, softmax
from sklearn.metrics import f1_score

Check = Callable[[Any], str]  # of an answer: empty where it is right, else what is not
RNG = np.random.default_rng(0)


def number(right: Callable[[], float]) -> Check:
    """Of a number, up to a thousandth of it."""

    def compare(answer: Any) -> str:
        return "" if abs(float(answer) - right()) <= 1e-3 * abs(right()) else f"{answer} is not it"

    return compare


def function(right: Callable[..., Any], *cases: tuple[Any, ...]) -> Check:
    """Of a function, by its results for some arguments."""

    def compare(answer: Any) -> str:
        for arguments in cases:
            wanted = np.asarray(right(*arguments))
            given = np.asarray(answer(*(np.copy(x) if isinstance(x, np.ndarray) else x for x in arguments)))
            if given.shape != wanted.shape:
                return f"the result has the shape {given.shape}, not {wanted.shape}"
            if not np.allclose(given, wanted, rtol=1e-4, atol=1e-6):
                return f"for {shown(arguments)} the result should be {shown((wanted,))}, and is {shown((given,))}"
        return ""

    return compare


def shown(arguments: tuple[Any, ...]) -> str:
    """Arguments on one line; long arrays by their shapes."""
    texts = [
        f"an array of shape {x.shape}" if isinstance(x, np.ndarray) and x.size > 8 else " ".join(str(x).split())
        for x in arguments
    ]
    return ", ".join(texts)


def patches(images: np.ndarray) -> np.ndarray:
    """[n, 28, 28] -> [n, 49, 16], one number after the other."""
    found = np.zeros((len(images), 49, 16), images.dtype)
    for y in range(28):
        for x in range(28):
            found[:, 7 * (y // 4) + x // 4, 4 * (y % 4) + x % 4] = images[:, y, x]
    return found


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """One query after the other."""
    rows = []
    for query, allowed in zip(q, mask, strict=True):
        weights = softmax([query @ key / math.sqrt(len(query)) for key in k[allowed]])
        rows.append(sum(w * value for w, value in zip(weights, v[allowed], strict=True)))
    return np.stack(rows)


def parameters(preset: str, **fields: Any) -> float:
    """How many numbers the network of a preset has."""
    import vit_jax

    config = vit_jax.preset(preset, fields=fields).run.model
    return float(sum(math.prod(shape) for shape in config.shapes().values()))


def interval(right: list[float], fault: list[float]) -> list[float]:
    p = price(right, fault)
    return [p.mean, p.low, p.high]


def exact(said: np.ndarray, right: np.ndarray) -> float:
    rows = [all(a == b for a, b in zip(*each, strict=True) if b) for each in zip(said, right, strict=True)]
    return sum(rows) / len(rows)


def share_right(logits: np.ndarray, labels: np.ndarray) -> float:
    rows = [max(range(10), key=row.__getitem__) == k for row, k in zip(logits, labels, strict=True)]
    return sum(rows) / len(rows)


LOGITS, LABELS = RNG.normal(size=(6, 10)), np.array([0, 3, 3, 9, 1, 2])
LOWER = np.tril(np.ones((5, 5), bool))
WORDS = np.array([[1, 4, 5, 2, 0], [1, 6, 2, 0, 0]])

CHECKS: dict[str, tuple[Check, Check, Check]] = {
    "mnist_vit_from_scratch": (
        number(lambda: parameters("mnist-20x1", depth=2)),
        function(lambda x: softmax(x, -1), (RNG.normal(size=(2, 5)),), (np.array([1000.0, 1001.0, 0.0]),)),
        function(patches, (RNG.integers(0, 256, (3, 28, 28)),)),
    ),
    "encoder_decoder": (
        function(lambda n: np.array([[j <= i for j in range(n)] for i in range(n)]), (1,), (5,)),
        function(attention, (*RNG.normal(size=(3, 5, 4)), LOWER), (*RNG.normal(size=(3, 5, 4)), LOWER | LOWER.T)),
        number(lambda: max(range(100, 1001), key=math.cos)),
    ),
    "captioning": (
        number(lambda: math.log(1000)),
        function(lambda x, r: x[r].sum() / r.sum(), (RNG.random((2, 5)), WORDS != 0)),
        function(exact, (WORDS, WORDS), (WORDS + np.array([[0, 0, 0, 0, 7], [0, 1, 0, 0, 0]]), WORDS)),
    ),
    "cifar100_vit_768": (
        function(lambda x: np.stack([x[:, i] for i in range(x.shape[1])]), (RNG.normal(size=(3, 4, 2)),)),
        function(lambda x: [[a @ b / math.sqrt((a @ a) * (b @ b)) for b in x] for a in x], (RNG.normal(size=(4, 3)),)),
        number(lambda: sum(768 + 1 for _ in range(768))),
    ),
    "cifar100_vit_256": (
        number(lambda: sum(1 for _ in range(0, 40_000, 256))),
        function(lambda t, n, rate: rate * math.cos(math.pi * t / n / 2) ** 2, (0, 9, 2.0), (4, 9, 2.0), (9, 9, 1.0)),
        function(
            lambda a, b, k: f1_score(b, a, average="macro", labels=range(k), zero_division=0),
            (np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]), 4), (LABELS % 4, LABELS[::-1] % 4, 4),
        ),
    ),
    "cifar10_overfit_and_train": (
        number(lambda: math.log(10)),
        function(lambda x: x / 255.0 * 2 - 1, (np.array([0, 51, 255], np.uint8),)),
        function(share_right, (LOGITS, LABELS)),
    ),
    "cifar10_vit_48": (
        number(lambda: len([(y, x) for y in range(0, 32, 8) for x in range(0, 32, 8)]) + 1),
        function(
            lambda x, eps: np.stack([(row - sum(row) / len(row)) / math.sqrt(row.var() + eps) for row in x]),
            (RNG.normal(3, 2, size=(4, 6)), 1e-6), (RNG.normal(size=(2, 3)), 0.5),
        ),
        function(interval, ([5.0, 7.0, 9.0], [1.0, 2.0, 6.0]), ([1.0, 2.0, 3.0, 5.0], [2.0, 1.0, 3.0, 3.0])),
    ),
    "distillation": (
        function(lambda z, t: softmax(z / t, -1), (LOGITS, 3.0), (LOGITS, 1.0)),
        function(lambda p, q: rel_entr(p, q).sum(-1), (softmax(LOGITS[:3], -1), softmax(LOGITS[3:], -1))),
        number(lambda: 4.0**2),
    ),
}  # fmt: skip


def check_answers(name: str, *answers: Any) -> None:
    """Print of each answer to the exercises of a notebook whether it is right."""
    for place, (its_check, answer) in enumerate(zip(CHECKS[name], answers, strict=True), 1):
        print(f"{place}: {verdict(its_check, answer)}")


def verdict(its_check: Check, answer: Any) -> str:
    """What is to be said of an answer. One that is None, or a function that returns None, is none yet."""
    asked: list[bool] = []

    def watched(*arguments: Any) -> Any:
        result = answer(*arguments)
        asked.append(result is None)
        return np.nan if result is None else result

    if answer is None or answer is ...:
        return "no answer yet"
    try:
        wrong = its_check(watched if callable(answer) else answer)
    except Exception as error:
        return f"not yet: {type(error).__name__}: {error}"
    if any(asked):
        return "no answer yet"
    return f"not yet: {wrong}" if wrong else "right"
