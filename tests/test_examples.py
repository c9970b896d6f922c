"""The notebooks of examples/: text and outputs belong together, and the figures that they state were measured."""

import importlib.util
import json
import os
import re
import statistics
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))


def module(name):
    """A file of examples/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def cells(text):
    """(kind, source) of each cell of a file in the percent format."""
    parts = re.split(r"^# %%(.*)\n", text.partition("# ---\n\n")[2], flags=re.M)[1:]
    for kind, source in zip(parts[::2], parts[1::2], strict=True):
        markdown = kind.strip() == "[markdown]"
        lines = source.strip("\n").splitlines()
        yield "markdown" if markdown else "code", [re.sub(r"^# ?", "", line) if markdown else line for line in lines]


def notebook(name):
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_has_the_cells_of_its_text_and_all_outputs(name):
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    found = [(cell["cell_type"], "".join(cell["source"]).splitlines()) for cell in notebook(name)["cells"]]
    assert found == list(cells(text)), "make examples"
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
def test_the_tables_are_those_of_the_stored_figures(name):
    """In the notebook and in README.md; a price is computed here once more."""
    race = module("race")
    stored = json.loads((EXAMPLES / "prices" / f"{name}.json").read_text(encoding="utf-8"))
    prices, against = stored["variants"], stored["against"]
    outputs = json.dumps(notebook(name))
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    first = next(iter(prices))
    metric = next(iter(prices[first]["scores"]))
    assert len(prices[first]["scores"][metric]) >= 3
    for title, value, price, verdict in race.rows(name):
        scores = prices[title]["scores"][metric]
        assert value == f"{100 * statistics.fmean(scores):.2f} +- {100 * statistics.stdev(scores):.2f}"
        assert value in outputs
        if price:
            right = prices[against.get(title, first)]["scores"][metric]
            difference = 100 * (statistics.fmean(right) - statistics.fmean(scores))
            assert float(price.partition(" (")[0]) == pytest.approx(difference, abs=0.005 + 1e-9)  # two decimals
            assert price in outputs and f"| {title} | {value} | {price} | {verdict} |" in readme


def test_a_price_has_the_interval_of_student():
    """Of five differences 1, 2, 3, 4, 5: mean 3, standard error sqrt(2.5 / 5), t(4, 0.975) = 2.776."""
    race = module("race")
    found = race.price([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert (found.low, found.high) == pytest.approx((3 - 2.776 * 0.5**0.5, 3 + 2.776 * 0.5**0.5), abs=1e-3)
    assert found.verdict == "costs"
    assert race.price([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]).verdict == "costs nothing that these seeds can show"
    assert race.price([1.0, 2.0, 3.0], [6.0, 7.1, 8.0]).verdict == "gains"


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
    monkeypatch.setattr(race, "PRICES", tmp_path)

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
    assert found["right"]["slope"] == pytest.approx([3, 3, 3], abs=0.05)
    assert found["frozen"]["slope"] == [1, 2, 3]
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
    assert looked["v"] == {"slope": [2.25, 2.5, 2.75], "slope after 1 of 2": [1.5, 2, 2.5]}  # from 0, 1, 2 towards 3
    stored = json.loads((tmp_path / "line.json").read_text())
    assert {k: v["scores"] for k, v in stored["variants"].items()} == found
    monkeypatch.setattr(race, "measured", lambda *a: pytest.fail("what is stored is not measured again"))
    assert race.race("line", {"frozen": frozen}, {"x": x}, {"x": x[:1]}, score, budget) == {"frozen": found["frozen"]}


def test_what_is_stored_for_other_settings_is_measured_again(tmp_path, monkeypatch):
    race = module("race")
    monkeypatch.setattr(race, "PRICES", tmp_path)
    monkeypatch.setattr(race, "measured", lambda *a: {"m": [float(len(made))]} if made.append(1) is None else {})
    made, budgets = [], [race.Budget(steps, 2, 0.1) for steps in (5, 5, 6)]
    found = [race.race("n", {"v": None}, {"x": [1]}, {"x": [1]}, None, budget)["v"]["m"] for budget in budgets]
    assert found == [[1.0], [1.0], [2.0]]
    monkeypatch.setenv("PRICES", "again")
    assert race.race("n", {"v": None}, {"x": [1]}, {"x": [1]}, None, budgets[0])["v"]["m"] == [3.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_executes(name, monkeypatch):
    """From its text, offline; its figures are those that are stored."""
    if "tfds." in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8"):
        if "VIT_JAX_DATA" not in os.environ:
            pytest.skip("VIT_JAX_DATA names no folder with the real sets")
        monkeypatch.setenv("TFDS_DATA_DIR", os.environ["VIT_JAX_DATA"])
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package, reason="pip install '.[examples]'")
    execute = module("execute")
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
