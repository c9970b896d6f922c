"""bfloat16 on a CPU: which multiply in it, what is rounded there, and that all derivatives are those of the product."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.test_stack import METADATA, RUNS, VIT, batch_of
from vit_jax.config.trees import unflatten
from vit_jax.machine import backend
from vit_jax.machine.targets import HERE, read_target
from vit_jax.models import lowering as in_bfloat16
from vit_jax.models.build import definition
from vit_jax.models.lowering import Lowering, of_evaluation, of_training, rounded_product
from vit_jax.models.stack import POLICIES
from vit_jax.models.state import merge
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.tasks.can import Counts
from vit_jax.tasks.computed import task_of
from vit_jax.training.announce import announce
from vit_jax.training.job import open_data, open_job
from vit_jax.training.state import compare_environments

H100 = read_target("h100")
VIT_TREE = unflatten({name: np.zeros(shape, np.float32) for name, shape in VIT.shapes().items()})
A, B, C = (
    np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(5, 7), (7, 3), (2, 5, 7)])
)


def rounded(x):
    """x as bfloat16 has it, in float64."""
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.fixture(params=[True, False], ids=["with instructions", "without"])
def fast(request, monkeypatch):
    monkeypatch.setattr(in_bfloat16, "has_instructions", lambda: request.param)
    return request.param


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
CPUS = {
    "Zen 4": ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 avx512vbmi\n", True),
    "Sapphire Rapids": ("model name\t: Intel\nflags\t\t: fpu amx_bf16 amx_tile\nvmx flags\t: vnmi\n", True),
    "AMX for integers alone": ("flags\t\t: avx512f amx_tile amx_int8\n", False),
    "AVX-512 alone": ("flags\t\t: fpu avx512f avx512_bitalg\n", False),
    "named in another line": ("bugs\t\t: avx512_bf16\nflags\t\t: fpu avx2\n", False),
    "ARM": ("Features\t: fp asimd bf16 i8mm\n", False),
    "no flags": ("processor\t: 0\nflags\n", False), "empty": ("", False), "no text": ("\udcff\x00flags", False),
    "no file": (None, False),
}  # fmt: skip


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_is_known_by_its_flags(name, tmp_path, monkeypatch):
    text, expected = CPUS[name]
    if text is not None:
        (tmp_path / "cpuinfo").write_bytes(text.encode("utf-8", "surrogateescape"))
    flags = in_bfloat16.cpu_flags(tmp_path / "cpuinfo")
    monkeypatch.setattr(in_bfloat16, "cpu_flags", lambda: flags)
    assert in_bfloat16.has_instructions() is expected


def test_only_bfloat16_on_a_cpu_with_the_instructions_is_computed_otherwise(fast):
    for dtype, target in (("float32", HERE), ("float64", HERE), ("bfloat16", H100)):
        assert not in_bfloat16.rounds_factors(dtype, target)
        assert of_evaluation(dtype, target) == of_evaluation(dtype, read_target("v5e:2x2")) == Lowering()
    network = merge(definition(VIT, "bfloat16"), VIT_TREE)
    assert (network.dtype, network.blocks[0].mlp.fc1.lowering.rounds) == (
        np.dtype("float32" if fast else "bfloat16"),
        fast,
    )


def test_a_product_is_that_of_rounded_factors_and_so_are_its_gradients():
    product, pullback = jax.vjp(jax.jit(rounded_product), A, B)
    of_a, of_b = pullback(product)
    for got, expected in (
        (product, rounded(A) @ rounded(B)),
        (of_a, rounded(product) @ rounded(B).T),
        (of_b, rounded(A).T @ rounded(product)),
    ):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_every_mode_of_differentiation_is_that_of_the_plain_product_within_bfloat16():
    def modes(product):
        def loss(a, b):
            return jnp.sin(product(a, b)).sum()

        def in_loop(a, b):
            return jax.lax.scan(lambda total, a: (total + jax.checkpoint(loss)(a, b), None), 0.0, a)[0]

        return {
            "forward": jax.jvp(loss, (A, B), (A, B))[1],
            "hessian": jax.hessian(loss)(A, B),
            "reverse of reverse": jax.grad(lambda b: jnp.square(jax.grad(loss)(A, b)).sum())(B),
            "each example's gradient": jax.vmap(jax.grad(loss, 1), (0, None))(C, B),
            "each network's gradient": jax.vmap(jax.grad(loss), (None, 0))(A, jnp.stack([B, 2 * B])),
            "both mapped": jax.vmap(jax.grad(loss), (1, -1))(jnp.asarray(C).swapaxes(0, 1), jnp.stack([B, B], -1)),
            "a loop with remat": jax.grad(in_loop, 1)(jnp.asarray(C), B),
        }

    got, expected = modes(rounded_product), modes(jnp.matmul)
    for name, x in expected.items():
        assert got[name].shape == x.shape
        np.testing.assert_allclose(got[name], x, rtol=0, atol=0.03 * np.abs(x).max(), err_msg=name)


@pytest.mark.parametrize("name", ["ViT", pytest.param("Transformer", marks=pytest.mark.slow)])
def test_losses_and_gradients_of_networks_are_those_of_float64_within_bfloat16(name, monkeypatch):
    monkeypatch.setattr(in_bfloat16, "has_instructions", lambda: True)
    run, keys = replace(RUNS[name], scan=name == "Transformer"), jax.random.split(jax.random.key(1), 8)
    task, draw = task_of(run, METADATA), np.random.default_rng(0)
    tree = {n: draw.normal(n.endswith("scale"), 0.3, shape) for n, shape in run.model.shapes().items()}

    def found(dtype, parameters):
        made = definition(run.model, dtype, parameters, of_training(replace(run, compute_dtype=dtype)))

        def loss(tree):
            network = merge(made, tree)
            batch = task.prepare(batch_of(run, 0), keys)
            return task.loss(network, batch, keys, task.able(Counts).denominator(batch))[0]

        weights = unflatten({n: jnp.asarray(x, parameters) for n, x in tree.items()})
        value, gradients = jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)(weights)
        assert {x.dtype for x in jax.tree.leaves(gradients)} == {np.dtype(parameters)}
        return float(value), np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradients)]).astype(np.float64)

    value, gradient = found("bfloat16", "float32")
    with jax.enable_x64(True):
        exact, slope = found("float64", "float64")
    assert 1e-6 < abs(value - exact) / exact < 0.01
    assert 1e-4 < np.linalg.norm(gradient - slope) / np.linalg.norm(slope) < 0.03


def test_every_product_has_bfloat16_factors_that_lie_row_by_row_and_remat_keeps_them():
    """Else each is slow: XLA widens factors for a result in bfloat16, and has no fast kernel for a transposed one."""

    def layer(x, a, b):
        return jnp.sin(rounded_product(jnp.tanh(rounded_product(x, a)), b)).sum()

    x, a, b = (jnp.ones(shape) for shape in ((64, 32), (32, 48), (48, 16)))
    text = jax.jit(jax.grad(layer, (0, 1, 2))).lower(x, a, b).compile().as_text()
    products = re.findall(r"= f32\[[\d,]+\]\{1,0\} dot\((.*?)\), (.*?)(?:, metadata|\n)", text)
    assert len(products) == 6
    assert {how for _, how in products} == {"lhs_contracting_dims={1}, rhs_contracting_dims={0}"}
    assert len(re.findall(r"bf16\[[\d,]+\]\{1,0\} parameter", text)) >= 12
    again = jax.checkpoint(layer, policy=POLICIES["dots"])
    assert str(jax.make_jaxpr(jax.grad(again, (0, 1, 2)))(x, a, b)).count(" rounded_product ") == 6


def test_a_run_says_what_is_rounded_and_one_that_goes_on_elsewhere_is_told(fast, capsys):
    environments = {}
    for dtype in ("float32", "bfloat16"):
        run = replace(preset("digits").run, compute_dtype=dtype)
        job = open_job(run, open_data(run), Run("nowhere"))
        announce(job)
        environments[dtype] = job.environment
        told = f"{dtype} in factors of linear layers" if fast and dtype == "bfloat16" else dtype
        assert re.search(rf"^device .*, {told}(; .*)?$", capsys.readouterr().out, re.MULTILINE)
    one, other = environments["float32"], environments["bfloat16"]
    for now, then, note in (
        (one, other, "bfloat16 factors of linear layers -> \n"),
        (other, one, "bfloat16  -> factors of linear layers\n"),
        (other, other, ""),
    ):
        compare_environments(now, then)
        assert capsys.readouterr().out.endswith(note if fast else "") and (fast or one == other)
    for kind, note in (("ynnpack", ""), ("eigen", "products eigen -> ynnpack\n")):  # of earlier versions
        compare_environments(one, {**one, "products": kind})
        assert capsys.readouterr().out.partition("because of: ")[2] == note


def test_a_step_in_bfloat16_is_not_multiplied_by_eigen(fast, monkeypatch):
    monkeypatch.setattr(backend, "_eigen", True)
    assert backend.few_rows() and in_bfloat16.options("float32") == in_bfloat16.options("bfloat16", H100) == {}
    assert in_bfloat16.options("bfloat16") == (backend.few_rows() if fast else {})
