"""Encoder-decoder layouts: recognition, configs from shapes and config.json, refusals. (Functions: tests/parity.)"""

import json
from dataclasses import replace

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.plan.plan import target_layout
from convert.recognise.config import resolve
from tests.parity.cases import TRANSFORMER
from tests.random_weights import weights as random
from vit_jax.errors import UserError

BASE = replace(TRANSFORMER, decoder_depth=1, source_vocabulary=9, outputs=9, eps=1e-5, tie="all")
MARIAN = replace(BASE, norm_first=False, final_norm=False, position="concatenated")
BART = replace(BASE, norm_first=False, final_norm=False, position="learned", position_offset=2, embedding_norm=True)
MBART = replace(BART, norm_first=True, final_norm=True)
M2M = replace(BASE, position="fairseq", position_offset=2, output_bias=False)
TORCH = replace(
    BASE,
    source_vocabulary=0,
    target_vocabulary=0,
    outputs=0,
    position="none",
    max_length=0,
    tie="none",
    norm_first=False,
)
ENCODER = replace(TORCH, decoder_depth=0, final_norm=False)
NOTEBOOK = replace(
    TORCH,
    heads=3,
    head_width=2,
    final_norm=False,
    activation="relu",
    position="one_frequency",
    outputs=8,
    causal=False,
)
CONFIGS = {
    **{
        f"{name}@base": replace(c, tie="embeddings", outputs=0)
        for name, c in (("marian", MARIAN), ("bart", BART), ("mbart", MBART), ("m2m-100", M2M))
    },
    "marian": MARIAN,
    "bart": BART,
    "mbart": MBART,
    "m2m-100": M2M,
    "flax-seq2seq@marian": MARIAN,
    "flax-seq2seq@bart": BART,
    "flax-seq2seq@mbart": MBART,
    "torch-transformer": TORCH,
    "torch-transformer@encoder": ENCODER,
    "notebook-transformer": NOTEBOOK,
}
UNTOLD = {  # by shapes and by the layout
    "marian": {"heads", "activation", "scale_embedding", "max_length"},
    "bart": {"heads", "activation", "scale_embedding"},
    "mbart": {"heads", "activation", "scale_embedding"},
    "m2m-100": {"heads", "activation", "scale_embedding", "max_length"},
    "marian@base": {"heads", "activation", "scale_embedding"},  # it saves its sinusoids
    "torch-transformer": {"heads", "activation", "norm_first", "eps", "causal"},
    "torch-transformer@encoder": {"heads", "activation", "norm_first", "eps"},
    "notebook-transformer": set(),
}
SIDES = [name for name in CONFIGS if LAYOUTS[name].extras]
EXTRA = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1}


def shapes(layout, config):
    return {name: array.shape for name, array in rules.write(LAYOUTS[layout].rows(config), random(config)).items()}


def said(config, *names):
    return [("--set", {name: getattr(config, name) for name in names})]


# ---------------------------------------------------------------------------------- which and what


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_tell_all_but_what_has_no_shape(name):
    layout, c = LAYOUTS[name], CONFIGS[name]
    untold = UNTOLD.get(name) or UNTOLD[name.replace("flax-seq2seq@", "").removesuffix("@base")]
    assert resolve(layout, shapes(name, c), said(c, *untold), "a file").normal() == c.normal()
    for field in untold:
        with pytest.raises(UserError, match=rf"cannot tell {field};.*`fields {field}=\.\.\."):
            resolve(layout, shapes(name, c), said(c, *untold - {field}), "a file")


@pytest.mark.parametrize(("norm_first", "bias"), [(True, True), (False, False)])
def test_torchs_biases_are_seen(norm_first, bias):
    c = replace(TORCH, norm_first=norm_first, bias=bias, norm_bias=bias)
    layout, told = LAYOUTS["torch-transformer"], said(c, *UNTOLD["torch-transformer"])
    assert resolve(layout, shapes(layout.name, c), told, "a file").bias == bias


@pytest.mark.parametrize(
    ("name", "changed", "why"),
    [
        ("torch-transformer", dict(norm_bias=False), "norm_bias is False"),
        ("torch-transformer", dict(outputs=5), "outputs is 5"),
        ("torch-transformer@encoder", dict(decoder_depth=1), "decoder_depth is 1"),
        ("marian", dict(position="interleaved"), "position is 'interleaved'"),
        ("marian", dict(tie="embeddings"), "tie is 'embeddings'"),
        ("bart", dict(eps=1e-6), "eps is 1e-06"),
        ("mbart", dict(norm_first=False), "norm_first is False"),
        ("m2m-100", dict(position_offset=0), "position_offset is 0"),
        ("m2m-100", dict(outputs=5, tie="embeddings"), "tie is 'embeddings'"),
    ],
)
def test_what_a_layout_cannot_say_is_named(name, changed, why):
    assert any(why in reason for reason in LAYOUTS[name].cannot(replace(CONFIGS[name], **changed)))


# ---------------------------------------------------------------------------------------- tensors


def test_marians_sinusoids_are_vaswanis_in_halves_rounded_to_float32():
    c = replace(MARIAN, tie="decoder")
    written = rules.write(LAYOUTS["marian"].rows(c), random(c), names={"model.encoder.embed_positions.weight"})
    table = written["model.encoder.embed_positions.weight"]
    assert table.dtype == np.float32
    assert table.shape == (6, 8)
    for t, j in np.ndindex(6, 4):
        assert table[t, j] == np.float32(np.sin(t / 10000 ** (2 * j / 8)))
        assert table[t, j + 4] == np.float32(np.cos(t / 10000 ** (2 * j / 8)))


def test_tables_of_other_positions_are_refused():
    state = rules.write(LAYOUTS["marian"].rows(MARIAN), random(MARIAN), names={"model.encoder.embed_positions.weight"})
    state["model.encoder.embed_positions.weight"] = state["model.encoder.embed_positions.weight"] * np.float32(2)
    with pytest.raises(UserError, match="computed constant has other values"):
        rules.read(LAYOUTS["marian"].rows(MARIAN), state)


def test_old_files_with_all_copies_come_back_with_all_copies():
    layout, p = LAYOUTS["bart"], random(BART)
    copies = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
    state = rules.write(layout.rows(BART), p, names=copies)
    assert copies < state.keys()
    assert rules.write(layout.rows(BART), rules.read(layout.rows(BART), state), names=state).keys() == state.keys()
    assert not copies & rules.write(layout.rows(BART), p).keys()


# ------------------------------------------------------------------------------------- config.json


@pytest.mark.parametrize("name", SIDES)
def test_side_files_say_the_config_and_the_ids(name):
    layout, changed = LAYOUTS[name], dict(activation="silu", scale_embedding=True, dropout=0.1, embedding_dropout=0.1)
    c = replace(CONFIGS[name], **changed)
    files = json.loads(json.dumps(layout.write_side(c, Facts(extra={**EXTRA, "forced_eos_token_id": 0}))))
    facts = layout.read_side(files)
    assert resolve(layout, shapes(name, c), [("config.json", facts.config)], "a file").normal() == c.normal()
    assert facts.extra["pad_token_id"] == 1
    assert facts.extra["forced_eos_token_id"] == 0
    assert layout.write_side(c, facts) == files


def test_a_class_with_a_head_and_one_without_are_told_apart_and_the_one_with_is_written():
    names = shapes("bart", BART)
    base, config = LAYOUTS["bart@base"], CONFIGS["bart@base"]
    own = {name.removeprefix("model.") for name in names} - {"final_logits_bias"}
    assert set(shapes("bart@base", config)) == own
    assert base.write_side(config, Facts(extra=EXTRA))["config.json"]["architectures"] == ["BartModel"]
    assert target_layout("bart", BART) is LAYOUTS["bart"]


def test_no_side_files_say_nothing():
    assert LAYOUTS["marian"].read_side({}) == Facts()


def test_settings_of_generation_are_carried():
    files = {
        **LAYOUTS["marian"].write_side(MARIAN, Facts(extra=EXTRA)),
        "generation_config.json": {"num_beams": 4, "bad_words_ids": [[1]]},
    }
    written = LAYOUTS["marian"].write_side(MARIAN, LAYOUTS["marian"].read_side(files))
    assert written["generation_config.json"].items() >= {"num_beams": 4, "bad_words_ids": [[1]]}.items()
    old = {**files["config.json"], "num_beams": 6}
    assert LAYOUTS["marian"].read_side({"config.json": old}).extra["generation"] == {"num_beams": 6}


def test_absent_keys_are_what_the_library_takes():
    facts = LAYOUTS["mbart"].read_side({"config.json": {"model_type": "mbart"}})
    assert facts.config["heads"] == 16
    assert facts.config["activation"] == "gelu"
    assert facts.config["scale_embedding"] is False
    assert facts.extra["decoder_start_token_id"] is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (dict(model_type="blenderbot-small"), "'blenderbot-small', a class .* cannot be converted"),
        (dict(model_type="mbart"), "'mbart' but the tensors have the names of 'bart'; give the config.json"),
        (dict(decoder_attention_heads=4), "decoder_attention_heads is 4"),
        (dict(decoder_ffn_dim=24), "decoder_ffn_dim is 24"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings is false"),
        (dict(activation_function="mish"), "'mish'"),
        (dict(activation_function=["gelu"]), "activation_function"),
    ],
)
def test_a_config_json_that_no_network_here_has_is_refused(changed, why):
    files = LAYOUTS["bart"].write_side(BART, Facts(extra=EXTRA))
    with pytest.raises(UserError, match=why):
        LAYOUTS["bart"].read_side({"config.json": {**files["config.json"], **changed}})


def test_a_config_json_of_another_size_is_refused():
    facts = LAYOUTS["bart"].read_side(LAYOUTS["bart"].write_side(replace(BART, hidden=16), Facts(extra=EXTRA)))
    with pytest.raises(UserError, match=r"hidden is 16 by config.json but 12 by its shapes"):
        resolve(LAYOUTS["bart"], shapes("bart", BART), [("config.json", facts.config)], "a file")


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({}, "give `fields pad_token_id=.* eos_token_id=.* decoder_start_token_id=.*`, or `weights_only True`"),
        ({**EXTRA, "pad_token_id": 9}, "pad_token_id is 9"),
    ],
)
def test_ids_of_special_tokens_are_never_invented(extra, why):
    with pytest.raises(UserError, match=why):
        LAYOUTS["marian"].write_side(MARIAN, Facts(extra=extra))


def test_the_positions_of_m2m_100_begin_after_padding():
    layout, other = LAYOUTS["m2m-100"], {**EXTRA, "pad_token_id": 0}
    for refused in (
        lambda: layout.read_side({"config.json": {"model_type": "m2m_100", **other}}),
        lambda: layout.write_side(M2M, Facts(extra=other)),
    ):
        with pytest.raises(UserError, match=r"pad_token_id is 0, .* here the first token has position 2"):
            refused()
    stored = {**shapes("m2m-100", M2M), "model.encoder.embed_positions.weights": (8, 8)}  # by older versions
    assert layout.recognises(stored) and layout.left_out(stored) == ["model.encoder.embed_positions.weights"]
