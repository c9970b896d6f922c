"""Images and labels that were given in Python: arrays, lists, or a sequence, as a Dataset of torch.

Item i of a sequence is (image, label), or a dict with an image and a label. An image is an array, a Pillow image, a
tensor of PyTorch or the path of a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....config.hints import nearest
from ....errors import UserError
from ....kinds.table import typed_labels
from ...base import GivenData
from ..config import GIVEN
from ..high_bit_depth import Range
from ..preprocess import Unreadable, read_image
from .arrays import Arrays, arrays_source, arrays_split
from .base import Examples, Source, first_line

if TYPE_CHECKING:
    from PIL import Image

# {the parts of examples: what else one is called in a dict}
NAMES = {
    "images": ("image", "img", "images", "pixel_values"),
    "labels": ("label", "labels", "target", "targets", "class"),
    "captions": ("captions", "text", "texts", "sentences"),
}
LONGEST = 1 << 40  # items of a sequence that ends
EXACT = 1e-3  # how far 255 times a number may be from a whole one, for it to be a pixel of 8 bits


class Sequenced(Examples):
    """The examples of a sequence. `read` is called by several threads, and asks it for one item at a time."""

    def __init__(self, get: Callable[[int], Any], labels: np.ndarray, title: str, kind: str = "class"):
        self._get, self._lock = get, threading.Lock()
        self.labels, self.title, self.kind = labels, title, kind

    def read(self, i: int) -> bytes | np.ndarray | Image.Image:
        with self._lock:
            try:
                image = self._get(i)
            except UserError:
                raise
            except Exception as error:
                raise Unreadable(self.name(i), f"raises {type(error).__name__} ({first_line(error)})") from error
        return as_image(image, self.name(i))

    def name(self, i: int) -> str:
        return f"{self.title}[{i}]"


def is_sequence(value: Any) -> bool:
    """Whether a value can be asked for its items by their numbers."""
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, (str, bytes, Mapping))


def halves(name: str, value: Any, what: str = "labels") -> tuple[Any, Any]:
    """The images and the labels of a split, or its captions."""
    if not _is_pair(value):
        if not is_sequence(value) or hasattr(value, "__array__"):
            found = f"{name} is a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
            forms = f"give (images, {what}), or a sequence whose items are (image, {what[:-1]}) or dicts of both"
            raise UserError("data", found, forms)
        return _examples_of(value, name, what)
    images, labels = value
    if isinstance(images, (list, tuple)) and not _is_regular(images):
        if not hasattr(labels, "__len__") or len(images) != len(labels):
            count = f"{len(labels):,}" if hasattr(labels, "__len__") else "no"
            found = f"{name} has {len(images):,} images and {count} {what}"
            raise UserError("data", found, f"give one {what[:-1]} for each image")
        return images.__getitem__, labels
    try:
        pixels = np.asarray(images)
        leads = hasattr(images, "detach") and pixels.ndim == 4 and pixels.shape[1] in (1, 3, 4)
        return pixels.transpose(0, 2, 3, 1) if leads else pixels, labels
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on another device, or with a gradient
        raise UserError("data", f"{name} cannot be read ({first_line(error)})", "give numpy arrays") from error


def _is_pair(value: Any) -> bool:
    """Whether a value is (images, labels), and not a list of two examples."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or isinstance(value[0], Mapping):
        return False
    two_examples = isinstance(value, list) and all(isinstance(x, tuple) and len(x) == 2 for x in value)
    return not two_examples and all(isinstance(x, Iterable) or hasattr(x, "__array__") for x in value)


def _is_regular(images: Sequence[Any]) -> bool:
    """Whether images are arrays of one shape, or numbers, so that they are one array."""
    if not images or isinstance(images[0], (int, float, list, tuple)):
        return True
    shapes = {getattr(image, "shape", None) for image in images}
    return len(shapes) == 1 and None not in shapes and not hasattr(images[0], "detach")


def _examples_of(sequence: Any, name: str, what: str) -> tuple[Callable[[int], Any], Sequence[Any]]:
    """`halves` of a sequence of examples."""
    count = len(sequence)
    if count > LONGEST:
        raise UserError("data", f"{name} has no end", "give a part of it, such as data[:10_000]")
    if not count:
        return (lambda i: None), []
    first, image, label = _item(sequence, 0, name), 0, 1
    if isinstance(first, Mapping):
        image, label = (_field(first, each, name) for each in ("images", what))
        if hasattr(sequence, "column_names"):  # of datasets.Dataset, which then decodes no image
            return (lambda i: sequence[i][image]), list(sequence[label])
    elif not isinstance(first, (tuple, list)) or len(first) != 2:
        forms = f"let each be (image, {what[:-1]}), or a dict with image and {what[:-1]}"
        raise UserError("data", f"item 0 of {name} is {_what(first)}", forms)
    return (lambda i: sequence[i][image]), [_item(sequence, i, name)[label] for i in range(count)]


def _item(sequence: Any, i: int, name: str) -> Any:
    try:
        return sequence[i]
    except Exception as error:
        found = f"item {i} of {name} raises {type(error).__name__} ({first_line(error)})"
        raise UserError("data", found, "mend it, or leave it out") from error


def _field(item: Mapping[Any, Any], what: str, split: str) -> Any:
    """The name of the only field of an item that is called as an image, or what else is wanted. Raises UserError."""
    found, one = [name for name in item if name in (what[:-1], *NAMES[what])], what[:-1]
    if len(found) != 1:
        has = ", ".join(map(str, item)) or "nothing"
        says = f"item 0 of {split} has {has}" + (f": {' and '.join(found)} may each be its {one}" if found else "")
        raise UserError("data", says, f"call its {one} {one!r}, and leave others of these names out")
    return found[0]


def class_names_of(sequence: Any) -> tuple[str, ...]:
    """The names of classes that a sequence states: `features` of datasets.Dataset, `classes` of torchvision's."""
    features = getattr(sequence, "features", None)
    stated = (
        next((getattr(features[each], "names", None) for each in NAMES["labels"] if each in features), None)
        if isinstance(features, Mapping)
        else getattr(sequence, "classes", None)
    )
    names = tuple(stated) if isinstance(stated, (list, tuple)) else ()
    return names if all(isinstance(name, str) for name in names) else ()


def as_image(image: Any, name: str) -> bytes | np.ndarray | Image.Image:
    """An image as `Examples.read` gives it -> encoded, Pillow's, or uint8 [h, w] or [h, w, C]. A tensor of PyTorch is
    [C, h, w]; numbers of 0 to 1 that are multiples of 1/255 are pixels of 8 bits.
    """
    if isinstance(image, (str, os.PathLike)):
        return read_image(image)
    if isinstance(image, bytes):
        return image
    if hasattr(image, "getbands"):  # of Pillow
        return image  # type: ignore[no-any-return]
    if not hasattr(image, "__array__"):
        raise UserError("data", f"{name} is {_what(image)}", "give arrays, Pillow images or paths of images")
    first = hasattr(image, "detach")
    try:
        pixels = np.asarray(image.detach().cpu() if first else image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError("data", f"{name} cannot be read ({first_line(error)})", "give numpy arrays") from error
    if first and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim not in (2, 3) or 0 in pixels.shape or (pixels.ndim == 3 and pixels.shape[-1] > 4):
        order = ", as image.transpose(1, 2, 0)" if pixels.ndim == 3 and pixels.shape[0] <= 4 else ""
        wanted = "[C, h, w]" if first else "[h, w] or [h, w, C]"
        what = f"{name} has shape {list(image.shape)}"
        raise UserError("data", what, f"give images as {wanted}, with at most 4 channels{order}")
    return np.ascontiguousarray(pixels if pixels.dtype == np.uint8 else eight_bits(pixels, "data", name))


def eight_bits(pixels: np.ndarray, subject: str, name: str) -> np.ndarray:
    """Numbers that are pixels of 8 bits divided by 255, as torchvision's ToTensor makes them."""
    if pixels.dtype.kind == "f" and np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1:
        scaled = pixels.astype(np.float64) * 255
        if (np.abs(scaled - np.round(scaled)) < EXACT).all():
            return np.round(scaled).astype(np.uint8)
    what = f"{name} is {pixels.dtype} from {pixels.min():g} to {pixels.max():g}, and no pixels of 8 bits"
    remedy = (
        "give uint8, or these divided by 255; resizing and normalising are done here, for training as for predictions"
    )
    raise UserError(subject, what, remedy)


def _what(value: Any) -> str:
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{value!r:.40}" if isinstance(value, (int, float, str)) else f"a {type(value).__name__}{size}"


Split = tuple[Any, np.ndarray]


def open_given(given: GivenData, stated: Range = (), target: str = "") -> Source:
    """The source of splits that Python gave."""
    if isinstance(given.class_names, str) or not all(isinstance(name, str) for name in given.class_names):
        raise UserError("class_names", "give a list of texts, one for each class, in the order of their numbers")
    values = given.splits()
    parts = {name: halves(name, value) for name, value in values.items()}
    pairs = {name: (images, _labels(name, labels)) for name, (images, labels) in parts.items()}
    names = tuple(given.class_names) or next(filter(None, (class_names_of(value) for value in values.values())), ())
    if any(labels.dtype.kind in "US" for _, labels in pairs.values()):
        names, pairs = _numbered(pairs, names)
    splits: dict[str, Arrays | Sequenced] = {}
    for name, (images, labels) in pairs.items():
        kind = next(iter(splits.values())).kind if splits else target
        if isinstance(images, np.ndarray):
            splits[name] = arrays_split("data", f"images of {name}", images, labels, f"labels of {name}", stated, kind)
            continue
        if len(labels):
            as_image(images(0), f"{name}[0]")  # refused as what it is, and not as unreadable
            kind, labels = typed_labels("data", f"labels of {name}", labels, len(labels), kind)
        splits[name] = Sequenced(images, labels, name, kind or "class")
    return arrays_source(GIVEN, names, splits)


def _labels(name: str, labels: Any) -> np.ndarray:
    """Labels as an array. Raises UserError where they are none."""
    try:
        if isinstance(labels, (list, tuple)):
            labels = [np.asarray(each) if hasattr(each, "__array__") else each for each in labels]
        array = np.asarray(labels)
    except ValueError as error:
        what, remedy = f"labels of {name} are of several lengths", "give one class an image, or a row of 0 and 1"
        raise UserError("data", what, remedy) from error
    except (TypeError, RuntimeError) as error:
        raise UserError("data", f"labels of {name} cannot be read ({first_line(error)})", "give an array") from error
    if array.dtype == object and array.size and all(isinstance(each, str) for each in array.ravel()):
        return array.astype(str)
    return array


def _numbered(pairs: Mapping[str, Split], names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Split]]:
    """(the names of classes: `names`, or those of train, sorted; the splits with numbers in place of names)."""
    first = next(iter(pairs))
    known = list(names) or sorted({str(label) for label in np.unique(pairs[first][1])})
    place, out = {name: k for k, name in enumerate(known)}, {}
    for split, (images, labels) in pairs.items():
        texts = [str(label) for label in labels.ravel()]
        if labels.dtype.kind not in "US" or labels.size != len(labels):
            what = f"labels of {split} are {labels.dtype} of shape {list(labels.shape)}, and those of {first} names"
            raise UserError("data", what, "give one name for each image in all splits")
        if unknown := sorted({*texts} - place.keys()):
            of = "class_names" if names else first
            raise UserError(
                "data", f"labels of {split} have {unknown[0]!r}, which is not in {of}{nearest(unknown[0], known)}"
            )
        out[split] = (images, np.array([place[text] for text in texts], np.int32))
    return tuple(known), out
