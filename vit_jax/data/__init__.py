"""From named sources to batches of uint8 images or of ids, in numpy. Heavier libraries are imported when used.

Read contract (the interface) first; then, for images, images (one image), identity (what makes two the same), sources
(sets of images), pixels (decoded), order (which examples a step takes), splits (train, validation, test) and other
(only to evaluate on); for sentences, numbers, pairs (files), flat (all ids in one array), encode (texts to ids), cached
(on disk) and sentences; for captions, caption_set, then shapes and captions of images, or hdf5, coco_features and
vectors; last, batches.
"""

from .batches import batches, evaluation_batches
from .caption_set import CaptionSet
from .captions import CaptionedImages, Captions, open_captions, open_other_captions
from .contract import Data, Given
from .images import Preprocess, open_image
from .inputs import listed, prepared
from .order import Order, TokenOrder
from .other import Other, open_other_images
from .sentences import Sentences, Texts, open_other_pairs, open_sentences
from .splits import Dataset, Split, open_images
from .vectors import Vector, Vectors, checked_vectors, open_features, open_other_features, vectors_in

__all__ = [
    "CaptionSet",
    "CaptionedImages",
    "Captions",
    "Data",
    "Dataset",
    "Given",
    "Order",
    "Other",
    "Preprocess",
    "Sentences",
    "Split",
    "Texts",
    "TokenOrder",
    "Vector",
    "Vectors",
    "batches",
    "checked_vectors",
    "evaluation_batches",
    "listed",
    "open_captions",
    "open_features",
    "open_image",
    "open_images",
    "open_other_captions",
    "open_other_features",
    "open_other_images",
    "open_other_pairs",
    "open_sentences",
    "prepared",
    "vectors_in",
]
