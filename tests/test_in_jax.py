"""Networks in jax's world: meshes with Explicit axes, nnx's transformations and its table, and no training mode."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import vit_jax
from vit_jax.errors import ArgumentError
from vit_jax.models.build import network_class
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.lowering import PLAIN, of_training
from vit_jax.models.resnet_config import ResNetConfig

IMAGES = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype(np.float32)
PICTURES = np.random.default_rng(3).normal(size=(4, 32, 32, 3)).astype(np.float32)
IDS, OTHERS = np.random.default_rng(1).integers(0, 11, (4, 3)), np.random.default_rng(2).integers(0, 11, (4, 5))
MEMORY = np.random.default_rng(4).normal(size=(4, 2, 8)).astype(np.float32)
REAL = np.arange(3) < np.array([[1], [2], [3], [3]])
VIT = vit_jax.ViTConfig(image=8, patch=4, width=8, depth=2, heads=2, hidden=16, classes=3)
DROPS = {f"{name}dropout": 0.1 for name in ("", "embedding_", "attention_", "activation_")}
RICH = replace(VIT, **DROPS, patch_dropout=0.3, head_dropout=0.1, drop_path=0.2, stem=(4,), qk_norm=True, pool="map",
               gated=True, layer_scale=0.1, registers=2, rotary="mixed", position="sincos2d")  # fmt: skip
TEXT = vit_jax.TransformerConfig(width=8, heads=2, hidden=16, encoder_depth=2, decoder_depth=2, source_vocabulary=11,
                                 target_vocabulary=11, outputs=11, tie="all", position="learned", max_length=6,
                                 **DROPS)  # fmt: skip
WRITER = replace(TEXT, encoder_depth=0, source_vocabulary=0, tie="none")
CASES = {  # config, arguments of a call
    "vit": (replace(VIT, distill_token=True, pool="cls_distill", distill_head=True), (IMAGES,), {}),
    "rich vit": (RICH, (IMAGES,), {}),
    "transformer": (TEXT, (IDS, OTHERS), {"source_padding": REAL}),
    "captioner": (CaptionerConfig(vit=replace(VIT, classes=0), text=WRITER, memory_width=8), (IMAGES, OTHERS), {}),
    "resnet": (ResNetConfig(image=32, stages=(1, 1, 1, 1), width=8, classes=3, hidden=8, groups=2), (PICTURES,), {}),
}


def made(name, lowering=PLAIN):
    config = CASES[name][0]
    return network_class(config)(config, rngs=nnx.Rngs(0), lowering=lowering)


def outputs_loss_and_gradients(definition, state, arguments, masks, keys):
    def loss(network):
        return jnp.square(network(*arguments, **keys, **masks)).mean()

    network = nnx.merge(definition, state)
    return network(*arguments, **masks), *nnx.value_and_grad(loss)(network)


CHOICES = {"scan": True, "remat": "dots", "attention_kernel": "fused"}


FEW = [("vit", {}), ("rich vit", {}), ("transformer", CHOICES)]
REST = [("transformer", {}), ("captioner", {}), ("resnet", {}), ("rich vit", CHOICES)]


@pytest.mark.parametrize(
    ("name", "chosen"), [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)], ids=str
)
def test_networks_run_on_a_mesh_with_explicit_axes(name, chosen):
    _, arguments, masks = CASES[name]
    definition, state = nnx.split(made(name, of_training(replace(vit_jax.preset("digits").run, **chosen))))
    mesh = jax.make_mesh((1,), ("data",))  # of one device: types say already how arrays are divided

    def on_mesh(tree, spec):
        return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec if np.ndim(x) else P())), tree)

    keys = {} if name == "resnet" else {"keys": jax.random.split(jax.random.key(0), 4)}
    given = arguments, masks, keys
    compute = jax.jit(outputs_loss_and_gradients, static_argnums=0)
    for of_weights in (P(), P("data")):  # whole, and divided as for FSDP
        with jax.set_mesh(mesh):
            traced = compute.trace(definition, on_mesh(state, of_weights), *on_mesh(given, P("data")))
            found = compute(definition, on_mesh(state, P()), *on_mesh(given, P("data"))) if name == "vit" else None
        logits, _, gradients = traced.out_info
        assert logits.sharding.spec[0] == "data"
        for weight, gradient in zip(jax.tree.leaves(state), jax.tree.leaves(gradients), strict=True):
            axes = [axis for axis in gradient.sharding.spec if axis]
            assert gradient.shape == weight.shape and axes == [*(of_weights if weight.ndim else P())]
    if found:
        expected = compute(definition, state, *given)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)


def test_inner_values_and_decoding_are_divided_as_the_inputs():
    mesh, vit, translator = jax.make_mesh((1,), ("data",)), made("vit"), made("transformer")
    images, memory = (jax.device_put(x, NamedSharding(mesh, P("data"))) for x in (IMAGES, MEMORY))
    found = vit.capture(images, ["tokens", "blocks.1", "attention"])  # also where no mesh is set
    for name, value in vit.capture(IMAGES, found).items():
        assert jax.typeof(found[name]).sharding.spec[0] == "data"
        np.testing.assert_allclose(found[name], value, atol=1e-6)
    with jax.set_mesh(mesh):
        logits, cache = translator.decode_step(
            images[:, 0, 0, 0].astype(int) * 0, translator.init_cache(memory, None, 3)
        )
    expected, _ = translator.decode_step(np.zeros(4, int), translator.init_cache(MEMORY, None, 3))
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert cache.index == 1


@pytest.mark.parametrize(
    "name", ["vit", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "vit")]
)
def test_nnx_tabulates_each_network_and_leaves_it_as_it_was(name):
    network, (_, arguments, masks) = made(name), CASES[name]
    before = network(*arguments, **masks)
    table = nnx.tabulate(network, *arguments, **masks, console_kwargs={"width": 200, "force_terminal": False})
    assert type(network).__name__ in table and f"{network.config.parameter_count():,}" in table
    with pytest.raises(Exception, match=r"images|tokens"):  # of a wrong dtype, which is found within its traces
        nnx.tabulate(network, *(x.astype(bool) for x in arguments), **masks)
    with pytest.raises(ArgumentError, match=r"nnx.tabulate failed .* call again"):
        network(*arguments, **masks)
    np.testing.assert_array_equal(network(*arguments, **masks), before)
    np.testing.assert_array_equal(made(name)(*arguments, **masks), before)


def test_only_keys_ask_for_dropout():
    for name in CASES:
        network = made(name)
        network.eval()
        if name in ("vit", "resnet"):
            network.train()  # nothing would be drawn
            continue
        with pytest.raises(ArgumentError, match=r"no training mode.*give keys=jax\.random\.split"):
            network.train()
    with pytest.raises(AttributeError, match="'ResNet' object has no attribute 'nothing'"):
        _ = network.nothing


@pytest.mark.parametrize(
    ("rule", "of_weights"), [("muon", P("data")), pytest.param("adamw", P(), marks=pytest.mark.slow)], ids=str
)
def test_a_loop_of_ones_own_runs_on_a_mesh_with_explicit_axes(rule, of_weights):
    mesh = jax.make_mesh((1,), ("data",))
    rule = vit_jax.optimizer(rule, lr=1e-3, steps=10, weight_decay=0.1, clip=1.0, network=made("rich vit"))
    definition, state = nnx.split(made("rich vit"))

    def step(state, moments, images, labels, keys):
        images, targets = vit_jax.augment(
            images, keys, labels=labels, classes=3, crop_padding=1, policy="randaugment", mixup=0.2
        )

        def loss(state):
            logits = nnx.merge(definition, state)(images / 255, keys=keys)
            return -(jax.nn.log_softmax(logits) * targets).sum(-1).mean()

        updates, moments = rule.update(jax.grad(loss)(state), moments, state)
        return jax.tree.map(jnp.add, state, updates), moments

    with jax.set_mesh(mesh):
        state = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, of_weights)), state)
        images, labels, keys = (
            jax.device_put(x, NamedSharding(mesh, P("data")))
            for x in (np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 3, jax.random.split(jax.random.key(0), 4))
        )
        after, _ = jax.jit(step).trace(state, rule.init(state), images, labels, keys).out_info
    for weight, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert new.sharding.spec[0] == jax.typeof(weight).sharding.spec[0] and new.shape == weight.shape


@pytest.mark.parametrize("name", ["vit", pytest.param("transformer", marks=pytest.mark.slow)])
def test_networks_are_split_mapped_over_and_exported_as_any_of_nnx(name):
    config, arguments, masks = CASES[name]
    networks = [network_class(config)(config, rngs=nnx.Rngs(seed)) for seed in range(2)]
    definition = nnx.split(networks[0])[0]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(nnx.split(network)[1] for network in networks))

    def call(state, arguments, masks):
        return nnx.merge(definition, state)(*arguments, **masks)

    expected = jnp.stack([network(*arguments, **masks) for network in networks])
    mapped = jax.jit(jax.vmap(call, (0, None, None)))
    np.testing.assert_allclose(mapped(stacked, arguments, masks), expected, atol=1e-6)
    leaves, tree = jax.tree.flatten(nnx.split(networks[0])[1])

    def of_arrays(leaves, arguments, masks):
        return call(tree.unflatten(leaves), arguments, masks)

    program = jax.export.deserialize(jax.export.export(jax.jit(of_arrays))(leaves, arguments, masks).serialize())
    np.testing.assert_allclose(program.call(leaves, arguments, masks), expected[0], atol=1e-6)
