"""Parts that stand alone: a ViT's tokens, and a decoder over any memory, run whole or one token at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import preset

VIT = ViTConfig(image=8, channels=1, patch=4, classes=3, width=8, depth=2, heads=2, hidden=12, dropout=0.2)
VECTORS = TransformerConfig(width=8, heads=2, hidden=12, encoder_depth=1, decoder_depth=2, position="none")


def network(config, dtype="float64"):
    with jax.enable_x64(dtype == "float64"):
        return merge(definition(config, dtype, dtype), start(config, jax.random.key(0), dtype))


def test_encode_gives_the_tokens_that_the_head_pools():
    with jax.enable_x64(True):
        model, images = network(VIT), jax.random.normal(jax.random.key(1), (3, 8, 8, 1), "float64")
        keys = jax.random.split(jax.random.key(2), 3)
        tokens = model.encode(images)
        assert tokens.shape == (3, 5, 8)  # a class token and four patches
        np.testing.assert_array_equal(tokens, model.capture(images, ["features"])["features"])
        np.testing.assert_array_equal(model(images), model.head(tokens[:, 0]))
        np.testing.assert_array_equal(model(images, keys=keys), model.head(model.encode(images, keys)[:, 0]))
        assert (model.encode(images, keys) != tokens).any()  # keys mean training


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_decoder_over_an_images_tokens_says_one_at_a_time_what_it_says_at_once(norm_first):
    """A memory that no encoder of its own made, with places that are not to be seen."""
    with jax.enable_x64(True):
        decoder = network(dataclasses.replace(VECTORS, norm_first=norm_first)).decoder
        memory = network(VIT).encode(jax.random.normal(jax.random.key(1), (3, 8, 8, 1), "float64"))
        padding = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
        x = jax.random.normal(jax.random.key(2), (3, 4, 8), "float64")
        causal = jnp.tril(jnp.ones((4, 4), bool))[None, None]
        whole = decoder(x, memory, causal, padding[:, None, None, :])
        cache = decoder.init_cache(memory, padding, 6)
        assert cache.length == 6
        for place in range(4):
            y, cache = decoder.step(x[:, place], cache)
            np.testing.assert_allclose(y, whole[:, place], rtol=0, atol=1e-13)
        other = decoder(x, memory.at[2, 1:].set(7.0), causal, padding[:, None, None, :])
        np.testing.assert_array_equal(other[2], whole[2])  # what is padding is not seen


@pytest.mark.parametrize("name", ["digits", "numbers"])
def test_capture_leaves_every_module_of_a_twin_in_the_mode_that_it_was_in(name):
    """Also a block that a user has set to evaluation, and also after an exception."""
    torch, torch_ref = pytest.importorskip("torch"), pytest.importorskip("torch_ref")
    config = preset(name).run.model
    sizes = {} if name == "digits" else dict(source_vocabulary=9, target_vocabulary=9, outputs=9)
    model = torch_ref.build(dataclasses.replace(config, **sizes)).train()
    blocks = model.blocks if name == "digits" else model.encoder.blocks
    blocks[0].eval()  # as one does with frozen blocks
    modes = {path: module.training for path, module in model.named_modules()}
    assert set(modes.values()) == {True, False}
    good = (
        (torch.zeros(1, 1, 8, 8),)
        if name == "digits"
        else (torch.ones(1, 3, dtype=torch.long), torch.ones(1, 2, dtype=torch.long))
    )
    model.capture(*good, ["logits"])
    assert {path: module.training for path, module in model.named_modules()} == modes
    with pytest.raises(ValueError):
        model.capture(torch.zeros(1, 2, 3), *good[1:], ["logits"])
    assert {path: module.training for path, module in model.named_modules()} == modes


def test_a_twin_refuses_pixels_that_were_not_normalised():
    torch, torch_ref = pytest.importorskip("torch"), pytest.importorskip("torch_ref")
    with pytest.raises(ValueError, match=r"images are torch\.uint8: give floating-point numbers, normalised"):
        torch_ref.build(VIT)(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
