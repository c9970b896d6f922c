"""The operations of --adapt for a ViT; docstrings as in operations.py."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vit_jax.config.fields import Size, pair
from vit_jax.config.hints import nearest
from vit_jax.config.outputs import UNSTATED
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

from ..layout import Facts
from ..operations import Arrays
from .kernels import PATCHES, POSITIONS, resample, resample_patches
from .operations import LARGEST, need, number
from .outputs import NUMBERS, TEMPERATURE, fold_numbers, fold_temperature
from .step import Adaptation, Step

NETWORK = ViTConfig
LONGEST_PATCH = 512  # pixels: the time to invert what resizes a patch grows with their third power
STAYS = "the function stays"  # up to rounding
# Mean and standard deviation of pixels in [0, 1], by the names of published preprocessings.
STATISTICS = {
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


def resize(c: ViTConfig, text: str, value: str) -> Adaptation:
    """resize=HEIGHTxWIDTH:KERNEL: another image size; positions of patches are resampled, others stay."""
    size, kernel = _pair(text, value, POSITIONS)
    after = replace(c, image=size)
    after.check()
    old, new, prefix = c.grid, after.grid, c.position_rows - c.patches
    if old == new:
        says = f"image is {_size(c.image)} already: {STAYS}"
        return Adaptation(text, c, after, (), says, lambda facts: resize_images(facts, after.image))
    stored = c.position_stored or after.position_rows * c.width <= LARGEST  # if not, other layouts store them
    need(stored, text, f"{after.position_rows} computed positions are too many")
    steps: tuple[Step, ...] = ()
    positions = "positions are computed for the new grid" if c.position != "none" else "there are no positions"
    if c.position_stored:
        for which, grid in (("old", old), ("new", new)):
            if which in POSITIONS[kernel].square and grid[0] != grid[1]:
                oblong = [name for name, k in POSITIONS.items() if which not in k.square]
                raise UserError(
                    f"adapt {text}",
                    f"{kernel} resamples only square grids, and the {which} one is {grid[0]}x{grid[1]}",
                    f"take {' or '.join(oblong)}",
                )

        def table(arrays: Arrays) -> Arrays:
            (rows,) = arrays
            return [np.concatenate([rows[:prefix], resample(rows[prefix:], old, new, POSITIONS[kernel])])]

        steps = (_step(after, "position", compute=table),)
        positions = f"positions are resampled by {kernel} from {old[0]}x{old[1]} to {new[0]}x{new[1]}"
    says = f"image {_size(c.image)} becomes {_size(after.image)}: {positions}, the function changes"
    return Adaptation(text, c, after, steps, says, lambda facts: resize_images(facts, after.image), changes=True)


def patch(c: ViTConfig, text: str, value: str) -> Adaptation:
    """patch=SIZE:KERNEL: another patch size on the same grid, so that the image size changes with it."""
    size, kernel = _pair(text, value, PATCHES)
    _without_pixel_norm(c, text)
    need(not c.stem, text, "its patches are projected after convolutions (model.stem), so they are not resampled")
    rows, columns = c.grid
    old, new = pair(c.patch), pair(size)
    need(max(*old, *new) <= LONGEST_PATCH, text, f"no side of a patch may have more than {LONGEST_PATCH} pixels")
    after = replace(c, patch=size, image=_square((rows * new[0], columns * new[1])))
    after.check()

    def kernels(arrays: Arrays) -> Arrays:
        (w,) = arrays  # (p q c) d
        return [resample_patches(w.reshape(old[0] * old[1], -1), old, new, PATCHES[kernel]).reshape(-1, c.width)]

    steps = (_step(after, "patch.kernel", compute=kernels),) if old != new else ()
    sizes = f"patch {_size(c.patch)} becomes {_size(size)} by {kernel}, image {_size(c.image)} {_size(after.image)}"
    says = f"{sizes}: the function changes"
    return Adaptation(text, c, after, steps, says, lambda facts: resize_images(facts, after.image), changes=True)


def head(c: ViTConfig, text: str, value: str) -> Adaptation:
    """head=drop (no head), head=new:CLASSES (a new one of zeros), head=new:CLASSES:normal (drawn with std 0.02)."""
    names = [n for n in c.shapes() if n.startswith(("head.", "head_hidden.", "distill_head.", "distill_norm."))]
    if value == "drop":
        after = replace(c, classes=0, head_hidden=0, distill_head=False, distill_norm=False)
        return Adaptation(
            text,
            c,
            after,
            (Step(tuple(names), {}, lambda arrays: []),) if names else (),
            "the head is dropped",
            nameless,
        )
    found = re.fullmatch(r"new:([1-9]\d{0,6})(?::(zero|normal))?", value)
    if not found:
        raise UserError(
            f"adapt {text}",
            f"{value!r} is none of drop, new:CLASSES, new:CLASSES:zero, new:CLASSES:normal",
            "give one of these",
        )
    start, after = found[2] or "zero", replace(c, classes=int(found[1]))
    old = tuple(n for n in names if n.startswith(("head.", "distill_head.")))
    made = {n: shape for n, shape in after.shapes().items() if n.startswith(("head.", "distill_head."))}

    def fresh(arrays: Arrays) -> list[np.ndarray]:
        drawn = start == "normal"
        return [_normal(n, shape) if drawn and n.endswith("kernel") else np.zeros(shape) for n, shape in made.items()]

    # Without an old head the dtype is that of another parameter, which passes through unchanged.
    step = (
        Step(old, made, fresh)
        if old
        else _step(after, "patch.kernel", makes=tuple(made), compute=lambda arrays: [*arrays, *fresh(arrays)])
    )
    return Adaptation(text, c, after, (step,), f"the head is new, {start}, for {after.classes} classes", nameless)


def fold(c: ViTConfig, text: str, value: str) -> Adaptation:
    """fold=layer_scale, fold=cls_position, fold=positions: move parameters into others, so that they need no tensor.

    fold=temperature:T divides the head by T; fold=numbers:STD*x+MEAN,... gives its outputs units. Both are done of
    themselves where a file cannot state what a run has found, so that outputs are what predict tells.
    """
    if value.startswith(TEMPERATURE):
        return fold_temperature(c, text, value)
    if value.startswith(NUMBERS):
        return fold_numbers(c, text, value)
    values = {"layer_scale": _fold_layer_scale, "cls_position": _fold_cls_position, "positions": _fold_positions}
    return _one_of(values, c, text, value)


def unfold(c: ViTConfig, text: str, value: str) -> Adaptation:
    """unfold=cls_position, unfold=qkv_bias: add parameters of zeros, for layouts that must have them."""
    return _one_of({"cls_position": _unfold_cls_position, "qkv_bias": _unfold_qkv_bias}, c, text, value)


def _fold_layer_scale(c: ViTConfig, text: str) -> Adaptation:
    need(c.layer_scale > 0, text, "this network has no layer scale")
    after, steps = replace(c, layer_scale=0.0), []
    for i in range(c.depth):
        for scale, last in (("scale1", "attention.out"), ("scale2", "mlp.fc2")):
            names = [n for n in (f"blocks.{i}.{last}.kernel", f"blocks.{i}.{last}.bias") if n in c.shapes()]
            steps.append(
                _step(
                    after, *names, f"blocks.{i}.{scale}", compute=lambda arrays: [a * arrays[-1] for a in arrays[:-1]]
                )
            )
    return Adaptation(text, c, after, tuple(steps), f"layer scale is folded into the projections before it: {STAYS}")


def _fold_cls_position(c: ViTConfig, text: str) -> Adaptation:
    need(c.cls_token and c.cls_position and c.position != "none", text, "its class token has no position")
    after = replace(c, cls_position=False)
    says = f"the class token's position is added to the token: {STAYS}"
    # Computed positions: in 2-D the row of a prefix token is zero, in 1-D it shifts the rows of the patches.
    if not c.position_stored:
        need(c.position == "sincos2d", text, "its computed positions count the class token; give fold=positions first")
        return Adaptation(text, c, after, (), says)
    return Adaptation(
        text, c, after, (_step(after, "cls_token", "position", compute=lambda a: [a[0] + a[1][0], a[1][1:]]),), says
    )


def _unfold_cls_position(c: ViTConfig, text: str) -> Adaptation:
    need(
        c.cls_token and not c.cls_position and c.position == "learned",
        text,
        "only a class token without one can get a row of learned positions",
    )
    after = replace(c, cls_position=True)
    step = _step(after, "position", compute=lambda a: [np.concatenate([np.zeros((1, c.width)), a[0]])])
    return Adaptation(text, c, after, (step,), f"the class token's position is a row of zeros: {STAYS}")


def _fold_positions(c: ViTConfig, text: str) -> Adaptation:
    need(c.position in ("sincos2d", "sincos1d"), text, f"its positions are {c.position}")
    after = replace(c, position="learned", position_trained=True)
    stored = _step(after, "patch.kernel", makes=("position",), compute=lambda a: [a[0], compute_positions(c)])
    return Adaptation(
        text, c, after, () if c.position_stored else (stored,), f"computed positions become a table: {STAYS}"
    )


def _unfold_qkv_bias(c: ViTConfig, text: str) -> Adaptation:
    absent = [n for n in ("query", "key", "value") if not getattr(c, f"{n}_bias")]
    need(bool(absent), text, "query, key and value all have one")
    after = replace(c, query_bias=True, key_bias=True, value_bias=True)
    steps = [
        _step(after, f"{layer}.kernel", makes=(f"{layer}.bias",), compute=lambda a: [a[0], np.zeros(a[0].shape[1])])
        for layer in (f"blocks.{i}.attention.{n}" for i in range(c.depth) for n in absent)
    ]
    return Adaptation(text, c, after, tuple(steps), f"{', '.join(absent)} get a bias of zeros: {STAYS}")


def channels(c: ViTConfig, text: str, value: str) -> Adaptation:
    """channels=N: from 3 channels to N: their sum for 1, else the three in turn times 3/N (timm's adapt_input_conv)."""
    n = number(text, value, int, 1)
    need(c.channels == 3, text, f"this network takes {c.channels} channels, and only 3 can be changed")
    first, width = ("stem.0.kernel", c.stem[0]) if c.stem else ("patch.kernel", c.width)
    if not c.stem:
        _without_pixel_norm(c, text)
    after = replace(c, channels=n)

    def kernels(arrays: Arrays) -> Arrays:
        w = arrays[0].reshape(-1, 3, width)  # (p q) c d
        w = w.sum(1, keepdims=True) if n == 1 else w[:, np.arange(n) % 3] * (3 / n)
        return [w.reshape(-1, width)]

    says = f"images have {n} channels instead of 3: the function changes, and the preprocessing is no longer known"
    return Adaptation(
        text,
        c,
        after,
        (_step(after, first, compute=kernels),),
        says,
        lambda facts: replace(facts, preprocess=None),
        changes=True,
    )


def statistics(c: ViTConfig, text: str, value: str) -> Adaptation:
    """statistics=FROM:TO: pixels normalised with mean and std TO instead of FROM, each none, half, imagenet or clip."""
    names = value.split(":")
    if len(names) != 2 or not set(names) <= set(STATISTICS):
        raise UserError(
            f"adapt {text}", f"{value!r} is not FROM:TO, each one of {', '.join(STATISTICS)}", "give the two"
        )
    need(c.channels == 3, text, f"these are statistics of 3 channels, and this network takes {c.channels}")
    _without_pixel_norm(c, text)
    need(not c.stem, text, "its convolutions (model.stem) pad images with zeros, whose meaning would change")
    (mean_before, std_before), (mean, std) = ((np.array(a), np.array(b)) for a, b in (STATISTICS[n] for n in names))
    after = replace(c, stem_bias=True)

    def stem(arrays: Arrays) -> Arrays:
        w = arrays[0].reshape(-1, 3, c.width)
        shift = np.einsum("pcd,c->d", w, (mean - mean_before) / std_before)
        return [(w * (std / std_before)[:, None]).reshape(-1, c.width), shift + (arrays[1] if c.stem_bias else 0.0)]

    def facts(given: Facts) -> Facts:
        if given.preprocess is None:
            return given
        stated = tuple(np.round(given.preprocess[k], 4).tolist() for k in ("mean", "std"))
        if stated != tuple(np.round(s, 4).tolist() for s in STATISTICS[names[0]]):
            raise UserError(
                f"adapt {text}",
                f"the files state mean {stated[0]} and std {stated[1]}, which is not {names[0]}",
                "correct the first name",
            )
        return replace(given, preprocess={**given.preprocess, "mean": mean.tolist(), "std": std.tolist()})

    leaves = ("patch.kernel", "patch.bias") if c.stem_bias else ("patch.kernel",)
    step = _step(after, *leaves, makes=("patch.bias",), compute=stem)
    return Adaptation(
        text,
        c,
        after,
        (step,),
        f"pixels are normalised by {names[1]} instead of {names[0]}: for the same pictures {STAYS}",
        facts,
    )


OPERATIONS = (resize, patch, head, fold, unfold, channels, statistics)
SAME_FUNCTION = ("fold=layer_scale", "fold=positions", "fold=cls_position", "unfold=cls_position", "unfold=qkv_bias")


# ------------------------------------------------------------------------------- what they share


def compute_positions(c: ViTConfig) -> np.ndarray:
    """Computed positions, float64 [rows, D]: tokens before the patches that have one, then the patches by rows."""
    if c.position == "sincos1d":  # sine and cosine in turn, a frequency for each pair (Vaswani et al. 2017, 3.5)
        angles = np.arange(c.position_rows)[:, None] * 10000.0 ** (-2 * (np.arange(c.width) // 2) / c.width)
        return np.where(np.arange(c.width) % 2, np.cos(angles), np.sin(angles))
    quarter = c.width // 4  # sines and cosines of x, then of y (Beyer et al. 2022, arXiv 2205.01580)
    frequencies = 10000.0 ** (-np.arange(quarter) / max(quarter - 1, 1))
    y, x = np.divmod(np.arange(c.patches)[:, None], c.grid[1])
    table = np.concatenate([f(axis * frequencies) for axis in (x, y) for f in (np.sin, np.cos)], axis=1)
    return np.concatenate([np.zeros((c.position_rows - c.patches, c.width)), table])


def resize_images(facts: Facts, image: Size) -> Facts:
    """Facts with images of another size, and the size before cropping in proportion."""
    if facts.preprocess is None:
        return facts
    if list(pair(image)) == list(facts.preprocess["image"]):
        return facts
    whole = {name: x for name, x in facts.preprocess.items() if name != "trim"}
    scaled = round(facts.preprocess["size"] * min(pair(image)) / min(facts.preprocess["image"]))
    return replace(facts, preprocess={**whole, "image": list(pair(image)), "size": scaled})


def _step(after: ViTConfig, *takes: str, makes: tuple[str, ...] = (), compute: Callable[[Arrays], Any]) -> Step:
    """A Step that replaces `takes` by those of them that the network `after` has, followed by `makes`."""
    known = after.shapes()
    return Step(takes, {n: known[n] for n in dict.fromkeys((*(n for n in takes if n in known), *makes))}, compute)


def _one_of(
    values: Mapping[str, Callable[[ViTConfig, str], Adaptation]], c: ViTConfig, text: str, value: str
) -> Adaptation:
    if value not in values:
        operation = text.partition("=")[0]
        raise UserError(f"adapt {text}", f"{operation} has no value {value!r}{nearest(value, list(values))}")
    return values[value](c, text)


def _without_pixel_norm(c: ViTConfig, text: str) -> None:
    need(
        not c.stem_pre_norm,
        text,
        "its pixels are normalised before the projection of patches, so the projection cannot be adapted",
    )


def _pair(text: str, value: str, kernels: dict[str, Any]) -> tuple[Size, str]:
    """(size, name of a kernel) from HEIGHTxWIDTH:KERNEL or SIZE:KERNEL. Raises UserError."""
    size, _, kernel = value.partition(":")
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", size)
    if not found:
        raise UserError(f"adapt {text}", f"{size!r} is not a size in pixels", "give HEIGHTxWIDTH, as in 224x224")
    if kernel not in kernels:
        close = nearest(kernel, list(kernels)) if kernel else f"; known: {', '.join(kernels)}"
        raise UserError(f"adapt {text}", f"there is no kernel {kernel!r}{close}")
    return _square((int(found[1]), int(found[2] or found[1]))), kernel


def _square(size: tuple[int, int]) -> Size:
    return size[0] if size[0] == size[1] else size


def _size(size: Size) -> str:
    return "x".join(map(str, pair(size)))


def _normal(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).normal(0.0, 0.02, shape)


def nameless(facts: Facts) -> Facts:
    """Facts that do not say what the outputs are."""
    return replace(facts, outputs=UNSTATED)
