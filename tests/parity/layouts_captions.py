"""Captioners of others as files: what they save is read, computes the same, and goes back to the bit.

Hugging Face's VisionEncoderDecoder: ViT and DeiT with GPT-2, of one width and of two. What we write the library loads
as its own, with the same logits. Both generations of CS231n's captioner: modules with their names, written here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from convert import rules
from convert.dialects import LAYOUTS
from convert.recognise.config import resolve
from convert.verify.checks import Check, bits, gradients, values
from convert.verify.libraries.built import Built
from convert.verify.sides import ByRows
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig

from .layouts_huggingface import SMALL, Arrays, identify, randomise, written
from .libraries import load
from .sides import ours
from .weights import Inputs, inputs, weights

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


# ---------------------------------------------------------------------------------- CS231n's captioner

COURSE = CaptionerConfig(
    memory="vectors", memory_width=6,
    text=TransformerConfig(
        width=8, heads=2, hidden=12, encoder_depth=0, decoder_depth=2, target_vocabulary=9, outputs=9, max_length=7,
        position="learned", activation="relu", norm_first=False, final_norm=False, eps=1e-5,
    ),
)  # fmt: skip
# {layout: (a network of it, what its blocks call their parts, its activation)}
GENERATIONS: dict[str, tuple[CaptionerConfig, str, nn.Module]] = {
    "cs231n@2021": (COURSE, "self_attn multihead_attn norm1 norm2 norm3", nn.ReLU()),
    "cs231n@2025": (
        replace(COURSE, text=replace(COURSE.text, activation="gelu")),
        "self_attn cross_attn norm_self norm_cross norm_ffn",
        nn.GELU(),
    ),
}


class CourseAttention(nn.Module):
    """Attention with four Linears of its own: [B, T, D] and [B, S, D] to [B, T, D]; `seen`: what it may see."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor | None = None) -> Tensor:
        def apart(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        done = nn.functional.scaled_dot_product_attention(
            apart(self.query(x)), apart(self.key(memory)), apart(self.value(memory)), attn_mask=seen
        )
        return self.proj(done.transpose(1, 2).flatten(2))


class CourseBlock(nn.Module):
    """A post-norm block of the decoder; its five parts and the two layers of its mlp have a generation's names."""

    def __init__(self, c: TransformerConfig, parts: str, activation: nn.Module):
        super().__init__()
        self.parts, self.activation = parts.split(), activation
        for name in self.parts[:2]:
            self.add_module(name, CourseAttention(c.width, c.heads))
        for name in self.parts[2:]:
            self.add_module(name, nn.LayerNorm(c.width))
        wide, narrow = nn.Linear(c.width, c.hidden), nn.Linear(c.hidden, c.width)
        if isinstance(activation, nn.ReLU):
            self.linear1, self.linear2 = wide, narrow
        else:
            self.ffn = nn.ModuleDict({"fc1": wide, "fc2": narrow})
        self.mlp = [wide, narrow]  # a list, so that they are not registered twice

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        itself, across, *norms = (self.get_submodule(name) for name in self.parts)
        x = norms[0](x + itself(x, x, seen))
        x = norms[1](x + across(x, memory))
        return norms[2](x + self.mlp[1](self.activation(self.mlp[0](x))))


class Course(nn.Module):
    """The captioner of a generation: vectors [B, S, C] (the course has S = 1) and ids [B, T] to logits [B, T, V]."""

    def __init__(self, layout: str):
        super().__init__()
        config, parts, activation = GENERATIONS[layout]
        c = config.text
        self.visual_projection = nn.Linear(config.memory_width, c.width)
        self.embedding = nn.Embedding(c.target_vocabulary, c.width, padding_idx=0)
        self.positional_encoding = nn.Module()
        t, column = torch.arange(c.max_length).double()[:, None], torch.arange(c.width)
        angle = t * 10000.0 ** -(column // 2 * 2 / c.width)
        waves = torch.where(column % 2 == 0, angle.sin(), angle.cos())
        self.positional_encoding.register_buffer("pe", waves[None].float())
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(CourseBlock(c, parts, activation) for _ in range(c.decoder_depth))
        self.output = nn.Linear(c.width, c.outputs)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, length = self.visual_projection(source), target.shape[1]
        x = self.embedding(target) + self.positional_encoding.pe[:, :length]  # type: ignore[index]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        for block in self.transformer.layers:  # type: ignore[union-attr]
            x = block(x, memory, seen)
        return self.output(x)


def course_inputs() -> Inputs:
    """Vectors and ids without the first, which pads: torch gives its row no gradient."""
    given = inputs(COURSE)
    return {"source": given["source"], "target": given["target"] % 8 + 1}


def course_side(layout: str, c: CaptionerConfig, file: Arrays) -> ByRows:
    """The course's module with the tensors of a file."""
    module = Course(layout).double()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in file.items()})
    rows = rules.narrow(LAYOUTS[layout].rows(c))
    return ByRows(Built("the course's module", module, rows, lambda model, **given: model(**given)), c)


def courses() -> Iterator[Check]:
    """Both generations: their own files, as float32, and ours, as float64, with positions learned and computed."""
    for name, (c, _, _) in GENERATIONS.items():
        yield from course_saved(name, c)
        for position in ("learned", "interleaved"):
            yield from course_written(f"{name}, positions {position}", name, with_position(c, position))


def with_position(c: CaptionerConfig, position: Any) -> CaptionerConfig:
    """The network with other positions."""
    return replace(c, text=replace(c.text, position=position))


def course_saved(name: str, c: CaptionerConfig) -> Iterator[Check]:
    """What the module saves, its own sinusoids with it: recognised, asked about, read, computed and written again."""
    torch.manual_seed(0)
    module, layout = Course(name), LAYOUTS[name]
    state = {key: value.numpy() for key, value in module.state_dict().items()}
    names = {key: array.shape for key, array in state.items()}
    known = [each.name for each in LAYOUTS.values() if each.recognises(names)]
    yield Check(name, "the course's module", "recognised", float(known != [name]), 0.0, ", ".join(known))
    found = resolve(layout, names, [("--set", {"text.heads": c.text.heads})], "file")
    yield Check(name, "the course's module", "config", float(found.normal() != c.normal()), 0.0)
    read = rules.read(layout.rows(found), state)
    yield bits(name, "the course's module, written", rules.write(layout.rows(found), read), state)
    given = course_inputs()
    with torch.no_grad():
        theirs = module.double()(torch.from_numpy(given["source"]), torch.from_numpy(given["target"])).numpy()
    yield values(name, "the course's module", "float64", {"logits": ours(found, read).forward(given)},
                 {"logits": theirs}, "float64")  # fmt: skip


def course_written(subject: str, layout: str, c: CaptionerConfig) -> Iterator[Check]:
    """What we write of random weights: the logits and the gradients of the course's module that loads it."""
    p, given, against = weights(c), course_inputs(), "the course's module"
    mine, theirs = ours(c, p), course_side(layout, c, rules.write(LAYOUTS[layout].rows(c), p))
    logits = mine.forward(given)
    # The buffer of float32 is exact in float64 where it is learned; computed, it is rounded: up to 3e-8 of a wave.
    limit = None if c.text.position == "learned" else 1e-6
    found = {"logits": theirs.forward(given)}
    yield values(subject, against, "float64", found, {"logits": logits}, "float64", limit)
    if limit is None:
        cotangent = np.random.default_rng(1).standard_normal(logits.shape)
        slopes, wanted = (side.gradients(given, cotangent) for side in (theirs, mine))
        del wanted["target.position"]  # a buffer there, which has no gradient
        yield from gradients(subject, against, slopes, wanted)


def layouts() -> Iterator[Check]:
    """All of them; of the library none where it is not installed."""
    yield from courses()
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
    from vit_jax.commands.train import command
    from vit_jax.data.captions import shapes

    assert command(["shapes", *TRAINING.split(), "--dir", str(folder), "--name", "trained"]) == 0
    net = vit_jax.load(folder / "trained")
    vit_jax.export(net, folder / "theirs", to="vision-encoder-decoder")
    model = load("transformers").VisionEncoderDecoderModel.from_pretrained(folder / "theirs").eval()
    pixels = np.asarray(net.inputs(shapes.draw(ROWS, 99).pixels))
    for name, settings in SETTINGS.items():
        mine, scores = _ours(net, pixels, settings)
        tokens, their_scores = _theirs(model, net.task.target.ids, pixels, settings)
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
    from vit_jax.decode.search import search
    from vit_jax.models.decoder import Cache

    ids, model = net.task.target.ids, net.model

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
