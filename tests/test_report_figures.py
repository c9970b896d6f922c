"""The figures: the numbers in them against brute force, and every PNG read back with Pillow."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.test_processes import python
from vit_jax.figures.attention import WORDS, draw_attention, draw_cross_attention, draw_words, rollout, to_patches
from vit_jax.figures.curves import draw_curves, smooth
from vit_jax.figures.figure import BLUE, GREEN, ORANGE
from vit_jax.figures.gallery import draw_gallery
from vit_jax.figures.patches import draw_patches, draw_positions, image_patches, similarity, tile
from vit_jax.figures.results import draw_confusion, draw_per_class
from vit_jax.files.output import shorten
from vit_jax.tasks.classify.draw import draw_classes


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def check_sheet(figure) -> None:
    """Pictures lie apart or one upon another, and nothing is cut off by the page or leaves much of it empty."""
    from matplotlib.image import AxesImage
    from matplotlib.text import Text

    pictures = {tuple(picture.get_window_extent().extents.round()) for picture in figure.findobj(AxesImage)}
    for a, b in itertools.combinations(map(np.array, pictures), 2):
        assert (np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])).min() <= 1, (a, b)
    texts = {tuple(text.get_window_extent().extents) for text in figure.findobj(Text) if text.get_text()}
    boxes = np.array([*pictures, *texts])
    margins = np.concatenate([boxes[:, :2].min(0), figure.bbox.size - boxes[:, 2:].max(0)]) / figure.dpi
    assert margins.min() >= 0 and margins.max() < 0.5, margins


@pytest.fixture(autouse=True)
def texts(monkeypatch):
    """Collects every text of the figures drawn after it, and looks at how their pictures are laid out."""
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.text import Text

    found: list[str] = []
    save = Figure.savefig

    def listen(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        if figure.findobj(AxesImage) and [axes.get_position().bounds for axes in figure.axes] == [(0, 0, 1, 1)]:
            check_sheet(figure)
        found.extend(text.get_text() for text in figure.findobj(Text) if text.get_text())

    monkeypatch.setattr(Figure, "savefig", listen)
    return found


def check(path) -> np.ndarray:
    """The pixels of a PNG that is there, alone, and not blank."""
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with Image.open(path) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGB"))
    assert min(pixels.shape[:2]) > 100 and max(pixels.shape[:2]) < 6000
    assert pixels.std() > 3
    return pixels


def has_color(pixels: np.ndarray, color: str) -> bool:
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.abs(pixels.astype(int) - wanted).max(axis=-1) < 12).any())


# ------------------------------------------------------------------------------------- the maths


def test_rollout_against_loops(rng):
    layers, heads, n = 3, 2, 5
    attention = rng.random((layers, heads, n, n)) ** 3
    attention /= attention.sum(-1, keepdims=True)
    result = [[float(i == j) for j in range(n)] for i in range(n)]
    for layer in range(layers):
        step = [
            [0.5 * sum(attention[layer, h, i, j] for h in range(heads)) / heads + 0.5 * (i == j) for j in range(n)]
            for i in range(n)
        ]
        step = [[value / sum(row) for value in row] for row in step]
        result = [[sum(step[i][k] * result[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    np.testing.assert_allclose(rollout(attention.mean(1)), result, atol=1e-12)
    np.testing.assert_allclose(rollout(attention.mean(1)).sum(-1), 1, atol=1e-12)


def test_to_patches(rng):
    attention = rng.random((2, 6, 6))
    np.testing.assert_array_equal(to_patches(attention, 2, True), attention[:, 0, 2:])
    np.testing.assert_allclose(to_patches(attention, 2, False), attention[:, 2:, 2:].mean(1))


def test_similarity_by_hand():
    cosine = similarity(np.array([[3, 0], [1, 1], [0, -2], [0, 0]], np.float32))
    half = 0.5**0.5
    np.testing.assert_allclose(
        cosine, [[1, half, 0, 0], [half, 1, -half, 0], [0, -half, 1, 0], [0, 0, 0, 0]], atol=1e-12
    )


def test_patches_are_the_tokens_in_order(rng):
    image = rng.integers(0, 256, (6, 8, 3))
    patches = image_patches(image, 3, 2)
    assert patches.shape == (2, 4, 3, 2, 3)
    for row in range(2):
        for col in range(4):
            np.testing.assert_array_equal(patches[row, col], image[3 * row : 3 * row + 3, 2 * col : 2 * col + 2])
    tiled = tile(patches, 1, -1)
    assert tiled.shape == (7, 11, 3)
    np.testing.assert_array_equal(tiled[4:7, 3:5], patches[1, 1])
    assert (tiled[3] == -1).all() and (tiled[:, 2] == -1).all()


def test_smooth():
    values = np.array([1.0, np.nan, 3.0, 5.0, 100.0])
    np.testing.assert_allclose(smooth(values, 3), [1, 2, 4, 36, 52.5])
    np.testing.assert_array_equal(smooth(values, 0), values)
    assert smooth(np.array([2.0]), 50).tolist() == [2.0]
    assert np.isnan(smooth(np.full(4, np.nan), 3)).all()
    values = np.random.default_rng(0).normal(size=150)
    values[20:22], values[40] = np.nan, 1e20  # a large value leaves nothing in means without it
    for half in (1, 5, 32, 74):
        means = [np.nanmean(values[max(i - half, 0) : i + half + 1]) for i in range(150)]
        np.testing.assert_allclose(smooth(values, 2 * half), means, rtol=1e-9)


# ------------------------------------------------------------------------------------ the figures


def train_rows(n: int) -> list[dict]:
    return [
        {
            "kind": "train",
            "step": i,
            "epoch": i / 10,
            "loss": 2 / i,
            "accuracy": 1 - 1 / i,
            "lr": 1e-3,
            "grad_norm": 10.0 ** (-i / 10),
        }
        for i in range(1, n + 1)
    ]


def eval_row(split: str, weights: str, epoch: float) -> dict:
    return {
        "kind": "eval",
        "split": split,
        "weights": weights,
        "step": 10,
        "epoch": epoch,
        "loss": 0.5,
        "accuracy": 0.9,
    }


def test_curves(tmp_path, texts):
    rows = (
        train_rows(60)
        + [eval_row("validation", w, e) for w in ("raw", "ema") for e in (1, 2, 3)]
        + [eval_row("test", "raw", 6)]
    )
    draw_curves(rows, tmp_path / "curves.png", best_step=10)
    pixels = check(tmp_path / "curves.png")
    assert all(has_color(pixels, color) for color in (BLUE, ORANGE, GREEN))
    assert {"train", "validation", "validation (EMA)", "test", "epoch", "best weights: epoch 1"} <= {*texts}
    assert {"Loss", "Accuracy", "Learning rate", "Gradient norm"} <= {*texts}
    assert not any("$" in text for text in texts)


def test_metrics_in_other_units_have_panels_of_their_own(tmp_path, texts, monkeypatch):
    from matplotlib.axes import Axes

    rows = [{**row, "mae": 1700.0} for row in train_rows(5)] + [{**eval_row("validation", "raw", 1), "rmse_scaled": 2}]
    for row in rows:
        row.pop("accuracy", None)
    shown: dict[str, set[float]] = {}
    plot = Axes.plot

    def listen(ax, x, y, **more):
        shown.setdefault(ax.get_title(), set()).update(np.ravel(y).tolist())
        return plot(ax, x, y, **more)

    monkeypatch.setattr(Axes, "plot", listen)
    draw_curves(rows, tmp_path / "curves.png", selection_metric="rmse_scaled")
    assert (shown["MAE"], shown["RMSE, scaled"]) == ({1700.0}, {2.0})


@pytest.mark.parametrize(
    "rows",
    [
        [],
        train_rows(1),
        [eval_row("validation", "raw", 1)],
        [{"kind": "train", "step": 1, "epoch": 0.1, "loss": None, "accuracy": None, "lr": None, "grad_norm": None}],
        [*train_rows(3), {"kind": "train", "step": 4, "epoch": 0.4, "loss": None, "grad_norm": 0.0}],
    ],
    ids=["none", "one", "only eval", "null", "some null"],
)
def test_curves_of_little(tmp_path, rows):
    draw_curves(rows, tmp_path / "curves.png")
    check(tmp_path / "curves.png")


@pytest.mark.parametrize("k", [2, 60, pytest.param(200, marks=pytest.mark.slow)])
def test_classes(tmp_path, rng, k, texts):
    names = [f"class {i}" for i in range(k)]
    names[0], names[1] = "$x_1$", "a name that is far too long for any axis of any figure " * 3
    confusion = np.diag(rng.integers(20, 90, k)) + (rng.random((k, k)) < 0.1)
    confusion[1] = 0  # a class without examples
    (tmp_path / "a").mkdir()
    draw_confusion(confusion, names, tmp_path / "a" / "confusion.png")
    check(tmp_path / "a" / "confusion.png")
    assert (str(confusion[0, 0]) in texts) == (k <= 20)
    assert "true class" in texts and "predicted class" in texts and "$x_1$" in texts
    del texts[:]
    scores = rng.random((3, k))
    scores[:, 1] = np.nan
    draw_per_class(*scores, names, tmp_path / "b" / "classes.png")
    check(tmp_path / "b" / "classes.png")
    assert {"precision", "recall", "F1"} <= set(texts)
    if k == 60:  # sorted: the best class comes before the second best, the one without a score last
        order = list(dict.fromkeys(text for text in texts if text in names))  # a layout may draw twice
        best = np.argsort(-np.nan_to_num(scores[2]))
        assert order[:3] == [names[i] for i in best[:3]]


def test_the_colours_of_a_confusion_matrix_are_shares_of_the_true_class(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    shown, draw = [], Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda ax, values, **how: shown.append(values) or draw(ax, values, **how))
    draw_confusion(np.array([[3, 1, 0], [0, 0, 0], [5, 3, 2]]), ["a", "b", "c"], tmp_path / "confusion.png")
    np.testing.assert_allclose(shown[0], [[0.75, 0.25, 0], [0, 0, 0], [0.5, 0.3, 0.2]])  # rows are the truth


@pytest.mark.parametrize(("m", "channels"), [(0, 1), (1, 3), (50, 3)])
def test_wrong(tmp_path, rng, m, channels, texts):
    images = rng.integers(0, 256, (m, 8, 12, channels), dtype=np.uint8)
    split = SimpleNamespace(labels=np.zeros(m, int), take=lambda numbers: images[numbers], name=str)
    result = SimpleNamespace(predicted=np.ones(m, int), confidence=np.linspace(1, 0.5, m))
    result.confusion = np.array([[0, m], [0, 0]])
    result.per_class = dict.fromkeys(("precision", "recall", "f1"), np.zeros(2))
    shown = draw_classes(split, result, ["cat", "dog"], tmp_path, "last weights")
    assert [each["name"] for each in shown.worst] == [str(i) for i in range(min(m, 36))]
    for other in ("confusion", "per-class"):
        (tmp_path / f"{other}.png").unlink()
    check(tmp_path / "wrong.png")
    captions = [text for text in texts if "cat" in text and "dog" in text]
    assert len(captions) == min(m, 36)
    assert ("last weights" in texts) == bool(m)
    assert m or any("No wrong predictions" in text for text in texts)
    assert not m or "1.00" in captions[0]


def test_a_long_title_of_one_image_fits_on_the_page(tmp_path, texts):
    title, caption = "Labels that may be wrong and more " * 4, "runs/a/long/name " * 9
    draw_gallery(np.zeros((1, 8, 8, 1), np.uint8), ["a\nb"], tmp_path / "a.png", title, caption)  # texts looks at it
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("shape", "patch", "numbered"), [((8, 8, 1), 2, True), ((32, 48, 3), (8, 4), True), ((224, 224, 3), 4, False)]
)
def test_patches(tmp_path, rng, shape, patch, numbered, texts):
    draw_patches(rng.integers(0, 256, shape, dtype=np.uint8), patch, tmp_path / "patches.png")
    check(tmp_path / "patches.png")
    ph, pw = (patch, patch) if isinstance(patch, int) else patch
    count = shape[0] // ph * (shape[1] // pw)
    assert [text for text in texts if text.isdecimal()] == [str(i) for i in range(count if numbered else 0)]


@pytest.mark.parametrize("grid", [(1, 1), (2, 6)])
def test_positions(tmp_path, rng, grid):
    draw_positions(rng.normal(size=(2 + grid[0] * grid[1], 8)), 2, grid, tmp_path / "positions.png")
    check(tmp_path / "positions.png")


@pytest.mark.parametrize(("m", "heads", "prefix", "has_cls"), [(2, 6, 1, True), (1, 2, 3, False), (0, 2, 1, True)])
def test_attention(tmp_path, rng, m, heads, prefix, has_cls, texts):
    images = rng.integers(0, 256, (m, 8, 12, 3), dtype=np.uint8)
    attention = rng.random((m, 2, heads, prefix + 6, prefix + 6), dtype=np.float32)
    labels = [f"true {i}\n→ predicted {i}" for i in range(m)]
    place = tmp_path / "attention.png"
    draw_attention(images, attention, prefix, (2, 3), has_cls, place, labels=labels, caption="last weights")
    check(place)
    if m:
        assert any("cls" in text for text in texts) == has_cls
        assert sum(text.startswith("head") for text in texts) == (min(heads, 4) if heads > 1 else 0)
        assert any("2 more" in text for text in texts) == (heads == 6)
        assert {*labels, "last weights"} <= {*texts}


@pytest.mark.parametrize(
    ("depth", "layers"), [(3, [1]), (3, [0, 1, 2]), pytest.param(26, range(26), marks=pytest.mark.slow)]
)
def test_attention_of_chosen_layers(tmp_path, rng, depth, layers, texts, monkeypatch):
    """The maps that are drawn are those of the layers that the titles name."""
    from vit_jax.figures import attention as module

    drawn, stretched = [], module.stretch
    monkeypatch.setattr(module, "stretch", lambda values: drawn.append(values) or stretched(values))
    maps = rng.random((1, depth, 2, 7, 7))
    images = rng.integers(0, 256, (1, 8, 12, 1), dtype=np.uint8)
    draw_attention(images, maps, 1, (2, 3), True, tmp_path / "attention.png", layers=layers)
    check(tmp_path / "attention.png")
    of_layers = [maps[0, layer, :, 0, 1:].mean(0) for layer in layers]
    np.testing.assert_allclose(drawn[: len(layers)], of_layers)
    np.testing.assert_allclose(drawn[-1], rollout(maps[0].mean(1))[0, 1:])
    titles = [text for text in texts if text.startswith("layer ")]
    assert [title.split(",")[0] for title in titles] == [f"layer {layer + 1}" for layer in layers]
    assert len(drawn) == len(layers) + (2 if len(layers) == 1 else 0) + 1


def test_cross_attention_of_one_layer(tmp_path, rng, texts):
    draw_cross_attention(rng.random((3, 2, 4, 2)), list("abcd"), list("xy"), tmp_path / "a.png", layers=[1])
    check(tmp_path / "a.png")
    assert {text.split(",")[0] for text in texts if text.startswith("layer")} == {"layer 2"}


@pytest.mark.parametrize("layers", [(), (0, 1)])
def test_words_of_a_caption(tmp_path, rng, texts, layers):
    image, words = rng.integers(0, 256, (8, 12, 3), dtype=np.uint8), [f"word{i}" for i in range(WORDS + 2)]
    draw_words(image, rng.random((2, 2, len(words), 2, 3)), words, tmp_path / "a.png", layers=layers, caption="test")
    check(tmp_path / "a.png")
    assert [text for text in texts if text.startswith("word")] == words * max(len(layers), 1)
    assert [text for text in texts if "2 heads" in text] == [f"layer {i + 1}, 2 heads" for i in layers] or not layers


def test_names_that_cannot_be_drawn_as_they_are():
    assert shorten("größe", 5) == "größe" and shorten("größer", 5) == "größ…"
    assert shorten("猫の写真", 8) == "猫の写真" and shorten("猫の写真", 7) == "猫の写…"  # two columns each
    assert shorten("किताबें", 3) == "किताबें" and shorten("किताबें", 2) == "कि…"  # combining marks take no column
    assert shorten("می\u200cخواهم", 7) == "می\u200cخواهم" and shorten("e\u0301e\u0301e\u0301", 2) == "e\u0301…"
    assert shorten("a\x1b[2J\nb\udc80", 20) == "a\ufffd[2J\ufffdb\ufffd"


def test_attention_marks_the_right_patch(tmp_path):
    """All attention on the patch at row 0, column 2 of 2 x 3: only there the overlay is bright."""
    attention = np.zeros((1, 1, 1, 7, 7), np.float32)
    attention[..., 1 + 2] = 1
    draw_attention(np.zeros((1, 40, 60, 1), np.uint8), attention, 1, (2, 3), True, tmp_path / "attention.png")
    pixels = check(tmp_path / "attention.png").astype(int)
    warm = (pixels[..., 0] > 120) & (pixels[..., 2] < 140)  # inferno's upper end, over black
    warm[:, int(pixels.shape[1] * 0.86) :] = False  # the colour bar
    dark = pixels.max(axis=-1) < 60
    dark[: int(1.3 * 120)] = False  # the titles
    column = warm.any(axis=0).nonzero()[0]
    first = column[: (np.diff(column, append=10**6) > 1).argmax() + 1]  # the first map's bright patch
    body = dark[:, first].any(axis=1).nonzero()[0]
    assert warm[:, first].any(axis=1).nonzero()[0].mean() < body.mean()  # in the upper row
    left = dark[body[0] : body[-1], first[0] - 2 * len(first) : first[0]]
    assert left.mean() > 0.9  # two dark patches to its left


def test_a_failed_figure_leaves_the_old_one(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    path = tmp_path / "curves.png"
    draw_curves(train_rows(3), path)
    old = path.read_bytes()

    def fail(figure, name, **_):
        with open(name, "wb") as file:
            file.write(b"half")
        raise OSError("no space")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        draw_curves(train_rows(30), path)
    assert path.read_bytes() == old
    check(path)


def test_the_users_matplotlibrc_is_left_out_and_left_alone(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"text.usetex": True, "font.size": 40.0}):
        draw_curves(train_rows(3), tmp_path / "curves.png")
        assert matplotlib.rcParams["font.size"] == 40
    check(tmp_path / "curves.png")


def test_figures_never_touch_pyplot(tmp_path):
    code = (
        "import sys; from vit_jax.figures.curves import draw_curves; "
        "draw_curves([], sys.argv[1]); print('matplotlib.pyplot' in sys.modules)"
    )
    assert python(code, tmp_path / "curves.png").stdout.strip() == "False"
