"""Places: a path passes no store, and another package's store holds images, shards and runs as ours do."""

import csv
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.test_plugins import package as write_package
from tests.test_processes import python
from tests.test_shards import tar
from vit_jax import plugins
from vit_jax.commands import cli, predict
from vit_jax.errors import UserError
from vit_jax.extras.stores import copies as kept_runs
from vit_jax.files.places import copied, local_copy, own, publish, store_of
from vit_jax.files.reading import COPIES
from vit_jax.runs import Run

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
(MEMORY,) = re.findall(r"## A store.*?```python\n(.*?)```", PAGE, re.S)
POINTS = {"mem": "store_in_memory:Memory", "broken": "store_in_memory:Gone", "s3": "store_in_memory:Memory"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of a package that gives mem://, one that cannot be imported, and one of a name of ours."""
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, "store_in_memory", MEMORY, stores=POINTS)
    monkeypatch.syspath_prepend(folder)

    def forget():
        plugins._entry_points.cache_clear()
        vars(plugins.STORES).pop("others", None)

    forget()
    yield folder
    forget()
    sys.modules.pop("store_in_memory", None)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name)`: from here on this is another machine, of which there are other copies."""

    def move(name):
        kept_runs._HELD.close(), kept_runs._MIRRORS.clear(), kept_runs._root.cache_clear(), COPIES.clear()
        monkeypatch.setattr(kept_runs, "cache_folder", lambda kind: tmp_path / name / kind)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield move
    kept_runs._HELD.close(), kept_runs._MIRRORS.clear(), kept_runs._root.cache_clear(), COPIES.clear()


def probabilities(run, images, file):
    """What predict writes of images: [n, K]."""
    assert predict.command([str(run), str(images), "--probabilities", str(file), "--force"]) == 0
    with open(file, newline="") as opened:
        return [row[1:] for row in csv.reader(opened)][1:]


def test_a_store_of_another_package_holds_images_shards_and_a_run(package, machine, digits_run, tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    for i in range(5):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (8, 8), np.uint8)).save(images / f"{i}.png")
    files = sorted(images.iterdir())
    expected = probabilities(digits_run, images, tmp_path / "a.csv")
    for file in files:
        store_of("mem:///place/images").put(file.name, file.read_bytes())
    store_of("mem:///place").put("a.tar", tar(*((file.name, file.read_bytes()) for file in files)))

    machine("first")
    run = Run(local_copy("mem:///place/runs/digits"))
    with own(run.path):
        shutil.copytree(digits_run, run.path, dirs_exist_ok=True)
        publish(run.path)
    machine("second")
    for place in ("mem:///place/images", "wds:mem:///place/*.tar"):
        assert probabilities("mem:///place/runs/digits", place, tmp_path / "b.csv") == expected
    assert str(Run(local_copy("mem:///place/runs/digits"))) == "mem:///place/runs/digits"
    assert [path.name for path in sorted(Path(copied("mem:///place/images")).iterdir())] == [x.name for x in files]
    assert capsys.readouterr().err.count("'s3' of the package store_in_memory is not used") == 1
    cli._list_plugins([])
    assert "mem: store_in_memory, store_in_memory:Memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("ftp://host/x", "ftp:// is not known; give broken://PATH, mem://PATH, a folder"),
        ("folder:///x", "folder:// is not known; give "),
        ("://x", ":// is not known; give "),
        ("broken://x", "the store 'broken' of the package store_in_memory: cannot be loaded"),
    ],
)
def test_what_no_store_is_of_is_told(package, place, said):
    with pytest.raises(UserError) as error:
        store_of(place)
    assert said in str(error.value) and "\n" not in str(error.value)


LOCALLY = """
import sys, vit_jax
from vit_jax.__main__ import main
from vit_jax.training import finish
finish.draw = lambda *_: ""
size = "--model.width 16 --model.depth 1 --model.heads 2 --model.hidden 32"
sys.argv = ["vit-jax", "train", "digits", *size.split(), "--max-steps", "2"]
assert main() == 0
sys.argv = ["vit-jax", "predict", "runs/digits", "image.png"]
assert main() == 0
print("stores:", *(name for name in sys.modules if name.startswith("vit_jax.extras.stores")))
"""


def test_paths_of_this_machine_pass_no_store(tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "image.png")
    done = python(LOCALLY, cwd=tmp_path, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "stores:"
