"""Fine-tuning: what the modes of --tune set, that what is frozen stays as it was, and the way back to its layout."""

import shlex
from dataclasses import replace
from fnmatch import fnmatchcase

import jax
import numpy as np
import pytest

import vit_jax
from vit_jax import export, preset
from vit_jax.commands import train as command
from vit_jax.config.groups import all_but
from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs import Run
from vit_jax.runs.values import flat, to_dict
from vit_jax.weights.checkpoint import Checkpoints
from vit_jax.weights.fitting import apply_tuning

VIT = ViTConfig(image=8, channels=1, patch=4, classes=10, width=8, depth=2, heads=2, hidden=12)
FULL = ViTConfig(
    image=8,
    patch=4,
    classes=3,
    width=8,
    depth=12,
    heads=2,
    hidden=12,
    registers=2,
    distill_token=True,
    pool="map",
    distill_head=True,
    distill_norm=True,
    stem_norm=True,
    pre_norm=True,
    layer_scale=0.1,
    qk_norm=True,
    head_norm=True,
    head_hidden=5,
    gated=True,
)
LINE = "--init vit --new-head --data.source digits --batch 32 --epochs 1 --seed 1"
HEAD = ("head.kernel", "head.bias")


@pytest.fixture(scope="module")
def folder(working_folder):
    """A working folder with vit/, a network in timm's layout."""
    network = merge(definition(VIT), start(VIT, jax.random.key(0)))
    export(network, "vit", to="timm", fields={"mean": [0.3], "std": [0.4]})
    return working_folder


@pytest.fixture(scope="module")
def plain(folder):
    return flat(parsed(LINE))


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def parsed(text):
    return command.parse(shlex.split(text))[1].run()


# ------------------------------------------------------------------------------------- what a mode sets


def test_patterns_cover_all_but_what_a_mode_trains_and_are_few():
    table, modes = FULL.parameters(), FULL.tuning_modes
    for names in modes.values():
        frozen = all_but(names, table)
        for name in table:
            assert any(fnmatchcase(name, p) for p in frozen) != any(fnmatchcase(name, p) for p in names), name
    assert all_but(modes["full"], table) == ()
    assert all_but(modes["head"], VIT.parameters()) == ("patch.*", "cls_token", "position", "blocks.*", "norm.*")
    attention = ("patch.*", "cls_token", "blocks.*.norm1.*", "blocks.*.norm2.*", "blocks.*.mlp.*", "norm.*")
    assert all_but(modes["attention"], VIT.parameters()) == attention


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("--tune full --optim.layer-decay 0.9", {"optim.layer_decay": 0.9, "optim.lr": 1e-3 * 32 / 256}),
        ("--tune full --batch 64 --optim.lr 0.5", {"optim.layer_decay": 0.75, "optim.lr": 0.5, "batch": 64}),
        (
            "--tune head",
            {
                "optim.freeze": ("patch.*", "cls_token", "position", "blocks.*", "norm.*"),
                "optim.lr": 1e-2,
                "optim.weight_decay": 0.0,
            },
        ),
        ("--tune head --optim.freeze norm.*", {"optim.freeze": ("norm.*",), "optim.lr": 1e-2, "optim.weight_decay": 0}),
    ],
)
def test_a_mode_sets_what_is_not_given(here, plain, line, fields):
    run = parsed(f"{LINE} {line}")
    assert {name: x for name, (x, _) in flat(run).items() if plain[name][0] != x} == fields


def test_a_mode_is_the_same_in_python(here):
    given = {"batch": 64, "optim.lr": 0.5, "data.source": "digits"}
    run = preset("finetune", "vit", given, tune="full").run
    assert run.optim == parsed(f"{LINE} --tune full --batch 64 --optim.lr 0.5").optim


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train digits --tune head", "tune is head but init is empty: name the weights to start from"),
        ("train digits --tune heads --init vit", "--tune heads: choose one of none, full, head, attention"),
        ("train --resume x --tune head", "leave out --tune head"),
        (f"train {LINE} --optim.freeze bloks.*", "optim.freeze has 'bloks.*', which matches no parameter; nearest: "),
        (f"train {LINE} --tune head --optim.freeze *", "optim.freeze is *, which matches all 40 parameters"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_writes_nothing(here, inside, line, said):
    if "--resume x" in line:
        Run("runs/x").create({"preset": "digits", "config": to_dict(parsed("digits"))})
    before = sorted(here.rglob("*"))
    result = inside(*shlex.split(line), cwd=here)
    assert result.returncode == 2 and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert sorted(here.rglob("*")) == before


def test_a_network_without_modes_says_so(tmp_path, monkeypatch):
    run = replace(vit_jax.preset("numbers").run, init="x", model=TransformerConfig())
    with pytest.raises(UserError, match=r"^tune is head, but a Transformer has no such mode: give `optim\.freeze"):
        apply_tuning(run, "head")


# --------------------------------------------------------------------------- a run with a frozen trunk


@pytest.mark.slow
def test_a_frozen_trunk_stays_to_the_bit_is_resumed_and_goes_back_to_its_layout(here, inside):
    line = f"train {LINE} --tune head --ema 0.9 --data.validation 0.2"
    whole = inside(*shlex.split(f"{line} --max-steps 4 --name whole"), cwd=here)
    assert whole.returncode == 0, whole.stderr
    says = "tune     head: optim.freeze patch.* cls_token position blocks.* norm.*, optim.layer_decay 1.0, "
    assert f"{says}optim.lr 0.01, optim.weight_decay 0.0\n" in whole.stdout
    assert "\n         90 of them train, in 2 of 40 tensors\n" in whole.stdout

    for steps, said in ((2, "stopped: max_steps at step 2"), (4, "going on after step 2")):
        assert said in inside(*shlex.split(f"{line} --max-steps {steps} --name halves"), cwd=here).stdout
    a, b = (Checkpoints(Run(f"runs/{name}")).restore(VIT.shapes())[0] for name in ("whole", "halves"))
    for mine, theirs in zip(*(jax.tree.leaves((s.state, s.step)) for s in (a, b)), strict=True):
        np.testing.assert_array_equal(mine, theirs)

    began = vit_jax.load("vit").model
    given = {name: np.asarray(x) for name, x in flatten(vit_jax.models.state.split_model(began)[1]).items()}
    found = flatten(a.state.parameters)
    assert [name for name in given if not np.array_equal(given[name], found[name])] == [*HEAD[::-1]]
    kept = {name for name in Run("runs/whole").saved(4)["arrays"]["optimizer"]}
    assert kept == {"step", *(f"{role}.{name}" for role in ("mu", "nu") for name in HEAD)}
    assert {*Run("runs/whole").saved(4)["arrays"]["ema"]} == {*HEAD}

    evaluated = inside(*shlex.split("evaluate runs/whole --weights last --split validation --flip"), cwd=here)
    _, result = vit_jax.evaluate("whole", "validation", "last", flip=True)
    lines = [f"  {n:16} {x:.4f}  {result.flipped.metrics[n]:.4f}" for n, x in result.metrics.items()]
    assert evaluated.stdout.splitlines()[1:] == [f"{'':19}plain   with its mirror image", *lines], evaluated.stderr
    for ema, name in ((True, "back"), (False, "raw")):
        back = inside(
            *shlex.split(f"convert runs/whole {name} --step last --key {'ema' if ema else 'model'}"), cwd=here
        )
        assert back.stdout.splitlines()[0].startswith("target    timm, the layout of the weights"), back.stderr
        images = np.zeros((2, 8, 8, 1), np.uint8) + np.arange(8, dtype=np.uint8)[:, None] * 9
        ours = vit_jax.load("whole", "last", ema=ema).logits(images)
        np.testing.assert_array_equal(vit_jax.load(name).logits(images), ours)
