"""Data: named sources to batches of uint8 images, or of ids. numpy; heavier libraries load in the source that needs them.

Read in this order: images (one image), sources (where they come from), order (which of them), splits
(train, validation, test); numbers and sentences (the same for text); batches.
"""

from ..config import RunConfig
from .batches import batches, whole
from .images import Preprocess, open_image
from .order import Order, TokenOrder
from .sentences import Sentences, Texts, open_sentences
from .splits import Dataset, Split, open_images

__all__ = ["Dataset", "Order", "Preprocess", "Sentences", "Split", "Texts", "TokenOrder", "batches", "open_dataset", "open_image", "whole"]


def open_dataset(run: RunConfig) -> Dataset | Texts:
    """The data of a run, checked and split. Raises UserError."""
    return open_sentences(run) if run.task == "translate" else open_images(run)
