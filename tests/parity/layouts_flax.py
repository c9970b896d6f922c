"""The Flax names of Marian, BART, mBART and T5 against transformers' own Flax classes, which its version 5 has no more.

The outputs of these classes are recorded in layouts_flax.json. They were computed by `python -m
tests.parity.layouts_flax NAME ...` with an older transformers before the installed one on PYTHONPATH, from folders that
our tables had written: 4.40.2 (huggingface_hub 0.25.2, tokenizers 0.19.1); of T5 4.55.4 (0.34.4, 0.21.4), whose norms
here compute in float64 as the rest does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from convert import rules
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.verify.checks import Check
from convert.verify.weights import Arrays
from vit_jax.config.trees import unflatten
from vit_jax.models.transformer_config import TransformerConfig

from .cases import T5, T5_1
from .layouts_seq2seq import BART, IDS, MARIAN, MBART, T5_BASE, T5_ENCODER, compared, returned, some
from .weights import weights

KEPT = Path(__file__).with_suffix(".json")
LIBRARY = "transformers 4, Flax"
CASES = {  # {name: (layout, class, network)}
    "marian": ("flax-seq2seq@marian", "FlaxMarianMTModel", replace(MARIAN, activation="silu", scale_embedding=True)),
    "bart": ("flax-seq2seq@bart", "FlaxBartForConditionalGeneration", BART),
    "mbart": ("flax-seq2seq@mbart", "FlaxMBartForConditionalGeneration", replace(MBART, activation="relu")),
    "t5": ("flax-t5", "FlaxT5ForConditionalGeneration", T5),
    "t5 1.1": ("flax-t5", "FlaxT5ForConditionalGeneration", T5_1),
    "t5 without a head": ("flax-t5@base", "FlaxT5Model", T5_BASE),
    "t5, the encoder alone": ("flax-t5@encoder", "FlaxT5EncoderModel", T5_ENCODER),
}


def flax() -> Iterator[Check]:
    """Outputs of the same weights, and the tensors there and back."""
    kept = json.loads(KEPT.read_text())
    for name, (layout_name, _, c) in CASES.items():
        layout, p, expected = LAYOUTS[layout_name], weights(c), np.array(kept[name])
        side = layout.read_side(layout.write_side(c, Facts(extra=IDS)))
        subject = f"{layout.title}: {name}"
        yield from returned(subject, LIBRARY, layout, rules.write(layout.rows(c), p), c, p, side.config)

        def call(given: object, dtype: str, expected: np.ndarray = expected, c: TransformerConfig = c) -> Arrays:
            return {"logits" if c.decoder_depth else "memory": expected.astype(dtype)}

        yield from compared(subject, LIBRARY, c, p, some(c), call)


def make(names: list[str]) -> dict[str, list]:
    """The logits of transformers' own classes, float64 [3, 4, 9] each; without a head the last vectors."""
    import importlib

    import jax
    from flax.serialization import msgpack_serialize

    jax.config.update("jax_enable_x64", True)
    clip = jax.numpy.clip
    jax.numpy.clip = lambda x, a_min=None, a_max=None: clip(x, a_min, a_max)  # as JAX had it then
    out = {}
    for name in names:
        layout_name, class_name, c = CASES[name]
        layout, given = LAYOUTS[layout_name], some(c)
        model_type = name.split()[0].strip(",")
        module = importlib.import_module(f"transformers.models.{model_type}.modeling_flax_{model_type}")
        if hasattr(module, "FlaxT5LayerNorm"):
            module.FlaxT5LayerNorm.__call__ = lambda norm, x: (
                norm.weight * x / jax.numpy.sqrt((x**2).mean(-1, keepdims=True) + norm.eps)
            )
        with tempfile.TemporaryDirectory() as folder:
            for file, content in layout.write_side(c, Facts(extra=IDS)).items():
                Path(folder, file).write_text(json.dumps(content))
            arrays = rules.write(layout.rows(c), weights(c))
            tree = unflatten({name.replace("/", "."): value for name, value in arrays.items()})
            Path(folder, "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
            model = getattr(module, class_name).from_pretrained(folder, dtype=jax.numpy.float64)
        ids = {"decoder_input_ids": given["target"]} if c.decoder_depth else {}
        y = model(input_ids=given["source"], attention_mask=given["source_padding"].astype(int), **ids)
        out[name] = np.asarray(y.logits if c.outputs else y.last_hidden_state, np.float64).tolist()
    return out


if __name__ == "__main__":
    KEPT.write_text(json.dumps(json.loads(KEPT.read_text()) | make(sys.argv[1:])) + "\n")
