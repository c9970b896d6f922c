"""Deliberate faults, patched into the real modules: each must be caught by the comparison it names.

A comparison that stays green with its fault in place is void. Without a fault every one of them passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from convert import rules
from convert.verify.checks import Check
from vit_jax.decode import search
from vit_jax.decode.rules import Rules
from vit_jax.models import attention, captioner, decoder, decoder_model, layers, positions, transformer, vit
from vit_jax.models.attention import Attention
from vit_jax.models.layers import LayerNorm, Linear, Mlp
from vit_jax.tasks import generated, next_token
from vit_jax.tasks.translate import learn as translate
from vit_jax.training import job
from vit_jax.training.engine import optim
from vit_jax.training.engine.engine import Engine

from . import dropping, losses, searches, torch_nn, training, twins
from .cases import CAPTIONER, INDICES, MIXED, ROTARY, T5, TRANSFORMER, VIT
from .weights import inputs, weights

T = TRANSFORMER
TIED = training.NETWORKS["Transformer, all tied"]
POST = replace(VIT, norm_first=False)
SCALED = replace(T, scale_embedding=True)
STEM = replace(VIT, image=(8, 6), patch=(4, 2), stem=(6,), stem_kernel=3)
GATED = replace(VIT, gated=True, activation="silu", layer_scale=0.1)
CENTRES = replace(VIT, **ROTARY, position="none")
SCALED_INDICES = replace(
    VIT, **INDICES, rotary_offset=1.0, rotary_grid=(3, 5), rotary_pairs="neighbours", qk_norm=True, position="none"
)
LEARNED = replace(VIT, **INDICES | MIXED)
RMS = replace(VIT, norm_kind="rms")
INNER = replace(GATED, mlp_norm=True)
PATCHES = replace(CAPTIONER, memory="patches")
VECTORS = replace(CAPTIONER, memory="vectors", memory_width=5)


# ----------------------------------------------------------------------- comparisons, by their names


def forward(c: Any, which: str = "A", dtype: str = "float64") -> Callable[[], Iterable[Check]]:
    return lambda: [
        twins.forward("sabotaged", c, weights(c, which), inputs(c, which=which), dtype, f"{dtype}, weights {which}")
    ]


def backward(c: Any) -> Callable[[], Iterable[Check]]:
    return lambda: twins.backward("sabotaged", c, weights(c), inputs(c))


def carried(c: Any) -> Callable[[], Iterable[Check]]:
    return lambda: [twins.carried("sabotaged", c, weights(c))]


def staged() -> Iterable[Check]:
    return training.in_stages("sabotaged", training.NETWORKS["ViT"])


def steps(title: str) -> Callable[[], Iterable[Check]]:
    optimizer = training.OPTIMIZERS[title]
    return lambda: training.ten_steps("sabotaged", VIT, optimizer)


# ------------------------------------------------------------------------------------------- faults


@contextlib.contextmanager
def attribute(module: Any, name: str, value: Any) -> Iterator[None]:
    """A module's attribute, for the time of a call."""
    before = vars(module)[name]
    vars(module)[name] = value
    try:
        yield
    finally:
        vars(module)[name] = before


def wrapped(cls: Any, method: str, fault: Callable[..., Any]) -> Callable[[], Any]:
    """`fault(original, self, *args, **kwargs)` in place of a method or function."""
    original = getattr(cls, method)
    return lambda: mock.patch.object(cls, method, lambda *args, **kwargs: fault(original, *args, **kwargs))


def without(name: str) -> Callable[..., Any]:
    """The call with one part of its module missing."""

    def fault(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with attribute(self, name, None):
            return original(self, *args, **kwargs)

    return fault


def eps(factor: float) -> Callable[[], Any]:
    return wrapped(LayerNorm, "__call__", lambda f, self, x: _with(f, self, "eps", self.eps * factor, x))


def _with(f: Any, self: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
    with attribute(self, name, value):
        return f(self, *args, **kwargs)


def fast_variance(f: Any, self: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x).mean(-1, keepdims=True) - mean**2
    return (x - mean) * jax.lax.rsqrt(jnp.maximum(variance, 0) + self.eps) * self.scale[...] + self.bias[...]


def swapped(first: str, second: str) -> Callable[..., Any]:
    def fault(f: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with attribute(self, first, vars(self)[second]), attribute(self, second, vars(self)[first]):
            return f(self, *args, **kwargs)

    return fault


def bias_of_first() -> Callable[..., Any]:
    """A call of the first block that is met as it is, and of all others without the bias of its scores."""
    met: list[Any] = []

    def fault(f: Any, self: Any, x: Any, mask: Any, bias: Any, **how: Any) -> Any:
        met.append(self)
        return f(self, x, mask, bias if self is met[0] else None, **how)

    return fault


def scaled_scores(f: Any, self: Any, *args: Any, **how: Any) -> Any:
    with attribute(self, "scale", self.head_width**-0.5):
        return f(self, *args, **how)


def head_order(f: Any, self: Any, x: Any, heads: int) -> Any:
    y = self(x)
    return y.reshape(*y.shape[:2], -1, heads).transpose(0, 3, 1, 2)


def transposed_grid(f: Any, self: Any, images: Any) -> Any:
    y = f(self, images)
    rows, columns = images.shape[1] // self.size[0], images.shape[2] // self.size[1]
    return y.reshape(len(y), rows, columns, -1).swapaxes(1, 2).reshape(y.shape)


def transposed_kernel(f: Any, self: Any, x: Any) -> Any:
    square = self.kernel.shape[0] == self.kernel.shape[1]
    y = x @ (self.kernel[...].T if square else self.kernel[...])
    return y if self.bias is None else y + self.bias[...]


def additive_mask(f: Any, x: Any, axis: int = -1, where: Any = None) -> Any:
    return f(x if where is None else jnp.where(where, x, x - 1e9), axis=axis)


def all_places(f: Any, self: Any, batch: Any) -> Any:
    return jnp.asarray(batch["target"].shape[0] * (batch["target"].shape[1] + 1))


def shift(f: Any, *given: Any) -> Any:
    read, said, real = f(*given)
    return read, jnp.roll(said, 1, axis=1), real


def smoothing(f: Any, labels: Any, alpha: float) -> Any:
    return labels * (1 - alpha) + (1 - labels) * alpha / (labels.shape[-1] - 1)


def query_bias(f: Any, self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    with attribute(self.query, "bias", None):
        return f(self, query, *args, **kwargs)


def small_scale(f: Any, self: Any, key: Any, value: Any) -> Any:
    k, v = f(self, key, value)
    return k * (self.head_width / (self.heads * self.head_width)) ** 0.5, v


def key_bias_dropped(f: Any, rows: Any, parameters: Any, *what: Any) -> Any:
    return f(rows, {k: np.zeros_like(v) if k.endswith("key.bias") else v for k, v in parameters.items()}, *what)


def heads_permuted(f: Any, rows: Any, parameters: Any, *what: Any) -> Any:
    """The two heads change places in q, k, v and out: the same function, other tensors."""

    def turn(name: str, v: np.ndarray) -> np.ndarray:
        if ".attention.out." in name:
            return np.roll(v, 4, axis=0) if name.endswith("kernel") else v
        return np.roll(v, 4, axis=-1) if ".attention." in name else v

    return f(rows, {k: turn(k, v) for k, v in parameters.items()}, *what)


def stopped_table(f: Any, self: Any, x: Any, table: Any) -> Any:
    return f(self, x, None if table is None else jax.lax.stop_gradient(table))


def late_insert(f: Any, cache: Any, new: Any, index: Any) -> Any:
    return f(cache, new, jnp.maximum(index - 1, 0))


def one_row_off(f: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Without the first row, and with the last one twice: the decoder does not mind the order of the rows."""
    memory = f(self, *args, **kwargs)
    return jnp.concatenate([memory[:, 1:], memory[:, -1:]], 1)


def projection_without_bias(f: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with attribute(self.memory, "bias", None):
        return f(self, *args, **kwargs)


def no_step(f: Any, self: Any, gradients: Any, state: Any, parameters: Any) -> Any:
    updates, state = f(self, gradients, state, parameters)
    return jax.tree.map(jnp.zeros_like, updates), state


def stages_late(f: Any, run: Any, steps: int) -> Any:
    return {first + (first > 0): each for first, each in f(run, steps).items()}


def optax_one_cycle(f: Any, steps: int, *args: Any) -> Any:
    return f(steps + 1, *args)


def one_longer(f: Any, self: Any) -> Any:
    return np.append(f(self)[1:], np.float32(1))


def one_later(f: Any, self: Any, scores: Any, said: Any, place: Any) -> Any:
    return f(self, scores, said, place + 1)


def ended_go_on(f: Any, sums: Any, ended: Any, beam: int) -> Any:
    return f(sums, jnp.zeros_like(ended), beam)


def rows_as_they_are(f: Any, self: Any, rows: Any) -> Any:
    return f(self, rows) if len(rows) != len(self.own[0][0]) else self


def next_memory(f: Any, self: Any, x: Any, pair: Any, *args: Any) -> Any:
    return f(self, x, tuple(jnp.roll(y, 1, axis=0) for y in pair), *args)


def eps_outside(f: Any, self: Any, x: Any) -> Any:
    return x / (jnp.sqrt(jnp.square(x).mean(-1, keepdims=True)) + self.eps) * self.scale[...]


def centred(f: Any, self: Any, x: Any) -> Any:
    return f(self, x - x.mean(-1, keepdims=True))


def norm_before_gate(f: Any, self: Any, x: Any, **kwargs: Any) -> Any:
    gate = layers.ACTIVATIONS[self.activation](self.gate(x))
    return self.fc2(gate * self.inner_norm(self.fc1(x)))


def other_pairs(f: Any, x: Any, angles: Any, pairs: str) -> Any:
    return f(x, angles, "neighbours" if pairs == "halves" else "halves")


def prefix_turned(f: Any, x: Any, angles: Any, pairs: str) -> Any:
    prefix = x.shape[2] - angles.shape[-2]
    return f(x, jnp.concatenate([angles[..., :prefix, :], angles], axis=-2), pairs)


def keys_not_turned(f: Any, self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs["rotary"] = attention.angles(kwargs["rotary"], None)
    return self.attend(query, *self.project(key, value), *args, **kwargs)


def turned_before_norms(f: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    angles, turn = attention.angles(kwargs["rotary"], None), attention.apply_rope
    first, second = ((lambda x, norm=n: norm(turn(x, angles, self.pairs))) for n in (self.query_norm, self.key_norm))
    unturned = mock.patch.object(attention, "apply_rope", lambda x, *_: x)
    with attribute(self, "query_norm", first), attribute(self, "key_norm", second), unturned:
        return f(self, *args, **kwargs)


def other_axis_first(f: Any, grid: Any, kind: str, first: str, *args: Any) -> Any:
    return f(grid, kind, "columns" if first == "rows" else "rows", *args)


@dataclass(frozen=True)
class Fault:
    """A fault, and the comparison that must see it."""

    name: str
    patch: Callable[[], Any]
    test: str
    check: Callable[[], Iterable[Check]]

    def caught(self) -> Check | None:
        """The comparison that fails, if one does."""
        with self.patch():
            return next((r for r in self.check() if not r.passed), None)


def faults() -> list[Fault]:
    """The table."""
    vit_a, vit_b, seq = forward(VIT), forward(VIT, "B"), forward(T)
    activation = lambda name: lambda: mock.patch.dict(layers.ACTIVATIONS, gelu=layers.ACTIVATIONS[name])  # noqa: E731
    adamw, cycle, clipped = (
        "AdamW, warm-up and cosine, clipped, mlp frozen, layer decay",
        "momentum, Nesterov, L2, one cycle",
        "momentum, clipped",
    )
    masked = lambda: dropping.one_mask("sabotaged", dropping.VITS)  # noqa: E731
    spread = lambda: dropping.statistics("sabotaged", dropping.VITS)  # noqa: E731
    short = lambda: searches.twin("sabotaged", "beam 4, short answers")  # noqa: E731
    least = lambda: searches.twin("sabotaged", "beam 4, at least 6")  # noqa: E731
    return [
        Fault("tanh GELU for erf", activation("gelu_tanh"), "forward", vit_a),
        Fault("tanh GELU for erf, float32", activation("gelu_tanh"), "forward", forward(VIT, "A", "float32")),
        Fault("quick GELU for erf", activation("quick_gelu"), "forward", vit_a),
        Fault("eps 1e-5 for 1e-6", eps(10), "forward", vit_b),
        Fault("eps 1e-12 for 1e-6", eps(1e-6), "forward", vit_b),
        Fault("one-pass variance", wrapped(LayerNorm, "__call__", fast_variance), "norms", torch_nn.norms),
        Fault(
            "float32 softmax and norms in a float64 model",
            lambda: mock.patch.object(layers, "accumulation_dtype", lambda dtype: jnp.float32),
            "forward",
            vit_a,
        ),
        Fault("query and key swapped", wrapped(Attention, "__call__", swapped("query", "key")), "forward", vit_b),
        Fault("key and value swapped", wrapped(Attention, "__call__", swapped("key", "value")), "forward", vit_a),
        Fault("heads as (Dh H)", wrapped(Linear, "to_heads", head_order), "forward", vit_a),
        Fault("scale D^-1/2 for Dh^-1/2", wrapped(Attention, "project", small_scale), "forward", vit_a),
        Fault("query bias dropped", wrapped(Attention, "attend", query_bias), "forward", vit_a),
        Fault(
            "key bias dropped on the way",
            wrapped(rules, "write", key_bias_dropped),
            "tensors, bit for bit",
            carried(VIT),
        ),
        Fault(
            "heads permuted on the way", wrapped(rules, "write", heads_permuted), "tensors, bit for bit", carried(VIT)
        ),
        Fault("grid transposed", wrapped(vit.Patches, "__call__", transposed_grid), "forward", vit_a),
        Fault(
            "colours reversed",
            wrapped(vit.Patches, "__call__", lambda f, self, x: f(self, x[..., ::-1])),
            "forward",
            vit_a,
        ),
        Fault(
            "a convolution's zeros all on one side",
            wrapped(jnp, "pad", lambda f, x, sides: f(x, [(0, sum(side)) for side in sides])),
            "forward",
            forward(STEM),
        ),
        Fault("square kernels transposed", wrapped(Linear, "__call__", transposed_kernel), "forward", vit_a),
        Fault("final norm missing", wrapped(vit.ViT, "encode", without("norm")), "forward", vit_a),
        Fault(
            "encoder's final norm missing", wrapped(transformer.Encoder, "__call__", without("norm")), "forward", seq
        ),
        Fault(
            "pre-norm for post-norm",
            wrapped(vit.Block, "__call__", lambda f, self, *a, **k: _with(f, self, "norm_first", True, *a, **k)),
            "forward",
            forward(POST),
        ),
        Fault("norm1 and norm2 swapped", wrapped(vit.Block, "__call__", swapped("norm1", "norm2")), "forward", vit_a),
        Fault(
            "layer scale ignored",
            wrapped(vit.Block, "_branch", lambda f, self, y, i, scale, keys: f(self, y, i, None, keys)),
            "forward",
            forward(GATED),
        ),
        Fault(
            "rotary pairs of the other kind", wrapped(attention, "apply_rope", other_pairs), "forward", forward(CENTRES)
        ),
        Fault(
            "rotary axes in the other order",
            wrapped(vit, "patch_positions", other_axis_first),
            "forward",
            forward(CENTRES),
        ),
        Fault(
            "rotary angles of the other sign",
            wrapped(attention, "apply_rope", lambda f, x, angles, pairs: f(x, -angles, pairs)),
            "forward",
            forward(CENTRES),
        ),
        Fault(
            "rotary base a hundredth larger",
            wrapped(positions, "frequencies", lambda f, width, base, *periods: f(width, base * 1.01, *periods)),
            "forward",
            forward(CENTRES),
        ),
        Fault(
            "rotary periods in bfloat16",
            wrapped(positions, "frequencies", lambda f, width, base, *_: f(width, base, "bfloat16")),
            "forward",
            forward(replace(CENTRES, rotary_base=70.0)),  # the root of 100, its period, is exact in bfloat16
        ),
        Fault(
            "rotary angles in bfloat16",
            wrapped(
                attention,
                "angles",
                lambda f, table, learned: f(table.astype(jnp.bfloat16).astype(table.dtype), learned),
            ),
            "forward",
            forward(CENTRES),
        ),
        Fault(
            "rotary indices for centres",
            wrapped(vit, "patch_positions", lambda f, grid, kind, *args: f(grid, "indices", *args)),
            "forward",
            forward(CENTRES),
        ),
        Fault(
            "rotary offset left out",
            wrapped(
                vit,
                "patch_positions",
                lambda f, grid, kind, first, offset, reference: f(grid, kind, first, 0.0, reference),
            ),
            "forward",
            forward(SCALED_INDICES),
        ),
        Fault(
            "rotary indices not scaled to the reference grid",
            wrapped(
                vit, "patch_positions", lambda f, grid, kind, first, offset, reference: f(grid, kind, first, offset)
            ),
            "forward",
            forward(SCALED_INDICES),
        ),
        Fault("prefix tokens turned", wrapped(attention, "apply_rope", prefix_turned), "forward", forward(CENTRES)),
        Fault("keys not turned", wrapped(Attention, "__call__", keys_not_turned), "forward", forward(CENTRES)),
        Fault(
            "turned before q/k norm",
            wrapped(Attention, "__call__", turned_before_norms),
            "forward",
            forward(SCALED_INDICES),
        ),
        Fault(
            "learned rotary frequencies of the other axis",
            wrapped(attention, "angles", lambda f, table, learned: f(table, learned[::-1])),
            "forward",
            forward(LEARNED),
        ),
        Fault(
            "RMS eps outside the root", wrapped(layers.RMSNorm, "__call__", eps_outside), "forward", forward(RMS, "B")
        ),
        Fault("a mean subtracted by RMSNorm", wrapped(layers.RMSNorm, "__call__", centred), "forward", forward(RMS)),
        Fault("norm before the gate", wrapped(Mlp, "__call__", norm_before_gate), "forward", forward(INNER)),
        Fault(
            "relative positions: the last bucket one distance early",
            wrapped(positions, "bucket", lambda f, distance, n, far, causal: f(distance, n, far - 1, causal)),
            "forward",
            forward(T5),
        ),
        Fault(
            "relative positions: later keys as earlier ones",
            wrapped(positions, "bucket", lambda f, distance, *how: f(-distance, *how)),
            "forward",
            forward(T5),
        ),
        Fault(
            "relative positions: an encoder's buckets as a decoder's",
            wrapped(positions, "bucket", lambda f, distance, n, far, causal: f(distance, n, far, True)),
            "forward",
            forward(T5),
        ),
        Fault(
            "relative positions: in the first block alone",
            wrapped(transformer.EncoderBlock, "__call__", bias_of_first()),
            "forward",
            forward(T5),
        ),
        Fault(
            "scores of T5 divided by the root of Dh",
            wrapped(Attention, "attend", scaled_scores),
            "forward",
            forward(T5),
        ),
        Fault(
            "logits of T5 not scaled",
            wrapped(decoder_model.DecoderModel, "logits", lambda f, self, y: f(self, y * 8**0.5)),
            "forward",
            forward(T5),
        ),
        Fault("gate and fc1 swapped", wrapped(Mlp, "__call__", swapped("gate", "fc1")), "forward", forward(GATED)),
        Fault(
            "positions one row late",
            wrapped(vit.ViT, "_positions", lambda f, self, *args: jnp.roll(f(self, *args), 1, 0)),
            "forward",
            vit_a,
        ),
        Fault(
            "sines and cosines in halves",
            wrapped(decoder_model, "sinusoids", lambda f, kind, n, d: f("concatenated", n, d)),
            "forward",
            seq,
        ),
        Fault(
            "no sqrt(D) on embeddings",
            wrapped(decoder_model.Embedding, "lookup", lambda f, self, x, table, dtype: table[x].astype(dtype)),
            "forward",
            forward(SCALED),
        ),
        Fault(
            "mask of the wrong polarity",
            wrapped(decoder_model, "attention_mask", lambda f, *a, **k: ~f(*a, **k)),
            "forward",
            seq,
        ),
        Fault("masks by adding -1e9", wrapped(jax.nn, "softmax", additive_mask), "forward, empty rows", seq),
        Fault(
            "causality dropped",
            wrapped(decoder_model, "attention_mask", lambda f, *a, **k: f(*a, **{**k, "causal": False})),
            "forward",
            seq,
        ),
        Fault(
            "memory padding forgotten",
            wrapped(transformer.Transformer, "__call__", lambda f, *a, **k: f(*a, **{**k, "memory_padding": None})),
            "forward",
            seq,
        ),
        Fault(
            "cache off by one",
            wrapped(decoder, "_insert", late_insert),
            "decoding",
            lambda: twins.decoding("sabotaged", T),
        ),
        Fault(
            "a captioner's memory one row off",
            wrapped(captioner.Captioner, "encode", one_row_off),
            "forward",
            forward(CAPTIONER),
        ),
        Fault(
            "a memory of patches with the prefix tokens",
            wrapped(
                captioner.Captioner,
                "encode",
                lambda f, self, *a, **k: _with(f, self, "config", replace(self.config, memory="tokens"), *a, **k),
            ),
            "forward",
            forward(PATCHES),
        ),
        Fault(
            "a memory before the last norm of the ViT",
            wrapped(vit.ViT, "encode", without("norm")),
            "forward",
            forward(CAPTIONER),
        ),
        Fault(
            "a memory projected without bias",
            wrapped(captioner.Captioner, "encode", projection_without_bias),
            "forward",
            forward(CAPTIONER),
        ),
        Fault(
            "padding of a given memory forgotten",
            wrapped(captioner.Captioner, "__call__", lambda f, *a, **k: f(*a, **{**k, "memory_padding": None})),
            "forward",
            forward(VECTORS),
        ),
        Fault(
            "no gradient from the caption to the ViT",
            wrapped(captioner.Captioner, "encode", lambda f, *a, **k: jax.lax.stop_gradient(f(*a, **k))),
            "gradients",
            backward(CAPTIONER),
        ),
        Fault(
            "a captioner's cache off by one",
            wrapped(decoder, "_insert", late_insert),
            "decoding",
            lambda: twins.decoding("sabotaged", CAPTIONER),
        ),
        Fault(
            "tied head without gradient",
            wrapped(decoder_model.Head, "__call__", stopped_table),
            "gradients",
            backward(TIED),
        ),
        Fault("target shifted by one too many", wrapped(translate, "shift_target", shift), "shifts", losses.shifts),
        Fault(
            "mean over padding",
            wrapped(generated.CountsTokens, "denominator", all_places),
            "losses",
            lambda: losses.translate(0.0),
        ),
        Fault(
            "tokens smoothed by e/(V-1)",
            wrapped(
                next_token, "token_losses", lambda f, x, labels, e: f(x, labels, e * x.shape[-1] / (x.shape[-1] - 1))
            ),
            "losses",
            lambda: losses.translate(0.1),
        ),
        Fault("smoothing e/(V-1)", wrapped(optax, "smooth_labels", smoothing), "losses", lambda: losses.classify(0.1)),
        Fault(
            "decay on every leaf",
            wrapped(optim, "decaying", lambda f, c, table: {*table}),
            "ten steps",
            steps(adamw),
        ),
        Fault("a stage a step late", wrapped(job, "runs_in_stages", stages_late), "ten steps in stages", staged),
        Fault(
            "the rates of a stage left out",
            wrapped(Engine, "in_stage", lambda f, self, *others: self),
            "ten steps in stages",
            staged,
        ),
        Fault("no optimizer step", wrapped(optim.Optimizer, "update", no_step), "ten steps", steps("SGD")),
        Fault(
            "clipping left out",
            wrapped(optim, "clip", lambda f, gradients, *_: gradients),
            "ten steps",
            steps(clipped),
        ),
        Fault("one cycle by optax's phases", wrapped(optim, "one_cycle", optax_one_cycle), "ten steps", steps(cycle)),
        Fault(
            "Adam's eps inside the root",
            wrapped(optax, "scale_by_adam", lambda f, b1, b2, e: f(b1, b2, 0.0, e)),
            "ten steps",
            steps(adamw),
        ),
        Fault(
            "dropout that does not scale",
            wrapped(layers, "dropout", lambda f, x, rate, keys: f(x, rate, keys) * (1 - rate)),
            "one mask",
            masked,
        ),
        Fault(
            "one dropout mask for all examples",
            wrapped(jax.random, "split", lambda f, key, n: jnp.stack([key] * n)),
            "statistics",
            spread,
        ),
        Fault(
            "one key for every site",
            lambda: mock.patch.multiple(vit, fold=lambda keys, site: keys),
            "statistics",
            spread,
        ),
        Fault("penalty over L + 1", wrapped(Rules, "penalties", one_longer), "search", short),
        Fault("the first input counted in lengths", wrapped(Rules, "__call__", one_later), "search", least),
        Fault("hypotheses that have ended go on", wrapped(search, "_running", ended_go_on), "search", short),
        Fault("cache not reordered", wrapped(decoder.Cache, "take", rows_as_they_are), "search", short),
        Fault(
            "memory of the row before",
            wrapped(decoder.DecoderBlock, "attend_memory", next_memory),
            "search",
            short,
        ),
    ]


def controls() -> Iterator[Check]:
    """Every comparison of the table without a fault."""
    seen: list[Callable[[], Iterable[Check]]] = []
    for fault in faults():
        if fault.check not in seen:
            seen.append(fault.check)
            yield from fault.check()
