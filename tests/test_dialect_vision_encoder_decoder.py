"""Hugging Face's VisionEncoderDecoder: its side files, what is refused, and the way of a folder through the commands.

(Against transformers itself: tests/parity.)
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from convert import rules
from convert.dialects import LAYOUTS, refused
from convert.layout import Facts
from convert.recognise.config import resolve
from tests.random_weights import weights
from vit_jax.errors import UserError
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

LAYOUT = LAYOUTS["vision-encoder-decoder"]
CONFIG = CaptionerConfig(
    vit=ViTConfig(image=8, patch=4, classes=0, width=12, depth=1, heads=2, hidden=20, eps=1e-12),
    text=TransformerConfig(
        width=8,
        heads=2,
        hidden=24,
        encoder_depth=0,
        decoder_depth=2,
        activation="gelu_tanh",
        eps=1e-5,
        position="learned",
        max_length=9,
        target_vocabulary=11,
        outputs=11,
        tie="decoder",
        output_bias=False,
    ),
)
IDS = {"pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}
PREPROCESS = {
    "image": [8, 8],
    "channels": 3,
    "fit": "stretch",
    "size": 0,
    "interpolation": "bilinear",
    "background": 255,
    "mean": [0.5] * 3,
    "std": [0.5] * 3,
}


def tensors(config=CONFIG):
    return rules.write(rules.narrow(LAYOUT.rows(config)), weights(config))


@pytest.fixture
def folder(tmp_path):
    """A folder as the library saves it: with a pooler, which nothing reads."""
    place = tmp_path / "hf"
    place.mkdir()
    more = {
        "encoder.pooler.dense.weight": np.ones((12, 12), np.float32),
        "encoder.pooler.dense.bias": np.ones(12, np.float32),
    }
    save_file({**tensors(), **more}, place / "model.safetensors")
    for name, content in LAYOUT.write_side(CONFIG.normal(), Facts(preprocess=PREPROCESS, extra=IDS)).items():
        (place / name).write_text(json.dumps(content))
    return place


def test_side_files_state_the_whole_config():
    files = LAYOUT.write_side(CONFIG.normal(), Facts(preprocess=PREPROCESS, extra=IDS))
    assert set(files) == {"config.json", "generation_config.json", "preprocessor_config.json"}
    facts = LAYOUT.read_side(files)
    searched = {**IDS, "max_new_tokens": 9}  # as many as the decoder has positions
    assert facts.extra == {**IDS, "generation": searched} and facts.preprocess["mean"] == [0.5] * 3
    names = {name: array.shape for name, array in tensors().items()}
    assert resolve(LAYOUT, names, [("its config.json", facts.config)], "x").normal() == CONFIG.normal()
    with pytest.raises(UserError, match=r"x: its tensors cannot tell vit.image, .*`fields vit.image=\.\.\."):
        resolve(LAYOUT, names, [], "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "vit"}, "model_type is 'vit', but this layout is of vision-encoder-decoder"),
        (
            {"encoder": {"model_type": "swin"}},
            "model_type of its encoder is 'swin', but this layout is of vit and deit",
        ),
        ({"decoder": 3}, "model_type of its decoder is 3"),
        ({"decoder": {"scale_attn_weights": False}}, "scale_attn_weights is False, which no network here has"),
        ({"decoder": {"activation_function": "mish"}}, "decoder.activation_function is 'mish'"),
    ],
)
def test_other_classes_are_refused_in_one_sentence(change, message):
    files = LAYOUT.write_side(CONFIG.normal(), Facts())
    files["config.json"] |= {
        key: {**files["config.json"][key], **value} if isinstance(value, dict) else value
        for key, value in change.items()
    }
    with pytest.raises(UserError, match=message) as caught:
        LAYOUT.read_side(files)
    assert "\n" not in str(caught.value)


def test_networks_that_it_cannot_hold():
    for config, reason in (
        (replace(CONFIG, memory="patches"), "memory is 'patches'"),
        (replace(CONFIG, text=replace(CONFIG.text, norm_first=False)), "text.norm_first is False"),
        (replace(CONFIG, vit=replace(CONFIG.vit, query_bias=False)), "vit: only some of query, key and value"),
    ):
        assert any(reason in clause for clause in LAYOUT.cannot(config)), config
    assert not LAYOUT.cannot(CONFIG)


def test_other_decoders_are_refused_by_name_and_this_one_is_not():
    assert not refused.why(tensors())
    names = [name.replace("decoder.transformer.h", "decoder.model.decoder.layers") for name in tensors()]
    assert "take its ViT alone with `key encoder" in refused.why(names)


def test_a_folder_is_converted_there_and_back_with_all_that_it_holds(folder, tmp_path, convert):
    for step in (
        (folder, tmp_path / "x.safetensors"),
        (tmp_path / "x.safetensors", tmp_path / "back", "--to", LAYOUT.name),
    ):
        code, _, error = convert(*step)
        assert code == 0, error
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
    one, two = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "back"))
    assert one == two
    code, shown, _ = convert("inspect", folder)
    assert code == 0 and "vision-encoder-decoder" in shown and "Captioner" in shown
    net = vit_jax.load(folder)
    assert net.lacks == ("words",) and net.model.config.normal() == CONFIG.normal()


# ------------------------------------------------------------------------------------ with a tokenizer

# GPT-2's two files, for the letters a to h. Its one special token begins, ends and pads.
VOCABULARY = {"<|endoftext|>": 0, **{piece: i for i, piece in enumerate("abcdefgh", 1)}, "ab": 9, "abc": 10}
MERGES = "#version: 0.2\na b\nab c\n"
END = {name: "<|endoftext|>" for name in ("bos_token", "eos_token", "unk_token")}


@pytest.fixture
def speaking(folder):
    """The folder with a tokenizer and settings of a search, as vit-gpt2-image-captioning has them."""
    pytest.importorskip("tokenizers")
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    (folder / "merges.txt").write_text(MERGES)
    (folder / "special_tokens_map.json").write_text(json.dumps(END))
    ids = {name: 0 for name in (*IDS, "bos_token_id")}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ids))
    (folder / "generation_config.json").write_text(json.dumps({**ids, "max_length": 8, "num_beams": 2}))
    return folder


def test_a_folder_with_a_tokenizer_says_captions(speaking, tmp_path):
    """Also after a conversion to our own layout and back, with the tokenizer in the other of its two forms."""
    net = vit_jax.load(speaking)
    assert (net.task.decoding.beam, net.task.decoding.max_length) == (2, 7)
    ids = net.task.target.ids
    assert (ids.pad, ids.begin, ids.end) == (0, 0, 0) and ids.banned == ()
    assert net.task.target.encode("abcab").tolist() == [10, 9] and net.task.target.decode([10, 9, 0, 3]) == "abcab"
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), dtype=np.uint8)
    said = net.predict(pixels)
    assert len(said) == 3 and all(set(each) <= set("abcdefgh") for each in said) and any(said)
    vit_jax.export(net, tmp_path / "run")
    vit_jax.export(vit_jax.load(tmp_path / "run"), tmp_path / "back", to=LAYOUT.name)
    again = vit_jax.load(tmp_path / "back")
    assert (tmp_path / "back/tokenizer.json").is_file() and not (tmp_path / "back/vocab.json").exists()
    assert again.task.target.kept["size"] == 11 and again.task.target.ids == ids
    assert (tmp_path / "back/preprocessor_config.json").is_file() and again.preprocess == net.preprocess
    stated = json.loads((tmp_path / "back/generation_config.json").read_text())
    assert stated == {name: 0 for name in IDS}
    before, after = load_file(speaking / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert len(after) > 40 and all((before[name] == x).all() for name, x in after.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab.json": None}, "has merges.txt but no vocab.json; put it there"),
        ({"merges.txt": "#version: 0.2\nab\n"}, r"merges.txt: is no tokenizer that can be read \(.*line 1"),
        ({"merges.txt": "#version: 0.2\nx y\n"}, "merges.txt: is no tokenizer that can be read"),
        ({"vocab.json": "{"}, "vocab.json: cannot be read as JSON"),
        ({"added_tokens.json": '{"<pad>": 20}'}, "added_tokens.json: the id of '<pad>' is 20, but should be 11; corr"),
        (
            {"tokenizer_config.json": '{"added_tokens_decoder": {"500": {"content": "dog"}}}'},
            "tokenizer_config.json: the id of 'dog' is 500, but should be",
        ),
        (
            {"tokenizer_config.json": '{"added_tokens_decoder": {"500": "dog"}}'},
            "_config.json: added_tokens_decoder has",
        ),
        ({"added_tokens.json": '{"<pad>": 11}'}, "has ids for 12, and the network for 11; put there the one"),
    ],
)
def test_a_damaged_tokenizer_is_refused_in_one_sentence(speaking, changes, message):
    for name, content in changes.items():
        (speaking / name).unlink(missing_ok=True)
        if content is not None:
            (speaking / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        vit_jax.load(speaking)
    assert "\n" not in str(caught.value)
