"""What a step computes of a whole batch is what it computes of the parts of it, at the sizes of real runs.

A compiler may be wrong from some size on, which tests of small arrays never see. jaxlib 0.10.2 is, on a CPU: a product
over 3 to 7 terms, with 2 to 7 rows, whose result is summed at once, is wrong in its last columns where these are more
than 128 KiB, 32,768 of float32 (jax issue 39103). Nothing of ours is such a product: what is summed at once here is
over 12 terms or more, or has its rows on the other side. `short_sum` is wrong likewise, with any jaxlib. What is fused
matters, so nothing here is compiled quickly.
"""

from dataclasses import fields, is_dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import vit_jax
from tests.test_lowering import METADATA, a_teacher, batch_of
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.dotted import value_at
from vit_jax.config.outputs import Outputs
from vit_jax.config.run import LossConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.kinds.table import kind_of
from vit_jax.models.build import definition
from vit_jax.presets.table import PRESETS, preset
from vit_jax.tasks.can import HasFrozen
from vit_jax.tasks.classify.distil import distillation_loss
from vit_jax.tasks.classify.distil_spec import DistilLoss
from vit_jax.tasks.computed import task_of
from vit_jax.tasks.next_token import mean_loss
from vit_jax.training.engine.engine import BINS, Engine, histogram
from vit_jax.training.engine.evaluator import Evaluator
from vit_jax.training.engine.muon import newton_schulz
from vit_jax.training.engine.optim import Optimizer
from vit_jax.training.engine.step import mean_over_microbatches

ROWS, PARTS, K = 40_000, 5, 3  # 40,000 columns are more than 128 KiB, a part of them is less
DRAW = np.random.default_rng(0)
LOGITS = 3 * DRAW.normal(size=(ROWS, K)).astype(np.float32)
WEIGHTS = {"loss_weights": [0.5, 1.0, 2.0]}
MIXED = DRAW.dirichlet(np.ones(K), ROWS).astype(np.float32)
LABELS = {
    "class": DRAW.integers(0, K, ROWS).astype(np.int32),
    "set": DRAW.integers(-1, 2, (ROWS, K)).astype(np.int8),
    "number": DRAW.normal(size=(ROWS, K)).astype(np.float32),
}
KINDS = [  # (kind, settings, metadata, more of the batch)
    ("class", {"label_smoothing": 0.1}, WEIGHTS, {"target": MIXED}),
    ("class", {"focal": 2.0}, WEIGHTS, {}),
    ("class", {"name": "binary"}, WEIGHTS, {"target": MIXED}),
    ("set", {"label_smoothing": 0.1}, WEIGHTS, {}),
    ("number", {}, {}, {}),
]


def losses():
    """{name: (loss, batch, denominator)}: every loss of three outputs, (z, batch, denominator) -> (loss, metrics)."""
    found = {}
    for kind, settings, metadata, more in KINDS:
        made, batch = (
            kind_of(Outputs(kind, ("a", "b", "c")), K, LossConfig(**settings), metadata),
            {
                "label": LABELS[kind],
                **more,
            },
        )
        found[f"{kind} {settings}"] = made.loss, batch, made.denominator(batch)
    for hard in (False, True):
        c = DistilLoss(hard=hard, temperature=2.0)
        found[f"distil {hard}"] = lambda z, batch, _, c=c: (distillation_loss(z, batch["t"], c), {}), {"t": MIXED}, None
    ids = {"label": LABELS["class"], "real": LABELS["class"] > 0}

    def of_tokens(z, batch, count):
        return mean_loss(z[:, None], batch["label"][:, None], batch["real"][:, None], 0.1, count)

    return found | {"tokens": (of_tokens, ids, jnp.asarray(float(ids["real"].sum())))}


def computed(cases, parts):
    """{name: (loss, (loss, metrics), gradients of a factor of each output)} of LOGITS, in so many parts.

    The loss is computed alone too: beside gradients, which need what it is made of, less is fused.
    """

    def mean(name, batch, wanted):
        loss, _, denominator = cases[name]
        share = None if denominator is None else denominator / parts

        def of_part(batch, keys):
            factor = jnp.ones(K)
            if not wanted:
                return loss(batch["z"], batch, share)[0]
            return jax.value_and_grad(lambda c: loss(batch["z"] * c, batch, share), has_aux=True)(factor)

        return mean_over_microbatches(of_part, batch, jnp.arange(ROWS), parts)

    batches = {name: {**batch, "z": LOGITS} for name, (_, batch, _) in cases.items()}
    alone, both = (
        jax.jit(lambda batches, w=wanted: {name: mean(name, batch, w) for name, batch in batches.items()})(batches)
        for wanted in (False, True)
    )
    return {name: (alone[name], *both[name]) for name in cases}


def differ(whole, parts):
    """The names of what differs by more than rounding."""
    found = []
    for name, x in whole.items():
        pairs = zip(jax.tree.leaves(x), jax.tree.leaves(parts[name]), strict=True)
        if any(not np.allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max()) for a, b in pairs):
            found.append(name)
    return found


def short_sum(rows):
    """The squared length of each row, without those beyond 32,768: [n, 3] -> [n]."""
    return jnp.where(jnp.arange(len(rows)) < 32_768, (rows**2).sum(-1), 0)


def test_losses_and_their_gradients_of_many_rows_are_the_means_of_parts():
    cases = losses()
    assert differ(computed(cases, 1), computed(cases, PARTS)) == []


def test_a_loss_that_is_summed_wrongly_is_seen():
    cases = {
        "right": (lambda z, batch, _: ((z**2).sum(-1).mean(), {}), {}, None),
        "wrong": (lambda z, batch, _: (short_sum(z).mean(), {}), {}, None),
    }
    assert differ(computed(cases, 1), computed(cases, PARTS)) == ["wrong"]


def test_statistics_of_long_arrays_are_those_of_numpy():
    """Norms, histograms, Muon's directions and normalised pixels, of arrays that are short the other way."""
    norm, bins, direction = jax.jit(lambda x: (optax.tree.norm({"x": x}), histogram(x), newton_schulz(x.T)))(LOGITS)
    wide = LOGITS.astype(np.float64)
    assert float(norm) == pytest.approx(np.linalg.norm(wide), rel=1e-5)
    assert [float(bins[name]) for name in ("mean", "std")] == pytest.approx([wide.mean(), wide.std()], rel=1e-4)
    assert np.abs(np.asarray(bins["counts"]) - np.histogram(LOGITS, BINS)[0]).max() <= 1  # an edge, rounded
    x = wide.T / np.linalg.norm(wide)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    np.testing.assert_allclose(direction, x, atol=1e-5)


# ------------------------------------------------------------------------------------------ presets


def shallow(model):
    """The network with one block in each place of several."""
    changes = {}
    for field in fields(model):
        value = getattr(model, field.name)
        if is_dataclass(value):
            changes[field.name] = shallow(value)
        elif field.name in ("depth", "encoder_depth", "decoder_depth") and value > 1:
            changes[field.name] = 1
    return replace(model, **changes)


def drawn(run):
    """A batch of a preset's size: noise."""
    draw = np.random.default_rng(1)

    def values(name, shape):
        if np.issubdtype(shape.dtype, np.floating):
            return draw.normal(size=shape.shape).astype(shape.dtype)
        most = {"image": 256, "label": 10}.get(name, len(METADATA["words"]))
        return draw.integers(0, most, shape.shape).astype(shape.dtype)

    return {name: values(name, shape) for name, shape in batch_of(run).items()}


QUICK = ("digits",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in [*PRESETS, "vit-s16"]]
)
def test_outputs_and_gradients_of_a_presets_batch_are_those_of_its_parts(name):
    run = preset(name).run
    open_sizes = {size: 10 for size in run.model.marked("from_data") if not value_at(run.model, size)}
    run = replace(run, model=shallow(run.model.with_sizes(open_sizes)))
    task = task_of(run, METADATA).able(HasFrozen).load(a_teacher(getattr(run.model, "channels", 1)))
    define, optimizer = partial(definition, run.model), Optimizer(run.optim, 100, 10, run.model.parameters())
    engine, evaluator = Engine(run, define, task, optimizer), Evaluator(run.model, define(), task)
    draw, batch = np.random.default_rng(0), drawn(run)
    shapes = run.model.shapes().items()
    start = {n: draw.normal(n.endswith("scale"), 0.1, shape).astype(np.float32) for n, shape in shapes}
    state, parts, found = engine.start(unflatten(start)), run.batch // 2 if run.batch % 4 else 4, []
    for engine.parts in (1, parts):
        loss, metrics, gradients = jax.jit(engine.batch_gradients)(*engine.whole(state, batch))
        found.append({"loss": loss, "metrics": metrics, **flatten(gradients)})
    largest = max(np.abs(x).max() for x in flatten(gradients).values())
    for key, x in found[0].items():
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(found[1][key]), strict=True):
            limit = 3e-4 * np.abs(b).max() + 1e-5 * largest  # the gradient of a key bias is rounding alone
            np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=key)
    weights = evaluator.to_devices(unflatten(start))
    whole, size = evaluator.outputs(weights, batch), run.batch // 2
    halves = [evaluator.outputs(weights, {k: x[i : i + size] for k, x in batch.items()}) for i in (0, size)]
    for key, x in whole.items():
        np.testing.assert_allclose(x, np.concatenate([half[key] for half in halves]), rtol=1e-3, atol=1e-3, err_msg=key)


@pytest.mark.slow
def test_many_images_are_augmented_as_few():
    images = DRAW.integers(0, 256, (512, 32, 32, 3)).astype(np.uint8)
    labels, keys = DRAW.integers(0, 10, 512).astype(np.int32), jax.random.split(jax.random.key(0), 512)
    for policy in ("randaugment", "autoaugment", "three_augment"):
        config = ImageAugment(crop_padding=4, flip=True, policy=policy, erase=0.3, mixup=0.8, cutmix=1.0)
        augment = jax.jit(lambda *each, c=config: vit_jax.augment(*each[:2], c, labels=each[2], classes=10))
        whole = augment(images, keys, labels)
        for a, b in zip(
            whole,
            zip(*(augment(*(x[i : i + 64] for x in (images, keys, labels))) for i in range(0, 512, 64)), strict=True),
            strict=True,
        ):
            np.testing.assert_allclose(a, np.concatenate(b), rtol=0, atol=1e-3)
