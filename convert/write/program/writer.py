"""A network that writes texts as three functions to be traced: of its encoder, of a first token, of each later one.

A past has a fixed room for tokens; `cache_position` says how many it holds. Names are those of Hugging Face's optimum.

Dimensions: B batch, S length of the source, M of the memory, D width, T room, V outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.network import NetworkConfig
from vit_jax.runs import Run

from .interface import BATCH, IMAGES
from .network import on_cpu

SOURCES = {"ids": "input_ids", "vectors": "inputs_embeds", "pixels": IMAGES}  # {kind of input: its name}
MASK, MEMORY, MEMORY_MASK = "attention_mask", "encoder_hidden_states", "encoder_attention_mask"
MEMORY_OUT = "last_hidden_state"  # what the encoder calls it
PROGRAMS = ("encoder_model", "decoder_model", "decoder_with_past_model")
TOKENS, POSITION, LOGITS = "input_ids", "cache_position", "logits"


class TextWriter:
    """An encoder-decoder or a captioner in float32, whose methods are traced."""

    def __init__(self, config: NetworkConfig, arrays: Mapping[str, np.ndarray], room: int):
        from vit_jax.machine.backend import configure_jax

        configure_jax()
        import jax
        import jax.numpy as jnp

        from vit_jax.config.trees import unflatten
        from vit_jax.models.build import definition
        from vit_jax.models.state import merge

        if getattr(config, "max_length", 1) == 0:  # sinusoids have no bound, and a program needs one
            config = replace(config, max_length=room)  # type: ignore[call-arg]  # of a Transformer
        self.config, self.room, self.nbytes = config, room, sum(4 * array.size for array in arrays.values())
        with on_cpu():
            self.tree = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), unflatten(dict(arrays)))
            self.model: Any = merge(definition(config), self.tree)

    @property
    def side(self) -> Any:
        """The config of the decoder."""
        return getattr(self.config, "text", self.config)

    @property
    def source(self) -> Any:
        """What the encoder takes."""
        return self.config.inputs()[0]

    @property
    def masked(self) -> bool:
        """Whether a source may be padded: an image is not."""
        return self.source.kind != "pixels"

    def names(self, which: str) -> list[str]:
        """The names of keys and values: "decoder" (of the target), "encoder" (of the memory), after present or past."""
        return [f"{i}.{which}.{each}" for i in range(self.side.decoder_depth) for each in ("key", "value")]

    def encode(self, source: Any, mask: Any = None) -> Any:
        """The memory [B, M, D] of sources, of which a mask [B, S] says what is real."""
        ids = self.source.kind == "ids" or hasattr(self.config, "encoder_depth")
        return self.model.encode(source, mask) if ids else self.model.encode(source)

    def first(self, tokens: Any, memory: Any, mask: Any) -> tuple[Any, ...]:
        """(logits [B, 1, V], keys and values of the target and of the memory) of the first tokens [B, 1]."""
        cache = self.model.init_cache(memory, mask, self.room)
        logits, cache = self.model.decode_step(tokens[:, 0], cache)
        pairs = [*cache.own, *cache.memory]
        return (logits[:, None], *(array for pair in pairs for array in pair))

    def later(self, tokens: Any, mask: Any, position: Any, *past: Any) -> tuple[Any, ...]:
        """(logits [B, 1, V], keys and values of the target) of tokens [B, 1] that follow `position` [1] others."""
        from vit_jax.models.decoder import Cache

        pairs = [(past[i], past[i + 1]) for i in range(0, len(past), 2)]
        depth = self.side.decoder_depth
        cache = Cache(position[0], pairs[:depth], pairs[depth:], mask[:, None, None, :])
        logits, cache = self.model.decode_step(tokens[:, 0], cache)
        return (logits[:, None], *(array for pair in cache.own for array in pair))

    def programs(self) -> dict[str, tuple[Any, dict[str, Any], list[str]]]:
        """{name of a program: (its function, {name: shape and dtype} of its inputs, the names of its outputs)}."""
        import jax
        from jax import ShapeDtypeStruct as Shaped
        from jax import export

        c, source, free = self.side, self.source, "source"
        longest = source.longest if source.kind == "ids" else 0
        batch, length = export.symbolic_shape(
            f"{BATCH}, {free}", constraints=[f"{free} <= {longest}"] if longest else ()
        )
        tail: Any = {"ids": (length,), "vectors": (length, source.size)}.get(source.kind) or self.config.pixels()
        taken = Shaped((batch, *tail), np.int32 if source.kind == "ids" else np.float32)
        with_mask = {MASK: Shaped((batch, length), np.bool_)} if self.masked else {}
        memory_length = length if self.masked else jax.eval_shape(self.encode, _one_of(taken)).shape[1]
        mask = {MEMORY_MASK: Shaped((batch, memory_length), np.bool_)}
        memory = {MEMORY: Shaped((batch, memory_length, c.width), np.float32)}
        heads, width = c.heads, c.resolved_head_width
        own = {
            f"past_key_values.{n}": Shaped((batch, heads, self.room, width), np.float32) for n in self.names("decoder")
        }
        crossed = {
            f"past_key_values.{n}": Shaped((batch, heads, memory_length, width), np.float32)
            for n in self.names("encoder")
        }
        tokens, position = {TOKENS: Shaped((batch, 1), np.int32)}, {POSITION: Shaped((1,), np.int32)}
        present = [f"present.{n}" for n in self.names("decoder")]
        return {
            "encoder_model": (self.encode, {SOURCES[source.kind]: taken, **with_mask}, [MEMORY_OUT]),
            "decoder_model": (
                self.first,
                {**tokens, **memory, **mask},
                [LOGITS, *present, *(f"present.{n}" for n in self.names("encoder"))],
            ),
            "decoder_with_past_model": (
                self.later,
                {**tokens, **mask, **position, **own, **crossed},
                [LOGITS, *present],
            ),
        }


def _one_of(taken: Any) -> Any:
    """The shape of one example."""
    from jax import ShapeDtypeStruct

    return ShapeDtypeStruct((1, *taken.shape[1:]), taken.dtype)


def writing_of(run: Run) -> dict[str, Any]:
    """How a run's texts are written, under the names of Hugging Face's generation_config.json."""
    from vit_jax.tasks.computed import task_class

    config = run.config()
    config = replace(config, data=config.data.in_folder(run.path))
    task: Any = task_class(config.task).from_run(config, run.record())
    ids = task.target.ids
    stated = {
        "decoder_start_token_id": ids.begin,
        "eos_token_id": ids.end,
        "pad_token_id": ids.pad,
        "bad_words_ids": [[each] for each in ids.banned] or None,
        "forced_bos_token_id": ids.forced_begin,
        "forced_eos_token_id": ids.forced_end,
        "max_length": int(task.length),
    }
    return {name: value for name, value in stated.items() if value is not None}


def open_programs(folder: Path) -> Any:
    """The programs in a folder, {name: session of ONNX Runtime}."""
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    return {name: onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), providers=providers) for name in PROGRAMS}


def computed(
    writer: TextWriter, source: np.ndarray, mask: np.ndarray, tokens: np.ndarray, dtype: str = "float32"
) -> np.ndarray:
    """Our logits [B, T, V] after each of some tokens [B, T], of one pass over all of them, without a cache."""
    import jax.numpy as jnp

    with on_cpu(dtype):
        model, memory, real = _encoded(writer, source, mask, dtype)
        return np.asarray(model.write(memory, jnp.asarray(tokens), None, None, memory_padding=real))


def encoded(writer: TextWriter, source: np.ndarray, mask: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Our memory [B, M, D] of a source, of which a mask [B, S] says what is real."""
    with on_cpu(dtype):
        return np.asarray(_encoded(writer, source, mask, dtype)[1])


def _encoded(writer: TextWriter, source: np.ndarray, mask: np.ndarray, dtype: str) -> tuple[Any, Any, Any]:
    """(the network in a dtype, the memory, the mask of it), computed by jax."""
    import jax
    import jax.numpy as jnp

    from vit_jax.models.build import definition
    from vit_jax.models.state import merge

    real, tree = jnp.asarray(mask), jax.tree.map(lambda x: x.astype(dtype), writer.tree)
    model: Any = merge(definition(writer.config, np.dtype(dtype), np.dtype(dtype)), tree)
    given = jnp.asarray(source if writer.source.kind == "ids" else source.astype(dtype))
    memory = model.encode(given, real) if hasattr(writer.config, "encoder_depth") else model.encode(given)
    return model, memory, real
