"""Images whose size is no multiple of the patch: 384 = 27 x 14 + 6.

Many libraries compute on the part that patches cover, as a convolution leaves out the rows and columns beyond. The
network here is one for images of that part, 378, and its preprocessing makes the whole images first, then trims them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.config.dotted import value_at
from vit_jax.config.fields import Size, pair
from vit_jax.config.network import NetworkConfig

from ..layout import WHOLE, Json, Layout, Names, covered

Stated = list[tuple[str, Json]]  # (source, {field: value}), the most reliable first


def cover_given(layout: Layout, names: Names, stated: Stated) -> Stated:
    """What is stated of a file's config, with images as large as its patches cover them."""
    for image, patch in _image_fields(layout):
        solve = layout.fields[patch].solve
        sizes = [solve(names) if solve else None, *(fields.get(patch) for _, fields in stated)]
        size = next(filter(is_size, sizes), None)
        if size is not None:
            stated = [
                (who, {**fields, image: covered(fields[image], size)} if is_size(fields.get(image)) else fields)
                for who, fields in stated
            ]
    return stated


def whole_image(layout: Layout, config: NetworkConfig, stated: Stated) -> Json:
    """{WHOLE: [height, width]} of the images that are stated, where patches do not cover them; else empty."""
    for image, patch in _image_fields(layout):
        for _, fields in stated:
            size: Any = fields.get(image)
            if any(trim_of(value_at(config, image), value_at(config, patch), size)):
                return {WHOLE: list(pair(size))}
    return {}


def trim_of(image: Size, patch: Size, whole: Any) -> tuple[int, int]:
    """The rows and columns of whole images beyond those of a network; zeros where these are not what patches cover."""
    if not is_size(whole) or pair(covered(whole, patch)) != pair(image):
        return 0, 0
    (h, w), (rows, columns) = pair(image), pair(whole)
    return rows - h, columns - w


def trimmed(c: NetworkConfig, images: Mapping[str, Any], any_size: bool) -> Json:
    """A preprocessing that makes whole images as one that trims them to what a network's patches cover."""
    size: Any = images.get("image")
    patch, shape = patch_of(c), c.pixels()
    if patch is None or shape is None or not is_size(size) or images.get("trim"):
        return {**images}
    part = covered(size, patch)
    trim = trim_of(part if any_size else shape[:2], patch, size)
    return {**images, "image": list(pair(part)), "trim": list(trim)} if any(trim) else {**images}


def patch_of(c: NetworkConfig) -> Size | None:
    """The patch of a network's images; None where it has none."""
    return getattr(c.encoder or c, "patch", None)


def is_size(value: Any) -> bool:
    """Whether a value is a size: one positive integer, or two."""
    several = value if isinstance(value, list | tuple) else [value, value]
    return len(several) == 2 and all(type(each) is int and each > 0 for each in several)


def _image_fields(layout: Layout) -> Iterator[tuple[str, str]]:
    """(field of an image's size, field of its patch) of a layout whose library computes on the part that is covered."""
    for image in layout.fields if layout.covers else ():
        prefix, _, name = image.rpartition("image")
        if not name and (not prefix or prefix.endswith(".")) and f"{prefix}patch" in layout.fields:
            yield image, f"{prefix}patch"
