"""Google's npz layouts against plain numpy, which follows the published maths over arrays by name, and timm's loader.

Every file here is made by name and shape, not by our rows: embedding (P, Q, C, D), heads (D, H, Dh), LayerNorm with
epsilon 1e-6, tanh GELU, pre-norm blocks (Dosovitskiy et al. 2021; attention pooling by Zhai et al. 2022).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from convert import rules
from convert.dialects import LAYOUTS
from convert.recognise.config import resolve
from convert.verify import Weights
from convert.verify.checks import Check, bits, values
from convert.verify.libraries import build
from convert.verify.sides import ByRows

from .sides import ours

Arrays = dict[str, np.ndarray]
IMAGE, P, Q, C, D, H, F, L, K = (4, 12), 2, 4, 3, 8, 2, 12, 3, 5
N, DH = (IMAGE[0] // P) * (IMAGE[1] // Q), D // H
LINEN = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
PRE_LINEN = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")


@dataclass(frozen=True)
class File:
    """One published form: which layout it is to be recognised as, and its choices."""

    layout: str
    pool: str = "gap"  # gap, tok, map
    modules: tuple[str, ...] = LINEN
    position: str = "pos_embedding"  # its name; empty: sines and cosines
    class_row: bool = False  # the first position is the class token's
    map: str = "MAPHead_0/"
    scan: bool = False
    hidden: int = 0
    tanh: bool = True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of all its arrays."""
        out: dict[str, tuple[int, ...]] = {"embedding/kernel": (P, Q, C, D), "embedding/bias": (D,)}
        out |= {"cls": (1, 1, D)} if self.pool == "tok" else {}
        out |= {self.position: (1, N + self.class_row, D)} if self.position else {}
        for i in range(1 if self.scan else L):
            name, lead = f"Transformer/encoderblock{'' if self.scan else f'_{i}'}/", (L,) * self.scan
            out |= {f"{name}{n}": (*lead, *shape) for n, shape in self.block(*self.modules).items()}
        out |= {f"Transformer/encoder_norm/{n}": (D,) for n in ("scale", "bias")}
        if self.pool == "map":
            out |= {f"{self.map}{n}": shape for n, shape in self.block(LINEN[0], LINEN[1], "", LINEN[3]).items()} | {
                f"{self.map}probe": (1, 1, D)
            }
        out |= {"pre_logits/kernel": (D, self.hidden), "pre_logits/bias": (self.hidden,)} if self.hidden else {}
        return out | {"head/kernel": (self.hidden or D, K), "head/bias": (K,)}

    @staticmethod
    def block(norm1: str, attention: str, norm2: str, mlp: str) -> dict[str, tuple[int, ...]]:
        out: dict[str, tuple[int, ...]] = {
            f"{norm}/{n}": (D,) for norm in (norm1, norm2) if norm for n in ("scale", "bias")
        }
        out |= {
            f"{attention}/{n}/{leaf}": shape
            for n in ("query", "key", "value")
            for leaf, shape in (("kernel", (D, H, DH)), ("bias", (H, DH)))
        }
        out |= {f"{attention}/out/kernel": (H, DH, D), f"{attention}/out/bias": (D,)}
        return out | {
            f"{mlp}/Dense_0/kernel": (D, F),
            f"{mlp}/Dense_0/bias": (F,),
            f"{mlp}/Dense_1/kernel": (F, D),
            f"{mlp}/Dense_1/bias": (D,),
        }

    def arrays(self, dtype: str) -> Arrays:
        """Random values, of a size that keeps maps' inputs as large as they are."""
        rng, out = np.random.default_rng(0), {}
        for name, shape in self.shapes().items():
            value = rng.standard_normal(shape)
            if name.endswith("kernel"):
                value /= np.sqrt(P * Q * C if name == "embedding/kernel" else F if "Dense_1" in name else D)
            elif name.endswith("scale"):
                value = 1 + value * 0.3
            out[name] = value.astype(dtype)
        return out


FILES = [
    File("augreg@pre-linen", "tok", PRE_LINEN, "Transformer/posembed_input/pos_embedding", True),
    File("augreg@linen", "tok", LINEN, "Transformer/posembed_input/pos_embedding", True, hidden=6),
    File("augreg@linen", "gap", LINEN, "Transformer/posembed_input/pos_embedding"),
    File("big-vision@loop", "gap", position="", hidden=6),
    File("big-vision@loop", "tok"),
    File("big-vision@loop", "tok", position=""),
    File("big-vision@loop", "map"),
    File("big-vision@scan", "gap", scan=True),
    File("big-vision@scan", "map", scan=True, hidden=8),
    File("big-vision@2021", "map", position="Transformer/pos_embedding", hidden=6, tanh=False),
    File("big-vision@2021", "gap", position="Transformer/pos_embedding", hidden=6),
    File("big-vision@2021-inlined", "map", position="Transformer/pos_embedding", map=""),
]


# ------------------------------------------------------------------------------------- the maths


def forward(file: File, w: Arrays, images: np.ndarray) -> np.ndarray:
    """Logits [B, K] of images [B, h, w, C], in float64."""
    (h, v), b, w, images = (
        IMAGE,
        len(images),
        {n: x.astype(np.float64) for n, x in w.items()},
        images.astype(np.float64),
    )
    x = (
        np.einsum("bipjqc,pqcd->bijd", images.reshape(b, h // P, P, v // Q, Q, C), w["embedding/kernel"]).reshape(
            b, N, D
        )
        + w["embedding/bias"]
    )
    positions = w[file.position] if file.position else sincos(h // P, v // Q)
    if not file.class_row:
        x = x + positions
    if file.pool == "tok":
        x = np.concatenate([np.tile(w["cls"], (b, 1, 1)), x], 1)
    if file.class_row:
        x = x + positions
    for i in range(L):
        if file.scan:
            one = {
                name.removeprefix("Transformer/encoderblock/"): array[i]
                for name, array in w.items()
                if name.startswith("Transformer/encoderblock/")
            }
        else:
            one = {
                n.removeprefix(f"Transformer/encoderblock_{i}/"): array
                for n, array in w.items()
                if n.startswith(f"Transformer/encoderblock_{i}/")
            }
        norm1, att, norm2, mlp = file.modules
        y = norm(x, one, norm1)
        x = x + attention(y, y, one, att)
        x = x + perceptron(norm(x, one, norm2), one, mlp)
    x = norm(x, w, "Transformer/encoder_norm")
    if file.pool == "map":
        z = attention(np.tile(w[f"{file.map}probe"], (b, 1, 1)), x, w, f"{file.map}MultiHeadDotProductAttention_0")
        x = z + perceptron(norm(z, w, f"{file.map}LayerNorm_0"), w, f"{file.map}MlpBlock_0")
    pooled = x.mean(1) if file.pool == "gap" else x[:, 0]
    if file.hidden:
        pooled = dense(pooled, w, "pre_logits")
        pooled = np.tanh(pooled) if file.tanh else pooled
    return dense(pooled, w, "head")


def dense(x: np.ndarray, w: Arrays, name: str) -> np.ndarray:
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def norm(x: np.ndarray, w: Arrays, name: str) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]


def attention(queries: np.ndarray, tokens: np.ndarray, w: Arrays, name: str) -> np.ndarray:
    given = {"query": queries, "key": tokens, "value": tokens}
    q, k, v = (
        np.einsum("bnd,dhe->bhne", x, w[f"{name}/{n}/kernel"]) + w[f"{name}/{n}/bias"][:, None]
        for n, x in given.items()
    )
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(DH))
    return (
        np.einsum("bhne,hed->bnd", scores / scores.sum(-1, keepdims=True) @ v, w[f"{name}/out/kernel"])
        + w[f"{name}/out/bias"]
    )


def perceptron(x: np.ndarray, w: Arrays, name: str) -> np.ndarray:
    x = dense(x, w, f"{name}/Dense_0")
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return dense(x, w, f"{name}/Dense_1")


def sincos(rows: int, columns: int) -> np.ndarray:
    """[rows * columns, D]: sines and cosines of x, then of y, at D/4 frequencies from 1 to 1/10000."""
    y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1)
    omega = 10000.0 ** -np.linspace(0, 1, D // 4)
    return np.concatenate([np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega)], 1)


# ------------------------------------------------------------------------------------ comparisons


def compare(file: File, dtype: str) -> Iterator[Check]:
    """One file: recognised, resolved, read, its forward pass, written again."""
    what, w = f"{file.layout}, {file.pool}{', hidden layer' * bool(file.hidden)}", file.arrays(dtype)
    names = {name: array.shape for name, array in w.items()}
    known = [layout.name for layout in LAYOUTS.values() if layout.recognises(names)]
    yield Check(what, "names", "recognised alone", float(known != [file.layout]), 0.0, ", ".join(known))
    layout = LAYOUTS[file.layout]
    said = {
        "image": list(IMAGE),
        "pool": "mean" if file.pool == "gap" else None,
        "head_activation": "tanh" if file.tanh else "none",
    }
    config = resolve(layout, names, [("--set", said)], "file")
    p = rules.read(layout.rows(config), w)
    yield bits(what, "file written again", rules.write(layout.rows(config), p), w)
    images = np.random.default_rng(1).standard_normal((3, *IMAGE, C)).astype(dtype)
    logits = {"logits": ours(config, p, dtype).forward({"images": images})}
    yield values(what, "numpy", dtype, logits, {"logits": forward(file, w, images).astype(dtype)}, dtype)
    built, _ = build(Weights("file", layout, config, w))
    if built is not None:  # timm's reader knows no hidden layer of a head, and no computed positions
        theirs = ByRows(built, config, dtype).forward({"images": images})
        yield values(what, built.library, dtype, logits, {"logits": theirs}, dtype)


def layouts() -> Iterator[Check]:
    """All files in both precisions."""
    for file in FILES:
        yield from compare(file, "float64")
        yield from compare(file, "float32")
