"""Networks are bounded before anything is allocated: counted without their tables, against the memory of a machine."""

import math
from dataclasses import replace

import pytest

import vit_jax
from vit_jax.commands import train as train_command
from vit_jax.errors import UserError
from vit_jax.machine import backend, division, limits
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import PRESETS, preset

SLOTS = ViTConfig(image=8, patch=4, width=8, heads=2, hidden=12, classes=3)
TEXTS = TransformerConfig(width=8, heads=2, hidden=12, source_vocabulary=9, target_vocabulary=9, outputs=9)


@pytest.mark.parametrize(
    "config",
    [
        *(preset(name).run.model for name in [*PRESETS, "vit-ti16", "vit-g14"]),
        *(replace(SLOTS, depth=depth, layer_scale=0.1, qk_norm=True, pool="map", gated=True) for depth in (1, 2, 7)),
        *(
            replace(TEXTS, encoder_depth=n, decoder_depth=m, norm_first=first)
            for n, m, first in ((1, 1, True), (3, 1, True), (2, 5, False))
        ),
        TransformerConfig(width=8, heads=2, hidden=12, encoder_depth=4, decoder_depth=0),
        CaptionerConfig(
            replace(SLOTS, classes=0, depth=3, width=6), replace(TEXTS, encoder_depth=0, source_vocabulary=0)
        ),
    ],
)
def test_parameters_are_counted_without_their_table(config):
    assert config.parameter_count() == sum(map(math.prod, config.shapes().values()))


def test_a_run_takes_its_weights_gradients_moments_and_average():
    run = replace(preset("digits").run, accumulate=1)
    count, images, pixels = run.model.parameter_count(), 32 * (8 * 8 + 16 * 64), 32 * 8 * 8
    for name, copies in (("sgd", 2), ("momentum", 3), ("lion", 3), ("adamw", 4)):
        changed = replace(run, optim=replace(run.optim, name=name))
        assert division.run_bytes(changed) == (copies * count * 4, images * 4 + pixels)
        assert division.run_bytes(replace(changed, ema=0.9))[0] == (copies + 1) * count * 4
        assert division.run_bytes(replace(changed, compute_dtype="float64"))[0] == copies * count * 8
    kernels = 3 * (4 * 64 * 64 + 2 * 64 * 128)  # of which Muon keeps one moment
    muon = replace(run, optim=replace(run.optim, name="muon"))
    assert division.run_bytes(muon) == ((4 * count - kernels) * 4, images * 4 + pixels)
    # A batch is augmented as a whole; mixup makes float32 of its uint8.
    assert division.run_bytes(replace(run, accumulate=2))[1] == images * 2 + pixels
    assert division.run_bytes(replace(run, compute_dtype="bfloat16"))[1] == images * 2 + pixels
    for fields, width in ((dict(mixup=0.8), 4), (dict(cutmix=1.0), 1)):
        mixing = replace(run, augment=replace(run.augment, **fields))
        assert division.run_bytes(mixing)[1] == images * 4 + pixels * width


def control_groups(root, **files):
    """A folder of control groups with these files, and the file that names those of a process."""
    for place, text in files.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    return root, root / "cgroup"


def test_the_limit_of_a_control_group_is_found(tmp_path):
    files = {
        "cgroup": "4:memory:/jobs/7\n0::/user/me\n",
        "user/memory.max": "max\n",
        "user/me/memory.max": "5000\n",
        "memory.max": "9000\n",
        "memory/jobs/memory.limit_in_bytes": "7000\n",
        "memory/jobs/7/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert sorted(limits.memory_limits(*control_groups(tmp_path, **files))) == [5000, 7000, 9000]
    assert limits.memory_limits(tmp_path, tmp_path / "none") == [9000]


def test_the_cores_of_a_control_group_are_found(tmp_path):
    files = {
        "cgroup": "3:cpu,cpuacct:/jobs/7\n0::/user/me\n",
        "user/cpu.max": "max 100000\n",
        "user/me/cpu.max": "150000 100000\n",
        "cpu/jobs/cpu.cfs_quota_us": "-1\n",
        "cpu/jobs/cpu.cfs_period_us": "100000\n",
        "cpu/jobs/7/cpu.cfs_quota_us": "400000\n",
        "cpu/jobs/7/cpu.cfs_period_us": "100000\n",
    }
    assert sorted(limits.core_limits(*control_groups(tmp_path, **files))) == [1.5, 4.0]


def test_the_memory_of_this_machine_is_known():
    assert 2**28 < limits.host_memory() < 2**50


def test_an_accelerators_own_memory_is_the_limit(monkeypatch):
    class Device:
        platform = "gpu"

        def memory_stats(self):
            return {"bytes_limit": 1_000_000}

    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(backend, "accelerators", lambda: True)
    monkeypatch.setattr("jax.local_devices", lambda: [Device(), Device()])
    assert division.memory() == (1_000_000, 2)
    with pytest.raises(UserError, match=r"take at least 0\.0 GB for weights, gradients, average and moments of adamw"):
        division.check_memory(preset("digits").run)


@pytest.mark.parametrize("known", [True, False])
def test_what_fits_is_let_through_and_so_is_all_where_the_memory_is_unknown(known, monkeypatch):
    run = preset("digits").run
    needed = sum(division.run_bytes(run))
    monkeypatch.setattr(division, "memory", lambda: (needed if known else 0, 1))
    division.check_memory(run)
    if known:
        monkeypatch.setattr(division, "memory", lambda: (needed - 1, 1))
        with pytest.raises(UserError, match=r"batch 32 and model\.width 64, .* lower one of them.* with accumulate$"):
            division.check_memory(run)


@pytest.mark.parametrize(
    "fields", [dict(width=6 * 10**8), dict(hidden=2**30), dict(classes=2**30), dict(image=2**20), dict(depth=10**9)]
)
def test_a_network_that_cannot_fit_is_not_built(fields):
    with pytest.raises(UserError, match=r"^(model\.|depth is )[^\n]* (lower one of them|give 1 to 1000)$"):
        vit_jax.build("vit-s16", **fields)


@pytest.mark.parametrize("torch", [False, True], ids=["vit_jax", "torch_ref"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model.depth", "1000000"], "model.depth is 1000000: give 1 to 1000"),
        (["--model.width", "100000000"], "model.width 100000000, model.depth 3, "),
        (["--batch", "1000000000"], "batch 1000000000 and model.width 64"),
        (["--model.image", "100000", "--model.patch", "1"], "model.image 100000 take at least"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_and_leaves_nothing(torch, words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ways = [[], ["--seeds", "2"], ["--dry-run"]]
    command = train_command.command
    if torch:
        pytest.importorskip("torch")
        from torch_ref import train

        command, ways = train.command, [[]]
    for way in ways:
        with pytest.raises(UserError, match=sentence):
            command(["digits", *words, *way])
    assert not list(tmp_path.iterdir())
