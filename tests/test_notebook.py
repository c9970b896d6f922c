"""What a notebook shows: figures as matplotlib's, tables of predictions and comparisons, and as much as is wanted."""

import base64
import contextlib
import io
import shutil
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flax import nnx
from PIL import Image

import vit_jax
from vit_jax.errors import UserError
from vit_jax.files.output import html_table
from vit_jax.kinds.classes import Classes, score
from vit_jax.training.progress import HIDDEN, Progress, show_figures, telling

PIXELS = np.random.default_rng(0).integers(0, 255, (3, 8, 8)).astype(np.uint8)


@pytest.fixture
def cell(monkeypatch):
    """Of a fake IPython: what `display` was asked to show in the kernel of a notebook."""
    shown = []

    def display(content, raw, **_):
        shown.append(content)
        return types.SimpleNamespace(update=lambda content, raw: None)

    ipython, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython, module.display = lambda: types.SimpleNamespace(kernel=object()), display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


@pytest.fixture(scope="module")
def run(tmp_path_factory, quick_compilation):
    """A run with its figures, of which nothing was told."""
    sizes = {"width": 16, "depth": 1, "heads": 2, "hidden": 32, "epochs": 1, "name": "run"}
    config = vit_jax.preset("digits", fields=sizes | {"dir": str(tmp_path_factory.mktemp("notebook"))}).run
    with contextlib.redirect_stdout(io.StringIO()) as out:
        folder = Path(vit_jax.train(config, progress="none")["folder"])
    assert out.getvalue() == ""
    return folder


def pixels(png):
    return np.asarray(Image.open(png).convert("RGB"))


@pytest.mark.parametrize("name", ["curves", "confusion"])
def test_the_figures_of_a_run_are_the_pictures_that_it_has_left(run, name):
    figure = vit_jax.figure(run, name=name)
    left, found = pixels(run / "plots" / f"{name}.png"), pixels(io.BytesIO(figure._repr_png_()))
    rows, columns = (min(sides) - 1 for sides in zip(left.shape[:2], found.shape[:2], strict=True))
    assert left.shape[0] - rows <= 2 and (found[:rows, :columns] == left[:rows, :columns]).mean() > 0.95
    assert figure.axes and type(figure).__mro__[1].__module__ == "matplotlib.figure"


def test_several_runs_are_compared_in_a_figure_and_a_table(run):
    other = shutil.copytree(run, run.parent / "other")
    assert len(vit_jax.figure(run, other).axes) == 4
    compared = vit_jax.compare(run, [other])
    first, second = compared.rows
    assert first["name"] == "run"
    assert second["test accuracy"] == compared["lines"][1]["results"]["test accuracy"]["mean"]
    assert all(isinstance(value, (str, int, float, tuple)) for value in first.values())
    assert compared._repr_html_().count("<tr>") == 3
    with pytest.raises(UserError, match="give one run, or no name"):
        vit_jax.figure(run, other, name="curves")
    with pytest.raises(UserError, match=r"name: is 'confused', and .*plots has no such figure; nearest: confusion"):
        vit_jax.figure(run, name="confused")


def test_predictions_are_lists_and_tables(run):
    net = vit_jax.load(run)
    several, one = net.predict(PIXELS, top=2), net.predict(PIXELS[0], top=2)
    assert several[0] == [(name, pytest.approx(value)) for name, value in one] and len(several) == 3
    assert [row["rank"] for row in several.rows] == [1, 2] * 3 and several.rows[5]["image"] == 2
    assert one.rows[1] == {"image": 0, "rank": 2, "class": one[1][0], "probability": one[1][1]}
    assert several._repr_html_().count("<tr>") == 7
    samples = vit_jax.predict(run, run / "samples", top=1)
    assert samples.rows[0]["file"].endswith(".png") and samples.rows[0]["class"] == samples[0][1][0][0]
    assert net.draw_attention(PIXELS[:1]).axes
    assert "accuracy" in vit_jax.evaluate(run)[1]._repr_html_()


def test_names_of_users_are_no_markup_and_long_tables_end():
    table = html_table([{"class": "<b>&", "value": 1 / 3}] * 70)
    assert "&lt;b&gt;&amp;" in table and "<b>" not in table and "0.3333" in table and "10 more rows" in table


@pytest.mark.parametrize(
    ("what", "said", "shown"), [("full", True, True), ("short", False, True), ("none", False, False)]
)
def test_what_is_told_while_a_run_trains_can_be_less(cell, capsys, monkeypatch, run, what, said, shown):
    monkeypatch.chdir(run)
    with telling(what), Progress(1, 10, 1, 8) as bar:
        bar.say("compiling")
        print("results")
        show_figures(run / "plots")
    printed = capsys.readouterr().out
    assert ("compiling" in printed, "results" in printed) == (said, what != "none")
    assert bool([each for each in cell if "image/png" not in each]) is shown
    figures = [each for each in cell if "image/png" in each]
    left = {path.name for path in (run / "plots").glob("*.png") if path.stem not in HIDDEN}
    assert {each["text/plain"].rpartition("/")[2] for each in figures} == (left if what == "full" else set())
    if figures:
        assert figures[0]["text/plain"] == "plots/curves.png"
        assert base64.b64decode(figures[0]["image/png"]) == (run / "plots" / "curves.png").read_bytes()


def test_what_is_to_be_told_is_checked_before_a_run_begins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="progress: is 'loud'; give full, short, none"):
        vit_jax.train(vit_jax.preset("digits").run, progress="loud")
    assert not [*tmp_path.iterdir()]


def test_a_finished_run_that_has_learned_nothing_says_so(tmp_path, without_pictures, quick_compilation, capsys):
    images, labels = np.zeros((120, 8, 8), np.uint8), np.arange(120) % 3
    sizes = {"width": 8, "depth": 1, "heads": 2, "hidden": 8, "classes": 3}
    fields = sizes | {"epochs": 1, "batch": 8, "dir": str(tmp_path)}
    vit_jax.train(vit_jax.preset("digits", fields=fields).run, data=(images, labels), progress="short")
    assert "is no better than the most frequent class for every image" in capsys.readouterr().out


def test_a_network_that_finds_rare_classes_has_learned_although_it_is_less_accurate_than_the_frequent_one():
    truth = np.repeat([0, 1], [200, 10])
    found = np.where(np.arange(210) % 10, truth, 1 - truth)  # 90 % of either class
    for predicted, learned in ((found, True), (np.roll(found, 105), False), (np.zeros(210, int), False)):
        result = score(truth, predicted, np.ones(len(truth)), None, (truth != predicted).astype(int), 2)
        assert (Classes().at_chance(SimpleNamespace(labels=truth), result) == "") == learned


WRONG = """vit_jax.train('digitz')
vit_jax.train(vit_jax.preset('digits').run, data=(x, [1]))
vit_jax.preset('digits', fields={'epoch': 2})
vit_jax.load('nothing')
vit_jax.build('vit-x16')
vit_jax.build('digits', img_size=32)
vit(np.zeros((2, 9, 9, 1), np.float32))
vit(np.zeros((2, 8, 8, 1), np.uint8))
nnx.jit(lambda m, x: m(x))(vit, np.zeros((2, 9, 9, 1), np.float32))
nnx.grad(lambda m: m(np.zeros((2, 9, 9, 1), np.float32)).sum())(vit)
vit.capture(np.zeros((2, 8, 8, 1), np.float32), ['attn'])
net.predict('missing.png')
net.predict(x, top=0)
net.features(x, blocks=[9])
vit_jax.evaluate(run, split='tset')
vit_jax.predict(run, 'missing.png')
vit_jax.export(net, 'w', to='tim')
vit_jax.compare('zzz')
vit_jax.figure(run, name='confus')
vit_jax.optimizer('adma', lr=1e-3)
vit_jax.report('zzz')""".splitlines()


def test_twenty_wrong_calls_in_a_shell_of_ipython_leave_a_page(run, tmp_path, monkeypatch):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    left = []

    class Shell(InteractiveShell):
        def _showtraceback(self, kind, error, lines):
            left.append("\n".join(lines))

    shell = Shell()
    shell.user_ns |= {"vit_jax": vit_jax, "np": np, "nnx": nnx, "x": PIXELS, "run": str(run)}
    shell.user_ns |= {"vit": vit_jax.build("digits", depth=1, width=8, heads=2), "net": vit_jax.load(run)}
    for call in WRONG:
        assert shell.run_cell(call).error_in_exec is not None, call
    assert len(left) == len(WRONG) > 20 and sum(map(len, left)) < 5_000
    assert all(call in each and each.count("\n") <= 2 for call, each in zip(WRONG, left, strict=True))
    assert shell.object_inspect("vit_jax.train")["docstring"].startswith("Train a run until")
