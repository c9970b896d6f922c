"""The notebooks of examples/: text and outputs belong together, and the figures that they state were measured."""

import importlib
import json
import os
import re
import statistics
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


def module(name):
    """A file of examples/, which is no package: it finds the others as in the folder of a notebook."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module(name)


def cells(text):
    """(kind, source) of each cell of a file in the percent format."""
    parts = re.split(r"^# %%(.*)\n", text.partition("# ---\n\n")[2], flags=re.M)[1:]
    for kind, source in zip(parts[::2], parts[1::2], strict=True):
        assert kind.strip() in ("", "[markdown]"), f"{kind}: a sentence on that line is lost"
        markdown = kind.strip() == "[markdown]"
        lines = source.strip("\n").splitlines()
        yield "markdown" if markdown else "code", [re.sub(r"^# ?", "", line) if markdown else line for line in lines]


def notebook(name):
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_has_the_cells_of_its_text_with_the_figures_of_today_and_all_outputs(name):
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    filled = module("texts").filled
    written = [
        (kind, filled("\n".join(lines), name).splitlines() if kind == "markdown" else lines)
        for kind, lines in cells(text)
    ]
    found = [(cell["cell_type"], "".join(cell["source"]).splitlines()) for cell in notebook(name)["cells"]]
    assert found == written, "make examples"
    texts = "".join(str(lines) for kind, lines in found if kind == "markdown")
    assert text.count("{minutes}") == 1 and "{" not in re.sub(r"`[^`]+`", "", texts)
    counts = [cell["execution_count"] for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("name", NAMES)
def test_no_output_is_an_error_a_warning_or_a_path_of_one_machine(name):
    outputs = [output for cell in notebook(name)["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    texts = json.dumps([{k: v for k, v in o.get("data", {}).items() if not k.startswith("image")} for o in outputs])
    texts += json.dumps([output.get("text", "") for output in outputs])
    assert not re.findall(r"(?<![\w./])/(?:root|home|tmp|work|usr|Users|opt)\b[^\s\"]*", texts)
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_keeps_to_public_names(name):
    """Of vit_jax no module is imported, and no attribute is used but what `__all__` lists."""
    import vit_jax

    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    code = "\n".join(line for kind, source in cells(text) if kind == "code" for line in source)
    assert not re.findall(r"^\s*(?:from|import) (?:vit_jax\.|convert|torch_ref).*", code, flags=re.M)
    assert not re.findall(r"^\s*from vit_jax import.*", code, flags=re.M)
    assert {*re.findall(r"\bvit_jax\.(\w+)", code)} <= {*vit_jax.__all__}


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_those_of_the_shipped_figures(name):
    """In the notebook and in README.md; a price is computed here once more."""
    race = module("prices").shipped(name)
    outputs, readme = json.dumps(notebook(name)), (EXAMPLES / "README.md").read_text(encoding="utf-8")
    first, metric = next(iter(race.scores)), race.metrics[0]
    assert len(race.scores[first][metric]) >= 3
    for title, value, price, verdict in race.rows():
        scores = race.scores[title][metric]
        assert value == f"{100 * statistics.fmean(scores):.2f} +- {100 * statistics.stdev(scores):.2f}"
        assert value in outputs and f"{title}: as shipped" in outputs
        if price:
            right = race.scores[race.against.get(title, first)][metric]
            difference = 100 * (statistics.fmean(right) - statistics.fmean(scores))
            assert float(price.partition(" (")[0]) == pytest.approx(difference, abs=0.005 + 1e-9)  # two decimals
            assert price in outputs and f"| {title} | {value} | {price} | {verdict} |" in readme


def test_a_price_has_the_interval_of_student_and_says_what_it_allows_to_say():
    """Of five differences 1, 2, 3, 4, 5: mean 3, standard error sqrt(2.5 / 5), t(4, 0.975) = 2.776."""
    price = module("prices").price
    found = price([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert (found.low, found.high) == pytest.approx((3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5), abs=1e-3)
    assert found.verdict == "costs"
    assert price([1.0, 2.0, 3.0], [6.0, 7.1, 8.0]).verdict == "gains"
    assert price([0.1, 0.2, 0.3], [0.2, 0.2, 0.2]).verdict == "unclear"
    assert price([0.1, 0.2, 0.3], [0.101, 0.2, 0.299]).verdict == "next to nothing"
    assert price([0.1, 0.2, 0.3], [0.101, 0.19, 0.3]).verdict == "unclear"  # to 1.8 points


@pytest.mark.parametrize("name", NAMES)
def test_verdicts_and_figures_in_a_text_are_computed_or_stand_elsewhere_on_the_page(name):
    """No verdict is typed by hand; a figure that is was printed by a cell, or is the original's, of the first text."""
    texts = ["\n".join(lines) for kind, lines in cells((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
             if kind == "markdown"]  # fmt: skip
    printed = "".join("".join(o.get("text", "")) for cell in notebook(name)["cells"] for o in cell.get("outputs", ()))
    for text in texts[1:]:
        by_hand = re.sub(r"\{[^{}]+\}|[\d.+\s-]+% \([^()]*\[measured\s+here\]\([^()]*\)\)", "", text)
        assert not re.findall(r"unclear|next to nothing|\b(?:costs?|gains?)\s+(?:nothing|about|\d)", by_hand)
        for figure in re.findall(r"([\d.]+)\s+(?:%(?! interval)|points)", by_hand):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?!\.?\d)", texts[0] + printed), figure


def test_a_claim_in_a_text_is_what_the_stored_scores_say_or_an_error(tmp_path, monkeypatch):
    prices, filled = module("prices"), module("texts").filled
    monkeypatch.setattr(prices, "PRICES", tmp_path)
    scores = {
        "right": {"a": [0.5, 0.7, 0.6], "b": [1, 1, 1]},
        "x, y": {"a": [0.1, 0.28, 0.2], "b": [1, 0, 0.5]},
        "z": {"a": [0.5, 0.7, 0.601], "b": [1, 1, 1]},
    }
    entries = {title: {"core_seconds": 60, "scores": of} for title, of in scores.items()}
    for name in ("one", "two"):
        prices.write(tmp_path / f"{name}.json", {"against": {}, "variants": entries})
    text = "{minutes} {costs: x, y} {unclear two: x,\n y| b} {score: right} {least: x, y| b} {greatest one: x, y}"
    assert filled(f"{text} {{other}}", "one") == "3 40.7 50.0 60.0 0.0 28.0 {other}"
    assert filled("{verdict: z} {gains: right| b for a}", "one") == "*next to nothing* 40.0"
    assert filled("{verdict: x, y| b; x, y| b}", "one") == "*unclear*"
    for claim in ("{gains: x, y}", "{costs: z}", "{little: x, y| b}", "{verdict: z; x, y}"):
        with pytest.raises(ValueError, match=r"the table says .*(costs|next to nothing|unclear)"):
            filled(claim, "one")


@pytest.mark.usefixtures("quick_compilation")
def test_variants_get_the_same_batches_and_what_changes_weights_also_changes_those_that_are_scored(
    tmp_path, monkeypatch
):
    """A line y = a x, from the same starts: what trains is fitted, what is cut off keeps its start to the bit."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import nnx

    race = module("race")
    monkeypatch.setattr(race.prices, "PRICES", tmp_path)
    monkeypatch.setenv("PRICES", "ship")

    class Line(nnx.Module):
        def __init__(self, seed):
            self.slope = nnx.Param(jnp.float32(seed))

    seen = []

    def forward(net, batch):
        if "epoch" in batch:
            jax.debug.callback(lambda x, epoch: seen.append((int(epoch), *map(int, x))), batch["x"], batch["epoch"])
        return net.slope[...] * batch["x"]

    right = race.Variant(Line, forward, lambda y, batch: ((y - 3 * batch["x"]) ** 2).mean())
    frozen = race.Variant(
        right.network, forward, right.loss, lambda name, x: jax.lax.stop_gradient(x) + (name == "slope")
    )
    x = np.arange(1, 7, dtype=np.float32)
    budget = race.Budget(steps=180, batch=2, rate=0.3, seeds=3)
    score = lambda predict, test: {"slope": predict(test)[0]}  # noqa: E731
    found = race.race(
        "line", {"right": right, "frozen": frozen}, {"x": x}, {"x": np.ones(1, np.float32)}, score, budget
    )
    assert found.scores["right"]["slope"] == pytest.approx([3, 3, 3], abs=0.05)
    assert found.scores["frozen"]["slope"] == [1, 2, 3]
    jax.effects_barrier()
    half = len(seen) // 2
    assert sorted(seen[:half]) == sorted(seen[half:]) and half == 540
    for epoch in range(60):  # of three batches: each example once for each seed
        assert sorted(v for e, *its in seen[:half] for v in its if e == epoch) == sorted([*range(1, 7)] * 3)
    halving = race.Variant(
        Line,
        lambda net, batch: net.slope[...] * batch["x"],
        right.loss,
        optimizer=lambda _, rate: optax.sgd(rate),
        looks=2,
    )
    one = {"x": np.ones(1, np.float32)}
    looked = race.race("halving", {"v": halving}, one, one, score, race.Budget(steps=2, batch=1, rate=0.25, seeds=3))
    slopes = {"slope": [2.25, 2.5, 2.75], "slope after 1 of 2": [1.5, 2, 2.5]}  # from 0, 1, 2 towards 3
    assert looked.scores["v"] == slopes
    assert race.prices.shipped("line").scores == found.scores


LOSS, DEPTH = 1.0, {"depth": 2}


def scaled(x):
    return LOSS * x


def raced(race, *, loss=None, title="v", budget=(5, 2, 0.1), data=(1, 2), network=None, name="n", score=None):
    variant = race.Variant(network or (lambda seed: DEPTH["depth"]), scaled, loss or (lambda x, batch: scaled(x)))
    values = {"x": data if hasattr(data, "dtype") else list(data)}
    return race.race(
        name, {title: variant}, values, {"x": [1]}, score or (lambda predict, test: {}), race.Budget(*budget)
    )


def test_a_variant_that_is_another_is_measured_and_kept_apart_and_what_is_shipped_stays(tmp_path, monkeypatch, capsys):
    """Whatever changes: a number that a function reads, its code, the loss, the budget, the data, the score."""
    import numpy as np

    race, made = module("race"), []
    monkeypatch.setattr(race.prices, "PRICES", tmp_path)
    monkeypatch.setattr(race, "measured", lambda *a: made.append(1) or {"m": [float(len(made)), 0.0]})
    monkeypatch.setenv("PRICES", "ship")
    raced(race)
    monkeypatch.delenv("PRICES")
    before = (tmp_path / "n.json").read_bytes()

    def is_measured(**changed):
        count = len(made)
        raced(race, **changed)
        said = capsys.readouterr().out.splitlines()[-1]
        assert said.startswith(f"{changed.get('title', 'v')}: ") and ("training" in said) == (len(made) > count), said
        return len(made) > count

    assert not is_measured() and not is_measured(title="renamed")
    # fmt: off
    assert not is_measured(loss=lambda x, batch:   scaled(x))  # spaces, and this comment
    # fmt: on
    changes = [
        {"loss": lambda x, batch: 2 * scaled(x)},
        {"budget": (6, 2, 0.1)},
        {"budget": (5, 2, 0.2)},
        {"budget": (5, 2, 0.1, 3)},
        {"data": (1, 3)},
        {"score": lambda predict, test: {"n": 1}},
        {"network": lambda seed: DEPTH["depth"] + 1},
        {"data": np.array([0.0, 1.0])},
    ]  # fmt: skip
    assert [is_measured(**change) for change in changes] == [True] * len(changes)
    assert [is_measured(**change) for change in changes] == [False] * len(changes)  # each is kept
    assert not is_measured(data=np.array([0.0, 1.00001]))  # the last digits of another machine
    assert is_measured(data=np.array([0.0, 2.0]))
    monkeypatch.setitem(DEPTH, "depth", 3)
    assert is_measured() and not is_measured() and raced(race).own == ("v",)
    monkeypatch.setitem(DEPTH, "depth", 2)
    monkeypatch.setitem(globals(), "LOSS", 0.5)
    assert is_measured()
    monkeypatch.setitem(globals(), "LOSS", 1.0)
    assert not is_measured() and not raced(race).own
    monkeypatch.setenv("PRICES", "again")
    assert is_measured() and (tmp_path / "n.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"n.json", "own"}


def test_what_a_library_computes_counts_by_its_name_and_a_config_by_what_is_not_as_by_default():
    import functools

    import jax

    import vit_jax

    digest = module("digest").digest
    small, other = vit_jax.ViTConfig(depth=2), vit_jax.ViTConfig(depth=2, pool="mean")
    assert digest(small) == digest(vit_jax.ViTConfig(depth=2, width=vit_jax.ViTConfig().width)) != digest(other)
    assert digest(jax.nn.gelu) != digest(jax.nn.relu)
    assert digest(functools.partial(scaled, 1)) != digest(functools.partial(scaled, 2))
    pair = [lambda x: x + 1, lambda x: x - 1]  # on one line
    assert digest(pair[0]) != digest(pair[1])
    assert digest(lambda: small.depth) == digest(lambda: small.depth)
    run, longer = (vit_jax.preset("digits", fields={"epochs": n}).run for n in (1, 2))
    assert digest(lambda of=run: of.model) != digest(lambda of=longer: of.model)  # a default is seen whole

    def of(run):
        return digest(lambda: run.model.depth)

    assert of(run) == of(longer)  # of a run only what is read


@pytest.mark.parametrize(("field", "value"), [("seeds", 1), ("steps", 0), ("batch", 0)])
def test_a_budget_of_nothing_is_one_sentence(field, value):
    race = module("race")
    with pytest.raises(ValueError, match=rf"Budget.{field} is {value}: give \d or more"):
        race.Budget(**{"steps": 5, "batch": 2, "rate": 0.1, field: value})


def right_answers():
    """A solution of each exercise, by NumPy."""
    import numpy as np

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def attention(q, k, v, mask):
        return softmax(np.where(mask, q @ k.T / np.sqrt(q.shape[1]), -np.inf)) @ v

    def macro_f1(answer, label, classes):
        answer, label = np.eye(classes)[answer], np.eye(classes)[label]
        either = (answer + label).sum(0)
        return (2 * (answer * label).sum(0) / np.maximum(either, 1)).mean()

    def interval(right, fault):
        d = np.subtract(right, fault)
        half = {3: 4.302653, 4: 3.182446}[len(d)] * d.std(ddof=1) / len(d) ** 0.5
        return d.mean(), d.mean() - half, d.mean() + half

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return {
        "mnist_vit_from_scratch": (
            6770,  # a patch 340, tokens 1,020, head 210, and two blocks of 2,600
            softmax,
            lambda x: x.reshape(-1, 7, 4, 7, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 49, 16),
        ),
        "encoder_decoder": (lambda n: np.tri(n, dtype=bool), attention, 710),
        "captioning": (
            np.log(1000),
            lambda losses, real: np.where(real, losses, 0).sum() / real.sum(),
            lambda said, right: ((said == right) | (right == 0)).all(1).mean(),
        ),
        "cifar100_vit_768": (lambda x: x.swapaxes(0, 1), lambda x: unit(x) @ unit(x).T, 590_592),
        "cifar100_vit_256": (157, lambda t, n, rate: rate * (1 + np.cos(np.pi * t / n)) / 2, macro_f1),
        "cifar10_overfit_and_train": (2.3026, lambda x: x / 127.5 - 1, lambda z, y: (z.argmax(1) == y).mean()),
        "cifar10_vit_48": (
            17,
            lambda x, eps: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps),
            interval,
        ),
        "distillation": (lambda z, t: softmax(z / t), lambda p, q: (p * np.log(p / q)).sum(-1), 16),
    }


@pytest.mark.parametrize("name", NAMES)
def test_each_exercise_takes_a_right_answer_and_no_other(name):
    exercises, answers = module("exercises"), right_answers()[name]
    for check, right in zip(exercises.CHECKS[name], answers, strict=True):
        assert exercises.verdict(check, right) == "right"
        assert exercises.verdict(check, None) == "no answer yet"
        nearly = (lambda *a, right=right: right(*a) + 0.01) if callable(right) else right * 1.01
        assert exercises.verdict(check, nearly).startswith("not yet: ")
        if callable(right):
            assert exercises.verdict(check, lambda *a: None) == "no answer yet"
            assert "ZeroDivisionError" in exercises.verdict(check, lambda *a: 1 / 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_code_that_a_reader_is_asked_to_change_is_there(name):
    written = list(cells((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")))
    text, code = ("\n".join("\n".join(lines) for kind, lines in written if kind == k) for k in ("markdown", "code"))
    asked = re.findall(r"instead\s+of\s+`([^`]*=[^`]*)`", text)
    assert asked and all(" ".join(each.split()).removesuffix(" ...") in code for each in asked), asked


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_executes(name, monkeypatch):
    """From its text, offline; its figures are those that are stored."""
    if "train_and_test(" in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8"):
        if "VIT_JAX_DATA" not in os.environ:
            pytest.skip("VIT_JAX_DATA names no folder with the real sets")
        monkeypatch.setenv("TFDS_DATA_DIR", os.environ["VIT_JAX_DATA"])
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="pip install '.[examples]'")
    execute = module("execute")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    new = execute.executed(name)
    old = notebook(name)
    assert [cell["cell_type"] for cell in new.cells] == [cell["cell_type"] for cell in old["cells"]]
    tables = [
        [
            "".join(o["data"]["text/markdown"])
            for cell in cells
            for o in cell.get("outputs", ())
            if "text/markdown" in o.get("data", {})
        ]
        for cells in (new.cells, old["cells"])
    ]
    assert tables[0] == tables[1]
    kinds = [[o["output_type"] for o in cell.get("outputs", ())] for cell in new.cells]
    assert kinds == [[o["output_type"] for o in cell.get("outputs", ())] for cell in old["cells"]]
