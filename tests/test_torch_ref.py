"""The PyTorch twins: the same function as ours, their dropout, starts and refusals. (In full: tests/parity.)"""

import ast
import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
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
from torch_ref.attention import Attention, attention_mask  # noqa: E402
from torch_ref.layers import drop_path  # noqa: E402
from vit_jax.config.trees import flatten, unflatten  # noqa: E402
from vit_jax.errors import UserError  # noqa: E402
from vit_jax.models import attention, build, decoder, decoder_model, layers, state, transformer, vit  # noqa: E402
from vit_jax.models.transformer_config import TransformerConfig  # noqa: E402
from vit_jax.models.vit_config import ViTConfig  # noqa: E402

torch.set_num_threads(1)

VIT = ViTConfig(image=(8, 6), channels=2, patch=(2, 3), classes=5, width=12, depth=2, heads=3, hidden=20, head_width=5)
SEQ = TransformerConfig(
    width=12,
    heads=3,
    hidden=20,
    encoder_depth=2,
    decoder_depth=2,
    source_vocabulary=11,
    target_vocabulary=9,
    outputs=7,
    max_length=10,
)
VITS = {
    "plain": VIT,
    "stem, map, gated": replace(
        VIT,
        patch=2,
        stem=(6,),
        stem_pre_norm=True,
        stem_norm=True,
        stem_activation="relu",
        pool="map",
        gated=True,
        position="sincos2d",
    ),
    "tokens, post-norm": replace(
        VIT,
        distill_token=True,
        registers=2,
        pool="cls_distill",
        distill_head=True,
        distill_norm=True,
        layer_scale=0.1,
        qk_norm=True,
        norm_first=False,
        cls_position=False,
        register_position=True,
        head_hidden=7,
        position="sincos1d",
        position_trained=False,
    ),
    "mean, no biases": replace(
        VIT,
        pool="mean",
        cls_token=False,
        query_bias=False,
        key_bias=False,
        out_bias=False,
        mlp_bias=False,
        norm_bias=False,
        stem_bias=False,
        activation="quick_gelu",
        pre_norm=True,
        final_norm=False,
        head_norm=True,
        position="none",
    ),
    "rotary": replace(
        VIT,
        head_width=8,
        registers=2,
        position="none",
        rotary="axial",
        rotary_places="indices",
        rotary_pairs="neighbours",
        rotary_offset=1.0,
        rotary_grid=(3, 5),
    ),
}
SEQS = {
    "plain": SEQ,
    "tied head, learned": replace(
        SEQ, tie="decoder", outputs=9, position="learned", position_offset=2, embedding_norm=True, norm_first=False
    ),
    "all tied": replace(
        SEQ,
        source_vocabulary=9,
        outputs=9,
        tie="all",
        position="concatenated",
        scale_embedding=True,
        final_norm=False,
        head_width=5,
    ),
    "vectors": replace(
        SEQ,
        source_vocabulary=0,
        target_vocabulary=0,
        outputs=0,
        position="one_frequency",
        bias=False,
        norm_bias=False,
        activation="relu",
    ),
}


def random(config, seed=0):
    rng = np.random.default_rng(seed)
    return {name: 0.3 * rng.normal(size=shape) for name, shape in config.shapes().items()}


def ours(config, weights):
    model = build.network_class(config)(config, dtype=jnp.float64, param_dtype=jnp.float64)
    state.replace_parameters(model, unflatten({name: jnp.asarray(x) for name, x in weights.items()}))
    return model


def twin(config, weights):
    return torch_ref.load(torch_ref.build(config).double().eval(), weights)


def close(a, b, limit=1e-12):
    a, b = (x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in (a, b))
    assert a.shape == b.shape and a.dtype == b.dtype == np.float64
    assert np.abs(a - b).max() <= limit * np.abs(b).max()


# ----------------------------------------------------------------------------------- the function


@pytest.mark.parametrize("name", VITS)
def test_a_vit_is_the_same_function(name):
    config = VITS[name]
    weights, x = random(config), np.random.default_rng(1).normal(size=(3, 8, 6, 2))
    names = ["tokens", "blocks.0", "blocks.1", "features", "pooled", "attention", "logits"]
    with jax.enable_x64(True):
        expected = ours(config, weights).capture(jnp.asarray(x), names)
    model = twin(config, weights)
    images = torch.tensor(x).permute(0, 3, 1, 2)
    found = model.capture(images, names)
    assert list(found) == names
    for part in names:
        close(found[part], expected[part])
    close(model(images), expected["logits"])  # by torch's fused attention, where capture has its own
    if not config.position_stored:  # images of any size that the patch divides
        x = np.random.default_rng(2).normal(size=(2, 4, 12, 2))
        with jax.enable_x64(True):
            expected = ours(config, weights)(jnp.asarray(x))
        close(model(torch.tensor(x).permute(0, 3, 1, 2)), expected)
        with pytest.raises(ValueError, match=r"images of 4x11 pixels are not divisible by the patch 2x3"):
            model(torch.zeros(2, 2, 4, 11, dtype=torch.float64))


def test_an_encoder_alone_is_the_same_function():
    config = replace(SEQ, decoder_depth=0, target_vocabulary=0, outputs=0, position="learned")
    weights, source = random(config), np.random.default_rng(2).integers(0, 9, (3, 6))
    with jax.enable_x64(True):
        expected = ours(config, weights)(jnp.asarray(source))
    model = twin(config, weights)
    close(model(torch.tensor(source)), expected)
    with pytest.raises(ValueError, match="target is given, but this is an encoder alone"):
        model(torch.tensor(source), torch.tensor(source))
    with pytest.raises(ValueError, match="decoder_depth is 0"):
        model.init_cache(model.encode(torch.tensor(source)), None, 6)
    with pytest.raises(ValueError, match="target is missing"):
        twin(SEQ, random(SEQ))(torch.tensor(source))


@pytest.mark.parametrize("name", SEQS)
def test_a_transformer_is_the_same_function_under_masks(name):
    config = SEQS[name]
    weights, rng = random(config), np.random.default_rng(2)
    if config.source_vocabulary:
        source, target = rng.integers(0, 9, (3, 6)), rng.integers(0, 9, (3, 5))
    else:
        source, target = rng.normal(size=(3, 6, 12)), rng.normal(size=(3, 5, 12))
    masks = {
        "source_padding": np.arange(6) < np.array([6, 3, 0])[:, None],  # the last has nothing to look at
        "target_padding": np.arange(5) < np.array([5, 2, 4])[:, None],
        "target_mask": rng.random((1, 3, 5, 5)) < 0.7,
        "memory_padding": np.arange(6) < np.array([4, 6, 0])[:, None],
        "memory_mask": rng.random((3, 1, 5, 6)) < 0.8,
    }
    names = [
        "encoder.blocks.0",
        "encoder.attention",
        "memory",
        "decoder.blocks.1",
        "decoder.self_attention",
        "decoder.cross_attention",
        "logits",
    ]
    with jax.enable_x64(True):
        expected = ours(config, weights).capture(
            jnp.asarray(source), jnp.asarray(target), names, **{k: jnp.asarray(v) for k, v in masks.items()}
        )
    model = twin(config, weights)
    given = torch.tensor(source), torch.tensor(target)
    keep = {k: torch.tensor(v) for k, v in masks.items()}
    found = model.capture(*given, names, **keep)
    for part in names:
        close(found[part], expected[part])
    logits = model(*given, **keep)
    close(logits, expected["logits"])
    logits.square().mean().backward()
    assert all(np.isfinite(g).all() for g in torch_ref.gradients(model).values())


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


@pytest.mark.parametrize("name", SEQS)
def test_decoding_by_steps_is_the_whole_pass(name):
    config = SEQS[name]
    model, rng = twin(config, random(config)), np.random.default_rng(3)
    ids = bool(config.source_vocabulary)
    source = torch.tensor(rng.integers(0, 9, (3, 6)) if ids else rng.normal(size=(3, 6, 12)))
    target = torch.tensor(rng.integers(0, 9, (3, 5)) if ids else rng.normal(size=(3, 5, 12)))
    padding = torch.arange(6) < torch.tensor([[6], [3], [0]])
    cache, steps = model.init_cache(model.encode(source, padding), padding, 5), []
    for t in range(5):
        logits, cache = model.decode_step(target[:, t], cache)
        steps.append(logits)
    close(torch.stack(steps, 1), model(source, target, source_padding=padding))
    with pytest.raises(ValueError, match="full"):
        model.decode_step(target[:, 0], cache)
    with pytest.raises(ValueError, match="does not fit"):
        model.decode_step(target[:1, 0], model.init_cache(model.encode(source), None, 5))
    with pytest.raises(ValueError, match="give 1 to max_length 10"):
        model.init_cache(model.encode(source), None, 11)


# --------------------------------------------------------------------------- weights under our names


@pytest.mark.parametrize("config", [*VITS.values(), *SEQS.values()], ids=[*VITS, *SEQS])
def test_weights_come_back_to_the_bit(config):
    weights = random(config)
    found = torch_ref.parameters(twin(config, weights))
    assert list(found) == list(weights)
    assert all(found[name].tobytes() == x.tobytes() for name, x in weights.items())


def test_weights_of_another_network_are_refused():
    with pytest.raises(
        UserError, match=r"missing \(1\): cls_token; of another shape \(1\): position \[8, 12\] instead of \[9, 12\]"
    ):
        twin(VIT, random(replace(VIT, cls_token=False, pool="mean")))


def test_a_tied_table_is_stored_once_and_learns_from_all_its_uses():
    model = twin(SEQS["all tied"], random(SEQS["all tied"]))
    assert [n for n, p in model.named_parameters() if 9 in p.shape and 12 in p.shape] == ["target.embedding.weight"]
    model(torch.tensor([[1, 2]]), torch.tensor([[3]]))[0, 0, 5].backward()
    used = model.target.embedding.weight.grad.abs().sum(1) > 0
    assert used.nonzero().flatten().tolist() == [1, 2, 3, 5]  # two of the source, one of the target, one of the head


# ------------------------------------------------------------------------------------- training mode


def rates(model, *inputs):
    """The rate of every dropout that a forward pass draws, in order."""
    seen = []

    def dropout(x, p=0.5, training=True, inplace=False):
        seen.append(p * training)
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", dropout)
        model(*inputs)
    return [p for p in seen if p]


def test_every_dropout_site_of_a_vit_has_its_rate():
    config = replace(
        VIT,
        embedding_dropout=0.1,
        attention_dropout=0.2,
        dropout=0.3,
        activation_dropout=0.4,
        head_dropout=0.5,
        drop_path=0.6,
    )
    model, x = torch_ref.build(config), torch.randn(2, 2, 8, 6)
    block = [0.2, 0.3, 0.4, 0.3]
    assert rates(model.train(), x) == [0.1, *block, 0.2, 0.3, 0.6, 0.4, 0.3, 0.6, 0.5]  # drop path rises from 0
    assert rates(model.eval(), x) == []


def test_every_dropout_site_of_a_transformer_has_its_rate():
    config = replace(
        SEQ,
        embedding_dropout=0.1,
        attention_dropout=0.2,
        dropout=0.3,
        activation_dropout=0.4,
        encoder_depth=1,
        decoder_depth=1,
    )
    model, ids = torch_ref.build(config), torch.ones(2, 3, dtype=torch.long)
    attention, mlp = [0.2, 0.3], [0.4, 0.3]
    assert rates(model.train(), ids, ids) == [0.1, *attention, *mlp, 0.1, *attention, *attention, *mlp]
    assert rates(model.eval(), ids, ids) == []


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
        *(pytest.param(init, "torch", marks=() if init == "xavier" else pytest.mark.slow) for init in INITS),
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
        ((torch.ones(2, 11, dtype=torch.long), torch.ones(2, 3, dtype=torch.long)), {}, "longer than max_length 10"),
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
        torch_ref.build(SEQS["vectors"])(torch.zeros(1, 2, 11), torch.zeros(1, 2, 12))
    with pytest.raises(ValueError, match="causal is False"):
        torch_ref.build(replace(SEQ, causal=False)).init_cache(torch.zeros(1, 2, 12), None, 3)
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
    """{class: (its methods, the attributes that its __init__ sets)} of a file, in order."""
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
            targets = (
                t for a in ast.walk(methods.get("__init__", ast.Pass())) if isinstance(a, ast.Assign) for t in a.targets
            )
            names = [n for t in targets for n in (t.elts if isinstance(t, ast.Tuple) else [t])]
            found[node.name] = (list(methods), [n.attr for n in names if isinstance(n, ast.Attribute)])
    return found


RENAMED = {"__call__": "forward", "Embedding.positions": "with_positions"}  # {JAX's: torch's}
OURS_ALONE = {"dtype", "kernel", "lowering"}
TORCHS_ALONE = {"embedding_dropout", "head_dropout", "dropout", "weight"}  # dropouts are modules there
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
