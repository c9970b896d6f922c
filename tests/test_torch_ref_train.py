"""Training in PyTorch: losses by hand, schedules against torch's and ours, decay, steps, the file, the command."""

import ast
import copy
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

torch = pytest.importorskip("torch")

from safetensors.numpy import load_file, save_file  # noqa: E402

import torch_ref  # noqa: E402
import torch_ref.tasks  # noqa: E402
from tests.random_weights import weights  # noqa: E402
from tests.test_processes import python  # noqa: E402
from torch_ref import train  # noqa: E402
from torch_ref.evaluation import measure  # noqa: E402
from torch_ref.optim import groups, make_optimizer, make_schedule  # noqa: E402
from torch_ref.tasks import augment, cross_entropy  # noqa: E402
from torch_ref.trainer import Trainer, tensors  # noqa: E402
from vit_jax.augmentation.config import ImageAugment  # noqa: E402
from vit_jax.config.dotted import replace_fields  # noqa: E402
from vit_jax.config.run import AugmentConfig, LossConfig, OptimConfig, RunConfig  # noqa: E402
from vit_jax.config.trees import unflatten  # noqa: E402
from vit_jax.data.images.config import ImageData  # noqa: E402
from vit_jax.data.texts.config import SentenceData  # noqa: E402
from vit_jax.errors import UserError  # noqa: E402
from vit_jax.models.transformer_config import TransformerConfig  # noqa: E402
from vit_jax.models.vit_config import ViTConfig  # noqa: E402
from vit_jax.presets.table import preset  # noqa: E402
from vit_jax.runs.values import flat, from_dict  # noqa: E402
from vit_jax.tasks.next_token import token_losses  # noqa: E402
from vit_jax.text.vocabulary import closed_vocabulary  # noqa: E402
from vit_jax.training.engine import optim  # noqa: E402

torch.set_num_threads(1)
ROOT = Path(__file__).parents[1]
IDS = closed_vocabulary([]).ids

VIT = ViTConfig(
    image=(4, 6),
    patch=2,
    channels=2,
    classes=3,
    width=8,
    depth=1,
    heads=2,
    hidden=12,
    registers=2,
    layer_scale=0.1,
    pool="map",
    qk_norm=True,
    stem_norm=True,
)
SEQ = TransformerConfig(
    width=8,
    heads=2,
    hidden=12,
    encoder_depth=1,
    decoder_depth=1,
    source_vocabulary=9,
    target_vocabulary=9,
    outputs=9,
    max_length=8,
    position="learned",
    embedding_norm=True,
    tie="decoder",
)


def images(seed=0, batch=6):
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 256, (batch, 4, 6, 2)).astype(np.uint8),
        "label": rng.integers(0, 3, batch).astype(np.int32),
    }


def run(config=VIT, **fields):
    of_images = isinstance(config, ViTConfig)
    task, data, augment = (
        ("classify", ImageData(), ImageAugment()) if of_images else ("translate", SentenceData(), AugmentConfig())
    )
    optimizer = OptimConfig(**{"schedule": "constant", **fields.pop("optim", {})})
    return RunConfig(task, config, data, fields.pop("augment", augment), optimizer, compute_dtype="float64", **fields)


def trainer(config=VIT, steps=10, epoch=5, **fields):
    words = closed_vocabulary([]).kept
    kept = {"preprocess": {"mean": [0.5, 0.4], "std": [0.2, 0.3]}, "vocabulary": {"source": words, "target": words}}
    return Trainer(run(config, **fields), steps, epoch, kept)


# ---------------------------------------------------------------------------------------- losses


def test_fairseqs_smoothing_is_its_formula_on_both_sides():
    """(1 - e - e') nll + e' U with e' = e / (V-1), of fairseq's label_smoothed_cross_entropy, by hand in numpy."""
    x, labels = 3 * np.random.default_rng(0).standard_normal((6, 9)), np.array([3, 0, 8, -100, 2, 2])
    log_p, e, real = x - np.log(np.exp(x).sum(1, keepdims=True)), 0.1, labels >= 0
    by_hand = -(1 - e - e / 8) * log_p[np.arange(6), labels * real] - e / 8 * log_p.sum(1)
    c = LossConfig(label_smoothing=e, smoothing="fairseq")
    found = cross_entropy(torch.from_numpy(x), torch.from_numpy(labels), c)
    assert abs(found.item() - by_hand[real].mean()) < 1e-14
    with jax.enable_x64(True):
        ours = token_losses(jax.numpy.asarray(x), jax.numpy.asarray(labels * real), c.spread_over_all(9))
    np.testing.assert_allclose(np.asarray(ours)[real], by_hand[real], atol=1e-14)
    assert LossConfig(label_smoothing=e).spread_over_all(9) == e


def test_crops_and_flips_are_those_that_can_be():
    image = torch.arange(1, 25, dtype=torch.uint8).view(1, 1, 4, 6)
    padded = np.pad(image[0, 0].numpy(), 2)
    possible = {}
    for top, left, flip in np.ndindex(5, 5, 2):
        crop = padded[top : top + 4, left : left + 6]
        possible[(crop[:, ::-1] if flip else crop).tobytes()] = (top, left, flip)
    torch.manual_seed(0)
    out = augment(image.expand(2000, -1, -1, -1), ImageAugment(crop_padding=2, flip=True))
    assert out.shape == (2000, 1, 4, 6) and out.dtype == torch.uint8
    counts = np.zeros((5, 5, 2))
    for one in out.numpy():
        counts[possible[one[0].tobytes()]] += 1
    assert len(possible) == 50
    assert ((counts - 40) ** 2 / 40).sum() < 100  # chi-squared of 49 degrees: above 94.6 once in 10,000
    colours = torch.stack([image[0], image[0] + 100], 1)
    both = augment(colours, ImageAugment(crop_padding=1))
    assert torch.equal(both[:, 1][both[:, 1] > 0], both[:, 0][both[:, 1] > 0] + 100)  # channels go together


# ------------------------------------------------------------------------- schedules and optimizers


def rates(schedule, optimizer, steps):
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return np.array(found)


SCHEDULES = {
    "constant": dict(schedule="constant", warmup=1.5),
    "cosine": dict(schedule="cosine", warmup=1.0, final=0.1),
    "cosine from the start": dict(schedule="cosine"),
    "inverse_sqrt": dict(schedule="inverse_sqrt", warmup=0.5),
    "one_cycle": dict(schedule="one_cycle", pct_start=0.2, div_factor=10.0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_that_of_the_product(name):
    c = OptimConfig(lr=0.3, **SCHEDULES[name])
    optimizer = make_optimizer(torch.nn.Linear(1, 1), c)
    with jax.enable_x64(True):
        expected = np.asarray(optim.learning_rate(c, 24, 8)(jnp.arange(24)))
    assert expected.dtype == np.float64 and expected.max() == pytest.approx(0.3, rel=0.02)
    np.testing.assert_allclose(rates(make_schedule(optimizer, c, 24, 8), optimizer, 24), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", ["kernel", "bias", "norm", "token", "position", "scale", "embedding"])
@pytest.mark.parametrize("config", [VIT, SEQ], ids=["vit", "transformer"])
def test_what_decays_is_told_by_modules_as_ours_tells_it_by_names(config, kind):
    model = torch_ref.build(config)
    decaying = {
        id(p)
        for group in groups(model, OptimConfig(weight_decay=0.1, decay=(kind,)))
        if group["weight_decay"]
        for p in group["params"]
    }
    found = torch_ref.our_names(model, {n: torch.full_like(p, id(p) in decaying) for n, p in model.named_parameters()})
    assert {n for n, x in found.items() if x.all()} == {n for n, p in config.parameters().items() if p.kind == kind}


def test_muon_is_torchs_muon_for_the_blocks_and_torchs_adamw_for_the_rest():
    """Ten steps; torch.optim.Muon iterates in bfloat16, so the kernels inside blocks agree to a hundredth."""
    c = OptimConfig(name="muon", lr=0.02, muon_lr=0.1, muon_momentum=0.9, beta1=0.7, eps=1e-6, weight_decay=0.3)
    torch.manual_seed(0)
    model = torch_ref.build(VIT).double()
    like = copy.deepcopy(model)
    inside = re.compile(r"blocks\.\d\.(attention\.(query|key|value|out)|mlp\.(fc1|fc2|gate))\.weight")
    kernels, decaying, rest = [], [], []
    for name, p in like.named_parameters():
        (kernels if inside.fullmatch(name) else decaying if p.ndim > 1 and ".weight" in name else rest).append(p)
    theirs = [torch.optim.Muon(kernels, lr=0.1, momentum=0.9, weight_decay=0.3)]
    for parameters_, decay in ((decaying, 0.3), (rest, 0.0)):
        theirs.append(torch.optim.AdamW(parameters_, lr=0.02, betas=(0.7, 0.999), eps=1e-6, weight_decay=decay))
    optimizer = make_optimizer(model, c)
    for _ in range(10):
        for p, q in zip(model.parameters(), like.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for each in (optimizer, *theirs):
            each.step()
    apart = {True: 0.0, False: 0.0}  # {whether it is Muon's: the largest difference}
    for p, (name, q) in zip(model.parameters(), like.named_parameters(), strict=True):
        is_muons = inside.fullmatch(name) is not None
        apart[is_muons] = max(apart[is_muons], (p - q).abs().max().item())
    assert apart[False] < 1e-12 and 1e-4 < apart[True] < 1e-2, apart


def test_lion_is_optaxs():
    c = OptimConfig(name="lion", lr=0.01, beta1=0.7, lion_beta2=0.95, weight_decay=0.3)
    layer, rule = torch.nn.Linear(5, 4, bias=False).double(), optax.lion(0.01, b1=0.7, b2=0.95, weight_decay=0.3)
    optimizer, weight = make_optimizer(layer, c), layer.weight
    with jax.enable_x64(True):
        expected = jnp.asarray(weight.detach().numpy())
        state = rule.init(expected)
        for _ in range(10):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
            update, state = rule.update(jnp.asarray(weight.grad.numpy()), state, expected)
            expected = optax.apply_updates(expected, update)
    np.testing.assert_allclose(weight.detach(), expected, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------- steps


def test_a_step_of_sgd_is_rate_times_clipped_gradient():
    one, batch = trainer(optim=dict(name="sgd", lr=0.5, clip=0.01)), images()
    before = torch_ref.parameters(one.model)
    one.loss(batch).backward()
    gradients = torch_ref.gradients(one.model)
    norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
    assert norm > 0.02
    one.step(batch)
    for name, after in torch_ref.parameters(one.model).items():
        np.testing.assert_allclose(
            after, before[name] - 0.5 * gradients[name] * 0.01 / (norm + 1e-6), rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("decays", [(0.75, 0.75, 0.75), (2 / 11, 3 / 12, 0.3)], ids=["constant", "warm-up"])
def test_an_average_of_weights_starts_where_they_do(decays):
    one = trainer(ema=decays[-1], ema_warmup=decays[0] < decays[-1], optim=dict(lr=0.01))
    expected = torch_ref.parameters(one.model)
    for t in range(3):
        one.step(images(t))
        expected = {
            n: decays[t] * e + (1 - decays[t]) * x
            for (n, e), x in zip(expected.items(), torch_ref.parameters(one.model).values(), strict=True)
        }
    for name, x in torch_ref.parameters(one.average.module).items():
        np.testing.assert_allclose(x, expected[name], rtol=0, atol=1e-14)


def test_no_two_steps_of_any_seeds_draw_the_same():
    """Seed 1 at step 0 is not seed 0 at step 1: runs that differ in the seed are independent."""
    drawn = []
    for seed in range(3):
        one = trainer(VIT, seed=seed)
        parameter = next(one.model.parameters())
        one.loss = lambda batch, parameter=parameter: drawn.append(torch.initial_seed()) or parameter.sum()
        for t in range(3):
            one.step(images(t))
    assert len(drawn) == 9 == len({*drawn})


def test_the_compute_dtype_is_that_of_the_run():
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64), ("bfloat16", torch.float32)):
        one = Trainer(replace(run(), compute_dtype=name), 4, 4, {"preprocess": {"mean": [0.5, 0.5], "std": [0.5, 0.5]}})
        assert {p.dtype for p in one.model.parameters()} == {dtype}
        loss = one.step(images())
        assert np.isfinite(loss)


def test_what_is_frozen_for_some_epochs_trains_from_then_on():
    """As in vit_jax, whose update of a released parameter tests/test_init_encoder.py compares with torch."""
    one = trainer(epoch=2, optim=dict(name="adam", lr=0.1, freeze=("patch.*",), freeze_epochs=1.0))
    patch = dict(one.model.named_parameters())["patch.weight"]
    other = next(p for name, p in one.model.named_parameters() if not name.startswith("patch."))
    for step in range(4):
        before = patch.detach().clone(), other.detach().clone()
        one.step(images(step))
        assert torch.equal(patch, before[0]) is (step < 2) and not torch.equal(other, before[1])
        assert one.moments()["mu"]["patch.kernel"].any() == (step >= 2)
    assert one.optimizer.state[patch]["step"] == 2 and one.optimizer.state[other]["step"] == 4


# ---------------------------------------------------------------------------------------- the door

QUICK = ("--epochs", "1", "--max-steps", "3", "--log-every", "2")


def door(monkeypatch, tmp_path, *arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
    return train.main()


def test_the_command_leaves_model_optimizer_step_and_config(monkeypatch, tmp_path, capsys):
    assert door(monkeypatch, tmp_path, "digits", *QUICK, "--ema", 0.9) == 0
    told = capsys.readouterr().out
    assert "step 2/40  loss 2." in told and "step 3/40  loss 2." in told and "runs/digits-torch.pt" in told
    saved = torch.load(tmp_path / "runs/digits-torch.pt", weights_only=True)
    assert saved.keys() - {"preset", "data", "preprocess", "class_names"} == {
        *("model", "optimizer", "step", "config", "ema", "best"),
    }
    assert saved["step"] == 3
    config = from_dict(RunConfig, saved["config"])
    assert config == replace(preset("digits").run, epochs=1, max_steps=3, log_every=2, ema=0.9)
    model = torch_ref.build(config.model)
    model.load_state_dict(saved["model"])
    optimizer = make_optimizer(model, config.optim)
    optimizer.load_state_dict(saved["optimizer"])
    assert {int(s["step"]) for s in optimizer.state_dict()["state"].values()} == {3}
    assert any((saved["ema"][name] != x).any() for name, x in saved["model"].items())

    assert door(monkeypatch, tmp_path, "digits", *QUICK, "--max-steps", 1) == 0  # beside it
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {
        f"digits-torch{number}.{kind}" for number in ("", "-2") for kind in ("json", "pt", "safetensors")
    }
    assert door(monkeypatch, tmp_path, "digits", *QUICK, "--name", "digits-torch") == 2
    assert "digits-torch.pt: exists; choose another `name" in capsys.readouterr().err
    (tmp_path / "runs/mine.json").write_text("mine")
    assert door(monkeypatch, tmp_path, "digits", *QUICK, "--name", "mine") == 2
    assert "mine.json: exists" in capsys.readouterr().err and (tmp_path / "runs/mine.json").read_text() == "mine"


def test_a_run_starts_from_given_weights(monkeypatch, tmp_path):
    """One step at a rate of nothing keeps what was given, by our names or by torch's."""
    config = preset("digits").run.model
    save_file(weights(config), tmp_path / "ours.safetensors")
    state = torch_ref.load(torch_ref.build(config), weights(config)).state_dict()
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"model": state, "step": 7}, tmp_path / "saved.pt")
    for file in ("ours.safetensors", "plain.pt", "saved.pt"):
        still = ("--max-steps", 1, "--optim.lr", 1e-30, "--name", file.partition(".")[0])
        assert door(monkeypatch, tmp_path, "digits", "--init", file, *still) == 0
        found = torch.load(tmp_path / f"runs/{still[-1]}.pt", weights_only=True)["model"]
        assert all(torch.equal(found[name], x) for name, x in state.items())


def test_weights_that_pytorch_trained_go_on_in_jax(monkeypatch, tmp_path):
    from vit_jax.weights.start import start

    assert door(monkeypatch, tmp_path, "digits", *QUICK) == 0
    run = replace(preset("digits").run, init="runs/digits-torch.safetensors")
    begun = start(run, {}).parameters
    state = torch.load("runs/digits-torch.pt", weights_only=True)["model"]
    theirs = torch_ref.parameters(torch_ref.build(run.model)).keys()
    assert begun.keys() == theirs and np.array_equal(begun["head.kernel"], state["head.weight"].T)


def test_an_augmentation_that_vit_jax_gains_is_refused_until_the_reference_has_it():
    @dataclass(frozen=True)
    class Newer(ImageAugment):
        grey: float = 0.0

    train.check_supported(replace(preset("digits").run, augment=Newer()))
    with pytest.raises(UserError, match=r"augment.grey is 0.5, which the PyTorch reference does not have: leave it at"):
        train.check_supported(replace(preset("digits").run, augment=Newer(grey=0.5)))


@pytest.mark.parametrize("name", ["digits", "numbers", "shapes"])
def test_every_field_of_a_run_is_computed_or_has_no_effect_or_is_refused(name):
    given, paths = preset(name).run, (ROOT / "torch_ref").glob("*.py")
    trees = {path.stem: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for path in paths}
    read = {node.attr for tree in trees.values() for node in tree if isinstance(node, ast.Attribute)}
    read |= {node.value for node in trees["tasks"] if isinstance(node, ast.Constant)}  # by getattr
    executes, names = {name for name, (_, is_execution) in flat(given).items() if is_execution}, []
    for field, value, _ in train.settings(given):
        if field in train.WITHOUT_EFFECT:
            assert field in executes
        elif field in train.COMPUTED:
            assert field.rpartition(".")[2] in read, field
        else:
            other = not value if isinstance(value, bool) else value + 2 if isinstance(value, int | float) else "other"
            with pytest.raises(UserError, match=f"^{field} is (other|True|[0-9.]+), which the PyTorch reference does"):
                train.check_supported(replace_fields(given, {field: other}))
        names.append(field)
    assert train.COMPUTED | train.WITHOUT_EFFECT.keys() <= {*names} | {n for n in train.COMPUTED if "augment" in n}
    assert {"init_encoder", "histograms", "profile_steps", "fsdp"} <= {*names} - train.COMPUTED


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("digit",), "there is no preset 'digit'; nearest: digits"),
        (("digits", "--accumulate", 2), "accumulate is 2, which the PyTorch reference does not have: leave it at 0"),
        (("digits", "--dir", "text.pt"), "text.pt: a file is where a folder is needed"),
        (("digits", "--name", "../x"), "name is '../x': give the name of one folder"),
        (("vit-s16",), "data.source is empty: give `data.source"),
        (("digits", "--init", "nothing.pt"), "init nothing.pt: cannot be read"),
        (("digits", "--init", "text.safetensors"), "init text.safetensors: cannot be read"),
        (("digits", "--init", "list.pt"), "init list.pt: is not a PyTorch file"),
        (("digits", "--init", "step.pt"), "init step.pt: is not a state dict of tensors"),
        (
            ("digits", "--init", "other.pt"),
            "init other.pt: tensors: names or shapes are not those of this network: missing (56)",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(monkeypatch, tmp_path, capsys, arguments, told):
    (tmp_path / "text.pt").write_text("words")
    (tmp_path / "text.safetensors").write_text("words")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    torch.save({"step": 3}, tmp_path / "step.pt")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pt")
    assert door(monkeypatch, tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_loss_that_is_no_number_ends_the_run(monkeypatch, tmp_path, capsys):
    assert door(monkeypatch, tmp_path, "digits", *QUICK, "--optim.lr", 1e30, "--optim.schedule", "constant") == 3
    assert "the loss is nan at step" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.pt"))


def test_the_reference_loads_no_jax():
    command = "import sys, torch_ref.evaluation, torch_ref.train; print(*sys.modules)"
    loaded = {*python(command).stdout.split()}
    assert "torch" in loaded and not {"jax", "flax", "optax"} & loaded


def test_without_torch_it_explains_itself_and_says_what_to_install(tmp_path):
    program = """
import sys
class Without:  # as if it were not installed
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without)
from torch_ref import train
for arguments in (["--help"], ["digits"], ["--resume", "a.pt"]):
    sys.argv = ["train", *arguments]
    try:
        print(train.main(), *arguments)
    except SystemExit as ended:
        print(ended.code, *arguments)
"""
    done = python(program, cwd=tmp_path)
    assert [line for line in done.stdout.splitlines() if line[:2] in ("0 ", "2 ")] == [
        "0 --help",
        "2 digits",
        "2 --resume a.pt",
    ]
    assert done.stderr == f"vit-jax: error: PyTorch is not installed; run `pip install '{ROOT}[torch]'`\n" * 2
    assert not any(tmp_path.iterdir())


# ------------------------------------------------------------------------------------- evaluation


def ours(one_run, parameters, metadata):
    """(vit_jax's evaluator of a run, weights {name: array} on its devices)."""
    from vit_jax.models.build import definition
    from vit_jax.tasks.computed import task_of
    from vit_jax.training.engine.evaluator import Evaluator

    network = definition(one_run.model, dtype=one_run.compute_dtype, param_dtype=one_run.compute_dtype)
    evaluator = Evaluator(one_run.model, network, task_of(one_run, metadata))
    return evaluator, evaluator.to_devices(unflatten(parameters))


def measured_by_ours(one_run, parameters, split, metadata):
    """The metrics that vit_jax computes with weights {name: array}."""
    with jax.enable_x64(one_run.compute_dtype == "float64"):
        evaluator, tree = ours(one_run, parameters, metadata)
        return evaluator.measure(tree, split, 50).metrics


def test_images_are_measured_as_by_the_product():
    """Random weights on digits: some classes are never predicted, and the last batch is not full."""
    small = replace(preset("digits").run, compute_dtype="float64", batch=32)
    small = replace(small, model=replace(small.model, width=16, hidden=24, depth=1, init_std=0.5))
    data = torch_ref.tasks.Classify.open_data(small)
    one = Trainer(small, 1, 1, data.metadata())
    found = measure(one, one.model, data.splits["test"])
    expected = measured_by_ours(small, torch_ref.parameters(one.model), data.splits["test"], data.metadata())
    assert found.keys() == expected.keys() >= {"accuracy_top5", "f1_macro"}
    assert found == pytest.approx(expected, rel=1e-12) and found["f1_macro"] < found["accuracy"]


def test_sentences_are_translated_and_measured_as_by_the_product():
    """With this seed padding and the begin would often be the likeliest tokens, which neither side may say."""
    small = replace(preset("numbers").run, compute_dtype="float64", seed=1)
    model = replace(small.model, width=16, hidden=24, heads=2, encoder_depth=1, decoder_depth=1, tie="embeddings")
    data = torch_ref.tasks.Translate.open_data(small)
    small = replace(small, model=model.with_sizes(data.sizes))
    one, split = Trainer(small, 1, 1, data.metadata()), data.splits["test"].subset(np.arange(20))
    one.model.head.bias.data[one.task.ids.end] = 2.6  # so that some translations end early
    batch = split.examples(np.arange(20))
    with torch.no_grad(), jax.enable_x64(True):
        found = one.task.outputs(one.model, tensors(batch, one.device), one.dtype)
        evaluator, tree = ours(small, torch_ref.parameters(one.model), data.metadata())
        expected = evaluator.outputs(tree, batch)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12)
    assert len({*expected["predicted"].ravel()}) > 4
    assert len({*(expected["predicted"] != one.task.ids.pad).sum(1)}) > 4
    said = expected["predicted"].copy()
    said[::2] = np.pad(split.target, ((0, 0), (0, 1)))[::2]  # half of the translations are right
    with_right = {**found, "predicted": torch.as_tensor(said)}
    metrics = evaluator.task.score(small.model, split, {**expected, "predicted": said}).metrics
    assert one.task.metrics(split, with_right) == pytest.approx(metrics, rel=1e-12) and metrics["exact_match"] == 0.5


def test_a_run_is_validated_each_epoch_and_its_best_weights_are_tested(monkeypatch, tmp_path, capsys):
    tiny = ("--model.width", 16, "--model.hidden", 32, "--model.depth", 1, "--batch", 128, "--ema", 0.8, "--epochs", 3)
    tiny += ("--optim.lr", 0.02, "--optim.schedule", "constant")
    assert door(monkeypatch, tmp_path, "digits", *tiny, "--max-steps", 15) == 0  # in the middle of epoch 2
    stopped = json.loads(Path("runs/digits-torch.json").read_text())
    assert stopped["status"] == "stopped: max_steps" and "test" not in stopped and stopped["best"]["step"] == 10
    assert stopped["validation"].keys() == {"raw", "ema"}
    assert door(monkeypatch, tmp_path, "--resume", "runs/digits-torch.pt", "--max-steps", 0) == 0
    told, summary = capsys.readouterr().out, json.loads(Path("runs/digits-torch.json").read_text())
    seen = re.findall(r"epoch (\d+): validation (raw|ema) accuracy ([\d.]+) loss ([\d.]+)", told)
    assert [(epoch, weights) for epoch, weights, *_ in seen] == [(e, w) for e in "123" for w in ("raw", "ema")]
    best = max(seen, key=lambda row: (float(row[2]), -float(row[3])))
    assert summary["best"]["step"] == 10 * int(best[0]) and summary["best"]["weights"] == best[1]
    assert summary["status"] == "finished" and summary["test"].keys() == {"last", "last_ema", "best"}
    saved = torch.load("runs/digits-torch.pt", weights_only=True)
    one_run = from_dict(RunConfig, saved["config"])
    data = torch_ref.tasks.Classify.open_data(one_run)
    for file, name in (("digits-torch", "last"), ("digits-torch-best", "best")):
        expected = measured_by_ours(one_run, load_file(f"runs/{file}.safetensors"), data.splits["test"], saved)
        assert summary["test"][name] == pytest.approx(expected, rel=1e-5), name
    assert summary["validation"]["raw"]["accuracy"] == pytest.approx(float(seen[-2][2]), abs=1e-4)
