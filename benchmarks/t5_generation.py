"""Searches of T5, mT5 and UMT5 beside `generate` of transformers: every answer has to be the same.

    python -m benchmarks.t5_generation [SOURCES]

Each network is trained here for a few seconds on reversing sequences, so that answers differ in length and content.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

STEPS, ROWS, WORDS = 500, 64, 57
SIZES = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4, dropout_rate=0.0)
SIZES |= dict(vocab_size=60, decoder_start_token_id=0, relative_attention_num_buckets=8)
SIZES |= dict(relative_attention_max_distance=20)
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5", {"feed_forward_proj": "relu"}),
    "mT5 (gated)": ("MT5", {"feed_forward_proj": "gated-gelu"}),
    "UMT5": ("UMT5", {"feed_forward_proj": "gated-gelu"}),
}
SEARCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # (settings of generate, ours)
    ({}, {}),
    ({"num_beams": 4, "num_return_sequences": 4}, {"beam": 4, "nbest": 4}),
    (
        {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True, "no_repeat_ngram_size": 3},
        {"beam": 4, "length_penalty": 0.6, "early_stopping": "true", "no_repeat_ngram": 3},
    ),
    (
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": "never", "min_length": 6},
        {"beam": 4, "nbest": 2, "length_penalty": 2.0, "early_stopping": "never", "min_length": 6},
    ),
]
LONGEST = 24


def main() -> None:
    """Train, search and print a row for each class and search."""
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # one that does not fit torch hinders loading
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("| class | settings | searches | answers | equal | lengths | scores within |")
    print("| --- " * 7 + "|")
    for title, (kind, settings) in CLASSES.items():
        model = trained(kind, settings)
        for theirs, ours in SEARCHES:
            compare(title, model, count, theirs, ours)


def trained(kind: str, settings: dict[str, Any]) -> Any:
    """A network of a class that says a sequence backwards, even tokens twice."""
    import torch
    import transformers

    torch.set_num_threads(1)  # more wait for each other longer than they compute
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **settings)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    optimizer, rng = torch.optim.Adam(model.parameters(), 3e-3), np.random.default_rng(0)
    for _ in range(STEPS):
        sources, targets = zip(*(example(rng) for _ in range(ROWS)), strict=True)
        source, labels = padded(sources, 0), padded(targets, -100)
        optimizer.zero_grad()
        model(input_ids=source, attention_mask=(source > 0).long(), labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def example(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """A source, and the target that it becomes."""
    words = rng.integers(3, 3 + WORDS, rng.integers(2, 11)).tolist()
    return [*words, 1], [w for word in reversed(words) for w in [word] * (2 - word % 2)] + [1]


def padded(rows: Any, pad: int) -> Any:
    """Rows as one tensor."""
    import torch

    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])


def compare(title: str, model: Any, count: int, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Search all sources by both, and print how many answers are equal."""
    import jax.numpy as jnp
    import torch

    from vit_jax import load
    from vit_jax.config.decoding import Decoding
    from vit_jax.decode.search import generate
    from vit_jax.text.tokenizer import Ids

    rng = np.random.default_rng(1)
    source = padded([example(rng)[0] for _ in range(count)], 0)
    with torch.no_grad():
        out = model.generate(
            input_ids=source, attention_mask=(source > 0).long(), max_length=LONGEST + 1, output_scores=True,
            return_dict_in_generate=True, **theirs,
        )  # fmt: skip
    settings = Decoding(**ours, max_length=LONGEST)
    network = load(model.state_dict(), beside={"config.json": model.config.to_dict()}).model
    ids, real = jnp.asarray(source.numpy()), jnp.asarray(source.numpy()) > 0
    found = generate(network, network.encode(ids, real), real, Ids(0, 0, 1), settings, LONGEST)
    mine = np.asarray(found.tokens).reshape(-1, found.tokens.shape[-1])
    said = [until_end(row[1:]) for row in out.sequences.tolist()]
    equal = sum(until_end(row) == their for row, their in zip(mine.tolist(), said, strict=True))
    scores = getattr(out, "sequences_scores", None)
    within = "" if scores is None else f"{np.abs(np.asarray(found.scores).reshape(-1) - scores.numpy()).max():.0e}"
    named = ", ".join(f"{name} {value}" for name, value in theirs.items()) or "greedy"
    print(f"| {title} | {named} | {count} | {len(said)} | {equal} | {len({*map(len, said)})} | {within} |", flush=True)


def until_end(row: list[int]) -> list[int]:
    """The tokens before the first end."""
    return row[: row.index(1)] if 1 in row else row


if __name__ == "__main__":
    main()
