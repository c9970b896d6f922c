"""Small encoder-decoder networks that were trained, so that what they say differs from source to source.

Random weights prove nothing about a search: such networks say two or three distinct tokens whatever they read. Here a
target is its source turned round, every word replaced by another, and every other word said twice; after 120 steps on
200 pairs a network says something of its own of each.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.text.tokenizer import Ids

from .libraries import load

STEPS, BATCH, RATE = 120, 64, 2e-3


def pairs(count: int, words: int, first: int, longest: int = 10, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Sources of 2 to `longest` words, ids `first` and more, with their targets."""
    rng, out = np.random.default_rng(seed), []
    for n in rng.integers(2, longest + 1, count):
        source = rng.integers(0, words, n).tolist()
        target = [7 * w % words for w in reversed(source) for _ in range(2 - w % 2)]
        out.append(([first + w for w in source], [first + w for w in target]))
    return out


def padded(rows: list[list[int]], pad: int) -> np.ndarray:
    out = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def fit(
    parameters: Any, logits: Callable[[Any, Any], Any], given: list[tuple[list[int], list[int]]], ids: Ids, steps: int
) -> None:
    """Train by Adam: `logits(source, inputs)` of ids int64 [B, S], [B, T]; sources are whole, targets without ends."""
    source = torch.from_numpy(padded([each for each, _ in given], ids.pad))
    labels = torch.from_numpy(padded([[*each, ids.end] for _, each in given], -100))
    inputs = torch.from_numpy(padded([[ids.begin, *each] for _, each in given], ids.pad))
    optimizer, generator = torch.optim.Adam(parameters, RATE), torch.Generator().manual_seed(0)
    for _ in range(steps):
        some = torch.randint(len(given), (BATCH,), generator=generator)
        loss = F.cross_entropy(logits(source[some], inputs[some]).flatten(0, 1), labels[some].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ------------------------------------------------------------------------------------------- ours

OURS = TransformerConfig(
    width=32, heads=4, hidden=48, encoder_depth=1, decoder_depth=2, source_vocabulary=40, target_vocabulary=40,
    outputs=40, tie="all", max_length=32, init="fan_in", embedding_std=32**-0.5,
)  # fmt: skip
OUR_IDS = Ids(pad=0, begin=1, end=2, banned=(0, 1))


@functools.cache
def ours() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(the weights of a network OURS, the sources int64 [24, S] that it is asked for)."""
    import torch_ref

    torch.manual_seed(0)
    given, model = pairs(100, 37, 3, 8), torch_ref.build(OURS)
    fit(
        model.parameters(),
        lambda source, inputs: model(source, inputs, source_padding=source != 0),
        given,
        OUR_IDS,
        STEPS,
    )
    return torch_ref.parameters(model), padded([source for source, _ in given[:24]], 0)


# ------------------------------------------------------------------------------------ Hugging Face

SIZES = dict(
    vocab_size=1000, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, dropout=0.0,
    decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64, init_std=64**-0.5,
)  # fmt: skip
STACKS = ("encoder", "decoder")
MARIAN_IDS = Ids(pad=999, begin=999, end=0, forced_end=0)
BART_IDS = Ids(pad=1, begin=2, end=2, forced_end=2)


@functools.cache
def huggingface(name: str) -> tuple[Any, str, np.ndarray, Ids]:
    """(the model of transformers, a folder that it was saved to, sources int64 [200, S], its ids) of one of these.

    marian, bart or m2m-100.
    """
    transformers = load("transformers")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    if name == "marian":
        ids, given = MARIAN_IDS, [([*source, 0], target) for source, target in pairs(200, 990, 3)]
        special = dict(pad_token_id=999, eos_token_id=0, decoder_start_token_id=999, bos_token_id=None)
        config = transformers.MarianConfig(**SIZES, **special, activation_function="swish", scale_embedding=True)
        model = transformers.MarianMTModel(config)
    else:
        ids, given = BART_IDS, [([0, *source, 2], target) for source, target in pairs(200, 990, 3)]
        special = dict(pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, bos_token_id=0)
        kind, more = ("Bart", {}) if name == "bart" else ("M2M100", {f"{side}_layerdrop": 0.0 for side in STACKS})
        config = getattr(transformers, f"{kind}Config")(**SIZES, **special, **more)
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)

    def logits(source: Any, inputs: Any) -> Any:
        return model(input_ids=source, attention_mask=(source != ids.pad).long(), decoder_input_ids=inputs).logits

    fit(model.parameters(), logits, given, ids, STEPS)
    model.generation_config.forced_eos_token_id = None  # each search says whether it is
    folder = tempfile.mkdtemp()
    model.eval().save_pretrained(folder)
    return model, folder, padded([source for source, _ in given], ids.pad), ids
