"""What all figures share: pages that become PNGs, colours, and pictures placed on a page.

Figures use matplotlib's Figure on the Agg canvas and never pyplot, so they need no display. The colours are those of
Okabe and Ito, which colour-blind readers can tell apart, and matplotlib's Blues, viridis and inferno.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import UserError
from ..files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
BLUE, ORANGE, GREEN, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#777777"
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E0E0E0",
    "legend.frameon": False,
    "text.parse_math": False,  # a class may be called $x$
}
AnyPath = str | os.PathLike[str] | None
# Fonts with letters that matplotlib's own font lacks: of these, the ones that the machine has are used.
_MORE_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei"),
    *("Malgun Gothic", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS"),
)


@functools.cache
def _matplotlib() -> Any:
    """The library, imported without MPLBACKEND: a name that it does not know would end it, and no figure needs one."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend:  # as it would be by now: the user may draw with pyplot
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = backend
    return matplotlib


@functools.cache
def _fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    return ["DejaVu Sans", *sorted({font.name for font in fontManager.ttflist} & {*_MORE_FONTS}, key=_MORE_FONTS.index)]


@functools.cache
def _shown_figure() -> Any:
    """The class of all figures: matplotlib's, which a notebook shows without pyplot."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.savefig(file, format="png")
            return file.getvalue()

    Shown.__name__ = Shown.__qualname__ = "Figure"
    return Shown


_drawn: list[Figure] | None = None  # the figures since `drawn` was called


def drawn(draw: Callable[..., object], *args: Any, **options: Any) -> Figure:
    """The figure that a call of a function with these arguments draws."""
    global _drawn
    _drawn = []
    try:
        draw(*args, **options)
        return _drawn[-1]
    finally:
        _drawn = None


@contextlib.contextmanager
def page(
    path: AnyPath, width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Iterator[Figure]:
    """A figure, which is written as a PNG, atomically, when the block ends. The user's matplotlibrc has no effect."""
    matplotlib = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing glyphs and tight layouts are of no use to the user
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**STYLE, "font.family": _fonts()})  # type: ignore[dict-item]
        figure = _shown_figure()(figsize=(width, height), dpi=DPI, layout=layout)
        FigureCanvasAgg(figure)
        yield figure
        if _drawn is not None:
            _drawn.append(figure)
        if path is None:
            return
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                if engine := figure.get_layout_engine():
                    # Once, which is all that it takes: savefig would lay it out twice.
                    engine.execute(figure)
                    figure.set_layout_engine(None)
                figure.savefig(temporary, format="png")
        except FileNotFoundError as error:  # a folder that says it can be written, such as /proc
            raise UserError(path, "its folder cannot be written", "choose another") from error


def message_page(path: AnyPath, text: str) -> None:
    """A figure of one sentence, for when there is nothing to draw."""
    with page(path, 6, 2) as figure:
        figure.text(0.5, 0.5, text, ha="center", va="center", size=13, color=GREY)


@contextlib.contextmanager
def sheet(path: AnyPath, width: float, height: float) -> Iterator[Axes]:
    """A page on which `put` places pictures; many on one Axes are drawn much faster than an Axes for each."""
    with page(path, width, height, layout=None) as figure:
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.axis("off")
        yield ax


def put(ax: Axes, picture: np.ndarray, x: float, y: float, w: float, h: float, **options: Any) -> None:
    """Place a picture on a sheet. Up to 128 pixels wide and high it is enlarged without smoothing. Shapes: picture
    [rows, columns].
    """
    picture = to_rgb(picture) if picture.ndim == 3 else picture
    interpolation = "nearest" if max(picture.shape[:2]) <= 128 else "auto"
    ax.imshow(picture, extent=(x, x + w, y + h, y), aspect="auto", **{"interpolation": interpolation} | options)


def to_rgb(image: np.ndarray) -> np.ndarray:
    """[h, w, 1 or 3] -> [h, w, 3]."""
    return np.broadcast_to(image, (*image.shape[:2], 3))


def aspect(images: np.ndarray) -> float:
    """Height over width of images [..., h, w, C], limited to 0.3..3 so that they fit on a page."""
    return min(max(images.shape[-3] / images.shape[-2], 0.3), 3)


def weights_caption(which: str, kind: str, step: int, epoch: float | None = None) -> str:
    """A few words for a figure on the weights that it shows: "last weights (raw), epoch 3, step 60"."""
    when = [] if epoch is None else [f"epoch {round(epoch, 2):g}"]
    return ", ".join([f"{which} weights ({'averaged' if kind == 'ema' else 'raw'})", *when, f"step {step:,}"])
