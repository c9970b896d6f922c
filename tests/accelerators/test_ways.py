"""Each way in which a step can be computed compiles, and does what it is for."""

import pytest

from tests.accelerators.compiling import compile_step
from tests.accelerators.conftest import need

HALF = "--compute-dtype bfloat16"
VIT = "vit-b16 --model.classes 1000 --model.depth 2 --batch 64"
H100 = f"{VIT} {HALF} --target h100"


@pytest.fixture(autouse=True)
def compiler(request) -> None:
    """Tests named after a TPU are for its compiler, all others for a GPU's."""
    need("v5e:2x2" if "tpu" in request.node.name else "h100")


@pytest.fixture(scope="module")
def usual():
    """A step in bfloat16 with fused attention on one GPU."""
    need("h100")  # before `compiler`, which is of each test
    return compile_step(f"{H100}")


def test_fused_attention_is_cudnns(usual):
    """Of each of the two blocks a call forward and one backward; of the plain form none."""
    assert usual.attention == 4
    plain = compile_step(f"{H100} --attention-kernel plain")
    assert plain.attention == 0 and plain.bytes > 1.1 * usual.bytes


def test_float32_moves_more_than_bfloat16(usual):
    assert compile_step(f"{VIT} --target h100").bytes > 1.3 * usual.bytes


def test_remat_and_parts_hold_less_at_once(usual):
    """What is computed again is not held, and of a batch in parts one part is."""
    remat = compile_step(f"{H100} --attention-kernel fused --scan --remat full")
    parts = compile_step(f"{H100} --attention-kernel fused --accumulate 4")
    assert remat.memory.temporaries < 0.9 * usual.memory.temporaries > 2 * parts.memory.temporaries
    assert remat.flops > 1.2 * usual.flops and parts.flops == pytest.approx(usual.flops, rel=0.01)


def test_lora_has_few_moments(teacher):
    words = "cifar10-48x4 --target h100"
    lora = compile_step(f"{words} --lora.rank 4 --init {teacher}")
    assert lora.memory.arguments < 0.8 * compile_step(words).memory.arguments


def test_several_gpus_sum_their_gradients_once(usual):
    """By jit and by pmap: as many bytes as the parameters have, in all-reduces."""
    parameters = usual.memory.arguments / 3  # beside two moments
    for how in ("jit", "pmap"):
        found = compile_step(f"{VIT} {HALF} --target h100:8 --parallel {how}").exchanges()
        assert set(found) == {"all-reduce"}
        assert found["all-reduce"][1] == pytest.approx(parameters, rel=0.1)


@pytest.mark.parametrize("target", ["h100:8", "v5e:2x2 (tpu)"])
def test_fsdp_splits_the_state_and_scatters_its_gradients(target):
    words = f"{VIT} {HALF} --target {target.split()[0]}"
    n = 8 if "h100" in target else 4
    split, whole = compile_step(f"{words} --fsdp {n}"), compile_step(words)
    assert split.memory.arguments < 1.5 * whole.memory.arguments / n
    found, parameters = split.exchanges(), whole.exchanges()["all-reduce"][1]
    for kind in ("all-gather", "reduce-scatter"):  # in bfloat16
        assert found[kind][1] > 0.45 * parameters
    assert found["all-reduce"][1] < 0.05 * parameters  # of biases and norms, which are not split


def test_a_student_on_a_gpu_has_its_teacher(teacher):
    program = compile_step(f"cifar10-48x4-distil --teacher {teacher} --target h100")
    assert program.flops > compile_step("cifar10-48x4 --target h100").flops


@pytest.mark.parametrize("flags", ["--scan --remat dots", "--accumulate 2", "--attention-kernel fused"])
def test_ways_compile_for_a_tpu(flags):
    assert compile_step(f"{VIT} {HALF} --target v5e:2x2 {flags}").flops
