"""The PyTorch twins: the same function as ours, their dropout, starts and refusals. (In full: tests/parity.)"""

import ast
import inspect
from dataclasses import replace

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_ref  # noqa: E402
import torch_ref.attention  # noqa: E402
import torch_ref.decoder  # noqa: E402
import torch_ref.decoder_model  # noqa: E402
import torch_ref.layers  # noqa: E402
import torch_ref.transformer  # noqa: E402
import torch_ref.vit  # noqa: E402
from convert.verify.checks import failures  # noqa: E402
from convert.write.program.network import on_cpu  # noqa: E402
from tests.parity import cases, dropping, twins  # noqa: E402
from tests.parity.sides import ours, torch_twin  # noqa: E402
from tests.parity.weights import inputs, masks, weights  # noqa: E402
from torch_ref.attention import Attention, attention_mask  # noqa: E402
from torch_ref.layers import drop_path  # noqa: E402
from vit_jax.config.trees import flatten  # noqa: E402
from vit_jax.errors import UserError  # noqa: E402
from vit_jax.models import attention, build, decoder, decoder_model, layers, transformer, vit  # noqa: E402
from vit_jax.models.transformer_config import TransformerConfig  # noqa: E402
from vit_jax.models.vit_config import ViTConfig  # noqa: E402

slow = pytest.mark.slow
torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("quick_compilation")

VIT = ViTConfig(image=(8, 6), channels=2, patch=(2, 3), classes=5, width=12, depth=2, heads=3, hidden=20, head_width=5)
SEQ = cases.TRANSFORMER
TIED = replace(SEQ, source_vocabulary=9, outputs=9, tie="all", scale_embedding=True)
VECTORS = replace(SEQ, source_vocabulary=0, target_vocabulary=0, outputs=0, position="one_frequency")
# Values of options that no network of `combinations` has.
OPTIONS = {
    *("distill_norm=True", "head_hidden=6", "position=sincos1d", "position=sincos2d", "activation=quick_gelu"),
    *("mlp_bias=False", "out_bias=False", "pool=mean", "pool=map_all", "decoder_depth=0", "bias=False"),
}
CASES = {case.name: case.config for case in cases.combinations()}
NETWORKS = [*CASES]
CASES |= {
    f"{name}, {case.name}": case.config
    for name, base in (("ViT", cases.VIT), ("Transformer", SEQ))
    for case in cases.options(base)
    if case.name in OPTIONS
}
DECODERS = [
    *("transformer base", "transformer of vectors", "mBART", "M2M-100", "T5"),
    "captioner, all tokens, projected",
]


def twin(config):
    return torch_ref.load(torch_ref.build(config).double().eval(), weights(config))


def check(results):
    results = list(results)
    assert results and not failures(results), "\n".join(map(str, failures(results)))


# ----------------------------------------------------------------------------------- the function


@pytest.mark.parametrize("name", [name if name in NETWORKS else pytest.param(name, marks=slow) for name in CASES])
def test_a_network_is_the_same_function_and_its_weights_come_back_to_the_bit(name):
    c = CASES[name]
    check([twins.carried(name, c, weights(c)), twins.forward(name, c, weights(c), inputs(c), "float64", "float64")])


@pytest.mark.parametrize("c", [cases.VIT, SEQ], ids=["vit", "transformer"])
def test_attention_is_captured_alike(c):
    of_texts = ["encoder.attention", "decoder.self_attention", "decoder.cross_attention"]
    names, given = ["attention"] if c is cases.VIT else of_texts, inputs(c)
    mine, theirs = ours(c, weights(c)), torch_twin(c, weights(c))
    with on_cpu("float64"), torch.no_grad():
        expected = mine.model.capture(names=names, **mine.arrays(given))
        found = theirs.built.capture(theirs.module, theirs.arrays(given), names)
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", ["both", "empty rows", "per head"])
def test_masks_restrict_alike(which):
    given = inputs(SEQ) | masks(SEQ, which)
    check([twins.forward(which, SEQ, weights(SEQ), given, "float64", which)])
    if which == "empty rows":
        check(twins.backward(which, SEQ, weights(SEQ), given))


@pytest.mark.parametrize("name", DECODERS)
def test_decoding_by_steps_is_the_whole_pass(name):
    check(twins.decoding(name, CASES[name]))


@pytest.mark.parametrize("fields", [cases.INDICES, dict(position_trained=False)], ids=["rotary", "sinusoids"])
def test_without_stored_positions_images_of_another_size_give_the_same(fields):
    c = replace(cases.VIT, **{"position": "none" if "rotary" in fields else "sincos2d", **fields})
    images = np.random.default_rng(2).normal(size=(2, 2, 6, 3))
    check([twins.forward("another size", c, weights(c), {"images": images}, "float64", "float64")])
    with pytest.raises(ValueError, match=r"images of 3x5 pixels are not divisible by the patch 2x1"):
        torch_ref.build(c)(torch.zeros(2, 3, 3, 5))


def test_inputs_that_do_not_fit_what_was_built_are_refused():
    source, model = torch.ones((3, 6), dtype=torch.long), twin(SEQ)
    with pytest.raises(ValueError, match="target is missing"):
        model(source)
    cache = model.init_cache(model.encode(source), None, 1)
    _, cache = model.decode_step(source[:, 0], cache)
    with pytest.raises(ValueError, match="full"):
        model.decode_step(source[:, 0], cache)
    with pytest.raises(ValueError, match="does not fit"):
        model.decode_step(source[:1, 0], model.init_cache(model.encode(source), None, 5))
    with pytest.raises(ValueError, match="give 1 to max_length 6"):
        model.init_cache(model.encode(source), None, 11)
    alone = twin(replace(SEQ, decoder_depth=0, target_vocabulary=0, outputs=0))
    with pytest.raises(ValueError, match="target is given, but this is an encoder alone"):
        alone(source, source)
    with pytest.raises(ValueError, match="decoder_depth is 0"):
        alone.init_cache(alone.encode(source), None, 6)


@pytest.mark.parametrize("training", [False, True])
def test_a_row_with_nothing_to_look_at_is_zero_before_the_out_projection(training):
    attention = Attention(6, 2, 3, dropout=0.1 * training).double().train(training)
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[1, :, 2] = False
    y = attention(x, x, x, mask)
    assert torch.equal(y[1, 2], attention.out.bias)
    y[1, 2].sum().backward()
    assert not x.grad.any()


# --------------------------------------------------------------------------- weights under our names


def test_weights_of_another_network_are_refused():
    with pytest.raises(
        UserError, match=r"missing \(1\): cls_token; of another shape \(1\): position \[8, 12\] instead of \[9, 12\]"
    ):
        torch_ref.load(torch_ref.build(VIT), weights(replace(VIT, cls_token=False, pool="mean")))


def test_a_tied_table_is_stored_once_and_learns_from_all_its_uses():
    model = twin(TIED)
    assert [n for n, p in model.named_parameters() if 9 in p.shape and 8 in p.shape] == ["target.embedding.weight"]
    model(torch.tensor([[1, 2]]), torch.tensor([[3]]))[0, 0, 5].backward()
    used = model.target.embedding.weight.grad.abs().sum(1) > 0
    assert used.nonzero().flatten().tolist() == [1, 2, 3, 5]  # two of the source, one of the target, one of the head


# ------------------------------------------------------------------------------------- training mode


RATES = dict(embedding_dropout=0.1, attention_dropout=0.2, dropout=0.3, activation_dropout=0.4)


@pytest.mark.parametrize(
    "c",
    [
        replace(cases.VIT, **RATES, head_dropout=0.5, drop_path=0.6),
        replace(SEQ, **RATES, final_dropout=0.5),
    ],
    ids=["vit", "transformer"],
)
def test_every_dropout_site_has_its_rate_in_training_alone(c):
    """As ours has it, whose masks it is fed."""
    check(dropping.one_mask("rates", c))
    check([twins.forward("rates", c, weights(c), inputs(c), "float64", "in evaluation")])


def test_drop_path_drops_whole_examples():
    y = drop_path(torch.ones(4000, 2, 3), 0.25, True)
    kept = y[:, 0, 0] != 0
    assert torch.equal(y, kept.view(-1, 1, 1) * torch.full_like(y, 1 / 0.75))
    assert abs(kept.float().mean() - 0.75) < 4 * (0.25 * 0.75 / 4000) ** 0.5


def test_patch_dropout_keeps_a_share_in_order():
    model = torch_ref.build(replace(VIT, patch_dropout=0.5)).train()
    x = torch.arange(8.0).view(1, 8, 1).expand(500, 8, 12)
    y, _ = model.drop_patches(x, None)
    y = y[..., 0]
    assert y.shape == (500, 4) and (y.diff(dim=1) > 0).all()
    assert abs((y == 0).any(1).float().mean() - 0.5) < 4 * 0.5 / 500**0.5
    assert model.eval().drop_patches(x, None)[0].shape == x.shape


# ---------------------------------------------------------------------------------- initial weights

INITS = ("trunc_normal", "normal", "fan_in", "xavier", "torch", "torchvision")


@pytest.mark.parametrize(
    "init, attention_init",
    [
        *((init, "same") for init in INITS),
        *(pytest.param(init, "torch", marks=() if init == "xavier" else slow) for init in INITS),
    ],
)
def test_a_vit_starts_from_the_same_distributions(init, attention_init):
    config = ViTConfig(
        image=8,
        patch=2,
        width=48,
        hidden=96,
        heads=4,
        depth=1,
        classes=40,
        pool="map",
        init=init,
        attention_init=attention_init,
        init_std=0.05,
        token_std=0.3,
        position_std=0.4,
        layer_scale=0.1,
        head_zero=init == "xavier",
        position="sincos2d" if init == "fan_in" else "learned",
    )
    torch.manual_seed(0)
    same_spread(config, torch_ref.parameters(torch_ref.build(config)), flatten(build.start(config, jax.random.key(0))))


@pytest.mark.parametrize("tie", ["none", "decoder"])
@pytest.mark.parametrize("init", ["xavier", "torch"])
def test_a_transformer_starts_from_the_same_distributions(init, tie):
    config = TransformerConfig(
        width=48,
        hidden=96,
        heads=4,
        encoder_depth=1,
        decoder_depth=1,
        source_vocabulary=50,
        target_vocabulary=40,
        outputs=40,
        tie=tie,
        init=init,
        attention_init="torch" if init == "torch" else "same",
        embedding_std=0.3,
        position="learned",
        position_std=0.4,
        max_length=20,
        embedding_norm=True,
    )
    torch.manual_seed(0)
    same_spread(config, torch_ref.parameters(torch_ref.build(config)), flatten(build.start(config, jax.random.key(0))))


def same_spread(config, theirs, ours):
    """Constants are equal; what is drawn has the same mean, spread and, where it is cut, the same largest value."""
    table = config.parameters()
    for name, expected in ours.items():
        found, expected = theirs[name], np.asarray(expected)
        std, n = expected.std(), expected.size
        if std == 0:
            assert np.array_equal(found, expected), name
            continue
        if name == "position" and expected[1:].max() == 1:  # sinusoids
            np.testing.assert_allclose(found, expected, atol=1e-6)
            continue
        # Of n values the spread of a std is std / sqrt(2n) for a normal distribution, less for one that is cut.
        assert abs(found.std() - std) < 6 * std / n**0.5, (name, found.std(), std)
        assert abs(found.mean()) < 5 * std / n**0.5, name
        cut = table[name].kind == "kernel" and np.abs(expected).max() < 2.5 * std
        assert not cut or np.abs(found).max() < 1.1 * np.abs(expected).max(), name


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("inputs", "masks", "told"),
    [
        ((torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.long)), {}, "are not ids"),
        ((torch.ones(2, 7, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)), {}, "longer than max_length 6"),
        (None, {"source_padding": torch.ones(2, 4, dtype=torch.bool)}, r"is not bool \[2, 3\]"),
        (None, {"target_mask": torch.zeros(1, 1, 3, 3)}, "only boolean masks"),
        (None, {"memory_mask": torch.ones(2, 3, 3, 4, dtype=torch.bool)}, "not 4-D or does not broadcast"),
    ],
)
def test_a_transformer_refuses_what_does_not_fit(inputs, masks, told):
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=told):
        torch_ref.build(SEQ)(*(inputs or (ids, ids)), **masks)


def test_other_refusals():
    model = torch_ref.build(VIT)
    with pytest.raises(ValueError, match=r"are not \[B, 2, 8, 6\]"):
        model(torch.zeros(1, 8, 6, 2))
    with pytest.raises(ValueError, match="cannot capture 'nothing'"):
        model.capture(torch.zeros(1, 2, 8, 6), ["nothing"])
    with pytest.raises(ValueError, match="are not vectors"):
        torch_ref.build(VECTORS)(torch.zeros(1, 2, 11), torch.zeros(1, 2, 8))
    with pytest.raises(ValueError, match="causal is False"):
        torch_ref.build(replace(SEQ, causal=False)).init_cache(torch.zeros(1, 2, 8), None, 3)
    with pytest.raises(UserError, match=r"width 13 is not divisible"):
        torch_ref.build(replace(VIT, width=13, head_width=0))


def test_one_mask_is_all_that_restricts():
    keep = torch.tensor([[True, True, False]])
    mask = attention_mask(
        1, 3, 3, padding=keep, mask=torch.eye(3, dtype=torch.bool)[None, None].logical_not(), causal=True
    )
    assert mask[0, 0].tolist() == [[False, False, False], [True, False, False], [True, True, False]]
    assert attention_mask(1, 3, 3) is None


# ---------------------------------------------------------------------------------- read side by side


def members(module):
    """{class: (its methods, the attributes that its __init__, or add_layers, sets)} of a file, in order."""
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
            made = methods.get("add_layers") or methods.get("__init__", ast.Pass())
            targets = (t for a in ast.walk(made) if isinstance(a, ast.Assign) for t in a.targets)
            names = [n for t in targets for n in (t.elts if isinstance(t, ast.Tuple) else [t])]
            found[node.name] = (list(methods), [n.attr for n in names if isinstance(n, ast.Attribute)])
    return found


RENAMED = {"__call__": "forward", "add_layers": "__init__", "Embedding.positions": "with_positions"}  # {JAX's: torch's}
OURS_ALONE = {"dtype", "kernel", "lowering"}
TORCHS_ALONE = {
    *("embedding_dropout", "head_dropout", "dropout", "weight"),  # dropouts are modules there
    "config",  # which Network sets here
}
METHODS_OF_OURS = {
    *("computed", "length"),  # where computed positions start, which `start` fills there; a field of the cache there
    "_second",  # what a step for a GPU computes again
    *("cut", "convolve"),  # patches for a CPU or GPU, and for a TPU
}
MASKS = ("Known",)  # what a fused kernel has to be told
METHODS_OF_TORCH = {
    "split_heads",  # ours: Linear.to_heads, where a TPU's product has heads as an axis
    "weights",
    "start",
}  # the softmax that its fused kernel keeps to itself; initial weights are drawn in place


@pytest.mark.parametrize(
    "twins",
    [
        (layers, torch_ref.layers),
        (attention, torch_ref.attention),
        (decoder, torch_ref.decoder),
        (decoder_model, torch_ref.decoder_model),
        (vit, torch_ref.vit),
        (transformer, torch_ref.transformer),
    ],
    ids=["layers", "attention", "decoder", "decoder_model", "vit", "transformer"],
)
def test_twins_have_the_same_classes_methods_and_attributes_in_the_same_order(twins):
    jax_side, torch_side = map(members, twins)
    ours = [c for c in jax_side if c not in ("Linear", "LayerNorm", "RMSNorm", *MASKS)]  # torch brings those
    assert ours == list(torch_side)
    for cls, (methods, attributes) in torch_side.items():
        wanted, its = jax_side[cls]
        assert list(
            dict.fromkeys(RENAMED.get(f"{cls}.{m}", RENAMED.get(m, m)) for m in wanted if m not in METHODS_OF_OURS)
        ) == [m for m in methods if m not in METHODS_OF_TORCH], cls
        assert [a for a in its if a in attributes] == [a for a in attributes if a in its], cls
        assert set(its) - set(attributes) <= OURS_ALONE and set(attributes) - set(its) <= TORCHS_ALONE, cls
