"""Data: named sources to batches of uint8 images, or of ids. numpy; heavier libraries load in the source that needs them.

Read in this order: images (one image), sources (where they come from), order (which of them), splits
(train, validation, test); numbers and sentences (the same for text); contract, batches.
"""

from .batches import batches, whole
from .contract import Data
from .images import Preprocess, open_image
from .order import Order, TokenOrder
from .sentences import Sentences, Texts, open_sentences
from .splits import Dataset, Split, open_images

__all__ = [
    "Data",
    "Dataset",
    "Order",
    "Preprocess",
    "Sentences",
    "Split",
    "Texts",
    "TokenOrder",
    "batches",
    "open_image",
    "open_images",
    "open_sentences",
    "whole",
]
