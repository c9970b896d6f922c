"""Encoder-decoders and captioners as ONNX programs: the guide's greedy search gives the answers of ours."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax2onnx", reason="jax2onnx cannot be imported, so no program is written")

import jax
import jax.numpy as jnp

import vit_jax
from convert.write.program.interface import as_run_prepares
from tests.test_captioner import IMAGE, TOKENS
from vit_jax.config.decoding import Decoding
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.decode.search import generate
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.text.tokenizer import Ids

pytestmark = pytest.mark.usefixtures("quick_compilation")
GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"
SEQ2SEQ = TransformerConfig(
    width=8, heads=2, hidden=12, encoder_depth=2, decoder_depth=2, source_vocabulary=11, target_vocabulary=11,
    outputs=11, max_length=9,
)  # fmt: skip
IDS = Ids(pad=0, begin=1, end=2, banned=(0, 1))
CASES = {
    "sinusoids": (SEQ2SEQ, IDS),
    "learned positions, tied, an end that is forced": (
        replace(SEQ2SEQ, position="learned", tie="all"), replace(IDS, forced_begin=4, forced_end=2)
    ),
    "post-norm, scaled embedding, a final norm": (
        replace(SEQ2SEQ, norm_first=False, scale_embedding=True, final_norm=True), IDS
    ),
    "a captioner of images": (TOKENS, IDS),
    "of patches": (replace(TOKENS, memory="patches", vit=replace(IMAGE, width=8)), IDS),
    "of vectors": (replace(TOKENS, memory="vectors", memory_width=5), IDS),
}  # fmt: skip
QUICK = ("sinusoids", "of vectors")


@pytest.fixture(scope="module")
def write():
    """The function of the guide."""
    code = re.search(r"```python\n(import json\n.*?def write\(.*?)```", GUIDE.read_text(), re.S)[1]
    exec(code, names := {})
    return names["write"]


def a_network(config):
    """One with weights so large that its answers differ from input to input."""
    tree = start(config, jax.random.key(0))
    draw = np.random.default_rng(0)
    tree = jax.tree.map(lambda x: jnp.asarray(draw.normal(0, 1.5, x.shape), jnp.float32) if x.ndim > 1 else x, tree)
    return merge(definition(config), tree)


def inputs(config):
    """(200 sources, the same as programs take them, which of their tokens are real)."""
    draw, source = np.random.default_rng(1), config.inputs()[0]
    if source.kind == "pixels":
        pixels = draw.integers(0, 256, (200, 9, 13, 3), np.uint8)
        half = (0.5, 0.5, 0.5)
        return as_run_prepares(Preprocess((4, 6), 3, "stretch", 0, "bicubic", 127, half, half), pixels), pixels, None
    mask = np.arange(7) < draw.integers(1, 8, (200, 1))
    shape = (200, 7) if source.kind == "ids" else (200, 7, source.size)
    ids = source.kind == "ids"
    given = draw.integers(3, 11, shape).astype(np.int32) if ids else draw.normal(size=shape).astype(np.float32)
    return given, given, mask


@pytest.mark.parametrize(
    ("config", "ids"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (name not in QUICK), id=name) for name, case in CASES.items()],
)
def test_greedy_search_by_programs_equals_ours_for_200_inputs(config, ids, write, tmp_path):
    network, folder = a_network(config), tmp_path / "folder"
    fields = {} if config.pixels() is None else {"mean": [0.5] * 3, "std": [0.5] * 3}
    vit_jax.export(network, folder, to="onnx", fields=fields)
    stated = json.loads((folder / "generation_config.json").read_text())
    stated |= {"decoder_start_token_id": ids.begin, "eos_token_id": ids.end, "pad_token_id": ids.pad}
    stated |= {"bad_words_ids": [[each] for each in ids.banned]}
    stated |= {} if ids.forced_end is None else {"forced_bos_token_id": 4, "forced_eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(stated))
    source, given, mask = inputs(config)
    masked = hasattr(config, "encoder_depth")  # else an image, or vectors of which the decoder alone knows
    memory = network.encode(source, mask) if masked else network.encode(source)
    real = None if mask is None else jnp.asarray(mask)
    expected = generate(network, memory, real, ids, Decoding(), stated["max_length"])
    found = write(folder, given, mask)
    texts = np.asarray(expected.tokens)[:, 0]
    assert (found == texts[:, : found.shape[1]]).all() and (texts[:, found.shape[1] :] == ids.pad).all()
    assert len(np.unique(texts, axis=0)) > 2


REFUSED = {
    "an image network": (replace(IMAGE, classes=3), "without a decoder"),
    "an encoder alone": (replace(SEQ2SEQ, decoder_depth=0, target_vocabulary=0, outputs=0), "without a decoder"),
    "a decoder of vectors": (replace(SEQ2SEQ, target_vocabulary=0), "writes no tokens"),
    "a decoder that is not causal": (replace(SEQ2SEQ, causal=False), "is not causal"),
    "texts of any length": (replace(SEQ2SEQ, max_length=0), "does not state how long a text may be"),
}


@pytest.mark.parametrize(("config", "says"), REFUSED.values(), ids=REFUSED)
def test_networks_that_write_no_texts_are_refused(config, says, tmp_path):
    fields = {} if config.pixels() is None else {"mean": [0.5] * 3, "std": [0.5] * 3}
    with pytest.raises(UserError, match=says):
        vit_jax.export(a_network(config), tmp_path / "x", to="onnx", fields=fields)
    assert not [*tmp_path.iterdir()]
