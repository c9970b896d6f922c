"""Targets: the devices that programs are compiled for, by their names."""

import pytest

from vit_jax.errors import UserError
from vit_jax.machine import targets
from vit_jax.machine.targets import GPUS, HERE, TPUS, prepare, read_target


@pytest.mark.parametrize(
    ("name", "count", "topology"),
    [
        ("h100", 1, "1x1x1"), ("h100:8", 8, "1x1x8"), ("a100:16", 16, "1x2x8"), ("v5e:2x2", 4, "v5e:2x2"),
        ("v5e:16x16", 256, "v5e:16x16"), ("v5p:2x2", 4, "v5p:2x2x1"), ("v5p:8x8x16", 1024, "v5p:8x8x16"),
    ],
)  # fmt: skip
def test_a_name_says_which_devices_and_how_many(name, count, topology):
    target = read_target(name)
    assert (target.count, target.topology, target.present) == (count, topology, False)
    assert target.published.peak and target.published.bandwidth and target.memory > 15e9


def test_all_known_names_are_of_devices_whose_figures_are_published():
    for name in (*GPUS, *(f"{tpu}:2x2" for tpu in TPUS)):
        assert all(vars(read_target(name).published)[figure] for figure in ("peak", "memory", "bandwidth", "link"))
    assert read_target("here") is HERE


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("h10", "h100.*v5e:2x2.*here"), ("", "h100"), ("H100", "h100"), ("h100:0", "h100:8"), ("h100:x", "h100:8"),
        ("h100:", "h100:8"), ("h100:9", "up to 8, or a multiple of it"), ("v5e", "v5e:2x2"), ("v5e:4", "v5e:2x2"),
        ("v5e:0x4", "v5e:2x2"), ("h100\n", "h100"),
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_with_those_that_are_known(name, remedy):
    with pytest.raises(UserError, match=rf"^target is .*{remedy}"):
        read_target(name)


@pytest.mark.parametrize(("name", "extra"), [("h100", "plan-cuda12"), ("v5e:2x2", "plan-tpu")])
def test_where_the_compiler_is_missing_the_command_that_installs_it_is_said(name, extra, monkeypatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"^target is {name}, .* not installed .*pip install '\S+\[{extra}\]'"):
        prepare(read_target(name))
