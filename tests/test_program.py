"""What is read from a compiled program: against XLA's own analysis, and against texts whose figures are known."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from vit_jax.extras.plan.hlo import read_arrays
from vit_jax.extras.plan.program import Collective, read_program, read_text


def compiled(function, *shapes, dtype=jnp.float32):
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)).compile()


def conv(x, w, **options):
    return lax.conv_general_dilated(x, w, options.pop("strides", (1, 1)), options.pop("padding", "SAME"), **options)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, b: a @ b, [(24, 40), (40, 56)]),
        (lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b), [(2, 3, 24, 16), (2, 3, 40, 16)]),
        (lambda a, b: jnp.tanh(a @ b).sum(0), [(24, 40), (40, 56)]),
        (lambda a: jnp.cumsum(a, 0)[3:7] * 2, [(64, 128)]),
        (conv, [(2, 3, 12, 12), (8, 3, 3, 3)]),
        (lambda x, w: conv(x, w, strides=(2, 2), padding="VALID"), [(2, 4, 13, 13), (8, 4, 5, 5)]),
        (
            lambda x, w: conv(x, w, padding=((1, 1), (2, 2)), lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
            [(2, 4, 7, 9), (8, 4, 3, 3)],
        ),
        (lambda x, w: conv(x, w, feature_group_count=4), [(2, 8, 9, 9), (8, 2, 3, 3)]),
    ],
)
def test_products_are_counted_as_xla_counts_them(function, shapes):
    """XLA also counts sums and other operations, which are few here; convolutions where the kernel meets no padding."""
    program = compiled(function, *shapes)
    ours, theirs = read_program(program), program.cost_analysis()
    products = jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).as_text()
    if "dot_general" in products or "convolution" in products:
        assert ours.flops == pytest.approx(theirs["flops"], rel=0.05)
    else:
        assert ours.flops == 0


def test_bytes_of_a_program_without_loops_are_those_that_xla_counts():
    def layer(x, w1, b1, w2):
        return (jax.nn.gelu(x @ w1 + b1) @ w2 + x).mean(0)

    program = compiled(jax.grad(lambda *a: layer(*a).sum(), (1, 2, 3)), (256, 64), (64, 128), (128,), (128, 64))
    ours = read_program(program)
    assert ours.bytes == pytest.approx(program.cost_analysis()["bytes accessed"], rel=0.1)
    stats = program.memory_analysis()
    assert ours.memory.peak >= stats.temp_size_in_bytes + stats.argument_size_in_bytes > 0


def test_what_a_loop_runs_is_counted_as_often_as_it_runs():
    """And of stacked weights each turn reads its own only."""

    def unrolled(x, weights):
        for i in range(10):
            x = jnp.tanh(x @ weights[i])
        return x

    def looped(x, weights):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    one, other = (read_program(compiled(each, (32, 256), (10, 256, 256))) for each in (unrolled, looped))
    assert one.flops == other.flops == 10 * 2 * 32 * 256 * 256
    assert other.bytes == pytest.approx(one.bytes, rel=0.5)  # not ten times


FUSION = """HloModule m, is_scheduled=true, num_partitions=8

%fused (a: f32[10,64], i: s32[]) -> f32[1,64] {
  %a = f32[10,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = f32[1,64]{1,0} dynamic-slice(%a, %i, %zero), dynamic_slice_sizes={1,64}
}

%update (a.1: f32[10,64], u: f32[1,64], i.1: s32[]) -> f32[10,64] {
  %a.1 = f32[10,64]{1,0} parameter(0)
  %u = f32[1,64]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %d = f32[10,64]{1,0} dynamic-update-slice(%a.1, %u, %i.1, %zero.1)
}

%body (p: (s32[], f32[10,64])) -> (s32[], f32[10,64]) {
  %p = (s32[], f32[10,64]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%p), index=0
  %x = f32[10,64]{1,0} get-tuple-element(%p), index=1
  %f = f32[1,64]{1,0} fusion(%x, %n), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/slice"}
  %g = f32[10,64]{1,0} fusion(%x, %f, %n), kind=kLoop, calls=%update, metadata={op_name="jit(f)/update"}
  ROOT %t = (s32[], f32[10,64]{1,0}) tuple(%n, %g)
}

%condition (q: (s32[], f32[10,64])) -> pred[] {
  %q = (s32[], f32[10,64]{1,0}) parameter(0)
  %m = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%m, %limit), direction=LT
}

ENTRY %main (x.1: f32[10,64], k: s32[]) -> f32[10,64] {
  %x.1 = f32[10,64]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %t.1 = (s32[], f32[10,64]{1,0}) tuple(%k, %x.1)
  %w = (s32[], /*index=1*/f32[10,64]{1,0}) while(%t.1), condition=%condition, body=%body
  ROOT %r = f32[10,64]{1,0} get-tuple-element(%w), index=1
}
"""


# The same, each fusion in one more: a TPU's products take their factors so.
NESTED = re.sub(r"calls=%(fused|update)", r"calls=%around_\1", FUSION).replace(
    "%body (p",
    """%around_fused (a.2: f32[10,64], i.2: s32[]) -> f32[1,64] {
  %a.2 = f32[10,64]{1,0} parameter(0)
  %i.2 = s32[] parameter(1)
  ROOT %f.1 = f32[1,64]{1,0} fusion(%a.2, %i.2), kind=kLoop, calls=%fused
}

%around_update (a.3: f32[10,64], u.1: f32[1,64], i.3: s32[]) -> f32[10,64] {
  %a.3 = f32[10,64]{1,0} parameter(0)
  %u.1 = f32[1,64]{1,0} parameter(1)
  %i.3 = s32[] parameter(2)
  ROOT %g.1 = f32[10,64]{1,0} fusion(%a.3, %u.1, %i.3), kind=kLoop, calls=%update
}

%body (p""",
    1,
)


@pytest.mark.parametrize("text", [FUSION, NESTED], ids=["fused", "fused twice"])
def test_slices_and_updates_in_place_move_their_part_in_loops_whose_condition_says_how_often(text):
    moved = [(kernel.bytes, kernel.times) for kernel in read_text(text).kernels]
    assert moved == [(256 + 256 + 4, 7), (256 + 256 + 4, 7)]
    assert read_text(text.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}')).count == 6


def test_what_a_fusion_inside_another_passes_on_is_read_whole_and_each_of_several_results_is_written():
    before = """%renamed (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %b = f32[8,8]{1,0} bitcast(%p)
}

%product (m: f32[8,8], n: f32[8,8]) -> (f32[8,8], s32[8,8]) {
  %m = f32[8,8]{1,0} parameter(0)
  %n = f32[8,8]{1,0} parameter(1)
  %r = f32[8,8]{1,0} fusion(%m), kind=kLoop, calls=%renamed
  %d = f32[8,8]{1,0} dot(%r, %n), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %o = (f32[8,8]{1,0}, s32[8,8]{1,0}) sort(%d, %n), dimensions={0}
}
"""
    program = read_text(
        entry(
            "%a = f32[8,8]{1,0} parameter(0)",
            "ROOT %f = (f32[8,8]{1,0}, s32[8,8]{1,0}) fusion(%a, %a), kind=kOutput, calls=%product",
            before=before,
        )
    )
    assert program.bytes == 4 * 256


def entry(*lines, head="HloModule m, is_scheduled=true, num_partitions=8", before=""):
    return "\n".join([head, before, "ENTRY %main (a: f32[8,8]) -> f32[8,8] {", *(f"  {line}" for line in lines), "}"])


CUBLAS = (
    '%m = (bf16[512,192]{1,0}, s8[4194304]{0}) custom-call(%x, %y), custom_call_target="__cublas$lt$matmul", '
    'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
    '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}'
)
CUDNN = (
    "%f = (bf16[2,3,18,16]{3,1,2,0}, f32[2,3,18]{2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), "
    'custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config": '
    '{"intermediate_tensor_shape": {"dimensions": ["2", "3", "18", "18"]}, "mask_type": "PADDING"}}'
)


def test_calls_of_libraries_are_products_and_their_space_to_work_in_is_not_moved():
    x, y = "%x = bf16[512,64]{1,0} parameter(0)", "%y = bf16[64,192]{1,0} parameter(1)"
    found = read_text(entry(x, y, CUBLAS))
    assert (found.flops, found.bytes, found.count) == (2 * 512 * 64 * 192, 2 * (512 * 64 + 64 * 192 + 512 * 192), 1)
    q = "%q = bf16[2,18,3,16]{3,2,1,0} parameter(0)"
    found = read_text(entry(q, CUDNN))
    scores = 2 * 3 * 18 * 18
    assert (found.flops, found.attention) == (2 * 2 * scores * 16, 1)
    backward = CUDNN.replace("fmhaSoftmax", "fmhaSoftmaxBackward").replace("PADDING", "CAUSAL")
    assert read_text(entry(q, backward)).flops == 5 * scores * 16


@pytest.mark.parametrize(
    ("line", "kind", "whole", "sent"),
    [
        ("all-reduce(%a), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add", "all-reduce", 256, 384),
        ("all-gather(%a), replica_groups=[2,4]<=[8], dimensions={0}", "all-gather", 1024, 768),
        ("reduce-scatter(%a), replica_groups={}, dimensions={0}", "reduce-scatter", 256, 224),
        ("all-reduce-start(%a), replica_groups=mesh['x'=2,'y'=4] {'x'}, to_apply=%add", "all-reduce", 256, 256),
        ("all-to-all(%a), replica_groups=mesh['x'=2,'y'=4] {'x','y'}", "all-to-all", 256, 224),
        ("collective-permute(%a), source_target_pairs={{0,1},{1,0}}", "collective-permute", 256, 256),
    ],
)  # fmt: skip
def test_what_each_device_has_to_send_follows_from_the_groups(line, kind, whole, sent):
    (found,) = read_text(entry("%a = f32[8,8]{1,0} parameter(0)", f"%r = f32[8,8]{{1,0}} {line}")).collectives
    assert (found.kind, found.bytes, found.sent) == (kind, whole, sent)


def test_a_tpus_program_has_exchanges_in_fusions_and_arrays_inside_its_core():
    scatter = """%all-reduce-scatter.1 (i: f32[64,128]) -> f32[16,128] {
  %i = f32[64,128]{1,0:T(8,128)} parameter(0)
  %all = f32[64,128]{1,0:T(8,128)} all-reduce(%i), channel_id=5, replica_groups=[1,4]<=[4], to_apply=%add
  %n = u32[] partition-id()
  ROOT %part = f32[16,128]{1,0:T(8,128)} dynamic-slice(%all, %n, %n), dynamic_slice_sizes={16,128}
}
"""
    x = "%x = f32[64,128]{1,0:T(8,128)} parameter(0)"
    copy = "%c = (f32[64,128]{1,0:T(8,128)S(1)}, f32[64,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)"
    done = "%d = f32[64,128]{1,0:T(8,128)S(1)} copy-done(%c)"
    both = [
        f"%f.{i} = f32[16,128]{{1,0:T(8,128)}} fusion(%d), kind=kCustom, calls=%all-reduce-scatter.1" for i in (1, 2)
    ]
    found = read_text(entry(x, copy, done, *both, before=scatter))
    assert [(each.kind, each.sent) for each in found.collectives] == [("reduce-scatter", 24576)]  # one channel
    assert (found.bytes, found.on_chip, found.count) == (32768 + 4 + 2 * 8192, 3 * 32768, 3)


def test_exchanges_in_parts_are_told_apart_by_their_chains():
    """As a TPU's compiler writes gathers beside products: each in several fusions, all of one channel."""
    parts = "".join(
        f"""%part.{chain}.{i} (i: f32[16,128]) -> f32[64,128] {{
  %i = f32[16,128]{{1,0}} parameter(0)
  ROOT %all = f32[64,128]{{1,0}} all-gather(%i), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, \
frontend_attributes={{chain_id="{chain}"}}
}}
"""
        for chain, i in np.ndindex(2, 3)
    )
    x = "%x = f32[16,128]{1,0} parameter(0)"
    calls = [
        f"%f.{chain}.{i} = f32[64,128]{{1,0}} fusion(%x), kind=kCustom, calls=%part.{chain}.{i}"
        for chain, i in np.ndindex(2, 3)
    ]
    assert read_text(entry(x, *calls, before=parts)).exchanges() == {"all-gather": (2, 65536)}


def test_arrays_take_whole_tiles():
    sizes = {"bf16[16,17,64]{2,1,0:T(8,128)(2,1)}": 16 * 24 * 128 * 2, "f32[4,9]{0,1:T(8,128)}": 128 * 16 * 4}
    sizes |= {"f32[4,9]{1,0}": 144, "pred[3]": 3, "(s32[], f32[2])": 12, "bf16[64]{0:T(256)(128)(2,1)}": 512}
    assert {text: sum(array.bytes for array in read_arrays(text)) for text in sizes} == sizes


def test_a_product_of_several_matrices_written_as_a_convolution_counts_what_it_multiplies():
    """As a TPU's compiler writes it: of the window's places one a matrix is on numbers."""
    b, h, n, d = 16, 4, 17, 8
    lines = [
        f"%q = bf16[{b},{n},{h},{d}]{{3,2,1,0}} parameter(0)",
        f"%k = bf16[{b},{n},{h},{d}]{{3,2,1,0}} parameter(1)",
        f"%s = f32[{b},{h},{n},{n}]{{3,2,1,0}} convolution(%q, %k), window={{size={b}x{h} stride={b - 1}x{h - 1} "
        f"lhs_dilate={b}x{h}}}, dim_labels=0b1f_0o1i->01bf",
    ]
    assert read_text(entry(*lines)).flops == 2 * b * h * n * n * d


def test_of_branches_that_with_most_bytes_counts():
    branches = "\n".join(
        f"%{name} (p.{name}: f32[8,8]) -> f32[8,8] {{\n  %p.{name} = f32[8,8]{{1,0}} parameter(0)\n" + body + "\n}\n"
        for name, body in {
            "few": "  ROOT %n = f32[8,8]{1,0} negate(%p.few)",
            "many": "  %o = f32[8,8]{1,0} negate(%p.many)\n  ROOT %o.2 = f32[8,8]{1,0} negate(%o)",
        }.items()
    )
    line = "%r = f32[8,8]{1,0} conditional(%i, %a, %a), branch_computations={%few, %many}"
    inputs = ["%a = f32[8,8]{1,0} parameter(0)", "%i = s32[] parameter(1)"]
    assert read_text(entry(*inputs, line, before=branches)).bytes == 4 * 256
    assert np.isclose(read_text(entry(*inputs, line, before=branches)).count, 2)


def test_of_a_group_on_unequal_hosts_the_smaller_share_has_to_send_the_most():
    """Three devices of one host and one of another: all of what crosses leaves or enters the one."""
    crossing = [Collective("all-gather", devices, 256, 0).crossing(4) for devices in ((0, 1, 2, 4), (0, 1, 4, 5))]
    assert crossing == [128, 64]
