"""Runs that go on in the other framework: moments of Adam and SGD both ways, refusals, 25 + 25 steps that equal 50."""

import copy
import dataclasses
import functools
import json
import sys
from dataclasses import replace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_ref  # noqa: E402
from convert import optimizer, rules  # noqa: E402
from convert.containers.run_folder import open_run  # noqa: E402
from convert.containers.source import Spec, Tensor  # noqa: E402
from convert.dialects import LAYOUTS  # noqa: E402
from convert.dialects import torch_ref as dialect  # noqa: E402
from convert.operations import Concat, Tie, zeros  # noqa: E402
from convert.plan.groups import stream  # noqa: E402
from convert.plan.plan import plan  # noqa: E402
from convert.recognise.reading import Options, read  # noqa: E402
from convert.write import training  # noqa: E402
from convert.write.into_run import into_run  # noqa: E402
from convert.write.into_torch import into_torch  # noqa: E402
from tests.parity.cases import TRANSFORMER  # noqa: E402
from torch_ref import train  # noqa: E402
from torch_ref.trainer import Trainer  # noqa: E402
from vit_jax.config.dotted import field_types  # noqa: E402
from vit_jax.config.run import OptimConfig, RunConfig  # noqa: E402
from vit_jax.config.trees import flatten, unflatten  # noqa: E402
from vit_jax.data.images.preprocess import Preprocess  # noqa: E402
from vit_jax.errors import UserError  # noqa: E402
from vit_jax.models import build  # noqa: E402
from vit_jax.models.layers import fold  # noqa: E402
from vit_jax.models.vit_config import ViTConfig  # noqa: E402
from vit_jax.runs import Run  # noqa: E402
from vit_jax.tasks.can import Counts  # noqa: E402
from vit_jax.tasks.computed import task_of  # noqa: E402
from vit_jax.tasks.table import task_spec  # noqa: E402
from vit_jax.training.engine.engine import Engine  # noqa: E402
from vit_jax.training.engine.optim import Optimizer, OptimizerState  # noqa: E402

torch.set_num_threads(1)

# No bias of keys: its gradient is nothing but rounding, which Adam makes as large as any other.
VIT = ViTConfig(
    image=(4, 6), patch=2, channels=2, classes=3, width=8, depth=1, heads=2, hidden=12, key_bias=False, layer_scale=0.1
)
SENTENCES = dict(source_vocabulary=9, outputs=9, max_length=8, position="learned", tie="all", bias=False)
SEQ = replace(TRANSFORMER, encoder_depth=1, decoder_depth=1, **SENTENCES)
ADAMW = OptimConfig(
    name="adamw", lr=3e-3, weight_decay=0.1, clip=0.5, warmup=0.4, schedule="cosine", eps=1e-6, beta2=0.99
)
OPTIMIZERS = {
    "AdamW, two groups, warm-up and cosine, clipped": ADAMW,
    "Adam with L2": OptimConfig(name="adam", lr=3e-3, weight_decay=0.1, schedule="constant"),
    "AdamW in one cycle with momentum": replace(ADAMW, schedule="one_cycle", cycle_momentum=True, warmup=0.0),
    "momentum of Nesterov": OptimConfig(
        name="momentum", lr=1e-2, momentum=0.8, nesterov=True, weight_decay=0.05, schedule="cosine"
    ),
    "SGD": OptimConfig(name="sgd", lr=1e-2, schedule="constant"),
    "AdamW, layer decay, mlp and tokens frozen": replace(
        ADAMW, beta1=0.8, layer_decay=0.7, freeze=("blocks.0.mlp.*", "*token*")
    ),
    "Lion": OptimConfig(name="lion", lr=3e-4, weight_decay=0.5),
    "Muon, layer decay, tokens frozen": replace(ADAMW, name="muon", layer_decay=0.7, freeze=("*token*",)),
}
STEPS, EPOCH = 50, 25
PREPROCESS = Preprocess((4, 6), 2, "crop", 0, "bilinear", 255, (0.3, 0.3), (0.7, 0.7)).to_dict()
WORDS = {side: [f"w{i}" for i in range(9)] for side in ("source", "target")}


def run_of(c, optim, dtype="float64", **fields):
    name = "classify" if isinstance(c, ViTConfig) else "translate"
    return RunConfig(
        name, c, task_spec(name).data(), task_spec(name).augment(), optim, compute_dtype=dtype, batch=6, **fields
    )


def beside(c):
    needed = (
        {"preprocess": PREPROCESS, "class_names": ["a", "b", "c"]}
        if isinstance(c, ViTConfig)
        else {"vocabulary": WORDS}
    )
    return {"preset": "mine", "data": {"name": "drawn"}, **needed}


def batch(c, t):
    rng = np.random.default_rng(t)
    if isinstance(c, ViTConfig):
        return {
            "image": rng.integers(0, 256, (6, 4, 6, 2)).astype(np.uint8),
            "label": rng.integers(0, 3, 6).astype(np.int32),
        }
    return {
        "source": rng.integers(3, 9, (6, 5)).astype(np.int32),
        "target": rng.integers(3, 9, (6, 4)).astype(np.int32),
    }


def trainer(c, optim, dtype="float64", **fields):
    return Trainer(run_of(c, optim, dtype, **fields), STEPS, EPOCH, beside(c))


def trained(c, optim, steps, **fields):
    """A torch run after some steps."""
    one = trainer(c, optim, **fields)
    for t in range(steps):
        one.step(batch(c, t))
    return one


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # it runs for microseconds


@functools.lru_cache(maxsize=1)
def gradients():
    """Compiled once for all optimizers."""
    run = run_of(VIT, OptimConfig())
    engine = Engine(
        run,
        functools.partial(build.definition, VIT, "float64", "float64"),
        task_of(run, beside(VIT)),
        Optimizer(run.optim, STEPS, EPOCH, VIT.parameters()),
    )
    keys = fold(jax.random.split(jax.random.key(0), 6), 0)  # of dropout, which is off
    return jax.jit(
        lambda p, b: engine.gradients(engine.task, p, b, keys, engine.task.able(Counts).denominator(b))[2],
        compiler_options=QUICK,
    )


@functools.lru_cache(maxsize=1)
def update(optim):
    """Compiled once for both directions: parameters and moments after a step."""
    rule = Optimizer(optim, STEPS, EPOCH, VIT.parameters())

    def step(gradients, moments, parameters, t):
        updates, state = rule.update(gradients, OptimizerState(t, moments), parameters)
        return jax.tree.map(jnp.add, parameters, updates), state.moments

    return jax.jit(step, compiler_options=QUICK)


def ours(optim, weights, moments, first, last):
    """Our weights and moments (flat) after the steps first .. last-1."""
    with jax.enable_x64(True):
        p, m = (unflatten({k: jnp.asarray(v) for k, v in tree.items()}) for tree in (weights, moments))
        m = m or Optimizer(optim, STEPS, EPOCH, VIT.parameters()).init(p).moments
        for t in range(first, last):
            p, m = update(optim)(gradients()(p, batch(VIT, t)), m, p, jnp.int32(t))
        return tuple({k: np.asarray(v) for k, v in flatten(tree).items()} for tree in (p, m))


def save(one, path):
    one.save(path, **beside(one.run.model))
    return str(path)


def to_run(file, folder, key=""):
    """A torch file as a run's folder."""
    with (reading := read(str(file), Options(key=key))).source:
        state = training.training(reading)
        way = plan(reading, "vit-jax")
        return folder, into_run(way, state, str(folder), stream(way))


def to_torch(folder, file, key=""):
    """A run's folder as a torch file."""
    with (reading := read(str(folder), Options(key=key))).source:
        way = plan(reading, "torch-ref")
        into_torch(way, training.training(reading), str(file), stream(way))
    return file


def items(folder):
    """{item: {name: array}} of a run's folder."""
    with open_run(folder) as source:
        return {item: {name: tensor.read() for name, tensor in tree.items()} for item, tree in source.tree.items()}


def distance(a, b):
    assert a.keys() == b.keys()
    return max(np.abs(a[k] - b[k]).max() for k in a)


# ------------------------------------------------------------------------------------- the proof


def test_every_optimizer_goes_both_ways():
    names = {c.name for c in OPTIMIZERS.values()}
    assert names == {*get_args(field_types(OptimConfig)["name"])}, (
        "add it to OPTIMIZERS in tests/test_optimizer_state.py"
    )


@pytest.mark.parametrize(
    "name",
    [
        "AdamW, layer decay, mlp and tokens frozen",
        "Adam with L2",
        "momentum of Nesterov",
        "Muon, layer decay, tokens frozen",
    ],
)
def test_25_steps_in_torch_and_25_here_are_50_in_torch_and_back(tmp_path, name):
    c, optim = VIT, OPTIMIZERS[name]
    whole, half = trained(c, optim, STEPS), trained(c, optim, 25)
    expected = torch_ref.parameters(whole.model)
    moments = {f"{role}.{k}": v for role, tree in whole.moments().items() for k, v in tree.items()}

    found = items(to_run(save(half, tmp_path / "half.pt"), tmp_path / "run")[0])
    step = found["optimizer"].pop("step")
    assert step == 25 and step.dtype == np.int32
    weights, ends = ours(optim, found["model"], found["optimizer"], 25, STEPS)
    assert distance(weights, torch_ref.parameters(half.model)) > 1e-3  # it has moved
    assert distance(weights, expected) < 1e-10
    assert distance(ends, moments) < 1e-10

    # The other way: 25 of ours, then torch.
    start = torch_ref.parameters(trainer(c, optim).model)
    weights, ends = ours(optim, start, {}, 0, 25)
    write_ours(tmp_path / "ours", run_of(c, optim), weights, ends, 25)
    again = trainer(c, optim).restore(torch.load(to_torch(tmp_path / "ours", tmp_path / "ours.pt"), weights_only=True))
    assert again.done == 25
    for t in range(25, STEPS):
        again.step(batch(c, t))
    assert distance(torch_ref.parameters(again.model), expected) < 1e-10


def write_ours(folder, run, weights, moments, step):
    """A run's folder as training leaves it."""
    from vit_jax.weights.checkpoint import Checkpoints, SavedState

    Run(folder).create({"config": dataclasses.asdict(run), **beside(run.model)})
    notes = {"best": None, "environment": {"versions": {}}, "data": {"name": "drawn"}}
    state = SavedState(np.int32(step), unflatten(weights), unflatten(moments), unflatten(weights) if run.ema else None)
    Checkpoints(Run(folder)).save(state, notes, None, 1)


@pytest.mark.parametrize(
    ("c", "name"), [*((VIT, name) for name in OPTIMIZERS), (SEQ, "AdamW, two groups, warm-up and cosine, clipped")]
)
def test_there_and_back_is_the_same_file(tmp_path, c, name):
    """Every tensor, its number, the groups and the config."""
    file = save(trained(c, OPTIMIZERS[name], 2, ema=0.9), tmp_path / "a.pt")
    folder, _ = to_run(file, tmp_path / "run", "model")
    a, b = (torch.load(f, weights_only=True) for f in (file, to_torch(folder, tmp_path / "b.pt", "model")))
    for tree in ("model", "ema"):
        assert list(a[tree]) == list(b[tree])
        assert all(torch.equal(x, b[tree][k]) for k, x in a[tree].items())
    assert a["optimizer"]["state"].keys() == b["optimizer"]["state"].keys()
    for i, entry in a["optimizer"]["state"].items():
        assert entry.keys() == b["optimizer"]["state"][i].keys()
        assert all(torch.equal(x, b["optimizer"]["state"][i][k]) for k, x in entry.items())
    for before, after in zip(a["optimizer"]["param_groups"], b["optimizer"]["param_groups"], strict=True):
        assert before.keys() - after.keys() <= {
            "max_lr",
            "min_lr",
            "base_momentum",
            "max_momentum",
        }  # OneCycleLR puts them there
        assert {k: v for k, v in after.items() if k not in ("lr", "momentum", "betas")} == {
            k: before[k] for k in after if k not in ("lr", "momentum", "betas")
        }
    rest = {k for k in a if k not in ("model", "ema", "optimizer")}
    assert rest == {"step", "config", *beside(c)} and all(a[k] == b[k] for k in rest)


@pytest.mark.parametrize(
    "c",
    [
        VIT,
        replace(VIT, stem=(6,), distill_token=True, pool="map", stem_pre_norm=True, stem_norm=True, head_hidden=5),
        SEQ,
    ],
)
def test_parameters_stand_in_the_order_that_torch_gives_them(c):
    model = torch_ref.build(c)
    assert optimizer.registration_order([r.theirs[0] for r in dialect.rows(c)]) == [
        name for name, _ in model.named_parameters()
    ]


def test_a_run_that_was_converted_is_one_of_ours(tmp_path):
    """Its checkpoints are read by training itself, and a run without an average in its file starts one."""
    from vit_jax.weights.checkpoint import Checkpoints

    one = trained(VIT, ADAMW, 4, ema=0.5)
    file = save(one, tmp_path / "a.pt")
    saved = torch.load(file, weights_only=True)
    average = saved.pop("ema")
    torch.save(saved, tmp_path / "raw.pt")
    for source, key, expected, told in (
        (file, "model", average, False),
        (tmp_path / "raw.pt", "", saved["model"], True),
    ):
        folder, notes = to_run(source, tmp_path / f"run-{key}", key)
        restored, skipped = Checkpoints(Run(folder)).restore(VIT.shapes())
        assert restored.step == 4 and not skipped and restored.notes["best"] is None
        assert distance(flatten(restored.state.parameters), torch_ref.parameters(one.model)) == 0
        assert (
            distance(
                flatten(restored.state.ema), rules.read(dialect.rows(VIT), {k: v.numpy() for k, v in expected.items()})
            )
            == 0
        )
        assert Run(folder).config() == one.run and Run(folder).record()["class_names"] == ["a", "b", "c"]
        assert any("average" in note for note in notes) is told


def test_the_average_alone_is_a_network_and_no_run(tmp_path):
    reading = read(save(trained(VIT, ADAMW, 2, ema=0.5), tmp_path / "a.pt"), Options(key="ema"))
    assert training.training(reading) is None
    assert read(str(tmp_path / "a.pt")).label == "ema"
    assert read(str(tmp_path / "a.pt"), Options(training=True)).label == "model"


# -------------------------------------------------------------------------------- what is refused


def state_of(optim=ADAMW, steps=2, names=True):
    """(a torch optimizer's state with Tensors for tensors, the model's tensors)."""
    one = trained(VIT, optim, steps)
    saved = copy.deepcopy(one.optimizer.state_dict())
    for group in saved["param_groups"]:
        if not names:
            del group["param_names"]
    return wrapped(saved), {name: wrapped(x, name) for name, x in one.model.state_dict().items()}


def wrapped(value, name="x"):
    if isinstance(value, torch.Tensor):
        array = value.numpy()
        return Tensor(name, array.dtype, array.shape, array.copy)
    if isinstance(value, dict):
        return {k: wrapped(v, str(k)) for k, v in value.items()}
    return [wrapped(v) for v in value] if isinstance(value, list) else value


def moments(saved, weights, c=ADAMW, step=None, grouped=True):
    return optimizer.from_torch(saved, dialect.rows(VIT), weights, c, VIT.parameters(), "X.pt", step, grouped)


def group(number=0, **fields):
    return lambda saved: saved["param_groups"][number].update(fields)


def entry(key, value, number=3):
    return lambda saved: saved["state"][number].update({key: value})


def plain(x):
    return Tensor("x", np.dtype(np.float32), np.shape(x), lambda: np.asarray(x, np.float32))


REFUSALS = {
    "another optimizer": (
        lambda s: [g.update(momentum_decay=4e-3) for g in s["param_groups"]],
        ADAMW,
        "of an optimizer other than Adam, AdamW, SGD, Lion and Muon with AdamW, but optim.name is adamw",
    ),
    "Adam for SGD": (
        lambda s: None,
        OPTIMIZERS["momentum of Nesterov"],
        "group 0 of its optimizer is of Adam or AdamW, but optim.name is momentum",
    ),
    "AMSGrad": (group(amsgrad=True), ADAMW, "has amsgrad True: amsgrad keeps the largest second moments"),
    "AMSGrad by its state": (
        entry("max_exp_avg_sq", plain([1.0])),
        ADAMW,
        "holds max_exp_avg_sq: amsgrad keeps the largest second moments",
    ),
    "factored": (
        entry("exp_avg_sq_row", plain([1.0])),
        ADAMW,
        "holds exp_avg_sq_row, as neither Adam nor SGD with momentum does",
    ),
    "eps": (group(eps=1e-8), ADAMW, "has eps 1e-08, but by the config it is 1e-06"),
    "beta2": (group(betas=(0.9, 0.95)), ADAMW, "has beta2 0.95, but by the config it is 0.99"),
    "coupled decay": (
        group(decoupled_weight_decay=False),
        ADAMW,
        "has decoupled_weight_decay False, but by the config it is True",
    ),
    "decay": (
        group(weight_decay=0.2),
        ADAMW,
        "has weight_decay 0.2 for patch.weight, but by optim.weight_decay and optim.decay ['kernel'] it is 0.1",
    ),
    "other kinds": (
        lambda s: None,
        replace(ADAMW, decay=("kernel", "bias")),
        "has weight_decay 0.0 for patch.bias, but by optim.weight_decay and optim.decay ['kernel', 'bias'] it is 0.1",
    ),
    "one rate": (
        lambda s: None,
        replace(ADAMW, layer_decay=0.5),
        "group 0 of its optimizer has one rate for layers whose rates differ by optim.layer_decay 0.5; correct",
    ),
    "frozen in the config": (
        lambda s: None,
        replace(ADAMW, freeze=("norm.*",)),
        "its optimizer has 25 parameters and the network 23 that train, and norm.bias is only in one of them",
    ),
    "a step apart": (entry("step", plain(1.0)), ADAMW, "different numbers of steps (1 and 2)"),
    "half a step": (
        lambda s: [e.update(step=plain(1.5)) for e in s["state"].values()],
        ADAMW,
        "step is 1.5, which is no number of updates",
    ),
    "no gradient": (lambda s: s["state"].pop(2), ADAMW, "has no state for blocks.0.attention.key.weight (1 of 25)"),
    "half a state": (
        lambda s: s["state"][2].pop("exp_avg"),
        ADAMW,
        "has no state for blocks.0.attention.key.weight (1 of 25)",
    ),
    "shapes": (
        entry("exp_avg", plain(np.zeros((3, 3)))),
        ADAMW,
        "the optimizer's state of blocks.0.attention.value.weight is [3, 3] instead of [8, 8]",
    ),
    "no tensor": (entry("exp_avg", "text"), ADAMW, "is str instead of [8, 8]"),
    "strange name": (
        lambda s: s["param_groups"][0]["param_names"].__setitem__(0, "stem.weight"),
        ADAMW,
        "its optimizer has 25 parameters and the network 25, and patch.weight is only in one of them",
    ),
    "strange number": (
        lambda s: s["state"].update({99: {}}),
        ADAMW,
        "has a state numbered 99, which belongs to no parameter",
    ),
    "numbers that are none": (group(params=[[1]]), ADAMW, "is not a torch optimizer's state_dict()"),
    "names that are none": (group(param_names=3), ADAMW, "is not a torch optimizer's state_dict()"),
    "no state dict": (lambda s: s.pop("param_groups"), ADAMW, "is not a torch optimizer's state_dict()"),
    "an entry that is none": (lambda s: s["state"].update({3: 5}), ADAMW, "is not a dict"),
}


@pytest.fixture(scope="module")
def adamw():
    return state_of()


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_the_configs_is_refused(adamw, case):
    change, c, told = REFUSALS[case]
    saved, weights = copy.deepcopy(adamw[0]), adamw[1]
    change(saved)
    with pytest.raises(UserError) as error:
        moments(saved, weights, c)
    assert told in str(error.value) and "\n" not in str(error.value) and "X.pt" in str(error.value)


def test_a_tensor_of_which_a_part_is_frozen_has_no_moments_to_convert():
    rows = rules.narrow(LAYOUTS["timm"].rows(replace(VIT, key_bias=True)))
    assert [row.theirs for row in optimizer.rows_of(rows, ["head.bias"])] == [("head.bias",)]
    with pytest.raises(UserError, match=r"^blocks\.0\.attn\.qkv\.weight: holds .* only some are trained alike"):
        optimizer.rows_of(rows, ["blocks.0.attention.query.kernel"])


def test_an_intact_state_passes_with_the_files_own_step(adamw):
    found = moments(*adamw, step=2)
    assert found.step == 2 and {role: len(tensors) for role, tensors in found.roles.items()} == {"mu": 25, "nu": 25}
    with pytest.raises(UserError, match=r"different numbers of steps \(2 and 5\)"):
        moments(*adamw, step=5)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"use_muon": False}, "has use_muon False, but Muon updates"),
        ({"betas": (0.9, 0.99)}, "has beta1 0.9, but by the config it is 0.95"),
    ],
)
def test_muons_settings_are_compared(fields, told):
    c = replace(ADAMW, name="muon")
    saved, weights = state_of(c)
    found = moments(saved, weights, c)
    assert {role: len(tensors) for role, tensors in found.roles.items()} == {"mu": 25, "nu": 25 - 6}
    group(**fields)(saved)
    with pytest.raises(UserError, match=told):
        moments(saved, weights, c)


@pytest.mark.parametrize(
    ("field", "value"), [("momentum", 0.5), ("nesterov", False), ("dampening", 0.1), ("maximize", True)]
)
def test_sgds_settings_are_compared(field, value):
    c = OPTIMIZERS["momentum of Nesterov"]
    saved, weights = state_of(c)
    assert moments(saved, weights, c, step=2).step == 2
    with pytest.raises(UserError, match="does not state the number of steps"):
        moments(saved, weights, c)
    saved["param_groups"][0][field] = value
    with pytest.raises(UserError, match=f"has {field} {value}"):
        moments(saved, weights, c, step=2)


def test_without_a_schedule_the_rate_itself_is_compared():
    c = replace(ADAMW, schedule="constant", warmup=0.0)
    saved, weights = state_of(c)
    for number in (0, 1):
        del saved["param_groups"][number]["initial_lr"]
    assert moments(saved, weights, c).step == 2
    with pytest.raises(UserError, match=r"has lr 0\.003, but by the config it is 0\.5"):
        moments(saved, weights, replace(c, lr=0.5))


def test_before_the_first_step_moments_are_zero():
    saved, weights = state_of(steps=0)
    found = moments(saved, weights, step=0)
    assert found.step == 0 and all(
        not t.read().any() and t.shape == weights[n].shape for role in found.roles.values() for n, t in role.items()
    )
    with pytest.raises(UserError, match=r"has no state for .* \(25 of 25\)"):
        moments(saved, weights, step=3)


def test_numbers_without_names_go_by_groups_or_are_refused():
    named, (saved, weights) = moments(*state_of()), state_of(names=False)
    found = moments(saved, weights)
    assert all(
        np.array_equal(t.read(), named.roles[role][n].read())
        for role, tensors in found.roles.items()
        for n, t in tensors.items()
    )
    with pytest.raises(UserError, match="2 groups and no names in them"):
        moments(saved, weights, grouped=False)
    with pytest.raises(
        UserError, match=r"groups have \[8, 17\] parameters, but by optim.decay \['bias'\] they have \[7, 18\]"
    ):
        moments(saved, weights, replace(ADAMW, decay=("bias",)))
    with pytest.raises(UserError, match=r"but by optim.decay \[.*\] and optim.layer_decay 0.5 they have \[\d+, .*\]"):
        moments(saved, weights, replace(ADAMW, layer_decay=0.5))


def test_one_group_goes_by_the_models_order():
    """What `AdamW(model.parameters())` leaves, here with `module.` before the names of another one."""
    model = torch_ref.build(VIT)
    weights = {name: wrapped(x, name) for name, x in model.state_dict().items()}
    for parameters_ in (list(model.parameters()), [(f"module.{n}", p) for n, p in model.named_parameters()]):
        one = torch.optim.AdamW(parameters_, lr=0.1, weight_decay=0.0)
        for p in model.parameters():
            p.grad = torch.full_like(p, float(p.numel()))
        one.step()
        found = moments(wrapped(one.state_dict()), weights, OptimConfig(lr=0.1, schedule="constant"), grouped=False)
        assert all(np.allclose(t.read(), 0.1 * np.prod(t.shape)) for t in found.roles["mu"].values())
        assert [n for n in found.roles["mu"]] == [n for n, _ in model.named_parameters()]


def test_any_other_loop_goes_on_where_its_run_is_named(tmp_path):
    """A file in timm's layout, as such loops save it.

    Moments of fused tensors are split as the tensors are, and decay is that of the run.
    """
    c = replace(VIT, key_bias=True, channels=3)
    shapes = rules.file_shapes(rules.narrow(LAYOUTS["timm"].rows(c)))
    model = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    for p in model.values():
        p.grad = torch.randn_like(p)
    optim = OptimConfig(
        name="adamw",
        lr=0.1,
        schedule="constant",
        weight_decay=0.2,
        decay=("kernel", "token", "position", "norm", "bias", "scale"),
    )
    one = torch.optim.AdamW(model.values(), lr=0.1, weight_decay=0.2)
    one.step()
    torch.save({"state_dict": model, "optimizer": one.state_dict(), "epoch": 7, "step": 9000}, tmp_path / "theirs.pt")
    fields = {"image": (4, 6), "heads": 2, "eps": 1e-6, "activation": "gelu", "pool": "cls", "mean": 0.3, "std": 0.7}
    with (reading := read(str(tmp_path / "theirs.pt"), Options(sets=fields, layout="timm"))).source:
        way, run = plan(reading, "vit-jax"), run_of(c, optim, "float32")
        with pytest.raises(UserError, match="not the config that it belongs to; name it with `preset"):
            training.training(reading)
        into_run(way, training.training(reading, run), str(tmp_path / "run"), stream(way))
    found = items(tmp_path / "run")
    assert found["optimizer"].pop("step") == 1 and Run(tmp_path / "run").record()["data"] is None
    gradients_ = rules.read(LAYOUTS["timm"].rows(c), {name: p.grad.numpy() for name, p in model.items()})
    for name, gradient in gradients_.items():
        np.testing.assert_allclose(found["optimizer"][f"mu.{name}"], 0.1 * gradient, rtol=1e-6)
        np.testing.assert_allclose(found["optimizer"][f"nu.{name}"], 0.001 * gradient**2, rtol=1e-5)


def test_tied_copies_have_one_moment_and_computed_parts_none():
    a, b = Spec(np.dtype("f4"), (2, 3)), Spec(np.dtype("f4"), (3,))
    tie = rules.Row(("one", "two"), ("target.embedding",), ((2, 3),), (Tie(2),))
    assert optimizer.parameter_order([tie], {"zero": b, "two": a, "one": a}) == ["two"]
    p = torch.nn.Parameter(torch.randn(2, 3))
    p.grad = torch.randn(2, 3)
    one = torch.optim.AdamW([p], lr=0.1, weight_decay=0.0)
    one.step()
    weights = {name: wrapped(p.detach(), name) for name in ("two", "one")}
    found = optimizer.from_torch(
        wrapped(one.state_dict()), [tie], weights, OptimConfig(lr=0.1, schedule="constant"), SEQ.parameters(), "X.pt"
    )
    (back,) = tie.read([found.roles["mu"][name].read() for name in tie.theirs])
    np.testing.assert_allclose(back, 0.1 * p.grad, rtol=1e-6)
    half = rules.Row(("qkv.bias",), ("query.bias",), ((3,),), (Concat(0, (3, 3)), zeros((3,), 1)))
    with pytest.raises(UserError, match=r"qkv\.bias: a part is a constant here and trained in the file"):
        optimizer.moving([half], ["qkv.bias"])
    only = rules.Row(("position",), (), (), (zeros((3,)),))
    assert optimizer.moving([only, rules.passthrough("mask", (3,))], ["position", "mask"]) == []


def test_moments_do_not_follow_adaptations_and_casts(tmp_path):
    with (reading := read(save(trained(VIT, ADAMW, 2), tmp_path / "a.pt"))).source:
        for options in ({"adapt": ["head=drop"]}, {"dtype": "float32"}):
            with pytest.raises(UserError, match="does not follow `adapt` and `dtype"):
                state = training.training(reading)
                into_run(plan(reading, "vit-jax", **options), state, str(tmp_path / "run"), iter(()))


# --------------------------------------------------------------------------------------- the doors

TINY = ("--model.width", 16, "--model.hidden", 32, "--model.depth", 1, "--model.heads", 2,
        "--epochs", 3, "--batch", 64, "--log-every", 1,
        "--optim.clip", 1.0, "--optim.warmup", 0.5, "--optim.weight-decay", 0.1)  # fmt: skip


@pytest.mark.slow
def test_a_run_goes_through_the_doors_from_torch_to_jax_and_back(monkeypatch, tmp_path):
    """Torch to 25, JAX to 40, torch to 50: the losses of 50 steps in torch, to 1e-5."""
    import convert.__main__ as conversion
    from vit_jax.commands import train as command

    losses = {}
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self, batch: losses.setdefault(self.done, step(self, batch)))
    monkeypatch.chdir(tmp_path)

    def call(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["x", *map(str, arguments)])
        assert main() == 0

    call(train.main, "digits", *TINY, "--max-steps", 50, "--name", "whole")
    expected = dict(losses)
    losses.clear()
    call(train.main, "digits", *TINY, "--max-steps", 25, "--name", "part")
    call(conversion.main, "runs/part.pt", "runs/part", "--to", "vit-jax")
    call(command.main, "--resume", "runs/part", "--max-steps", 40)
    call(conversion.main, "runs/part", "runs/again.pt", "--to", "torch-ref", "--step", 40, "--verify")
    call(train.main, "--resume", "runs/again.pt", "--max-steps", 50)
    rows = [json.loads(line) for line in (tmp_path / "runs/part/metrics.jsonl").read_text().splitlines()]
    losses |= {row["step"] - 1: row["loss"] for row in rows if row["kind"] == "train"}
    assert losses.keys() == expected.keys() and len(losses) == 50
    assert max(abs(losses[t] - x) / x for t, x in expected.items()) < 1e-5
