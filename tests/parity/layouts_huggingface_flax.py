"""Hugging Face's Flax ViT against what its own code computed: transformers 4.55.4, flax 0.10.7, float64.

The library has no Flax code any more, so its outputs are written down here. Weights and images are made anew, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from convert import rules
from convert.dialects import LAYOUTS
from convert.recognise.config import resolve
from convert.verify.checks import Check, bits, values

from .sides import ours

C, P, D, F, L, K = 3, 2, 8, 12, 2, 3
CONFIG = dict(
    model_type="vit",
    image_size=4,
    patch_size=P,
    num_channels=C,
    hidden_size=D,
    num_hidden_layers=L,
    num_attention_heads=2,
    intermediate_size=F,
)


@dataclass(frozen=True)
class Recorded:
    """What a class gave, [B, K] or the pooler's [B, D]."""

    name: str
    output: list[list[float]]
    settings: dict[str, Any] = field(default_factory=dict)

    def arrays(self) -> dict[str, np.ndarray]:
        """Its file: every array random, drawn in the order of the names."""
        body, biased = "vit/" * ("For" in self.name), self.settings.get("qkv_bias", True)
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings/cls_token": (1, 1, D),
            "embeddings/position_embeddings": (1, 5, D),
            "embeddings/patch_embeddings/projection/kernel": (P, P, C, D),
            "embeddings/patch_embeddings/projection/bias": (D,),
        }
        for i in range(L):
            dense = {f"attention/attention/{n}": (D, D) for n in ("query", "key", "value")}
            dense |= {"attention/output/dense": (D, D), "intermediate/dense": (D, F), "output/dense": (F, D)}
            for name, shape in dense.items():
                shapes[f"encoder/layer/{i}/{name}/kernel"] = shape
                if biased or "attention/attention" not in name:
                    shapes[f"encoder/layer/{i}/{name}/bias"] = shape[1:]
            shapes |= {
                f"encoder/layer/{i}/layernorm_{n}/{leaf}": (D,)
                for n in ("before", "after")
                for leaf in ("scale", "bias")
            }
        shapes |= {"layernorm/scale": (D,), "layernorm/bias": (D,)}
        shapes |= {"pooler/dense/kernel": (D, D), "pooler/dense/bias": (D,)} if not body else {}
        shapes = {body + name: shape for name, shape in shapes.items()} | (
            {"classifier/kernel": (D, K), "classifier/bias": (K,)} if body else {}
        )
        rng, out = np.random.default_rng(0), {}
        for name in sorted(shapes):
            value = rng.standard_normal(shapes[name])
            out[name] = (
                value / np.sqrt(np.prod(shapes[name][:-1]))
                if name.endswith("kernel")
                else value / 2 + name.endswith("scale")
            )
        return out


CLASSIFIER, MODEL = "FlaxViTForImageClassification", "FlaxViTModel"
RECORDED = [
    Recorded(
        CLASSIFIER,
        [
            [1.1715816023558159, -0.31510597113710004, 0.2447643765612943],
            [0.9103758275405798, -0.37596132059826165, 0.34010756378581747],
        ],
    ),
    Recorded(
        CLASSIFIER,
        [
            [-0.10213165534229803, -1.0752880985723516, 0.2140315827486846],
            [-0.4474637638335415, -1.0150923239456513, -0.022203486421466023],
        ],
        dict(hidden_act="gelu_new", qkv_bias=False, layer_norm_eps=1e-3),
    ),
    Recorded(
        MODEL,
        [
            [0.19037279054802353, 0.7368486904874214, 0.9903727604774814, 0.6714324016931836,
             -0.19310371509290428, -0.2839329847016371, -0.9529335929386904, -0.9945402938927959],
            [0.6484559556148715, 0.49562688690512097, 0.9774901864534334, 0.00424084195685187,
             -0.013459686124146976, -0.021265510178769816, -0.9705585232091051, -0.981304394486685],
        ],
    ),
]  # fmt: skip


def layouts() -> Iterator[Check]:
    """Each recognised, read with its config.json, computed, and written again."""
    images = np.random.default_rng(1).standard_normal((2, 4, 4, C)).astype(np.float32)  # its code takes no wider ones
    for case in RECORDED:
        what, w = f"{case.name}{', settings' * bool(case.settings)}", case.arrays()
        names = {name: array.shape for name, array in w.items()}
        known = [layout.name for layout in LAYOUTS.values() if layout.recognises(names)]
        yield Check(what, "names", "recognised alone", float(known != ["huggingface-flax"]), 0.0, ", ".join(known))
        layout = LAYOUTS["huggingface-flax"]
        config = resolve(
            layout,
            names,
            [("config.json", layout.read_side({"config.json": {**CONFIG, **case.settings}}).config)],
            "file",
        )
        p = rules.read(layout.rows(config), w)
        mine = {"output": ours(config, p).forward({"images": images.astype(np.float64)})}
        yield values(what, "transformers 4.55.4", "float64", mine, {"output": np.array(case.output)}, "float64")
        yield bits(what, "file written again", rules.write(layout.rows(config), p), w)
