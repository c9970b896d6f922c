"""vit-pytorch's layouts: which version has which names, what its files tell, and what they are refused for."""

from dataclasses import replace

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS, simple_vit, vit_pytorch, vit_pytorch_distill
from convert.recognise.config import MissingFields, resolve
from tests.random_weights import weights
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

MODULES = {"vit-pytorch": vit_pytorch, "simple-vit": simple_vit, "vit-pytorch-distill": vit_pytorch_distill}
NO_BIAS = dict(query_bias=False, key_bias=False, value_bias=False, eps=1e-5)
OLD = ViTConfig(
    image=(8, 12), patch=(4, 2), channels=3, classes=5, width=8, depth=2, heads=2, hidden=12, head_width=3, **NO_BIAS
)
NEW = replace(OLD, stem_pre_norm=True, stem_norm=True)
SIMPLE = replace(NEW, cls_token=False, pool="mean", position="sincos2d", position_trained=False, out_bias=False)
TOKEN = dict(distill_token=True, distill_position=False, distill_head=True, distill_norm=True)
SAID = dict(image=(8, 12), patch=(4, 2), heads=2)


def shapes(layout, config):
    return rules.file_shapes(LAYOUTS[layout].rows(config))


# ---------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("dialect", "version", "since"),
    [
        ("vit-pytorch", "0.6.7", "0.6.7"),
        ("vit-pytorch", "0.6.8", "0.6.7"),
        ("vit-pytorch", "0.9.2", "0.7"),
        ("vit-pytorch", "0.29.0", "0.10"),
        ("vit-pytorch", "1.2.9", "1.0"),
        ("vit-pytorch", "1.7.3", "1.4"),
        ("vit-pytorch", "1.16.0", "1.16"),
        ("vit-pytorch", "1.16.1", "1.16.1"),
        ("vit-pytorch", "1.26.11", "1.16.1"),
        ("simple-vit", "0.40.2", "0.35.3"),
        ("simple-vit", "1.3", "1.0"),
        ("simple-vit", "1.26.11", "1.4.1"),
        ("vit-pytorch-distill", "0.29.0", "0.10"),
        ("vit-pytorch-distill", "1.15.0", "1.4"),
        ("vit-pytorch-distill", "1.26.11", "1.16.5"),
    ],
)
def test_a_version_is_found_in_the_run_of_versions_that_holds_it(dialect, version, since):
    assert MODULES[dialect].layout_for(version) is LAYOUTS[f"{dialect}@{since}"]


@pytest.mark.parametrize(
    ("dialect", "version", "why"),
    [
        ("vit-pytorch", "0.6.6", "width of a token"),
        ("vit-pytorch", "latest", "is not a version"),
        ("simple-vit", "0.35.2", "from 0.35.3 on"),
        ("simple-vit", "1.4.0", "LayerNorm"),
        ("vit-pytorch-distill", "0.6.8", "student alone"),
        ("vit-pytorch-distill", "1.16.3", "cannot run"),
    ],
)
def test_a_version_that_is_not_known_is_refused_with_the_reason(dialect, version, why):
    with pytest.raises(UserError, match=why) as caught:
        MODULES[dialect].layout_for(version)
    assert str(caught.value).startswith(f"{dialect}@{version}: ") and "\n" not in str(caught.value)


def test_names_that_older_versions_have_too_are_not_taken_without_a_word():
    ambiguous = [layout.name for layout in LAYOUTS.values() if layout.dialect in MODULES and layout.refuses("choice")]
    assert ambiguous == ["vit-pytorch@0.6.7"]
    assert "before 0.6.7" in LAYOUTS["vit-pytorch@0.6.7"].refuses("choice")[0]


@pytest.mark.parametrize(
    ("tokens", "layout"),
    [
        ((1, 1, 8), "vit-pytorch@1.4"),
        ((1, 0, 8), "vit-pytorch@1.16"),
        ((1, 8), "vit-pytorch@1.16.1"),
        ((0, 8), "vit-pytorch@1.16.1"),
    ],
)
def test_versions_with_the_same_names_are_told_apart_by_the_class_token(tokens, layout):
    names = {**shapes("vit-pytorch@1.16.1", NEW), "cls_token": tokens}
    assert [each.name for each in LAYOUTS.values() if each.recognises(names)] == [layout]


# ------------------------------------------------------------------------------------------ tensors


def test_a_patch_weight_and_the_three_projections_lie_where_the_library_has_them():
    ours = weights(NEW)
    theirs = rules.write(vit_pytorch.rows(NEW), ours)
    for row, column, channel, out in np.ndindex(4, 2, 3, 8):
        assert (
            theirs["to_patch_embedding.2.weight"][out, (row * 2 + column) * 3 + channel]
            == ours["patch.kernel"][(row * 2 + column) * 3 + channel, out]
        )
    qkv = theirs["transformer.layers.1.0.to_qkv.weight"]
    assert qkv.shape == (3 * 6, 8)
    for n, part in enumerate(("query", "key", "value")):
        for head, unit in np.ndindex(2, 3):
            assert np.array_equal(
                qkv[n * 6 + head * 3 + unit], ours[f"blocks.1.attention.{part}.kernel"][:, head * 3 + unit]
            )


def test_the_newest_mean_has_a_class_token_of_no_rows():
    mean = replace(NEW, cls_token=False, pool="mean")
    theirs = rules.write(vit_pytorch.rows(mean), weights(mean))
    assert theirs["cls_token"].shape == (0, 8) and theirs["pos_embedding"].shape == (12, 8)
    config = resolve(LAYOUTS["vit-pytorch@1.16.1"], {n: a.shape for n, a in theirs.items()}, [("--set", SAID)], "file")
    assert (config.cls_token, config.pool) == (False, "mean")
    assert all(np.array_equal(a, weights(mean)[n]) for n, a in rules.read(vit_pytorch.rows(config), theirs).items())
    half = {n: a.astype(np.float32 if "norm" in n else np.float16) for n, a in weights(mean).items()}
    assert rules.write(vit_pytorch.rows(mean), half)["cls_token"].dtype == np.float16  # as most of the others


# ------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("layout", "config", "asked"),
    [
        ("vit-pytorch@0.10", OLD, "image, patch, heads, pool"),
        ("vit-pytorch@1.16.1", NEW, "image, patch, heads"),
        ("simple-vit@1.4.1", SIMPLE, "image, patch, heads"),
    ],
)
def test_what_a_file_cannot_tell_is_asked_for(layout, config, asked):
    names = shapes(layout, config)
    with pytest.raises(MissingFields) as caught:
        resolve(LAYOUTS[layout], names, [], "model.pt")
    assert sorted(caught.value.fields) == sorted(asked.split(", "))
    said = {**SAID, "pool": "cls"} if "pool" in asked else SAID
    assert resolve(LAYOUTS[layout], names, [("--set", said)], "model.pt").normal() == config.normal()


@pytest.mark.parametrize("pool", ["cls", "mean_all"])
def test_the_norm_behind_old_blocks_is_named_by_the_pooling(pool):
    names = shapes("vit-pytorch@0.10", OLD)
    config = resolve(LAYOUTS["vit-pytorch@0.10"], names, [("--set", {**SAID, "pool": pool})], "file")
    assert (config.final_norm, config.head_norm) == (pool == "cls", pool == "mean_all")
    assert shapes("vit-pytorch@0.10", config) == names


@pytest.mark.parametrize(
    "said",
    [
        dict(heads=0),
        dict(patch=0),
        dict(heads="two"),
        dict(patch=(4, 4, 4)),
        dict(head_width=5),
        dict(depth=3),
    ],
)
def test_wrong_words_about_a_file_are_refused_in_a_sentence(said):
    with pytest.raises(UserError) as caught:
        resolve(
            LAYOUTS["vit-pytorch@1.16.1"], shapes("vit-pytorch@1.16.1", NEW), [("--set", {**SAID, **said})], "model.pt"
        )
    assert next(iter(said)) in str(caught.value) and "\n" not in str(caught.value)


def test_a_block_of_any_number_does_not_make_a_network_of_as_many():
    names = {**shapes("vit-pytorch@1.16.1", NEW), "transformer.layers.999999999.0.norm.weight": (8,)}
    config = resolve(LAYOUTS["vit-pytorch@1.16.1"], names, [("--set", SAID)], "model.pt")
    assert config.depth == 3
    with pytest.raises(UserError, match=r"unknown \(1\): transformer.layers.999999999.0.norm.weight"):
        rules.check(shapes("vit-pytorch@1.16.1", config), names, "model.pt")


@pytest.mark.parametrize("layout", ["vit-pytorch@1.16.1", "torch-ref@vit"])
def test_a_carried_config_of_more_blocks_than_tensors_is_refused_before_a_table_is_made_of_it(layout):
    said = {name: getattr(replace(NEW, depth=10**12), name) for name in LAYOUTS[layout].fields}
    with pytest.raises(UserError, match=r"file: depth is 1000000000000 but it holds \d+ tensors"):
        resolve(LAYOUTS[layout], shapes(layout, NEW), [("its own metadata", said)], "file")


def test_the_config_that_a_file_carries_need_not_be_spelt_as_ours():
    """head_width said though it is width / heads, positions that began as sinusoids."""
    spelt = replace(NEW, head_width=4, position="sincos1d")
    names = shapes("vit-pytorch@1.16.1", spelt)
    said = {name: getattr(spelt, name) for name in LAYOUTS["vit-pytorch@1.16.1"].fields}
    assert resolve(LAYOUTS["vit-pytorch@1.16.1"], names, [("its own metadata", said)], "file") == spelt


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("layout", "config", "reason"),
    [
        ("vit-pytorch@1.16.1", replace(NEW, heads=1, head_width=8), "out projection"),
        ("vit-pytorch@1.16.1", replace(NEW, pool="mean"), "class token"),
        ("vit-pytorch@1.16", NEW, "vit-pytorch@1.4"),
        ("vit-pytorch@0.7", OLD, "square"),
        ("vit-pytorch@0.10", replace(OLD, final_norm=False, head_norm=True), "final_norm with pool 'cls'"),
        ("simple-vit@1.4.1", replace(SIMPLE, width=4, heads=1, head_width=3), "divide by zero"),
        ("vit-pytorch-distill@1.4", NEW, "distill_token is False"),
    ],
)
def test_a_network_that_a_version_cannot_hold_is_refused_with_the_reason(layout, config, reason):
    assert reason in "; ".join(LAYOUTS[layout].cannot(config))


def test_one_head_as_wide_as_a_token_was_another_matter_before_the_projection_could_vanish():
    square = replace(OLD, image=8, patch=4, heads=1, head_width=8)
    assert not LAYOUTS["vit-pytorch@0.6.7"].cannot(square) and LAYOUTS["vit-pytorch@0.7"].cannot(square)


def test_a_file_without_out_projections_is_refused_by_name():
    one = replace(NEW, heads=1, head_width=8)
    names = {name: shape for name, shape in rules.file_shapes(vit_pytorch.rows(one)).items() if ".to_out." not in name}
    layout = LAYOUTS["vit-pytorch@1.16.1"]
    assert layout.recognises(names)
    old = {n.replace("to_out.0", "to_out"): shape for n, shape in shapes("vit-pytorch@0.6.7", OLD).items()}
    with pytest.raises(UserError, match=r"to_out\.weight, as in the oldest versions, .* give all tensors") as found:
        resolve(LAYOUTS["vit-pytorch@0.6.7"], old, [("--set", SAID)], "model.pt")
    assert "identity" not in str(found.value)  # which would drop trained weights
    with pytest.raises(UserError, match=r"model.pt: it has no transformer.layers.0.0.to_out.0.weight .*identity"):
        resolve(layout, names, [("--set", {**SAID, "heads": 1})], "model.pt")
    extended = {
        **names,
        **{
            f"transformer.layers.{i}.0.to_out.0.{leaf}": shape
            for i in range(one.depth)
            for leaf, shape in (("weight", (8, 8)), ("bias", (8,)))
        },
    }
    found = resolve(layout, extended, [("--set", {**SAID, "heads": 1})], "model.pt")  # what the message says to do
    assert rules.file_shapes(rules.narrow(layout.rows(found))) == extended
    assert layout.cannot(found) and not layout.cannot(
        found, weights_only=True
    )  # its class would not build the projections


def test_the_version_whose_head_is_a_norm_is_refused_by_name():
    names = {**shapes("simple-vit@1.4.1", SIMPLE), "linear_head.weight": (8,), "linear_head.bias": (8,)}
    with pytest.raises(UserError, match=r"1\.4\.0 ends in a LayerNorm"):
        resolve(LAYOUTS["simple-vit@1.4.1"], names, [("--set", SAID)], "model.pt")


# -------------------------------------------------------------------------------------- distillation


@pytest.mark.parametrize(
    ("layout", "config"),
    [
        ("vit-pytorch-distill@0.10", replace(OLD, **TOKEN, final_norm=False, head_norm=True)),
        ("vit-pytorch-distill@1.16.5", replace(NEW, **TOKEN)),
        ("vit-pytorch-distill@1.16.5", replace(NEW, **{**TOKEN, "distill_norm": False})),
    ],
)
def test_a_wrapper_is_read_as_a_whole_without_its_teacher(layout, config):
    names = {**shapes(layout, config), "teacher.conv1.weight": (64, 3, 7, 7), "teacher.bn1.num_batches_tracked": ()}
    assert [each.name for each in LAYOUTS.values() if each.recognises(names)] == [layout]
    assert LAYOUTS[layout].left_out(names) == ["teacher.conv1.weight", "teacher.bn1.num_batches_tracked"]
    assert resolve(LAYOUTS[layout], names, [("--set", SAID)], "file").normal() == config.normal()
    student = {name.removeprefix("student."): shape for name, shape in names.items() if name.startswith("student.")}
    assert sum(each.recognises(student) for each in LAYOUTS.values()) == 1
