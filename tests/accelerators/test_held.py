"""What twelve steps ask of a device is what held.json says, and five faults that would cost much are caught by it."""

from functools import partial

import jax
import pytest

import vit_jax.models.build
from tests.accelerators import held
from tests.accelerators.compiling import compile_step
from tests.accelerators.conftest import need
from vit_jax.config.trees import flatten, unflatten
from vit_jax.models import fused as attention_kernels
from vit_jax.training.engine.devices import Devices
from vit_jax.training.engine.parameters import Shards


def need_for(name: str) -> None:
    """Skip a test where the compiler of a step's target is not installed."""
    need(held.STEPS[name].split("--target ")[1].split()[0])


def found(name: str) -> list[str]:
    """What differs from the held figures of a step, as it is compiled now."""
    return held.differences(held.figures(compile_step(held.STEPS[name])), held.read_held().get(name, {}))


@pytest.mark.parametrize("name", held.STEPS)
def test_a_step_asks_what_is_held(name):
    need_for(name)
    assert not found(name), "if that is meant: python -m tests.accelerators.held " + name


def replicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is on every device whole."""
    monkeypatch.setattr(Devices, "split_axis", lambda self, shape: None)


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations are in float32."""
    define = vit_jax.models.build.definition
    monkeypatch.setattr(vit_jax.models.build, "definition", lambda config, *_, **how: define(config, **how))


def unfuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is computed by XLA's form in place of cuDNN's."""
    monkeypatch.setattr(attention_kernels, "implementation", lambda *_: "xla")


def gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device gets the whole gradient of each parameter."""
    mean = Shards.mean

    def whole(self, gradients):
        flat = flatten(mean(self, gradients))
        every = jax.lax.optimization_barrier({name: self.whole(name, x) for name, x in flat.items()})
        return unflatten({name: self.own_part(name, self.axes.get(name, 0), x) for name, x in every.items()})

    monkeypatch.setattr(Shards, "mean", whole)


def copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new state does not take the place of the old."""
    jit = jax.jit

    def undonated(*given, donate_argnums=(), **options):
        return jit(*given, **options) if given else partial(jit, **options)

    monkeypatch.setattr(jax, "jit", undonated)


FAULTS = {
    "replicated state": (replicate, "b16-fsdp", "memory"),
    "float32 activations": (widen, "b16", "bytes"),
    "attention not fused": (unfuse, "b16", "bytes"),
    "gradient all-gathered": (gather, "b16-fsdp", "all-"),
    "a copy of the state": (copy, "b16", "memory"),
    # Two blocks of S/16 have too little state for their memory to differ by 3 %.
    "replicated state on a TPU": (replicate, "s16-tpu-fsdp", "reduce-scatter"),
    "gradient all-gathered on a TPU": (gather, "s16-tpu-fsdp", "all-"),
    "a copy of the state on a TPU": (copy, "s16-tpu", "memory"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, monkeypatch):
    plant, name, what = FAULTS[fault]
    need_for(name)
    plant(monkeypatch)
    assert any(line.startswith(what) for line in found(name)), fault
