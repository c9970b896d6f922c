"""vit_jax.optimizer and vit_jax.augment in a training loop of one's own."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import vit_jax
from vit_jax.augmentation.config import ImageAugment
from vit_jax.augmentation.mixing import mix_pairs
from vit_jax.config.run import OptimConfig
from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.models.layers import fold
from vit_jax.models.state import split_model
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit import ViT
from vit_jax.models.vit_config import ViTConfig
from vit_jax.training.engine.optim import Optimizer

VIT = ViTConfig(image=4, channels=1, patch=2, classes=3, width=4, depth=2, heads=2, hidden=6)
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def steps(rule, tree, count=3):
    """The tree after so many updates, whose gradients are the parameters themselves, in one compiled loop."""

    def step(carry, _):
        tree, state = carry
        updates, state = rule.update(tree, state, tree)
        return (optax.apply_updates(tree, updates), state), None

    run = jax.jit(lambda tree: jax.lax.scan(step, (tree, rule.init(tree)), None, count)[0][0], compiler_options=QUICK)
    return run(tree)


def test_of_any_tree_arrays_of_two_or_more_axes_decay_as_optax_has_it():
    tree = {"a": [jnp.ones((2, 3)), jnp.ones((2, 3, 4))], "b": (jnp.ones(3), jnp.ones(()))}
    got = steps(vit_jax.optimizer("adamw", lr=0.1, schedule="constant", weight_decay=0.2, eps=1e-3), tree)
    mask = jax.tree.map(lambda x: x.ndim > 1, tree)
    expected = steps(optax.adamw(0.1, eps=1e-3, weight_decay=0.2, mask=mask), tree)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, expected)


def test_of_a_tree_without_a_network_a_part_can_be_frozen():
    tree = {"body": [jnp.ones((2, 3))], "head": jnp.ones((2, 3))}
    rule = optax.chain(optax.identity(), vit_jax.optimizer("sgd", lr=0.1, schedule="constant", freeze=("body.*",)))
    got = steps(rule, tree, 1)
    assert (got["body"][0] == 1).all() and np.allclose(got["head"], 0.9)
    with pytest.raises(UserError, match="'bod', which matches no parameter"):
        vit_jax.optimizer("sgd", schedule="constant", freeze=("bod",)).init(tree)


@pytest.mark.parametrize("given", ["network", "config"])
def test_a_network_tells_kernels_layers_and_what_muon_updates(given):
    """Its nnx.State is updated as the engine updates the nested dict of the same parameters."""
    model = ViT(VIT, rngs=nnx.Rngs(0))
    fields = dict(muon_lr=0.1, weight_decay=0.1, layer_decay=0.5, freeze=("patch.*",), freeze_epochs=1.0, warmup=0.5)
    network = model if given == "network" else VIT
    rule = vit_jax.optimizer("muon", steps=6, steps_per_epoch=2, network=network, **fields)
    engines = Optimizer(OptimConfig("muon", **fields), 6, 2, VIT.parameters())
    got, expected = steps(rule, nnx.state(model, nnx.Param)), steps(engines, split_model(model)[1])
    nnx.update(model, got)
    for name, x in flatten(split_model(model)[1]).items():
        np.testing.assert_array_equal(x, flatten(expected)[name], err_msg=name)


def test_a_config_may_be_given_and_its_fields_replaced():
    run, tree = vit_jax.preset("digits").run, {"kernel": jnp.ones((2, 3))}
    state = vit_jax.optimizer(run.optim, name="momentum", steps=10).init(tree)
    assert state.step == 0 and flatten(state.moments).keys() == {"trace.kernel"}


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (("adamw",), {}, "optim.schedule is cosine, which needs steps"),
        (("adamx",), {}, "optim.name is 'adamx'"),
        (("adamw",), {"learning_rate": 0.1}, "optim.learning_rate is no field"),
        (("adamw",), {"schedule": "constant", "warmup": 2.0}, "optim.warmup is 2.0, which needs steps_per_epoch"),
        (("muon",), {"steps": 9}, "optim.name is muon, which needs network"),
        (("sgd",), {"steps": 9, "layer_decay": 0.5}, "optim.layer_decay is 0.5, which needs network"),
        (("sgd",), {"steps": 9, "layer_decay": 0.5, "network": TransformerConfig()}, "have no order"),
        (("sgd",), {"steps": 9, "network": object()}, "network is a object: give"),
        (("sgd",), {"steps": 9, "network": VIT, "freeze": ("*",)}, "matches all"),
    ],
)
def test_what_an_optimizer_cannot_be_is_one_sentence(words, options, said):
    with pytest.raises(UserError, match=re.escape(said)):
        vit_jax.optimizer(*words, **options)


IMAGES = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3)).astype(np.uint8)
LABELS, KEYS = np.array([0, 1, 2, 1], np.int32), jax.random.split(jax.random.key(0), 4)


def test_images_are_augmented_by_options_or_by_a_config():
    plain = vit_jax.augment(IMAGES, KEYS)
    flipped = vit_jax.augment(IMAGES, KEYS, ImageAugment(crop_padding=1, mixup=0.5), flip=True, crop_padding=0, mixup=0)
    assert flipped.dtype == np.uint8 and (plain == IMAGES).all() and (flipped != plain).any()
    for image, other in zip(IMAGES, np.asarray(flipped), strict=True):
        assert (other == image).all() or (other == image[:, ::-1]).all()


@pytest.mark.parametrize("options", [{"cutmix": 1.0}, {"mixup": 0.5}, {}])
def test_with_labels_images_are_mixed_and_targets_given(options):
    images, targets = vit_jax.augment(IMAGES, KEYS, labels=LABELS, classes=3, **options)
    same = mix_pairs(jnp.asarray(IMAGES), jax.nn.one_hot(LABELS, 3), fold(KEYS, 5), ImageAugment(**options))
    assert targets.shape == (4, 3) and (np.asarray(images) == same[0]).all() and (targets == same[1]).all()
    if not options:
        assert (images == IMAGES).all() and (targets == np.eye(3)[LABELS]).all()


@pytest.mark.parametrize(
    ("images", "options", "said"),
    [
        (IMAGES, {"flop": True}, "augment.flop is no field"),
        (IMAGES, {"erase": 2.0}, "augment.erase is 2.0"),
        (IMAGES, {"mixup": 0.5}, "augment.mixup mixes targets too: give labels"),
        (IMAGES, {"mixup": 0.5, "labels": LABELS[:2], "classes": 3}, "labels: [2]"),
        (IMAGES / 255, {}, "images: float64 [4, 6, 6, 3]; give uint8"),
        (IMAGES.tolist(), {}, "images: is a list; give an array"),
        (IMAGES[:3], {}, "keys: [4], but there are 3 images"),
        (IMAGES[..., :2], {"policy": "randaugment"}, "augment.policy is randaugment"),
    ],
)
def test_what_images_cannot_be_augmented_by_is_one_sentence(images, options, said):
    with pytest.raises(UserError, match=re.escape(said)):
        vit_jax.augment(images, KEYS, **options)


@pytest.mark.slow
def test_the_loop_of_the_page_is_as_good_as_the_trainer(tmp_path, monkeypatch):
    """The digits: the trainer's test accuracy is 0.981 +- 0.003 over seeds."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    library, loop = re.findall(r"```python\n(.*?)```", text, re.S)
    found = {}
    exec(library.partition("summary =")[0] + loop, found)
    assert found["accuracy"] >= 0.97
