"""What a run does with an image before its network, as arithmetic that numpy, jax and nodes of ONNX compute alike.

The resize is Pillow's own of uint8 images, to the bit: `precompute_coeffs`, `normalize_coeffs_8bpc` and the two passes
of Resample.c and, for "nearest", `ImagingScaleAffine` of Geometry.c. Weights are float64, rounded to 2^-22, and both
passes round to whole grey levels. What they sum up is exact in float64, in whatever order a library adds.

The order of the passes is that of `ImagingResample` in Pillow 13: the vertical one first if it takes off more than
twice as many rows as the other takes off columns. Older ones begin with the horizontal pass, which makes some values
another by one grey level.

`xp` is a library of arrays (arrays.py), with names of the array API standard. Lengths are int64 [], which ONNX knows
when it runs.

Dimensions: B batch, C channels, h and w height and width of given images, H and W of those that the network takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vit_jax.data.images.preprocess import Preprocess

Arrays = Any  # the operations on arrays of jax or on values of an ONNX graph: jax_arrays, onnx_arrays
UNITS = float(1 << 22)  # of a weight: PRECISION_BITS in Resample.c
CHANNELS_FIRST, CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


class Axis(NamedTuple):
    """One axis of the images that a network takes, `made` long: a part of the resized one, which is `resized` long.

    It begins at `start` of that; before it, where that is negative, and after its end is the background.
    """

    resized: Any
    start: Any
    made: int


def as_network_takes(xp: Arrays, pixels: Any, c: Preprocess) -> Any:
    """Pixels uint8 [B, h, w, C] as the network takes them: float32 [B, H, W, C]."""
    return normalise(xp, fit(xp, pixels, c), c)


def normalise(xp: Arrays, x: Any, c: Preprocess) -> Any:
    """(x / 255 - mean) / std in float32, of grey levels [B, H, W, C]."""
    x = xp.astype(x, "float32") / 255.0
    return (x - xp.constant(c.mean, "float32")) / xp.constant(c.std, "float32")


def fit(xp: Arrays, pixels: Any, c: Preprocess) -> Any:
    """`Preprocess.apply`: pixels uint8 [B, h, w, C] to whole grey levels, float64 [B, H, W, C]."""
    h, w = xp.length(pixels, 1), xp.length(pixels, 2)
    h, w = h // h * h, w // w * w  # of an image without pixels there is no answer: ONNX Runtime divides none by 0
    rows, columns = FITS[c.fit](xp, h, w, c)
    down = weights(xp, xp.indices(pixels, 1), h, rows, c.interpolation)  # [H, h]
    across = weights(xp, xp.indices(pixels, 2), w, columns, c.interpolation)  # [W, w]
    x = xp.astype(xp.permute_dims(pixels, CHANNELS_FIRST), "float64")
    x = xp.cond(
        h - rows.resized > xp.maximum((w - columns.resized) * 2, xp.constant(0, "int64")),
        lambda: horizontal_pass(xp, vertical_pass(xp, x, down), across),
        lambda: vertical_pass(xp, horizontal_pass(xp, x, across), down),
    )
    if c.fit == "pad":
        inside = xp.expand_dims(on_image(xp, rows), 1) & on_image(xp, columns)
        x = xp.where(inside, x, xp.constant(c.background, "float64"))
    return xp.permute_dims(x, CHANNELS_LAST)


def vertical_pass(xp: Arrays, x: Any, down: Any) -> Any:
    """Columns of [B, C, h, .] by weights [H, h]: [B, C, H, .]."""
    return grey_levels(xp, xp.matmul(down, x))


def horizontal_pass(xp: Arrays, x: Any, across: Any) -> Any:
    """Rows of [B, C, ., w] by weights [W, w]: [B, C, ., W]."""
    return grey_levels(xp, xp.matmul(x, xp.permute_dims(across, (1, 0))))


def grey_levels(xp: Arrays, x: Any) -> Any:
    """Sums as whole grey levels: `clip8` of Resample.c."""
    return xp.clip(xp.floor(x + 0.5), 0.0, 255.0)


# ------------------------------------------------------------------------------------------- fits


def stretch(xp: Arrays, h: Any, w: Any, c: Preprocess) -> list[Axis]:
    """The whole image, whatever its aspect."""
    start = xp.constant(0, "int64")
    return [Axis(xp.constant(n, "int64"), start, made) for n, made in zip(c.whole.image, c.image, strict=True)]


def crop(xp: Arrays, h: Any, w: Any, c: Preprocess) -> list[Axis]:
    """`Preprocess._covering`: the shorter side becomes `size`, or as long as covers; then the centre is cut out.

    The scale is the greatest of three ratios top / bottom, which whole numbers compare.
    """
    rows, columns = c.whole.image
    top, bottom = xp.constant(columns, "int64"), w
    for other, below in ((rows, h), (c.size, xp.minimum(h, w))):
        greater = bottom * other > below * top
        top, bottom = xp.where(greater, xp.constant(other, "int64"), top), xp.where(greater, below, bottom)
    resized = (h * top // bottom, w * top // bottom)
    halves = (xp.astype(n - cut, "float64") / 2.0 for n, cut in zip(resized, c.whole.image, strict=True))
    starts = (xp.astype(xp.round(half), "int64") for half in halves)  # half to even, as torchvision
    return [Axis(*each) for each in zip(resized, starts, c.image, strict=True)]


def pad(xp: Arrays, h: Any, w: Any, c: Preprocess) -> list[Axis]:
    """The whole image in its aspect, in the middle of the background."""
    lengths = [xp.astype(length, "float64") for length in (h, w)]
    ratios = [xp.constant(n, "float64") / length for n, length in zip(c.whole.image, lengths, strict=True)]
    scale = xp.minimum(*ratios)
    resized = [xp.maximum(xp.astype(xp.round(length * scale), "int64"), xp.constant(1, "int64")) for length in lengths]
    starts = ((whole - n) // 2 * -1 for n, whole in zip(resized, c.whole.image, strict=True))
    return [Axis(*each) for each in zip(resized, starts, c.image, strict=True)]


FITS = {"stretch": stretch, "crop": crop, "pad": pad}  # by Preprocess.fit


def on_image(xp: Arrays, axis: Axis) -> Any:
    """Whether each place of an axis lies on the image: bool [made]."""
    places = xp.arange(axis.made) + xp.astype(axis.start, "float64")
    return (places > -1.0) & (places < xp.astype(axis.resized, "float64"))


# ---------------------------------------------------------------------------------------- weights


def weights(xp: Arrays, indices: Any, length: Any, axis: Axis, kernel: str) -> Any:
    """Of which pixels of an axis those of the resized one are made: `precompute_coeffs` of Resample.c. Shapes: indices
    float64 [n], length int64 [] -> float64 [made, n], each a whole multiple of 2^-22.
    """
    scale = xp.astype(length, "float64") / xp.astype(axis.resized, "float64")
    if kernel == "nearest":
        return xp.astype(xp.equal(indices, xp.expand_dims(xp.floor(xp.added_up(scale, axis)), 1)), "float64")
    stretched = xp.maximum(scale, xp.constant(1.0, "float64"))
    centres = (xp.arange(axis.made) + xp.astype(axis.start, "float64") + 0.5) * scale
    x = KERNELS[kernel](xp, xp.abs((indices - xp.expand_dims(centres, 1) + 0.5) * (1.0 / stretched)))
    total = xp.expand_dims(xp.sum(x, 1), 1)
    x = x / xp.where(xp.equal(total, 0.0), xp.constant(1.0, "float64"), total)
    return xp.sign(x) * xp.floor(xp.abs(x) * UNITS + 0.5) / UNITS


def bilinear(xp: Arrays, x: Any) -> Any:
    """`bilinear_filter` of Resample.c, of distances."""
    return xp.maximum(1.0 - x, xp.constant(0.0, "float64"))


def bicubic(xp: Arrays, x: Any) -> Any:
    """`bicubic_filter` of Resample.c, of distances: Keys' kernel with a = -0.5."""
    a = -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return xp.where(x < 1.0, near, xp.where(x < 2.0, far, xp.constant(0.0, "float64")))


KERNELS = {"bilinear": bilinear, "bicubic": bicubic}
