"""A kind of output in a package of one file (tests/ordinal.py): no other file was touched for it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.ordinal import Ordinal
from tests.test_plugins import package, run
from tests.test_processes import python
from vit_jax.config.outputs import Outputs
from vit_jax.kinds.table import KINDS

PROGRAM = """
import json
import numpy as np
import vit_jax
from vit_jax.runs import Run
from vit_jax.runs.values import with_fields

draw, names = np.random.default_rng(0), ["none", "mild", "strong", "severe"]
levels = draw.integers(0, 4, 400)
pixels = draw.integers(0, 60, (400, 8, 8)) + 60 * levels[:, None, None]
data = (pixels.astype(np.uint8), levels)
fields = {"data.target": "ordinal", "model.classes": 0, "model.depth": 1, "epochs": 5, "name": "run"}
vit_jax.train(with_fields(vit_jax.preset("digits").run, fields), data=data, class_names=names)
_, result = vit_jax.evaluate("run", data=data)
net, some = vit_jax.load("run"), data[0][:8]
said = [names.index(answer[0][0]) for answer in net.predict(some, top=2)]
print(json.dumps({
    "config": json.load(open("runs/run/config.json")), "best": Run("runs/run").summary()["best"],
    "metrics": result.metrics,
    "sums": net.values(some).sum(1).tolist(), "said": said, "levels": levels[:8].tolist(), "shown": repr(net),
}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the package of the kind, as pip leaves it."""
    folder = tmp_path_factory.mktemp("ordinal")
    code = Path(__file__).with_name("ordinal.py").read_text(encoding="utf-8")
    package(folder, "grades", code, kinds={"ordinal": "grades:Ordinal"})
    return folder


def test_a_kind_of_a_package_trains_is_measured_and_predicts(place):
    path = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = python(PROGRAM, cwd=place, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    config, metrics = found["config"], found["metrics"]
    assert config["outputs"] == {"kind": "ordinal", "names": ["none", "mild", "strong", "severe"]}
    assert config["config"]["data"]["target"] == "ordinal" and config["config"]["loss"]["name"] == "binary"
    assert {*metrics} == {"loss", "accuracy", "level_error"} and metrics["level_error"] < 0.1
    assert "level_error" in found["best"] and found["said"] == found["levels"]
    assert np.allclose(found["sums"], 1) and "; 4 levels: " in found["shown"]
    assert "levels off" in done.stdout


def test_it_is_listed_offered_and_refused_like_ours(place):
    assert "ordinal: grades, grades:Ordinal" in run(place, "plugins")[1]
    code, _, error = run(place, "train", "digits", "--data.target", "levels")
    assert code == 2 and f"choose one of {', '.join(KINDS.plugins())}, ordinal" in error
    code, _, error = run(place, "train", "digits", "--data.target", "ordinal", "--loss.prior", "True")
    assert code == 2 and "loss.prior is True, but data.target is ordinal: leave it out: only class can have it" in error
    code, _, error = run(place, "train", "digits", "--data.target", "ordinal")
    assert code == 2 and "is ordinal, but the labels of data.source digits are classes, one an image" in error


def test_its_levels_and_probabilities_are_those_of_the_paper():
    """The level is below the first output that says no; a probability is that of at least this level, less the next."""
    kind = Ordinal(Outputs("ordinal", ("a", "b", "c")))
    logits = np.array([[9.0, 1.0, -1.0], [9.0, -1.0, 1.0], [-3.0, 2.0, 2.0]])
    assert kind.levels(logits).tolist() == [1, 0, 2]
    s = 1 / (1 + np.exp(-1))
    assert np.allclose(kind.values(logits[0]), [1 - s, s - (1 - s), 1 - s])
    assert kind.targets(np.array([0, 2])).tolist() == [[1, 0, 0], [1, 1, 1]]
