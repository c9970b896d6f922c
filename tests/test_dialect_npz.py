"""Google's npz layouts: names, what shapes tell and what is asked for, stacked blocks, bfloat16 as nameless bytes."""

import io
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS, big_vision
from convert.recognise.config import MissingFields, resolve
from tests.random_weights import tensors
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

LINEN, PRE_LINEN = LAYOUTS["augreg@linen"], LAYOUTS["augreg@pre-linen"]
LOOP, SCAN, OLD, INLINED = (LAYOUTS[f"big-vision@{version}"] for version in ("loop", "scan", "2021", "2021-inlined"))
AUGREG = ViTConfig(image=4, patch=2, classes=5, width=8, depth=2, heads=4, hidden=12, activation="gelu_tanh")
TOK = replace(AUGREG, cls_position=False)
GAP = replace(AUGREG, cls_token=False, pool="mean")
MAP = replace(GAP, pool="map")
REP = replace(MAP, head_hidden=6)
SINCOS = replace(GAP, position="sincos2d", position_trained=False)


def shapes(layout, config):
    return {name: array.shape for name, array in tensors(layout, config).items()}


# ------------------------------------------------------------------------------------------- names


def test_both_spellings_of_augreg_are_flax_s_own_renaming():
    convert_pre_linen = pytest.importorskip("flax.training.checkpoints").convert_pre_linen
    traverse = pytest.importorskip("flax.traverse_util")
    old, new = (tensors(layout, replace(AUGREG, head_hidden=6)) for layout in (PRE_LINEN, LINEN))
    renamed = traverse.flatten_dict(convert_pre_linen(traverse.unflatten_dict(old, sep="/")), sep="/")
    assert renamed.keys() == new.keys() and old.keys() != new.keys()
    assert all(np.array_equal(renamed[name], array) for name, array in new.items())


def test_stacked_blocks_are_the_loop_s_behind_each_other():
    loop, scan = tensors(LOOP, MAP), tensors(SCAN, MAP)
    stacked = {
        n: np.stack([loop[n.replace("encoderblock", f"encoderblock_{i}")] for i in range(MAP.depth)])
        for n in scan
        if "encoderblock/" in n
    }
    assert len(stacked) == 16 and scan.keys() - stacked.keys() == {n for n in loop if "encoderblock_" not in n}
    assert all(np.array_equal(scan[name], stacked.get(name, loop.get(name))) for name in scan)
    back = rules.read(SCAN.rows(MAP), scan)
    assert all(np.array_equal(back[name], array) for name, array in rules.read(LOOP.rows(MAP), loop).items())


# ----------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize(
    ("layout", "config", "asked"),
    [
        (PRE_LINEN, AUGREG, ["image"]),
        (PRE_LINEN, GAP, ["image"]),
        (LOOP, TOK, ["image"]),
        (LOOP, MAP, ["image"]),
        (LOOP, GAP, ["image", "pool"]),  # its pool "0", the first patch's token, has the same names
        (SCAN, SINCOS, ["image", "pool"]),
        (OLD, MAP, ["image"]),
        (OLD, REP, ["image", "head_activation"]),
    ],
)
def test_what_no_shape_tells_is_asked_for(layout, config, asked):
    with pytest.raises(MissingFields) as caught:
        resolve(layout, shapes(layout, config), [], "file")
    assert sorted(caught.value.fields) == sorted(asked)


def test_heads_are_an_axis_of_a_kernel():
    for heads in (1, 2, 8):
        names = shapes(PRE_LINEN, replace(AUGREG, heads=heads))
        assert resolve(PRE_LINEN, names, [("--set", {"image": 4})], "file").heads == heads
        with pytest.raises(UserError, match=f"heads is 4 by --set but {heads} by its shapes"):
            resolve(PRE_LINEN, names, [("--set", {"image": 4, "heads": 4})], "file")


def test_the_first_position_is_the_class_token_s_where_their_reader_says_so():
    theirs = {
        n: int(np.sqrt(n)) ** 2 + 1 == n for n in range(1, 5000)
    }  # fix_old_checkpoints in big_vision's models/vit.py
    assert theirs == {n: big_vision.class_row(n) for n in theirs}


# ----------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("layout", "config", "told"),
    [
        (PRE_LINEN, replace(AUGREG, activation="gelu"), "activation is 'gelu', but the layout has only 'gelu_tanh'"),
        (LOOP, replace(TOK, eps=1e-12), "eps is 1e-12, but the layout has only 1e-06"),
        (LINEN, replace(AUGREG, pool="mean"), "cls_token is True and pool 'mean'"),
        (PRE_LINEN, MAP, "pool is 'map'"),
        (PRE_LINEN, TOK, "cls_position is False"),
        (LOOP, replace(REP, head_activation="none"), "head_activation is 'none'"),
        (LOOP, replace(SINCOS, cls_token=True, pool="cls"), "the class token has a computed position"),
        (
            LOOP,
            replace(AUGREG, image=(4, 6)),
            "position has 7 rows, of which big_vision's reader would take none for the class token",
        ),
    ],
)
def test_what_its_code_does_not_compute_is_refused(layout, config, told):
    assert told in "; ".join(layout.cannot(config))


# ---------------------------------------------------------------------------------------- bfloat16


@pytest.mark.parametrize("layout", [PRE_LINEN, LOOP, SCAN], ids=lambda layout: layout.name)
def test_bfloat16_is_nameless_bytes_in_a_file_and_comes_back_to_the_bit(layout):
    config = AUGREG if layout is PRE_LINEN else MAP
    file = tensors(layout, config, dtype=ml_dtypes.bfloat16)
    assert {array.dtype for array in file.values()} == {np.dtype("V2")}
    np.savez(saved := io.BytesIO(), **file)
    saved.seek(0)
    loaded = dict(np.load(saved, allow_pickle=False))
    p = rules.read(layout.rows(config), loaded)
    assert {array.dtype for array in p.values()} == {np.dtype(ml_dtypes.bfloat16)}
    again = rules.write(layout.rows(config), p)
    assert all(again[name].tobytes() == array.tobytes() and array.dtype == "V2" for name, array in file.items())
