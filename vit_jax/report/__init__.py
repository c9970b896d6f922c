"""What a user sees of a run: the progress line (progress), the metrics files (log) what report.html reads
(kept) and the figures (all others).
"""

from .attention import draw_attention, draw_cross_attention, draw_words
from .captions import draw_captions
from .classification import draw_confusion, draw_per_class, draw_wrong
from .curves import draw_curves
from .figure import page, weights_caption
from .kept import keep_attention, keep_classes, keep_positions, keep_texts
from .log import Log
from .patches import draw_patches, draw_positions
from .progress import Progress

__all__ = [
    "Log",
    "Progress",
    "draw_attention",
    "draw_captions",
    "draw_confusion",
    "draw_cross_attention",
    "draw_curves",
    "draw_patches",
    "draw_per_class",
    "draw_positions",
    "draw_words",
    "draw_wrong",
    "keep_attention",
    "keep_classes",
    "keep_positions",
    "keep_texts",
    "page",
    "weights_caption",
]
