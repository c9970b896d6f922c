"""The Flax names of Marian, BART and mBART against transformers' own Flax classes, which its version 5 no longer has.

The outputs of these classes are recorded in layouts_flax.json. They were computed by `python -m
tests.parity.layouts_flax` with transformers 4.40.2 (huggingface_hub 0.25.2, tokenizers 0.19.1) before the installed one
on PYTHONPATH, from folders that our tables had written.
"""

from __future__ import annotations

import json
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

from .layouts_seq2seq import BART, IDS, MARIAN, MBART, compared, returned, some
from .weights import weights

KEPT = Path(__file__).with_suffix(".json")
LIBRARY = "transformers 4.40.2, Flax"
CASES = {
    "marian": ("FlaxMarianMTModel", replace(MARIAN, activation="silu", scale_embedding=True)),
    "bart": ("FlaxBartForConditionalGeneration", BART),
    "mbart": ("FlaxMBartForConditionalGeneration", replace(MBART, activation="relu")),
}


def flax() -> Iterator[Check]:
    """Logits of the same weights, and the tensors there and back."""
    kept = json.loads(KEPT.read_text())
    for version, (_, c) in CASES.items():
        layout, p, expected = LAYOUTS[f"flax-seq2seq@{version}"], weights(c), np.array(kept[version])
        side = layout.read_side(layout.write_side(c, Facts(extra=IDS)))
        yield from returned(layout.title, LIBRARY, layout, rules.write(layout.rows(c), p), c, p, side.config)

        def call(given: object, dtype: str, expected: np.ndarray = expected) -> Arrays:
            return {"logits": expected.astype(dtype)}

        yield from compared(layout.title, LIBRARY, c, p, some(c), call)


def make() -> dict[str, list]:
    """The logits of transformers' own classes, float64 [3, 4, 9] each."""
    import importlib

    import jax
    from flax.serialization import msgpack_serialize

    jax.config.update("jax_enable_x64", True)
    out = {}
    for version, (name, c) in CASES.items():
        layout, given = LAYOUTS[f"flax-seq2seq@{version}"], some(c)
        cls = getattr(importlib.import_module(f"transformers.models.{version}.modeling_flax_{version}"), name)
        with tempfile.TemporaryDirectory() as folder:
            for file, content in layout.write_side(c, Facts(extra=IDS)).items():
                Path(folder, file).write_text(json.dumps(content))
            tree = unflatten(
                {name.replace("/", "."): value for name, value in rules.write(layout.rows(c), weights(c)).items()}
            )
            Path(folder, "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
            model = cls.from_pretrained(folder, dtype=jax.numpy.float64)
        y = model(
            input_ids=given["source"],
            attention_mask=given["source_padding"].astype(int),
            decoder_input_ids=given["target"],
        ).logits
        out[version] = np.asarray(y, np.float64).tolist()
    return out


if __name__ == "__main__":
    KEPT.write_text(json.dumps(make()) + "\n")
