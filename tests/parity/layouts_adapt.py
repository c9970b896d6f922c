"""--adapt against the code that it is named after: positions, patch kernels, input channels, computed positions.

Where a library computes in float32 whatever it is given, the limit is that of float32 with weights of order 1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import interpolate

from convert import adapt
from convert.adapt.vit import compute_positions
from convert.verify.checks import Check, relative
from convert.write.program.network import on_cpu
from vit_jax.config.fields import pair
from vit_jax.models.vit_config import ViTConfig

from . import weights
from .cases import VIT
from .libraries import absent, load

Size = tuple[int, int]
FLOAT64, FLOAT32 = 1e-14, 2e-6
BASE = replace(VIT, image=16, patch=2)  # a grid of 8x8
OBLONG = replace(BASE, image=(12, 18))  # of 6x9
SIZES: tuple[Size, ...] = ((24, 24), (6, 6), (14, 14), (2, 2))
OBLONG_SIZES: tuple[Size, ...] = ((10, 22), (18, 4), (2, 24))


def positions(c: ViTConfig, size: Size, kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """A random table before and after --adapt resize."""
    given = weights.weights(c)
    (one,) = adapt.adaptations(c, [f"resize={size[0]}x{size[1]}:{kernel}"])
    return given["position"], adapt.apply(one, given)["position"]


def _nchw(table: np.ndarray, grid: Size) -> torch.Tensor:
    return torch.from_numpy(table).reshape(1, *grid, -1).permute(0, 3, 1, 2)


def _rows(grid: torch.Tensor) -> np.ndarray:
    return grid.permute(0, 2, 3, 1).flatten(0, 2).numpy()


def by_interpolate(table: np.ndarray, old: Size, new: Size, **options: object) -> np.ndarray:
    """torch's interpolate on the patches' rows, the prefix kept."""
    prefix = len(table) - old[0] * old[1]
    return np.concatenate([table[:prefix], _rows(interpolate(_nchw(table[prefix:], old), **options))])


def by_size(table: np.ndarray, old: Size, new: Size, mode: str) -> np.ndarray:
    """The same with antialiasing, to the new grid."""
    return by_interpolate(table, old, new, size=new, mode=mode, antialias=True)


def by_timm(table: np.ndarray, old: Size, new: Size) -> np.ndarray:
    resize = load("timm").layers.resample_abs_pos_embed
    return resize(torch.from_numpy(table)[None], list(new), list(old), num_prefix_tokens=len(table) - old[0] * old[1])[
        0
    ].numpy()


def by_huggingface(table: np.ndarray, old: Size, new: Size, family: str = "vit", name: str = "ViT") -> np.ndarray:
    transformers, patch = load("transformers"), 2
    sizes = dict(image_size=old[0] * patch, patch_size=patch, hidden_size=table.shape[1])
    code = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    embeddings = getattr(code, f"{name}Embeddings")(getattr(transformers, f"{name}Config")(**sizes)).double()
    embeddings.position_embeddings.data = torch.from_numpy(table)[None]
    tokens = torch.zeros(1, 1 + new[0] * new[1], table.shape[1], dtype=torch.float64)
    with torch.no_grad():
        return embeddings.interpolate_pos_encoding(tokens, new[0] * patch, new[1] * patch)[0].numpy()


def by_siglip2(table: np.ndarray, old: Size, new: Size) -> np.ndarray:
    load("transformers")
    code = importlib.import_module("transformers.models.siglip2.modeling_siglip2").Siglip2VisionEmbeddings
    prefix, grid = len(table) - old[0] * old[1], torch.tensor([new])
    given = torch.from_numpy(table[prefix:]).reshape(*old, -1)
    return np.concatenate([table[:prefix], code.resize_positional_embeddings(given, grid, new[0] * new[1])[0].numpy()])


def by_torchvision(table: np.ndarray, old: Size, new: Size) -> np.ndarray:
    load("torchvision")
    module = importlib.import_module("torchvision.models.vision_transformer")
    state = {"encoder.pos_embedding": torch.from_numpy(table)[None]}
    return module.interpolate_embeddings(new[0] * 2, 2, state)["encoder.pos_embedding"][0].numpy()


def by_dino(table: np.ndarray, old: Size, new: Size) -> np.ndarray:
    factors = tuple((n + 0.1) / before for n, before in zip(new, old, strict=True))
    return by_interpolate(table, old, new, scale_factor=factors, mode="bicubic")


def by_zoom(table: np.ndarray, old: Size, new: Size) -> np.ndarray:
    zoom = importlib.import_module("scipy.ndimage").zoom
    prefix, factors = len(table) - old[0] * old[1], (new[0] / old[0], new[1] / old[1], 1)
    return np.concatenate(
        [table[:prefix], zoom(table[prefix:].reshape(*old, -1), factors, order=1).reshape(new[0] * new[1], -1)]
    )


def by_jax(table: np.ndarray, old: Size, new: Size) -> np.ndarray:
    import jax

    prefix = len(table) - old[0] * old[1]
    with on_cpu("float64"):
        grid = jax.image.resize(jax.numpy.asarray(table[prefix:].reshape(*old, -1)), (*new, table.shape[1]), "linear")
        return np.concatenate([table[:prefix], np.asarray(grid).reshape(new[0] * new[1], -1)])


Resize = Callable[[np.ndarray, Size, Size], np.ndarray]
DINOV2 = functools.partial(by_huggingface, family="dinov2", name="Dinov2")
REGISTERS = functools.partial(by_huggingface, family="dinov2_with_registers", name="Dinov2WithRegisters")
# (kernel, whose code, what it needs, the code, its limit, grids that need not be square: before, after)
TABLE: tuple[tuple[str, str, str, Resize, float, bool, bool], ...] = (
    ("timm", "timm resample_abs_pos_embed", "timm", by_timm, FLOAT32, True, True),
    ("timm", "torch interpolate", "torch", functools.partial(by_size, mode="bicubic"), FLOAT64, True, True),
    ("hf", "transformers interpolate_pos_encoding", "transformers", by_huggingface, FLOAT64, False, True),
    ("hf", "transformers, DINOv2", "transformers", DINOV2, FLOAT32, False, True),
    ("timm", "transformers, DINOv2 with registers", "transformers", REGISTERS, FLOAT32, False, True),
    ("flexi", "transformers, SigLIP 2", "transformers", by_siglip2, FLOAT32, True, True),
    ("dino", "torch interpolate, by scale", "torch", by_dino, FLOAT64, False, True),
    ("torchvision", "torchvision interpolate_embeddings", "torchvision", by_torchvision, FLOAT64, False, False),
    ("google", "scipy zoom", "scipy", by_zoom, FLOAT64, False, False),
    ("flexi", "jax.image.resize", "jax", by_jax, FLOAT64, True, True),
    ("flexi", "torch interpolate", "torch", functools.partial(by_size, mode="bilinear"), FLOAT64, True, True),
)


def grids() -> Iterator[Check]:
    """Every kernel of positions, up, down and to one row, square and not."""
    missing = absent()
    for kernel, against, needs, code, limit, old_oblong, new_oblong in TABLE:
        if needs in missing:
            continue
        for c in (BASE, OBLONG) if old_oblong else (BASE,):
            for size in SIZES + (OBLONG_SIZES if new_oblong else ()):
                before, after = positions(c, size, kernel)
                new = size[0] // 2, size[1] // 2
                apart = relative(after, code(before, c.grid, new))
                yield Check(f"resize:{kernel}", against, f"positions {c.grid} to {new}", apart, limit)


def patches() -> Iterator[Check]:
    """Patch kernels against timm's; and large patches in large pictures, as FlexiViT promises, against small ones."""
    if "timm" in absent():
        return
    resample = load("timm").layers.resample_patch_embed
    options = {"timm": {}, "flexi": dict(interpolation="bilinear", antialias=False)}
    c, given = BASE, weights.weights(BASE)
    for before, after in ((4, 8), (4, 2), (3, 5), (4, (6, 3))):
        c = replace(BASE, patch=before, image=tuple(2 * n for n in pair(before)))
        given = weights.weights(c)
        for kernel, its in options.items():
            (one,) = adapt.adaptations(c, [f"patch={'x'.join(map(str, pair(after)))}:{kernel}"])
            rows, columns = pair(after)
            mine = (
                adapt.apply(one, given)["patch.kernel"]
                .reshape(rows, columns, c.channels, c.width)
                .transpose(3, 2, 0, 1)
            )
            old = given["patch.kernel"].reshape(before, before, c.channels, c.width).transpose(3, 2, 0, 1)
            theirs = resample(torch.from_numpy(np.ascontiguousarray(old)), list(pair(after)), **its).numpy()
            yield Check(
                f"patch:{kernel}",
                "timm resample_patch_embed",
                f"patches {before} to {after}",
                relative(np.ascontiguousarray(mine), theirs),
                FLOAT32,
            )
    yield from larger_pictures()


def larger_pictures() -> Iterator[Check]:
    """Patches of pictures enlarged by torch, under enlarged kernels, have the old projections."""
    c = replace(BASE, patch=4, image=8)
    given, pixels = (
        weights.weights(c),
        torch.from_numpy(np.random.default_rng(0).standard_normal((5, c.channels, 4, 4))),
    )
    for kernel, its in {"timm": dict(mode="bicubic", antialias=True), "flexi": dict(mode="bilinear")}.items():
        (one,) = adapt.adaptations(c, [f"patch=9:{kernel}"])
        large = interpolate(pixels, size=(9, 9), **its)
        old, new = (
            (p.permute(0, 2, 3, 1).flatten(1).numpy() @ w["patch.kernel"])
            for p, w in ((pixels, given), (large, adapt.apply(one, given)))
        )
        yield Check(f"patch:{kernel}", "the old projections", "enlarged pictures", relative(new, old), 1e-13)


def channels() -> Iterator[Check]:
    """Patch kernels of other channels against timm's."""
    if "timm" in absent():
        return
    change = importlib.import_module("timm.models").adapt_input_conv
    given = weights.weights(BASE)
    old = given["patch.kernel"].reshape(2, 2, 3, -1).transpose(3, 2, 0, 1)
    for n in (1, 2, 3, 4, 6, 7):
        (one,) = adapt.adaptations(BASE, [f"channels={n}"])
        mine = adapt.apply(one, given)["patch.kernel"].reshape(2, 2, n, -1).transpose(3, 2, 0, 1)
        theirs = change(n, torch.from_numpy(np.ascontiguousarray(old, np.float32))).numpy().astype(np.float64)
        yield Check(
            "channels",
            "timm adapt_input_conv",
            f"3 channels to {n}",
            relative(np.ascontiguousarray(mine), theirs),
            FLOAT32,
        )


def sinusoids() -> Iterator[Check]:
    """Computed positions against those of the networks."""
    from vit_jax.models.vit import fixed_positions

    for position in ("sincos1d", "sincos2d"):
        for c in (
            replace(OBLONG, position=position, registers=2, register_position=True),
            replace(BASE, position=position, width=20, heads=2),
        ):
            yield Check(
                "fold=positions", "vit_jax", position, relative(compute_positions(c), fixed_positions(c)), FLOAT64
            )


def layouts_adapt() -> Iterator[Check]:
    """All of them."""
    for part in (grids, patches, channels, sinusoids):
        yield from part()
