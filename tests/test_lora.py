"""LoRA: ten steps against PyTorch with factors of its own, what a run keeps and how it goes on, and bad input."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.test_resume import Crash, before, crash
from vit_jax import export
from vit_jax.augmentation.config import ImageAugment
from vit_jax.commands import train as command
from vit_jax.config.groups import factor_shapes, trainable_table
from vit_jax.config.run import LoraConfig, OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.machine.division import Division
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs import Run
from vit_jax.runs.check import check_run
from vit_jax.tasks.computed import task_of
from vit_jax.training.engine import devices, step
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.optim import Optimizer
from vit_jax.training.job import make_engine
from vit_jax.weights.checkpoint import Checkpoints

VIT = ViTConfig(image=8, channels=1, patch=4, classes=10, width=8, depth=2, heads=2, hidden=12)
TURNED = replace(
    VIT, position="none", rotary="axial", registers=2, layer_scale=1.0, gated=True, key_bias=False, activation="silu"
)
OPTIM = OptimConfig(lr=1e-2, weight_decay=0.1, schedule="constant", layer_decay=0.8, beta2=0.99)
RUN = RunConfig(
    "classify", VIT, ImageData(), ImageAugment(), OPTIM, LoraConfig(2, 3.0), batch=6, ema=0.9, init="given",
    compute_dtype="float64",
)  # fmt: skip
RUNS = {
    "queries and values": RUN,
    "all maps of DINOv3": replace(RUN, model=TURNED, lora=LoraConfig(3, 2.0, ("*.attention.*", "*.mlp.*"))),
}
STEPS, MEAN, STD = 10, 0.4, 0.3
LINE = "--init vit --new-head --data.source digits --batch 32 --epochs 1 --lora.rank 2 --ema 0.9 --data.validation 0.2"

# ------------------------------------------------------------------------------------------ steps


def weights(c):
    draw = np.random.default_rng(0)
    return {name: draw.normal(name.endswith("scale"), 0.3, shape) for name, shape in c.shapes().items()}


def batches(size=6):
    draw = np.random.default_rng(1)
    return [
        {
            "image": draw.integers(0, 256, (size, 8, 8, 1)).astype(np.uint8),
            "label": draw.integers(0, 10, size, np.int32),
        }
        for _ in range(STEPS)
    ]


def engine_of(run, dtype="float64"):
    task = task_of(run, {"preprocess": {"mean": [MEAN], "std": [STD]}})
    define = partial(definition, run.model, run.compute_dtype, dtype)
    return make_engine(run, define, task, Optimizer(run.optim, STEPS, 5, trainable_table(run)))


def steps(run):
    """(the engine's state before the first step and after the last, losses)."""
    engine = engine_of(run)
    state = engine.start(unflatten({name: jnp.asarray(x) for name, x in weights(run.model).items()}))
    began, losses = jax.device_get(engine.gather(state)), []
    if run.steps_per_dispatch > 1:
        state, metrics = engine.train_together(state, batches(run.batch))
        losses += metrics["loss"].tolist()
    for batch in batches(run.batch) if not losses else ():
        state, metrics = engine.train(state, batch)
        losses.append(float(metrics["loss"]))
    return began, jax.device_get(engine.gather(state)), losses


def kernels(run):
    """The names of the kernels of linear maps that the patterns of a run match."""
    return [
        name
        for name, shape in run.model.shapes().items()
        if len(shape) == 2 and name.endswith(".kernel") and any(fnmatchcase(name, pattern) for pattern in run.lora.maps)
    ]


def theirs(run, factors):
    """What torch makes of ten steps, computing x W + s (x A) B and updating A, B and the head: {what: {name: array}}.

    `factors` {our name: array} are those of the first step.
    """
    torch = pytest.importorskip("torch")
    import torch_ref

    model = torch_ref.load(torch_ref.build(run.model).double(), weights(run.model))
    own, scale = {}, run.lora.alpha / run.lora.rank
    places = torch_ref.weights.names(model)
    modules = {places.get(f"{name}.weight"): module for name, module in model.named_modules()}
    for kernel in kernels(run):
        ours = kernel.removesuffix(".kernel")
        a, b = (torch.tensor(factors[f"{ours}.lora_{x}"], requires_grad=True) for x in "ab")
        own |= {f"{ours}.lora_a": a, f"{ours}.lora_b": b}
        modules[kernel].register_forward_hook(lambda _, args, out, a=a, b=b: out + scale * (args[0] @ a) @ b)
    own |= {places[name]: p for name, p in model.named_parameters() if places[name].startswith("head.")}
    table, c = trainable_table(run), run.optim
    last = max(each.layer for each in table.values())
    groups = [
        {"params": [p], "lr": c.lr * c.layer_decay ** (last - table[name].layer), "weight_decay": 0.1 * (p.ndim == 2)}
        for name, p in own.items()
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    average, losses = {name: p.detach().clone() for name, p in own.items()}, []
    for batch in batches():
        x = (torch.tensor(batch["image"]).double() / 255 - MEAN) / STD
        loss = torch.nn.functional.cross_entropy(model(x.permute(0, 3, 1, 2)), torch.tensor(batch["label"]).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        average = {name: 0.9 * x + 0.1 * own[name].detach() for name, x in average.items()}
    found = torch_ref.parameters(model)
    for kernel in kernels(run):
        ours = kernel.removesuffix(".kernel")
        a, b = (own[f"{ours}.lora_{x}"].detach().numpy() for x in "ab")
        found[kernel] = found[kernel] + scale * a @ b
    keys = {"mu": "exp_avg", "nu": "exp_avg_sq"}
    moments = {role: {name: optimizer.state[p][key] for name, p in own.items()} for role, key in keys.items()}
    named = {
        what: {name: (x.T if name == "head.kernel" else x).numpy() for name, x in each.items()}
        for what, each in (moments | {"averages": average}).items()
    }
    return {"losses": losses, "parameters": found, **named}


@pytest.fixture(scope="module", params=RUNS)
def ten(request):
    """(a run, what `steps` gives of it)."""
    with jax.enable_x64(True):
        return RUNS[request.param], *steps(RUNS[request.param])


def test_ten_steps_are_those_of_torch_with_factors_beside_its_linear_maps(ten):
    """B starts at 0, so the first loss is that of the given weights; the merged kernels are W + s A B.

    Moments are sums of gradients and of their squares.
    """
    run, began, done, losses = ten
    expected = theirs(run, flatten(began.lora["factors"]))
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-10)
    averages = flatten(done.lora["averages"]) | {name: flatten(done.ema)[name] for name in ("head.kernel", "head.bias")}
    found = {"parameters": flatten(done.parameters), "averages": averages}
    for what, tree in (found | {role: flatten(moment) for role, moment in done.moments.items()}).items():
        assert tree.keys() == expected[what].keys()
        for name, x in tree.items():
            np.testing.assert_allclose(x, expected[what][name], rtol=0, atol=1e-10, err_msg=f"{what}: {name}")
    for name, x in flatten(done.lora["kernels"]).items():
        a, b = (expected["averages"][name.replace("kernel", f"lora_{f}")] for f in "ab")
        merged = x + run.lora.alpha / run.lora.rank * a @ b
        np.testing.assert_allclose(flatten(done.ema)[name], merged, rtol=0, atol=1e-10, err_msg=name)


def test_the_run_begins_with_the_given_weights_and_keeps_all_but_factors_and_head(ten):
    run, began, done, _ = ten
    given = weights(run.model)
    for name, x in flatten(began.parameters).items():
        np.testing.assert_array_equal(x, given[name])
    for name, x in flatten(began.lora["kernels"]).items():
        np.testing.assert_array_equal(x, given[name])
        np.testing.assert_array_equal(x, flatten(done.lora["kernels"])[name])
    changed = {name for name, x in flatten(done.parameters).items() if not np.array_equal(x, given[name])}
    assert changed == {*kernels(run), "head.kernel", "head.bias"} == flatten(done.ema).keys()
    for name, x in flatten(began.lora["factors"]).items():  # A as torch.nn.Linear draws its weight, B is 0
        bound = len(x) ** -0.5 if name.endswith("a") else 0.0
        assert bound / 2 <= np.abs(x).max() <= bound, name
    factors = {name.replace("kernel", f"lora_{f}") for name in kernels(run) for f in "ab"}
    assert flatten(done.lora["factors"]).keys() == factors == factor_shapes(run).keys()
    for tree in done.moments.values():
        assert flatten(tree).keys() == factors | {"head.kernel", "head.bias"}


@pytest.mark.parametrize("ten", ["queries and values"], indirect=True)
@pytest.mark.parametrize(
    "other", [{"parallel": "pmap"}, {"accumulate": 3}, {"steps_per_dispatch": STEPS}, {"scan": True, "remat": "full"}]
)
def test_a_step_is_the_same_however_it_is_computed(ten, other):
    run, _, expected, losses = ten
    with jax.enable_x64(True):
        _, done, found = steps(replace(run, **other))
    np.testing.assert_allclose(found, losses, rtol=1e-12)
    for one, two in zip(jax.tree.leaves(done), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_four_devices_train_as_one(tmp_path):
    """By jit, by pmap, and with split arrays."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run([sys.executable, __file__, tmp_path / "out.npz"], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    with np.load(tmp_path / "out.npz") as file:
        found = dict(file)
    one = {name: x for name, x in found.items() if name.startswith("one device: ")}
    assert len(found) == 4 * len(one) > 100
    for name, x in found.items():
        expected = one[f"one device: {name.partition(': ')[2]}"]
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-10, err_msg=name)


def test_with_bfloat16_weights_factors_and_moments_stay_float32():
    """The types alone, so nothing is compiled."""
    run = replace(RUN, compute_dtype="bfloat16")
    engine = engine_of(run, "float32")
    state = engine.start(unflatten({name: jnp.asarray(x, jnp.float32) for name, x in weights(VIT).items()}))
    after, _ = jax.eval_shape(engine.jit_step, state, batches()[0], engine.seed, engine.frozen_arrays)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert {x.dtype for x in jax.tree.leaves(after)} == {np.dtype(np.float32), np.dtype(np.int32)}


# ------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def folder(working_folder):
    network = merge(definition(VIT), start(VIT, jax.random.key(0)))
    export(network, "vit", to="timm", fields={"mean": [0.3], "std": [0.4]})
    return working_folder


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits_and_is_used_and_converted_as_any(folder, inside, monkeypatch):
    monkeypatch.chdir(folder)
    whole = inside(*shlex.split(f"train {LINE} --max-steps 4 --name whole"), cwd=folder)
    assert whole.returncode == 0, whole.stderr
    assert "         LoRA of rank 2 on 4 kernels: 218 numbers train, in 10 tensors with the head\n" in whole.stdout
    line = shlex.split(f"train {LINE} --name halves --max-steps")
    assert "stopped: max_steps at step 2" in inside(*line, 2, cwd=folder).stdout
    with monkeypatch.context() as patch, pytest.raises(Crash):
        before(patch, Engine, "train", crash, call=2)
        inside(*line, 4, "--save-minutes", 1e-9, cwd=folder)
    assert "going on after step 3" in inside(*line, 4, cwd=folder).stdout
    factors = factor_shapes(Run("runs/whole").config())
    a, b = (Checkpoints(Run(f"runs/{name}"), factors).restore(VIT.shapes())[0] for name in ("whole", "halves"))
    assert a.state.lora.keys() == {"kernels", "factors", "averages"}
    for mine, their in zip(*(jax.tree.leaves((s.state, s.step)) for s in (a, b)), strict=True):
        np.testing.assert_array_equal(mine, their)

    name, places = "blocks.0.attention.query.kernel", Checkpoints(Run("runs/halves"), factors)
    kernels = [flatten(places.read(each, VIT.shapes()).state.parameters)[name] for each in (3, 4)]
    mean = flatten(vit_jax.models.state.split_model(vit_jax.load("halves", "mean:2").model)[1])[name]
    np.testing.assert_allclose(mean, (kernels[0] + kernels[1].astype(float)) / 2, rtol=1e-6)
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1)).astype(np.uint8)
    for ema, key in ((True, "ema"), (False, "model")):
        back = inside(*shlex.split(f"convert runs/whole {key} --step last --key {key}"), cwd=folder)
        assert back.stdout.startswith("target    timm, the layout of the weights"), back.stderr
        ours = vit_jax.load("whole", "last", ema=ema)
        np.testing.assert_array_equal(vit_jax.load(key).logits(images), ours.logits(images))
        name = "blocks.0.attention.query.kernel"
        kernel = flatten(a.state.averaged if ema else a.state.parameters)[name]
        np.testing.assert_array_equal(flatten(vit_jax.models.state.split_model(ours.model)[1])[name], kernel)
    evaluated = inside(*shlex.split("evaluate runs/whole --weights last --split validation"), cwd=folder)
    assert evaluated.returncode == 0, evaluated.stderr
    state = inside(*shlex.split("convert runs/whole anew --to vit-jax"), cwd=folder)
    assert state.returncode == 0, state.stderr
    assert "factors of LoRA and the optimizer's state of step 4: the weights are merged" in state.stdout


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            "--lora.rank 9",
            "lora.rank is 9 but blocks.0.attention.query.kernel is 8 x 8, of rank 8: give a small",
        ),
        ("--lora.alpha 4", "lora.alpha is given but lora.rank is 0"),
        ("--lora.rank 2 --lora.maps", "lora.maps is empty: give patterns"),
        ("--lora.rank 2 --lora.maps blocks.0.attn.*", "'blocks.0.attn.*', which matches no parameter"),
        ("--lora.rank 2 --lora.maps *.bias", r"'\*.bias', which matches patch.bias but no kernel"),
        ("--lora.rank 2 --lora.maps *", r"'\*', which matches head.kernel, but the head trains as it is"),
        ("--lora.rank 2 --optim.freeze blocks.1.*", r"which optim.freeze 'blocks.1.\*' freezes: leave out one of them"),
        ("--lora.rank 2 --tune head", "tune is head and lora.rank is 2, but each decides what trains: leave one of"),
        (
            "--lora.rank 2 --optim.freeze patch.* --optim.freeze-epochs 1",
            r"optim.freeze_epochs is 1 but lora.rank keeps all that optim.freeze patch.\* matches for the whole run",
        ),
        (
            "--lora.rank 2 --optim.freeze head.* *.lora_?",
            r"optim.freeze is head.\* \*.lora_\?, which matches all 10 parameters that would train",
        ),
        (
            "--lora.rank 2 --optim.name muon",
            "optim.name is muon, which updates hidden kernels, but lora",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(folder, monkeypatch, flags, says):
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=says):
        check_run(command.parse(shlex.split(f"--init vit --new-head --data.source digits {flags}"))[1].run())


def test_there_have_to_be_weights_to_adapt():
    with pytest.raises(UserError, match=r"lora.rank is 2 but init is empty: name the weights that are adapted"):
        check_run(replace(RUN, init=""))


def main(out):
    """Write what ten steps leave on four devices, {how they are cut, and the place of an array: array}."""
    devices.SMALL, arrays = 8, {}
    run = replace(RUNS["all maps of DINOv3"], batch=8)
    cuts = {"one device": run, "jit": run, "pmap": replace(run, parallel="pmap"), "split": replace(run, fsdp=2)}
    for how, cut in cuts.items():
        step.find_division = lambda run, hosts, how=how: Division(1 if how == "one device" else 4, 1)
        with jax.enable_x64(True):
            tree = jax.tree_util.tree_flatten_with_path(steps(cut)[1])[0]
        arrays |= {f"{how}: {jax.tree_util.keystr(path)}": x for path, x in tree}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
