"""A quick part of the equivalence suite in the default tests; all of it with `make parity`, and with the slow tests."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch cannot be imported, so ours is not compared with it")

from convert.verify.checks import failures
from tests.parity import (
    cases,
    dropping,
    layouts_captions,
    losses,
    sabotage,
    torch_nn,
    training,
    twins,
)
from tests.parity.weights import inputs, weights
from vit_jax.config.dotted import field_types, leaves, value_at
from vit_jax.config.run import OptimConfig
from vit_jax.models.vit_config import ViTConfig, sized_config
from vit_jax.presets.table import PRESETS

slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("quick_compilation")
QUICK = [
    "tanh GELU for erf",
    "eps 1e-12 for 1e-6",
    "heads as (Dh H)",
    "heads permuted on the way",
    "mean over padding",
    "target shifted by one too many",
    "a captioner's memory one row off",
]


def check(results):
    results = list(results)
    assert results
    assert not failures(results), "\n".join(map(str, failures(results)))


def test_every_memory_of_a_captioner_is_compared():
    memories = {getattr(c.config, "memory", None) for c in cases.combinations()} - {None}
    assert memories == {"tokens", "patches", "vectors"}


def test_layer_norm_is_torchs_far_from_zero():
    check(torch_nn.norms())


def test_losses_and_shifts_are_those_of_hand_written_ids():
    check(losses.losses())


def test_one_mask_makes_one_training_pass():
    check(dropping.one_mask("ViT", dropping.VITS))


@pytest.mark.parametrize("name", QUICK)
def test_a_deliberate_fault_is_caught(name):
    fault = next(f for f in sabotage.faults() if f.name == name)
    assert fault.caught(), f"{fault.test} does not see {name}"


# What the suite covers.


def test_every_preset_is_compared():
    assert [c.name for c in cases.presets()] == list(PRESETS)


@pytest.mark.parametrize("base", [cases.VIT, cases.TRANSFORMER], ids=["ViT", "Transformer"])
def test_every_value_of_every_option_is_compared(base):
    def has_effect(case, name):
        usual = dataclasses.replace(case.config, **{name: getattr(base, name)})
        return case.start or usual == case.config or usual.normal() != case.config.normal()

    seen = {
        (field.name, getattr(c.config, field.name))
        for c in [cases.Case("", base), *cases.options(base)]
        for field in dataclasses.fields(base)
        if has_effect(c, field.name)
    }
    for name, hint in field_types(type(base)).items():
        for value in cases.alternatives(type(base), name, hint):
            assert (name, value) in seen, (
                f"{name}={value} has an effect in no case: add what it needs to COMPANIONS in tests/parity/cases.py"
            )


def test_every_optimizer_is_compared():
    names = {c.name for c in training.OPTIMIZERS.values()}
    assert names == {*get_args(field_types(OptimConfig)["name"])}, "add it to OPTIMIZERS in tests/parity/training.py"


def test_an_option_without_values_is_an_error():
    with pytest.raises(LookupError, match="add values to compare to NUMBERS in tests/parity/cases"):
        cases.alternatives(ViTConfig, "a_new_number", int)


@pytest.mark.parametrize("name", PRESETS)
def test_shrinking_keeps_every_option(name):
    c = PRESETS[name]().run.model
    small = cases.shrink(c)
    sizes = {
        "image", "patch", "channels", "classes", "width", "depth", "heads", "head_width", "hidden", "head_hidden",
        "registers", "encoder_depth", "decoder_depth", "source_vocabulary", "target_vocabulary", "outputs",
        "max_length", "position_offset", "stem", "memory_width",
    }  # fmt: skip
    for name in leaves(type(c)):
        a, b = value_at(c, name), value_at(small, name)
        assert a == b or (name.rpartition(".")[2] in sizes and bool(a) == bool(b)), name
    for part in ("vit", "text") if hasattr(c, "vit") else ("",):
        old, new = (getattr(each, part, each) for each in (c, small))
        assert (old.heads * old.resolved_head_width == old.width) == (new.heads * new.resolved_head_width == new.width)


def test_there_are_enough_faults_and_no_two_alike():
    names = [f.name for f in sabotage.faults()]
    assert len(names) == len(set(names)) >= 25


# The rest takes minutes.


@slow
def test_a_captioner_trained_here_says_in_transformers_what_it_says_here(tmp_path):
    pytest.importorskip("transformers")
    results = list(layouts_captions.generated(tmp_path))
    print(*results, sep="\n")
    check(results)


@slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vit_b16_in_full_size(dtype):
    c = sized_config("vit-b16")
    check([twins.forward("vit-b16", c, weights(c), inputs(c, batch=1), dtype, dtype)])


@slow
def test_marian_of_the_size_of_opus_mt(tmp_path):
    """512 wide, 6 + 6 blocks, 58,101 ids, in float32: logits of padded sources, as a share of the largest."""
    pytest.importorskip("transformers")
    import torch

    import vit_jax
    from benchmarks.decode import marian
    from tests.parity.libraries import load

    load("transformers")  # as it has to be imported beside another torchvision
    theirs = marian("opus")
    theirs.save_pretrained(tmp_path)
    model, draw = vit_jax.load(tmp_path).model, np.random.default_rng(0)
    source, target = (draw.integers(1, 58_100, shape, dtype=np.int32) for shape in ((4, 20), (4, 32)))
    real = np.arange(20) < np.array([[20], [13], [7], [1]])
    with torch.no_grad():
        given = {"input_ids": source, "attention_mask": real, "decoder_input_ids": target}
        expected = theirs(**{name: torch.from_numpy(x).long() for name, x in given.items()}).logits.numpy()
    found = np.asarray(model(source, target, source_padding=real))
    apart = np.abs(found - expected).max() / np.abs(expected).max()
    print(f"logits {list(found.shape)}: {apart:.1e} of the largest, {np.abs(expected).max():.3g}")
    assert found.shape == (4, 32, 58_101) and apart <= 1e-4


@slow
def test_the_whole_suite_passes(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tests.parity",
        "--markdown",
        str(tmp_path / "table.md"),
        "--json",
        str(tmp_path / "table.json"),
    ]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "NOT CAUGHT" not in done.stdout
