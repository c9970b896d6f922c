"""The kind of a parameter is in one table: nothing guesses it, and torch_ref, which derives it from modules, agrees."""

import dataclasses
import re
from typing import get_args

import jax
import jax.numpy as jnp
import pytest

from tests.parity.cases import TRANSFORMER, all_cases
from tests.test_finetune import FULL
from vit_jax.config.dotted import field_types
from vit_jax.config.groups import moments, roles
from vit_jax.config.run import OptimConfig
from vit_jax.config.trees import flatten
from vit_jax.models import attention
from vit_jax.models.build import definition, start
from vit_jax.models.vit_config import ViTConfig
from vit_jax.training.engine.optim import Optimizer

VIT = ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, depth=2, heads=2, hidden=12)
EVERYTHING = dataclasses.replace(
    FULL, depth=2, stem=(6, 5), stem_pre_norm=True, rotary="mixed", attention_norm=True, mlp_norm=True
)
SENTENCES = dataclasses.replace(TRANSFORMER, decoder_depth=1, position="learned", embedding_norm=True)


def test_torch_ref_sorts_the_parameters_of_every_preset_and_every_option():
    pytest.importorskip("torch")
    for case in all_cases():
        sorts_alike(case.config)


def sorts_alike(config):
    import torch_ref
    from convert.dialects.torch_ref import rows
    from torch_ref.optim import kind_of, layers_above, muon_weights

    model, ours = torch_ref.build(config), {name: row.ours for row in rows(config) for name in row.theirs}
    table, seen, above = config.parameters(), {}, {}
    layers = layers_above(model) if isinstance(config, ViTConfig) else {}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(path, recurse=False):
            for each in ours[name]:
                seen[each] = kind_of(module, name.rpartition(".")[2])
                above[each] = layers.get(name, 0)
    assert seen == {name: parameter.kind for name, parameter in table.items()}
    muons = {each for name in muon_weights(model) for each in ours[name]}
    assert muons == {name for name, parameter in table.items() if parameter.muon}
    last = max(parameter.layer for parameter in table.values())
    assert above == {name: last - parameter.layer for name, parameter in table.items()}


def test_torch_ref_refuses_to_sort_what_it_does_not_know():
    torch = pytest.importorskip("torch")
    from torch_ref.optim import groups

    model = torch.nn.Linear(2, 2)
    model.temperature = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match=r"Linear\.temperature has no kind, so weight decay is undefined"):
        groups(model, OptimConfig())


@pytest.fixture
def with_temperature(monkeypatch):
    """Attention with a parameter that no table has."""
    made = attention.Attention.__init__

    def more(self, *args, dtype=jnp.float32, **options):
        made(self, *args, dtype=dtype, **options)
        self.temperature = attention.nnx.Param(jnp.zeros((), dtype))

    monkeypatch.setattr(attention.Attention, "__init__", more)


def test_a_parameter_without_an_entry_is_an_error_before_anything_is_trained(with_temperature):
    with pytest.raises(
        ValueError, match=r"ViT: blocks\.0\.attention\.temperature is \(\) in the module and absent in its table"
    ):
        definition(VIT)


def test_an_entry_without_a_parameter_is_an_error(monkeypatch):
    made = attention.Attention.__init__
    monkeypatch.setattr(
        attention.Attention,
        "__init__",
        lambda self, *args, **options: made(self, *args, **{**options, "bias": (True, True, True, False)}),
    )
    with pytest.raises(
        ValueError, match=r"ViT: blocks\.0\.attention\.out\.bias is absent in the module and \(8,\) in its table"
    ):
        definition(VIT)


def test_the_optimizer_refuses_a_parameter_that_the_table_lacks():
    tree, table = start(VIT, jax.random.key(0)), VIT.parameters()
    tree["blocks"]["0"]["attention"]["temperature"] = jnp.zeros(())
    optimizer = Optimizer(OptimConfig(), 1, 1, table)
    for ask in (optimizer.init, optimizer.partition, lambda tree: optimizer.update(tree, None, tree)):
        with pytest.raises(
            ValueError, match=r"blocks\.0\.attention\.temperature is not in the network's table of parameters"
        ):
            ask(tree)


KEPT = {"sgd": (), "momentum": ("trace",), "adam": ("mu", "nu"), "adamw": ("mu", "nu"), "lion": ("mu",)}


@pytest.mark.parametrize("name", get_args(field_types(OptimConfig)["name"]))
def test_moments_are_kept_by_role_in_every_parameters_shape(name):
    if name == "muon":
        return  # see the next test
    assert name in KEPT, "add its moments to KEPT in tests/test_kinds.py"
    optim, table = OptimConfig(name=name), VIT.parameters()
    moments = Optimizer(optim, 1, 1, table).init(start(VIT, jax.random.key(0))).moments
    assert tuple(moments) == KEPT[name] == roles(optim)
    for tree in moments.values():
        assert {n: x.shape for n, x in flatten(tree).items()} == VIT.shapes() and not any(
            x.any() for x in flatten(tree).values()
        )


def test_muon_updates_the_hidden_kernels_and_keeps_one_moment_of_them():
    """Not those of the first convolution, pool and heads, nor positions, tokens, embeddings, biases and norms."""
    inside = r"((encoder|decoder)\.)?blocks\.\d+\.(\w*attention|mlp)\.(query|key|value|out|fc1|fc2|gate)\.kernel"
    behind = r"stem\.[1-9]\.kernel|patch\.kernel"
    plain = dataclasses.replace(EVERYTHING, stem=())
    for config, count in ((plain, 2 * 7), (EVERYTHING, 2 * 7 + 2), (SENTENCES, 2 * 6 + 10)):
        table, optim = config.parameters(), OptimConfig(name="muon")
        patterns = f"{inside}|{behind}" if config is EVERYTHING else inside
        kernels = {name for name in table if re.fullmatch(patterns, name)}
        assert len(kernels) == count
        kept = Optimizer(optim, 1, 1, table).init(start(config, jax.random.key(0))).moments
        assert flatten(kept["mu"]).keys() == table.keys() and flatten(kept["nu"]).keys() == table.keys() - kernels
        assert {role: tuple(flatten(tree)) for role, tree in kept.items()} == moments(optim, table)
