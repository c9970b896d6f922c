"""Losses of classes, sets of labels and numbers, against PyTorch in float64: values and gradients."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from vit_jax.augmentation.config import ImageAugment
from vit_jax.augmentation.mixing import mix_pairs
from vit_jax.config.fields import identity
from vit_jax.config.outputs import Outputs
from vit_jax.config.run import LossConfig
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.kinds.balance import class_weights, label_weights, log_prior
from vit_jax.kinds.table import kind_of
from vit_jax.runs.check import check_run
from vit_jax.tasks.classify.spec import check_loss
from vit_jax.training.engine.step import mean_over_microbatches

torch = pytest.importorskip("torch")
from torch_ref.labels import Labels  # noqa: E402

F = torch.nn.functional
B, K = 16, 5
DRAW = np.random.default_rng(0)
LOGITS, CLASSES = 3 * DRAW.standard_normal((B, K)), DRAW.integers(0, K, B)
SETS = DRAW.integers(0, 2, (B, K))
HOLES = np.where(DRAW.random((B, K)) < 0.3, -1, SETS)
HOLES[::4] = -1  # of the first of four parts nothing is known
NUMBERS = DRAW.standard_normal((B, K))
WEIGHTS = DRAW.uniform(0.2, 3, K)
MIXED = DRAW.dirichlet(np.ones(K), B)
NAMES = tuple("abcde")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def t(x):
    return torch.from_numpy(np.asarray(x))


def soft(z, target, e=0.0, weight=None):
    return F.cross_entropy(z, t(target), weight=weight, label_smoothing=e)


def focal_of_classes(z, y, g, weight=None):
    losses = F.cross_entropy(z, y, reduction="none")
    losses = losses * (1 - torch.exp(-losses)) ** g
    return losses.mean() if weight is None else (losses * weight[y]).sum() / weight[y].sum()


def focal_of_labels(z, m, g):
    """torchvision.ops.sigmoid_focal_loss(z, m, alpha=-1, gamma=g, reduction="mean")."""
    p = torch.sigmoid(z)
    return (F.binary_cross_entropy_with_logits(z, m, reduction="none") * (1 - p * m - (1 - p) * (1 - m)) ** g).mean()


def masked(z, m, **options):
    known = t(HOLES >= 0)
    return (F.binary_cross_entropy_with_logits(z, m, reduction="none", **options) * known).sum() / known.sum()


y, m, w = t(CLASSES).long(), t(SETS * 1.0), t(WEIGHTS)
holes = t(np.maximum(HOLES, 0) * 1.0)
bce = F.binary_cross_entropy_with_logits
# (kind, settings, weights, what is learned, "target" if mixed else "label", PyTorch's loss of the logits)
CASES = {
    "classes": ("class", {}, (), CLASSES, lambda z: F.cross_entropy(z, y)),
    "smoothed": ("class", {"label_smoothing": 0.1}, (), CLASSES, lambda z: F.cross_entropy(z, y, label_smoothing=0.1)),
    "weighted": ("class", {}, WEIGHTS, CLASSES, lambda z: F.cross_entropy(z, y, weight=w)),
    "weighted, smoothed": (
        *("class", {"label_smoothing": 0.1}, WEIGHTS, CLASSES),
        lambda z: F.cross_entropy(z, y, weight=w, label_smoothing=0.1),
    ),
    "mixed": ("class", {}, (), MIXED, lambda z: soft(z, MIXED)),
    "mixed, weighted, smoothed": (
        *("class", {"label_smoothing": 0.1}, WEIGHTS, MIXED),
        lambda z: soft(z, MIXED, 0.1, w),
    ),
    "focal": ("class", {"focal": 2.0}, (), CLASSES, lambda z: focal_of_classes(z, y, 2)),
    "focal, weighted": ("class", {"focal": 2.0}, WEIGHTS, CLASSES, lambda z: focal_of_classes(z, y, 2, w)),
    "each class by itself": ("class", {"name": "binary"}, (), CLASSES, lambda z: bce(z, F.one_hot(y, K).double())),
    "each class by itself, weighted": (
        *("class", {"name": "binary"}, WEIGHTS, CLASSES),
        lambda z: bce(z, F.one_hot(y, K).double(), weight=w),
    ),
    "set": ("set", {}, (), SETS, lambda z: bce(z, m)),
    "set, weighted": ("set", {}, WEIGHTS, SETS, lambda z: bce(z, m, pos_weight=w)),
    "set, smoothed": ("set", {"label_smoothing": 0.2}, WEIGHTS, SETS, lambda z: bce(z, 0.8 * m + 0.1, pos_weight=w)),
    "set, focal": ("set", {"focal": 2.0}, (), SETS, lambda z: focal_of_labels(z, m, 2)),
    "set, mixed": ("set", {}, WEIGHTS, MIXED, lambda z: bce(z, t(MIXED), pos_weight=w)),
    "set with unknown labels": ("set", {}, WEIGHTS, HOLES, lambda z: masked(z, holes, pos_weight=w)),
    "set of nothing known": ("set", {}, (), np.full((B, K), -1), lambda z: 0 * z.sum()),
    "numbers": ("number", {}, (), NUMBERS, lambda z: F.mse_loss(z, t(NUMBERS))),
    "one number": ("number", {}, (), NUMBERS[:, :1], lambda z: F.mse_loss(z[:, :1], t(NUMBERS[:, :1]))),
}


def a_loss(kind, settings, weights, truth):
    """(logits [B, K] -> loss, the batch, the kind), as the step calls them."""
    names = NAMES[: truth.shape[1]] if truth.ndim == 2 and kind == "number" else NAMES
    mixed = truth.dtype == np.float64 and kind != "number"
    made = kind_of(Outputs(kind, names), len(names), LossConfig(**settings), {"loss_weights": [*weights]})
    return made, {"label": np.zeros(B, np.int32) if mixed else truth, **({"target": truth} if mixed else {})}


DIVIDED = (
    "mixed",
    "weighted",
    "weighted, smoothed",
    "focal, weighted",
    "set with unknown labels",
    "set, mixed",
    "numbers",
)


@pytest.mark.parametrize(("case", "parts"), [*((case, 1) for case in CASES), *((case, 4) for case in DIVIDED)])
def test_losses_and_gradients_are_those_of_pytorch_whole_or_in_parts(case, parts):
    """In parts, as by accumulation: each sum is divided by the denominator of the whole batch."""
    kind, settings, weights, truth, theirs = CASES[case]
    made, batch = a_loss(kind, settings, weights, truth)
    outputs = len(made.outputs.names)
    whole = made.denominator(batch)

    def ours(logits):
        def part(batch, keys):
            return made.loss(batch["z"][:, :outputs], batch, None if whole is None else whole / parts)[0]

        return mean_over_microbatches(part, {**batch, "z": logits}, jnp.arange(B), parts)

    value, slope = jax.jit(jax.value_and_grad(ours))(jnp.asarray(LOGITS))
    leaf = t(LOGITS).requires_grad_()
    expected = theirs(leaf)
    expected.backward()
    assert abs(float(value) - expected.item()) < 2e-15 * max(1, expected.item())
    assert np.abs(np.asarray(slope) - leaf.grad.numpy()).max() < 2e-16
    if parts == 1:  # the twin is written by itself
        metadata = {"outputs": {"kind": kind, "names": made.outputs.names}, "loss_weights": [*weights] or None}
        twin = Labels(LossConfig(**settings), metadata).loss(t(LOGITS)[:, :outputs], t(batch.get("target", truth)))
        assert abs(twin.item() - expected.item()) < 2e-15 * max(1, expected.item())


def test_the_twins_metrics_are_those_of_scikit_learn():
    of_sets = kind_of(Outputs("set", NAMES), K)
    ours = of_sets.score(SimpleNamespace(labels=HOLES), {"logits": LOGITS}).metrics
    theirs = Labels(LossConfig(), {"outputs": {"kind": "set", "names": NAMES}}).metrics(t(LOGITS), t(HOLES))
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)
    outputs = Outputs("number", NAMES, mean=(1.0,) * K, std=tuple(WEIGHTS.tolist()))
    ours = kind_of(outputs, K).score(SimpleNamespace(labels=NUMBERS), {"logits": LOGITS}).metrics
    theirs = Labels(LossConfig(), outputs.to_metadata()).metrics(t(LOGITS), t(NUMBERS))
    with pytest.raises(UserError, match=r"data\.target is level, of which torch_ref has no loss"):
        Labels(LossConfig(), {"outputs": {"kind": "level", "names": NAMES}})
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, abs=1e-12)


def test_a_prior_is_added_to_the_logits_in_training_alone():
    counts = np.array([50, 5, 20, 1, 0])
    made = kind_of(Outputs("class", NAMES), K, LossConfig(prior=True), {"log_prior": [*log_prior(counts)]})
    prior = np.log(np.array([50, 5, 20, 1, 0.5]) / 76)
    loss = made.loss(jnp.asarray(LOGITS), {"label": CLASSES}, None)[0]
    assert float(loss) == pytest.approx(F.cross_entropy(t(LOGITS + prior), y).item(), abs=1e-14)
    out = made.outcomes(jnp.asarray(LOGITS), jnp.asarray(CLASSES))
    assert float(out["loss"].mean()) == pytest.approx(F.cross_entropy(t(LOGITS), y).item(), abs=1e-14)


def test_labels_that_are_mixed_with_unknown_ones_are_unknown_and_those_of_numbers_never():
    keys, images = jax.random.split(jax.random.key(1), B), jnp.zeros((B, 8, 8, 1), jnp.uint8)
    config, kinds = ImageAugment(mixup=1.0, cutmix=1.0), {}
    for kind, labels in (("set", SETS), ("holes", HOLES), ("number", 2.0 * SETS - 1)):  # -1 is a number as any other
        made = kind_of(Outputs("number" if kind == "number" else "set", NAMES), K)
        kinds[kind] = np.asarray(mix_pairs(images, made.targets(jnp.asarray(labels)), keys, config)[1])
    known, holed = kinds["set"], kinds["holes"]
    np.testing.assert_allclose(kinds["number"], 2 * known - 1, atol=1e-6)
    np.testing.assert_array_equal(holed[~np.isnan(holed)], known[~np.isnan(holed)])
    mixed, partner = (known != SETS).any(1), np.arange(B) ^ 1  # those that are mixed for certain
    assert np.isnan(holed[mixed])[(HOLES == -1)[mixed] | (HOLES[partner] == -1)[mixed]].all()
    batch = {"label": HOLES, "target": jnp.asarray(holed, jnp.float64)}
    made = kind_of(Outputs("set", NAMES), K)
    cells, rows = made.denominator(batch)
    assert (int(cells), int(rows)) == ((~np.isnan(holed)).sum(), B)
    loss = made.loss(jnp.asarray(LOGITS), batch, None)[0]
    there = t(np.nan_to_num(holed).astype(float))
    expected = (bce(t(LOGITS), there, reduction="none") * t(~np.isnan(holed))).sum() / int(cells)
    assert float(loss) == pytest.approx(expected.item(), abs=1e-14)
    slope = jax.grad(lambda z: made.loss(z, batch, None)[0])(jnp.asarray(LOGITS))
    assert np.isfinite(slope).all() and (np.asarray(slope)[np.isnan(holed)] == 0).all()


def test_weights_by_the_sizes_of_classes():
    sizes = np.array([120, 6, 30, 0])
    balanced = class_weights(LossConfig(class_weights="balanced"), "abcd", sizes)
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.repeat(np.arange(4), sizes)
    np.testing.assert_allclose(balanced[:3], compute_class_weight("balanced", classes=np.arange(3), y=labels))
    assert balanced[3] == 0
    effective = np.array(class_weights(LossConfig(class_weights="effective"), "abcd", sizes))
    raw = (1 - 0.999) / (1 - 0.999 ** sizes[:3])
    np.testing.assert_allclose(effective[:3] / effective[0], raw / raw[0])
    assert (effective * sizes).sum() / sizes.sum() == pytest.approx(1)
    there, known = np.array([1, 50, 0]), np.array([1000, 100, 100])
    assert label_weights(LossConfig(class_weights="balanced"), "abc", there, known) == (100, 1, 100)
    assert class_weights(LossConfig(), "abcd", sizes) == ()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("w.csv", "name,weight\nant,2\n bee , 0.5\n", ""),
        ("w.csv", "\ufeffant,2\r\nbee,0.5\r\n", ""),
        ("w.json", json.dumps({"bee": 0.5, "ant": 2}), ""),
        ("w.csv", "ant,2\n", "lacks the weight of 'bee'; add it"),
        ("w.csv", "ant,2\nbee,1\nbe,3\n", "there is no 'be' in the data.*bee"),
        ("w.csv", "ant,2\nbee,1\nant,3\n", "line 3: 'ant' is there twice"),
        ("w.csv", "ant,2\nbee,-1\n", "line 2: the weight -1 is not positive"),
        ("w.csv", "ant,2\nbee,nan\n", "line 2: the weight nan is not positive"),
        ("w.csv", "ant,2\nbee,x\n", "line 2: 'x' is no number"),
        ("w.csv", "ant,2,1\nbee,1,1\n", "line 1 has 3 columns"),
        ("w.json", "[1, 2]", "is no JSON object"),
        ("w.json", '{"ant": 1, "ant": 2, "bee": 1}', "w.json"),
    ],
)
def test_weights_of_a_file(name, content, said, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    setting = LossConfig(class_weights=str(tmp_path / name))
    if not said:
        assert class_weights(setting, ("ant", "bee"), np.ones(2)) == (2, 0.5)
        return
    with pytest.raises(UserError, match=said):
        class_weights(setting, ("ant", "bee"), np.ones(2))


def test_a_file_of_weights_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"loss\.class_weights is balance, which is none of none, balanced"):
        class_weights(LossConfig(class_weights="balance"), ("a", "b"), np.ones(2))


DIGITS = vit_jax.preset("digits").run
BAD = {
    "prior and weights": ({"prior": True, "class_weights": "balanced"}, {}, {}, "loss.prior is True and loss.class_w"),
    "prior and sampling": ({"prior": True}, {"sampling": "balanced"}, {}, "is balanced and loss.prior is True"),
    "weights and sampling": ({"class_weights": "effective"}, {"sampling": "sqrt"}, {}, "is sqrt and loss.class_w"),
    "prior and binary": ({"prior": True, "name": "binary"}, {}, {}, "loss.prior is True and loss.name is binary"),
    "focal and smoothing": ({"focal": 2.0, "label_smoothing": 0.1}, {}, {}, "is 2.0 and loss.label_smoothing is 0.1"),
    "focal and mixing": ({"focal": 2.0}, {}, {"mixup": 0.2}, "loss.focal is 2.0 and augment.mixup is 0.2"),
    "squared classes": ({"name": "squared"}, {"target": "class"}, {}, "loss.name is squared, but data.target is class"),
    "softmax of a set": ({"name": "cross_entropy"}, {"target": "set"}, {}, "choose binary, or leave it out"),
    "prior of a set": ({"prior": True}, {"target": "set"}, {}, "loss.prior is True, but data.target is set"),
    "effective labels": ({"class_weights": "effective"}, {"target": "set"}, {}, "give balanced or a file"),
    "weighted numbers": ({"class_weights": "balanced"}, {"target": "number"}, {}, "only class and set can have it"),
    "sampled sets": ({}, {"target": "set", "sampling": "balanced"}, {}, "is balanced, but data.target is set"),
    "fairseq's sets": ({"label_smoothing": 0.1, "smoothing": "fairseq"}, {"target": "set"}, {}, "give torch"),
    "flipped numbers": ({}, {"target": "number"}, {"flip": True}, "augment.flip is True, but data.target is number"),
    "cropped numbers": ({}, {"target": "number"}, {"crop_padding": 2, "erase": 0.1}, "to 0, augment.erase to 0.0; or,"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_excludes_each_other_is_refused(case):
    loss, data, augment, said = BAD[case]
    run = dataclasses.replace(DIGITS, loss=LossConfig(**loss), data=ImageData(**data), augment=ImageAugment(**augment))
    with pytest.raises(UserError, match=said):
        check_run(run)
    if "flip" in augment:
        check_run(dataclasses.replace(run, augment=ImageAugment(**augment, with_numbers=True)))


def test_an_augmentation_to_come_is_refused_of_numbers():
    @dataclasses.dataclass(frozen=True)
    class Newer(ImageAugment):
        grid: float = identity(0.0, "share of an image that is hidden by a grid")

    run = dataclasses.replace(DIGITS, loss=LossConfig(), augment=Newer(normalize="half"))
    check_loss(run, "number")
    with pytest.raises(
        UserError, match=r"augment.grid is 0.5, but data.target is number.* set augment.grid to 0.0; or"
    ):
        check_loss(dataclasses.replace(run, augment=Newer(grid=0.5)), "number")


def test_the_mean_error_of_numbers_is_in_the_units_of_the_data():
    kind = kind_of(Outputs("number", ("a", "b"), mean=(5.0, 0.0), std=(10.0, 2.0)))
    logits, label = jnp.zeros((3, 2)), jnp.array([[1.0, 0], [0, 1], [-1, 1]])
    loss, metrics = kind.loss(logits, {"label": label}, None)
    assert float(loss) == pytest.approx(4 / 6) and float(metrics["mae"]) == pytest.approx((10 + 2 + 10 + 2) / 6)
