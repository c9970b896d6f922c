"""Hugging Face's VisionEncoderDecoder as files: what it saves is read, computes the same, and goes back to the bit.

ViT and DeiT with GPT-2, of one width and of two. What we write the library loads as its own, with the same logits.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from convert import rules
from convert.verify.checks import Check, bits, values

from .layouts_huggingface import SMALL, Arrays, identify, randomise, written
from .libraries import load
from .sides import ours

LENGTH, WORDS = 6, 11


def network(family: str, width: int, dtype: torch.dtype, **settings: Any) -> Any:
    """A model of the library with random weights: its encoder is 8 wide, its decoder `width`."""
    transformers = load("transformers")
    encoder = getattr(transformers, f"{family}Config")(**SMALL)
    sizes = dict(vocab_size=WORDS, n_positions=LENGTH, n_embd=width, n_layer=2, n_head=2, attn_implementation="sdpa")
    decoder = transformers.GPT2Config(**sizes, **settings, add_cross_attention=True, is_decoder=True)
    both = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    return randomise(transformers.VisionEncoderDecoderModel(both)).to(dtype).eval()


def logits(model: Any, images: np.ndarray, ids: np.ndarray) -> Arrays:
    """Those of the library."""
    given = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    with torch.no_grad():
        out = model(pixel_values=given, decoder_input_ids=torch.from_numpy(ids), use_cache=False)
    return {"logits": out.logits.numpy()}


def compare(what: str, model: Any, dtype: str) -> Iterator[Check]:
    """One network: its file read and written, its logits, and the folder that we write loaded by the library."""
    draw = np.random.default_rng(0)
    images, ids = draw.standard_normal((3, 4, 3, 2)).astype(dtype), draw.integers(0, WORDS, (3, LENGTH))
    expected = logits(model, images, ids)
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        files = {path.name: json.loads(path.read_text()) for path in Path(name).glob("*.json")}
        state = load("safetensors.numpy").load_file(Path(name, "model.safetensors"))
    known, layout, config = identify(state, files)
    quantity = f"{dtype}, recognised"
    yield Check(what, "transformers", quantity, float(known != ["vision-encoder-decoder"]), 0.0, ", ".join(known))
    read = rules.read(rules.narrow(layout.rows(config), state), state)
    back = rules.write(rules.narrow(layout.rows(config), state), read)
    yield bits(what, "transformers, written", back, state)
    own = {name: array for name, array in read.items() if not name.startswith(rules.CARRIED)}
    mine = ours(config, own, dtype).forward({"source": images, "target": ids.astype(np.int32)})
    yield values(what, "transformers", dtype, {"logits": mine}, expected, dtype)
    with tempfile.TemporaryDirectory() as name:
        written(Path(name), back, layout.write_side(config, layout.read_side(files)))
        again, info = load("transformers").VisionEncoderDecoderModel.from_pretrained(
            name, output_loading_info=True, attn_implementation="sdpa", dtype="auto"
        )
    wrong = sorted(str(each) for said in info.values() for each in said)
    yield Check(what, "transformers", "loads as its own, whole", float(len(wrong)), 0.0, ", ".join(wrong[:3]))
    # Memory lies elsewhere, and so a CPU may add in another order.
    yield values(what, "transformers, what it loads", dtype, logits(again.eval(), images, ids), expected, dtype)


def layouts() -> Iterator[Check]:
    """All of them; none where the library is not installed."""
    try:
        load("transformers")
    except (ImportError, RuntimeError):
        return
    for name, arguments in {
        "ViT and GPT-2, one width": ("ViT", 8, {}),
        "ViT and GPT-2, two widths": ("ViT", 12, dict(n_inner=20, activation_function="relu")),
        "DeiT and GPT-2": ("DeiT", 12, dict(layer_norm_epsilon=1e-3)),
    }.items():
        family, width, settings = arguments
        for dtype in ("float64", "float32"):
            yield from compare(name, network(family, width, getattr(torch, dtype), **settings), dtype)


# --------------------------------------------------------------------------- what a trained one says

ROWS, ROOM = 200, 12
# As GPT-2 has it, and trained no longer than it takes to say different captions of different pictures.
TRAINING = (
    "--model.vit.eps 1e-12 --model.vit.cls-token --model.text.width 48 --model.text.activation gelu_tanh "
    "--model.text.eps 1e-5 --model.text.position learned --model.text.no-output-bias --model.text.no-scale-embedding "
    "--model.text.embedding-std 0.3 --data.drawn 6400 --epochs 6 --log-every 100"
)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": dict(beam=1),
    "beam 4": dict(beam=4, nbest=4),
    "beam 4, penalty 0.6, early": dict(beam=4, nbest=4, length_penalty=0.6, early_stopping="true"),
}


def generated(folder: Path) -> Iterator[Check]:
    """A captioner trained here on drawn scenes, in the library: all tokens of its `generate` are those of our search.

    `folder` is an empty one to work in.
    """
    import vit_jax
    from vit_jax.data import shapes
    from vit_jax.train.command import command

    assert command(["shapes", *TRAINING.split(), "--dir", str(folder), "--name", "trained"]) == 0
    net = vit_jax.load(folder / "trained")
    vit_jax.export(net, folder / "theirs", to="vision-encoder-decoder")
    model = load("transformers").VisionEncoderDecoderModel.from_pretrained(folder / "theirs").eval()
    pixels = np.asarray(net.inputs(shapes.draw(ROWS, 99).pixels))
    for name, settings in SETTINGS.items():
        mine, scores = _ours(net, pixels, settings)
        tokens, their_scores = _theirs(model, net.task.words.ids, pixels, settings)
        kinds = {tuple(row) for row in tokens}, {len(row) for row in tokens}, {i for row in tokens for i in row}
        what = f"{len(kinds[0])} different rows of {len(kinds[1])} lengths, {len(kinds[2])} different tokens"
        apart = sum(a != b for a, b in zip(mine, tokens, strict=True))
        yield Check(f"trained on shapes, {name}", "transformers", f"rows of tokens: {what}", float(apart), 0.0)
        if their_scores is not None:
            far = float(np.abs(scores - their_scores).max())
            yield Check(f"trained on shapes, {name}", "transformers", "scores", far, 1e-4)


def _ours(net: Any, pixels: np.ndarray, settings: dict[str, Any]) -> tuple[list[list[int]], np.ndarray]:
    """(the tokens of all answers before their end, their scores) by our search."""
    import jax
    import jax.numpy as jnp

    from vit_jax.config.decoding import Decoding
    from vit_jax.decode import search
    from vit_jax.transformer import Cache

    ids, model = net.task.words.ids, net.model

    @jax.jit
    def found(images: Any) -> Any:
        cache = model.init_cache(model.encode(images), None, ROOM)
        rows = jnp.ones(len(images), bool)
        return search(model.decode_step, Cache.take, cache, rows, ids, Decoding(**settings), ROOM)

    out = found(pixels)
    tokens = np.asarray(out.tokens).reshape(-1, ROOM)
    return [ids.until_end(row) for row in tokens], np.asarray(out.scores).reshape(-1)


def _theirs(
    model: Any, ids: Any, pixels: np.ndarray, settings: dict[str, Any]
) -> tuple[list[list[int]], np.ndarray | None]:
    """The same by the library's `generate`; of greedy search it has no scores."""
    beam, early = settings["beam"], settings.get("early_stopping", "false") == "true"
    searched: dict[str, Any] = dict(num_beams=beam, num_return_sequences=settings.get("nbest", 1))
    if beam > 1:
        searched |= dict(length_penalty=settings.get("length_penalty", 1.0), early_stopping=early)
    special = dict(decoder_start_token_id=ids.begin, eos_token_id=ids.end, pad_token_id=ids.pad)
    given = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    out = model.generate(
        pixel_values=given, max_length=ROOM + 1, do_sample=False, bad_words_ids=[[i] for i in ids.banned],
        return_dict_in_generate=True, output_scores=True, **searched, **special,
    )  # fmt: skip
    rows = [ids.until_end(row) for row in out.sequences[:, 1:].numpy()]
    return rows, out.sequences_scores.numpy() if beam > 1 else None
