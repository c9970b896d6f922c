"""What tasks of captions have in common, whatever they describe: loss, search and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from ...decode.search import Found
from ...models.captioner import Captioner
from ...models.captioner_config import CaptionerConfig
from ...models.layers import fold
from ..base import Batch, Evaluation
from ..generated import Generation, Search, compile_search
from ..next_token import mean_loss, shift_target, sums
from .score import WORDS, bleu4, cider_d, plain

CROSS = "decoder.cross_attention"  # of a caption to the memory


@dataclass(frozen=True)
class Captioning(Generation, abstract=True):
    """The base of such tasks, whose batches have, besides "target", what `inputs` makes the network's input of."""

    header_names: ClassVar[tuple[str, str]] = ("file", "caption")

    def inputs(self, batch: Batch, dtype: Any) -> Array:
        """The network's input of a batch -> images [B, h, w, C], or vectors [B, S, C]."""
        raise NotImplementedError

    @property
    def selection_metric(self) -> tuple[str, int]:
        """Exact match; in an open vocabulary, where captions are seldom the very same, CIDEr-D."""
        return ("cider_d" if self.target.open else "exact_match"), 1

    def tokens(self, batch: Batch) -> tuple[int, int, int]:
        """(target tokens, ends included; places for ids; how many of these are padding)."""
        real = batch["target"] != self.target.ids.pad
        return int(real.sum() + real.any(1).sum()), real.size, int(real.size - real.sum())

    def shifted(self, batch: Batch) -> tuple[Array, Array, Array]:
        return shift_target(batch["target"], batch["target"], self.target.ids, self.target.ids.pad)

    def loss(self, model: Captioner, batch: Batch, keys: Array, denominator: Array) -> tuple[Array, dict[str, Array]]:
        """The cross entropy of target tokens: keys [B] -> (loss [], {"accuracy": []})."""
        inputs, labels, real = self.shifted(batch)
        logits = model(self.inputs(batch, model.dtype), inputs, keys=fold(keys, 1))
        return mean_loss(logits, labels, real, self.label_smoothing, denominator)

    def outputs(self, model: Captioner, batch: Batch) -> dict[str, Array]:
        """What `score` needs of each example, with labels not smoothed -> [B]."""
        given, (inputs, labels, real) = self.inputs(batch, model.dtype), self.shifted(batch)
        wanted = ("logits", CROSS) if "touched" in batch else ("logits",)
        found = model.capture(given, inputs, wanted)
        out = sums(found["logits"], labels, real) | {"predicted": self.texts(model, batch)}
        if "touched" in batch:
            # The map of the word at place t of the caption is that of the token that predicts it.
            maps = found[CROSS].mean((1, 2))[:, :-1]  # [B, T, S]
            places = maps.shape[-1] - batch["touched"].shape[-1]  # prefix tokens, before the patches
            out |= in_boxes(maps[..., places:], batch["touched"], maps.shape[-1])
        return out

    def texts(self, model: Captioner, batch: Batch) -> Array:
        """The best caption of each example; none of a row of padding."""
        given, real = self.inputs(batch, model.dtype), self.shifted(batch)[2]
        return self.search.best(_search_captions(model, given, self.search, real.any(-1)))

    def score(self, config: CaptionerConfig, split: Any, out: dict[str, np.ndarray]) -> Evaluation:
        """The metrics of a split: loss and accuracy per token, and exact match. Shapes: out [n, ...].

        Exact match is the share of captions that are right to the last word, as `said_exactly` counts them. With
        `outputs` of boxes also their means. Of images with several captions also CIDEr-D and BLEU-4; all other metrics
        are against the first one.
        """
        metrics = self.token_scores(split, out, [each[0] for each in split.references])
        boxes = {"attention_in_box": "in_box", "uniform_in_box": "uniform"}
        metrics |= {name: float(out[key].astype(np.float64).mean()) for name, key in boxes.items() if key in out}
        if split.references:
            said = [plain(self.target.decode(row)) for row in out["predicted"]]
            several = [[plain(caption) for caption in each] for each in split.references]
            metrics |= {"cider_d": cider_d(said, several), "bleu4": bleu4(said, several)}
        notes = (WORDS,) if split.references else ()
        return Evaluation(
            metrics, out["predicted"], notes=notes + ((self.target.remark,) if self.target.remark else ())
        )


def in_boxes(maps: Array, touched: Array, tokens: int) -> dict[str, Array]:
    """How much of the attention of words lies on what they name: maps [B, T, N], touched bool [B, T, N] -> {"in_box":
    [B], "uniform": [B]}, as `Captioning.outputs` says.
    """
    named = touched.any(-1)  # [B, T]
    words = jnp.maximum(named.sum(-1), 1)
    return {
        "in_box": jnp.where(touched, maps, 0).sum((1, 2)) / words,
        "uniform": touched.sum((1, 2)) / (words * tokens),
    }


def _search_captions(
    model: Captioner, given: Array, search: Search, rows: Array | None = None, keys: Array | None = None
) -> Found:
    """The captions of inputs of the network [B, ...], by `Search.found`."""
    return search.found(model, model.encode(given), None, rows, keys=keys)


def _capture_captions(
    model: Captioner, given: Array, search: Search, names: tuple[str, ...]
) -> tuple[Array, dict[str, Array]]:
    """Captions, and inner values of an evaluation pass in which the decoder is given them: given [B, ...] -> (the best
    captions int32 [B, length], {name: array [B, ...]}).
    """
    said = search.best(_search_captions(model, given, search))
    return said, model.capture(given, search.inputs(said), names)


search_inputs = compile_search(_search_captions, static=(2,))
captured_inputs = nnx.jit(_capture_captions, static_argnums=(2, 3))
