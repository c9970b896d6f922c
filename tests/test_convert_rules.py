"""Rows: each operation against index arithmetic, exact inverses, totality both ways, and what convert may load."""

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS, torch_ref
from convert.operations import TRANSPOSE, Concat, Order, Stack, Tie
from convert.plan.shared import members
from convert.recognise.config import resolve
from convert.rules import row
from tests.parity.cases import TRANSFORMER
from tests.random_weights import weights as random
from tests.test_processes import python
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig, sized_config

VIT = ViTConfig(
    image=(8, 12),
    patch=(4, 2),
    channels=3,
    classes=5,
    width=8,
    depth=2,
    heads=2,
    hidden=12,
    head_width=3,
    stem_pre_norm=True,
    stem_norm=True,
    distill_token=True,
    registers=2,
    layer_scale=0.1,
    qk_norm=True,
    gated=True,
    pre_norm=True,
    pool="cls_distill",
    distill_head=True,
    distill_norm=True,
    head_norm=True,
    head_hidden=6,
)
SEQ = replace(TRANSFORMER, decoder_depth=1, position="learned", position_offset=2, embedding_norm=True)


# ---------------------------------------------------------------------------------- operations


def test_a_patch_kernel_goes_to_the_place_that_its_pixel_has():
    d, c, p, q = 3, 2, 4, 5
    theirs = np.arange(d * c * p * q).reshape(d, c, p, q)
    (ours,) = Order("d c p q", "(p q c) d", dict(c=c, p=p, q=q)).read([theirs])
    assert ours.shape == (p * q * c, d)
    for i, j, k, n in np.ndindex(d, c, p, q):
        assert ours[(k * q + n) * c + j, i] == theirs[i, j, k, n]


@pytest.mark.parametrize(
    ("theirs", "ours", "sizes", "before", "after"),
    [
        ("1 n d", "n d", {}, (1, 4, 3), (4, 3)),
        ("1 1 d", "d", {}, (1, 1, 3), (3,)),
        ("(h e) d", "d h e", dict(h=2), (6, 5), (5, 2, 3)),
        ("d (h e)", "(e h) d", dict(e=3), (5, 6), (6, 5)),
        ("n", "n", {}, (0,), (0,)),
    ],
)
def test_an_order_reads_both_ways(theirs, ours, sizes, before, after):
    x = np.random.default_rng(0).normal(size=before)
    operation = Order(theirs, ours, sizes)
    (y,) = operation.read([x])
    assert y.shape == after
    assert np.array_equal(operation.write([y])[0], x)


def test_tied_copies_are_equal_in_every_bit():
    """Numbers that compare as equal (0 and -0) may differ in a bit, and NaN compares as unequal to itself."""
    zero, nan = np.zeros(2, np.float32), np.full(2, np.nan, np.float32)
    assert len(Tie(2).read([nan, nan.copy()])) == 1
    for other in (-zero, zero.astype(np.float64), np.zeros((2, 1), np.float32)):
        with pytest.raises(ValueError, match="copies of one tied tensor differ"):
            Tie(2).read([zero, other])


def test_tensors_of_two_dtypes_do_not_become_one():
    """numpy would widen the narrower, and the way back would not be exact."""
    parts = [np.zeros(2, np.float32), np.zeros(2, np.float16)]
    for operation in (Concat(0, (2, 2)), Stack(2)):
        with pytest.raises(ValueError, match="dtypes float16, float32"):
            operation.write(parts)


@pytest.mark.parametrize(
    ("order", "shape"),
    [
        (TRANSPOSE, (2, 3, 4)),  # an axis too many
        (Order("(h e) d", "h e d"), (6, 2)),  # of two joined axes neither is known
        (Order("(h e) d", "h e d", dict(h=4)), (6, 2)),  # 4 does not divide 6
        (Order("1 d", "d"), (2, 3)),  # what is to be dropped holds two
    ],
)
def test_an_order_refuses_what_it_does_not_describe(order, shape):
    with pytest.raises(ValueError):
        order.read([np.zeros(shape)])


# -------------------------------------------------------------------------------------- tables


def test_a_table_holds_no_matrix_that_lies_as_ours_does():
    """Square matrices would hide a forgotten transpose: each is held against its own transpose."""
    config = replace(VIT, hidden=8, head_width=4, classes=8, head_hidden=8)
    ours = random(config)
    theirs = rules.write(torch_ref.rows(config), ours)
    matrices = [name for name in ours if name.endswith("kernel") and name != "patch.kernel"]
    assert len(matrices) == 17  # 7 a block and 3 heads
    for name in matrices:
        assert np.array_equal(theirs[name.replace("kernel", "weight")], ours[name].T)


def test_shapes_are_known_without_any_weights():
    tracemalloc.start()
    shapes = rules.file_shapes(torch_ref.rows(sized_config("vit-l16")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shapes["patch.weight"] == (1024, 3, 16, 16) and shapes["blocks.23.mlp.fc1.weight"] == (4096, 1024)
    assert peak < 2e6  # the weights would be 1.2e9 bytes


# ------------------------------------------------------------------------------------ totality


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.network is ViTConfig])
def test_shapes_of_another_rank_are_refused(name, every):
    """Of all tensors, and of one in `every` alone, where the config follows from the shapes as far as they tell it."""
    layout, config = LAYOUTS[name], next(members(LAYOUTS[name]))
    good, fields = rules.file_shapes(rules.narrow(layout.rows(config))), layout.fields.items()
    untold = [key for key, each in fields if not each.follow and (each.solve is None or each.solve(good) is None)]
    said = [("--set", {key: getattr(config, key) for key in untold})]
    wrong = [(), (0,), (0, 0), (8, 8, 8), (1, 2, 3, 4, 5)]
    files = [dict.fromkeys(good, shape) for shape in wrong]
    files += [{**good, key: shape} for key, shape in zip([*good][::every], itertools.cycle(wrong), strict=False)]
    for names in (each for each in files if each != good):
        with pytest.raises(UserError):
            rules.check(rules.file_shapes(layout.rows(resolve(layout, names, said, "file"))), names, "file")


def test_all_faults_of_a_file_are_named_at_once():
    rows = torch_ref.rows(VIT)
    tensors = rules.write(rows, random(VIT))
    del tensors["head.weight"], tensors["blocks.1.norm1.bias"]
    tensors["head.wieght"] = np.zeros(1)
    tensors["cls_token"] = np.zeros((1, 8))
    with pytest.raises(UserError) as caught:
        rules.read(rows, tensors, "model.pt")
    told = str(caught.value)
    assert told.startswith("model.pt: names or shapes are not") and "\n" not in told
    assert "missing (2): blocks.1.norm1.bias, head.weight" in told
    assert "unknown (1): head.wieght" in told and "nearest: head.weight" in told
    assert "of another shape (1): cls_token [1, 8] instead of [1, 1, 8]" in told


def test_the_end_of_a_long_list_of_names_is_a_number():
    with pytest.raises(UserError, match=r"missing \(1\): a; unknown \(25\): b0, .* b18, b19 and 5 more"):
        rules.check({"a": (1,)}, {f"b{i}": (1,) for i in range(25)}, "model.pt")


@pytest.mark.parametrize("fault", ["missing", "unknown", "of another shape"])
@pytest.mark.parametrize("way", ["read", "write"])
def test_each_fault_alone_is_refused_both_ways(way, fault):
    rows, arrays = torch_ref.rows(SEQ), random(SEQ)
    if way == "read":
        arrays = rules.write(rows, arrays)
    apply, name = getattr(rules, way), next(iter(arrays))
    apply(rows, arrays)  # as they are they pass
    if fault == "missing":
        del arrays[name]
    elif fault == "unknown":
        arrays["another"] = np.zeros(3)
    else:
        arrays[name] = arrays[name][1:]
    with pytest.raises(UserError, match=rf"{fault} \(1\): {'another' if fault == 'unknown' else name}"):
        apply(rows, arrays)


def test_a_name_has_one_row():
    a, b = row("x", "a", (2,)), row("x", "b", (2,))
    with pytest.raises(ValueError, match="x is claimed by two rows"):
        rules.read([a, b], {"x": np.zeros(2)})
    with pytest.raises(ValueError, match="a is claimed by two rows"):
        rules.write([a, row("y", "a", (2,))], {"a": np.zeros(2)})


def test_convert_loads_no_framework():
    command = "import sys, convert.rules, convert.dialects; print(*sys.modules)"
    loaded = {*python(command).stdout.split()}
    assert "convert.dialects.torch_ref" in loaded
    assert not {"jax", "flax", "torch", "torch_ref"} & loaded
