"""Data: named sources to batches of uint8 images. numpy; heavier libraries load in the source that needs them.

Read in this order: images (one image), sources (where they come from), order (which of them), splits
(train, validation, test), batches.
"""

from .batches import batches, whole
from .images import Preprocess, open_image
from .order import Order
from .splits import Dataset, Split, open_dataset

__all__ = ["Dataset", "Order", "Preprocess", "Split", "batches", "open_dataset", "open_image", "whole"]
