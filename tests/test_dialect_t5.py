"""The layouts of the T5 family: which one, ties and scales by tensors and config.json, round trips, refusals.

Functions are compared with transformers in tests/parity.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert import rules
from convert.containers import open_source
from convert.containers.source import leaves
from convert.dialects import LAYOUTS, refused
from convert.dialects.t5 import read_feed_forward
from convert.layout import Facts
from convert.plan.plan import plan
from convert.recognise.config import resolve
from convert.recognise.layouts import Recognition, which_layout
from convert.recognise.reading import Options
from convert.recognise.reading import read as read_file
from convert.write.write import write
from tests.parity.cases import T5, T5_1
from tests.random_weights import weights
from vit_jax.errors import UserError

UMT5 = replace(T5_1, relative="blocks", scale_output=True)
ALONE = replace(T5, decoder_depth=0, target_vocabulary=0, outputs=0, tie="none")
BASE = replace(T5, outputs=0, tie="embeddings")
CONFIGS = {
    **{"t5": T5, "t5@base": BASE, "t5@encoder": ALONE, "mt5": T5_1, "umt5": UMT5},
    **{"umt5@encoder": replace(ALONE, relative="blocks"), "umt5@base": replace(BASE, relative="blocks")},
    **{"flax-t5": T5, "flax-t5@base": BASE, "flax-t5@encoder": ALONE},
}
EXTRA = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def tensors(name, config, names=()):
    arrays = weights(config)
    return arrays, rules.write(LAYOUTS[name].rows(config), arrays, names=names)


def read(name, config, files):
    """The layout and the config of a file that a layout has written, with these files beside it."""
    shapes = {key: array.shape for key, array in tensors(name, config)[1].items()}
    layout = which_layout("a file", Recognition.of(shapes), "", "", None, lambda each: each.read_side(files).config)
    stated = layout.read_side(files)
    return layout, resolve(layout, shapes, [("config.json", stated.config)], "a file"), stated


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_read_as_it_was_with_its_config_json(name):
    config, layout = CONFIGS[name], LAYOUTS[name]
    assert not layout.cannot(config)
    arrays, state = tensors(name, config)
    back = rules.read(layout.rows(config), state)
    assert {key: value.tobytes() for key, value in back.items()} == {k: v.tobytes() for k, v in arrays.items()}
    files = json.loads(json.dumps(layout.write_side(replace(config, dropout=0.1), Facts(extra=EXTRA))))
    assert config.decoder_depth in (0, files["config.json"]["num_decoder_layers"])
    found, read_back, stated = read(name, config, files)
    unclear = {"mt5": "t5", **{f"{one}@base": one for one in ("t5", "umt5", "flax-t5")}}  # --from names them
    taken = unclear.get(name, name)
    assert found.name == taken and stated.config["final_dropout"] == 0.1
    same = config if config.outputs or not config.decoder_depth else replace(config, outputs=9, tie="all")
    if same is config:
        assert replace(read_back, dropout=0.0, **dict.fromkeys(DROPOUTS, 0.0), **STARTS).normal() == config.normal()
        assert {**layout.write_side(read_back, stated)} == files
    assert stated.extra["pad_token_id"] == 0


DROPOUTS = ("attention_dropout", "activation_dropout", "embedding_dropout", "final_dropout")
STARTS = {"init": "t5", "embedding_std": 1.0}


@pytest.mark.parametrize(
    ("config", "beside", "tie", "scaled"),
    [
        (T5, {}, "all", True),  # as Google's first
        (T5_1, {"tie_word_embeddings": False}, "embeddings", False),  # T5 1.1 as version 4 saved it
        (T5_1, {"tie_word_embeddings": True, "scale_decoder_outputs": False}, "embeddings", False),  # as version 5 does
        (replace(T5_1, tie="all"), {"tie_word_embeddings": True, "scale_decoder_outputs": False}, "all", False),
        (T5_1, {"model_type": "mt5", "tie_word_embeddings": True}, "embeddings", False),
    ],
)
def test_ties_and_scale_are_those_of_transformers_5_whatever_tie_word_embeddings_says(config, beside, tie, scaled):
    files = {"config.json": {"feed_forward_proj": "gated-gelu" if config.gated else "relu", **beside}}
    _, found, _ = read("t5", config, files)
    assert (found.tie, found.scale_output) == (tie, scaled)
    assert (found.eps, found.relative_distance) == (1e-6, 128), "which old files do not state"


def test_old_files_with_all_four_tables_and_those_without_shared_are_read():
    copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    arrays, state = tensors("t5", T5, copies)
    assert copies < state.keys()
    without = {name: array for name, array in state.items() if name != "shared.weight"}  # as madlad400
    for each in (state, without):
        rows = rules.narrow(LAYOUTS["t5"].rows(T5), each)
        np.testing.assert_array_equal(rules.read(rows, each)["target.embedding"], arrays["target.embedding"])
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    assert LAYOUTS["t5"].left_out([*state, unread]) == [unread]


def test_two_tables_that_differ_where_one_is_expected_are_no_guess():
    _, state = tensors("t5", T5, {"lm_head.weight"})
    state["lm_head.weight"] = state["lm_head.weight"] + 1
    with pytest.raises(UserError, match=r"`fields tie=embeddings"):
        rules.read(rules.narrow(LAYOUTS["t5"].rows(T5), state), state)


@pytest.mark.parametrize("config", [T5, T5_1], ids=["tied", "a head of its own"])
def test_a_flax_file_tells_tie_and_scale_whatever_lies_beside_it(config):
    """mT5's class scaled a tied head too, and torch's config.json of version 5 may lie there."""
    for beside in ({"model_type": "mt5"}, {"tie_word_embeddings": not config.tied_head}, {"model_type": "t5"}):
        files = {"config.json": {"feed_forward_proj": "gated-gelu" if config.gated else "relu", **beside}}
        _, found, _ = read("flax-t5", config, files)
        assert (found.tie, found.scale_output) == (config.tie, config.tied_head)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish', but the networks here have relu"),
        ({"feed_forward_proj": "a-b-c"}, "'a-b-c'"),
        (
            {"model_type": "longt5"},
            "'longt5', .* names of t5, mt5, umt5; it cannot be converted",
        ),
    ],
)
def test_a_config_json_of_another_class_is_refused(changed, said):
    with pytest.raises(UserError, match=said):
        LAYOUTS["t5"].read_side({"config.json": {"model_type": "t5", **changed}})


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        ("t5", dict(outputs=12, tie="embeddings"), "outputs is 12"),
        ("t5", dict(gated=True, activation="gelu"), "config.json cannot state"),
        ("t5", dict(scale_attention=True), "scale_attention is True"),
        ("mt5", dict(scale_output=True, tie="embeddings"), "scale_output is True"),
        ("umt5", dict(), "relative is 'shared'"),
        ("t5@encoder", dict(), "decoder_depth is 1"),
        ("flax-t5", dict(scale_output=False), "scale_output is False and the head is tied"),
        ("flax-t5", dict(tie="embeddings"), "scale_output is True and the head has its own table"),
    ],
)
def test_what_a_layout_cannot_say_is_named(name, changed, why):
    assert any(why in reason for reason in LAYOUTS[name].cannot(replace(T5, **changed)))


def test_gelu_is_that_of_erf_and_gated_gelu_that_of_tanh():
    found = [read_feed_forward(text) for text in ("gelu", "gated-gelu", "gelu_new", "gated-silu")]
    assert found == [("gelu", False), ("gelu_tanh", True), ("gelu_tanh", False), ("silu", True)]


def test_t5_has_no_usual_first_token():
    assert "decoder_start_token_id" not in LAYOUTS["t5"].read_side({"config.json": {}}).extra
    assert LAYOUTS["umt5"].read_side({"config.json": {}}).extra["decoder_start_token_id"] == 0
    with pytest.raises(UserError, match="`fields decoder_start_token_id="):
        LAYOUTS["t5"].write_side(T5, Facts(extra={"pad_token_id": 0, "eos_token_id": 1}))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("encoder.block.0.layer.0.LocalSelfAttention.q.weight", "LongT5"),
        ("encoder.block.0.layer.0.TransientGlobalSelfAttention.q.weight", "LongT5"),
        ("mel_conditioner.embedding.weight", "Pop2Piano"),
        ("encoder.block.1.layer.1.mlp.router.classifier.weight", "Switch Transformers"),
    ],
)
def test_kin_of_t5_that_compute_something_else_are_refused_by_name(name, said):
    assert said in refused.why(["shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight", name])


@pytest.mark.parametrize(
    "names",
    [
        ["model.encoder.layers.0.pre_self_attn_layernorm.weight", "model.decoder.layers.0.mlp.up_proj.weight"],
        ["encoder.embed_tokens.weight", "encoder.layers.0.pre_self_attn_layernorm.weight"],  # its encoder alone
        [  # T5Gemma 2, whose encoder sees images, too
            "model.encoder.text_model.layers.0.pre_self_attn_layernorm.weight",
            "model.encoder.vision_tower.vision_model.embeddings.patch_embedding.weight",
        ],
    ],
)
def test_t5gemma_is_refused_by_name(names):
    assert "is T5Gemma" in refused.why(names)


def test_a_checkpoint_of_t5x_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "checkpoint").write_bytes(b"\x81\xa7version\x03")
    (tmp_path / "target.encoder.layers_0.mlp.wo.kernel").mkdir()
    with pytest.raises(UserError, match=r"a checkpoint of t5x.*convert_t5x_checkpoint_to_flax"):
        open_source(str(tmp_path))


def test_float16_of_t5_is_told_to_overflow_and_bfloat16_is_kept(tmp_path):
    import ml_dtypes

    _, state = tensors("t5", T5)
    save_file({name: x.astype(ml_dtypes.bfloat16) for name, x in state.items()}, tmp_path / "model.safetensors")
    config = LAYOUTS["t5"].write_side(T5, Facts(extra=EXTRA))["config.json"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for dtype, told in (("float16", True), ("", False)):
        reading = read_file(str(tmp_path), Options())
        with reading.source:
            planned = plan(reading, "flax-t5", dtype=dtype)
            written = write(planned, str(tmp_path / f"out{dtype}"))
        assert any("overflows" in note for note in written.notes) == told
        with open_source(str(tmp_path / f"out{dtype}")) as source:
            kept = {str(x.dtype) for x in leaves(source.tree).values()}
        assert kept == {dtype or "bfloat16"}
