"""What people see of a run: the progress line, the metrics files and the figures."""

from .log import Log
from .plots import (
    draw_attention,
    draw_confusion,
    draw_cross_attention,
    draw_curves,
    draw_patches,
    draw_per_class,
    draw_positions,
    draw_wrong,
)
from .progress import Progress

__all__ = [
    "Log",
    "Progress",
    "draw_attention",
    "draw_confusion",
    "draw_cross_attention",
    "draw_curves",
    "draw_patches",
    "draw_per_class",
    "draw_positions",
    "draw_wrong",
]
