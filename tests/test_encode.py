"""What encoders make of texts: vectors as of transformers, from texts and ids, here and as a program."""

from dataclasses import replace

import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.installed import library
from tests.parity.cases import T5
from tests.test_tokenizer_classes import spiece, write
from vit_jax.errors import UserError
from vit_jax.models.transformer import Transformer
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.tasks.translate.encoding import encode

pytestmark = pytest.mark.usefixtures("quick_compilation")
SIZES = dict(d_model=24, d_kv=7, d_ff=40, num_layers=3, num_heads=2)
SIZES |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=20)
TEXTS = ["The small dog sees seven cats.", "A", "Ein  Hund\nsieht <extra_id_0> Katzen"]
CLASSES = {  # {name: (class of transformers, its settings)}
    "T5EncoderModel": ("T5", dict(feed_forward_proj="gated-gelu")),
    "UMT5EncoderModel": ("UMT5", {}),
    "T5Model": ("T5", dict(num_decoder_layers=1)),
    "T5ForConditionalGeneration": ("T5", dict(num_decoder_layers=1, decoder_start_token_id=0)),
}


@pytest.fixture
def transformers():
    pytest.importorskip("sentencepiece")
    return library("transformers")


def made(transformers, name, folder):
    """(the encoder of a class with random weights, its tokenizer), saved in a folder."""
    import torch

    kind, settings = CLASSES[name]
    folder.mkdir()
    write(folder, spiece(), kind.lower(), {"extra_ids": 30} if kind == "UMT5" else {})
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    settings = {**SIZES, **settings, "vocab_size": -(-len(tokenizer) // 128) * 128}
    model = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**settings)).eval()
    model.save_pretrained(folder)
    return model.get_encoder(), tokenizer


def theirs(encoder, ids, mask):
    import torch

    with torch.no_grad():
        out = encoder(input_ids=torch.as_tensor(np.asarray(ids)), attention_mask=torch.as_tensor(np.asarray(mask)))
    return out.last_hidden_state.numpy()


@pytest.mark.parametrize(
    "name", [*CLASSES][:1] + [pytest.param(name, marks=pytest.mark.slow) for name in [*CLASSES][1:]]
)
def test_texts_and_ids_become_the_vectors_of_transformers(name, transformers, tmp_path):
    encoder, tokenizer = made(transformers, name, tmp_path / "x")
    net = vit_jax.load(tmp_path / "x", layout="t5@base" if name == "T5Model" else "")
    told = tokenizer(TEXTS, padding="max_length", max_length=40, return_tensors="np")
    ids, mask = told["input_ids"], told["attention_mask"]
    memory, real = net.encode(TEXTS, length=40)
    expected = theirs(encoder, ids, mask)
    assert (real == mask).all() and memory.shape == (3, 40, 24)
    np.testing.assert_allclose(memory, expected, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(net.encode(ids).mask, mask)
    np.testing.assert_allclose(net.encode(ids, batch=2).memory, memory, rtol=0, atol=1e-5)
    longest = real.sum(1).max()
    np.testing.assert_allclose(net.encode(TEXTS).memory, memory[:, :longest], rtol=0, atol=1e-5)
    one = net.encode(TEXTS[1])
    np.testing.assert_allclose(one.memory, memory[1, : len(one.mask)], rtol=0, atol=1e-5)
    everywhere = np.ones_like(mask)  # as image generators that give no mask
    np.testing.assert_allclose(
        net.encode(ids, mask=everywhere).memory, theirs(encoder, ids, everywhere), rtol=0, atol=2e-5
    )
    cut = tokenizer(TEXTS, truncation=True, max_length=5, padding="max_length")["input_ids"]
    np.testing.assert_allclose(net.encode(TEXTS, length=5, cut=True).memory, net.encode(cut).memory, rtol=0, atol=1e-5)


ENCODER = replace(T5, decoder_depth=0, target_vocabulary=0, outputs=0, tie="none")


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("a", {}, "there is no tokenizer beside the weights"),
        ([[3, 9]], {}, "there is 9, and"),
        ([[-1]], {}, "there is -1"),
        ([], {}, "none given"),
        (["a", [3]], {}, "some are texts and some are not"),
        ([[0.5]], {}, r"a row of them is float64 \[1\]"),
        ([[3, 4], [3]], {"mask": [[1, 1]]}, r"mask is int64 \[1, 2\], and ids are \[2, 2\]"),
        ([[3, 4]], {"mask": [[2, 1]]}, "True or False for each id"),
        ([[3, 4, 5]], {"length": 2}, "a row has 3, more than length 2"),
        ([[3]], {"batch": 0}, "batch is 0"),
    ],
)
def test_what_cannot_be_encoded_is_said(given, options, said, tmp_path):
    vit_jax.export(vit_jax.Transformer(ENCODER, rngs=nnx.Rngs(0)), tmp_path / "x.safetensors")
    net = vit_jax.load(tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=said):
        net.encode(given, **options)


def test_an_encoder_that_writes_no_texts_says_what_it_is_for(tmp_path):
    vit_jax.export(vit_jax.Transformer(ENCODER, rngs=nnx.Rngs(0)), tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=r"without a decoder and a head.*vit_jax\.load\('.*'\)\.encode\(texts\)"):
        vit_jax.predict(tmp_path / "x.safetensors", "a b")


def test_a_tokenizer_of_another_network_is_not_taken(transformers, tmp_path):
    made(transformers, "T5EncoderModel", tmp_path / "x")
    write(tmp_path / "x", spiece(), "", {"extra_ids": 0})
    with pytest.raises(UserError, match=r"the tokenizer beside it has ids for \d+, and the network for 256"):
        vit_jax.load(tmp_path / "x")


@pytest.mark.parametrize("suffix", ["onnx", pytest.param("stablehlo", marks=pytest.mark.slow)])
def test_a_program_of_the_encoder_gives_the_vectors_of_transformers(suffix, transformers, tmp_path):
    from convert.write.program.onnx_file import open_named
    from convert.write.program.stablehlo import open_stablehlo

    pytest.importorskip("jax2onnx", reason="jax2onnx cannot be imported, so no program is written")
    encoder, _ = made(transformers, "T5EncoderModel", tmp_path / "x")
    vit_jax.export(str(tmp_path / "x"), tmp_path / f"x.{suffix}")
    run = (open_named if suffix == "onnx" else open_stablehlo)(tmp_path / f"x.{suffix}")
    for shape in ((1, 3), (2, 70)):  # near positions alone, and farther than the last bucket
        ids = np.random.default_rng(0).integers(3, 256, shape, np.int32)
        mask = np.arange(shape[1]) < np.array([[shape[1]], [shape[1] // 2]])[: shape[0]]
        np.testing.assert_allclose(run(ids, mask), theirs(encoder, ids.astype(int), mask), rtol=0, atol=2e-5)


def test_a_text_is_not_padded_beyond_the_longest_that_the_network_takes():
    """Nine ids would fill up to sixteen, and twelve positions are learned."""
    config = TransformerConfig(
        width=8, heads=2, hidden=8, encoder_depth=1, decoder_depth=1, source_vocabulary=20, target_vocabulary=20,
        outputs=20, position="learned", max_length=12,
    )  # fmt: skip
    model, ids = Transformer(config, rngs=nnx.Rngs(0)), np.arange(1, 10)
    found = encode(model, ids, None, 0, batch=1)
    np.testing.assert_allclose(found.memory, model.encode(ids[None])[0], atol=1e-6)
