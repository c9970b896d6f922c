"""Nonsense in JSON files beside weights is refused in one sentence or harmless: Python raises no error of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from convert.commands.convert import describe_source
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.plan.plan import plan
from convert.recognise.reading import Options, read
from convert.write.write import write
from tests.random_weights import tensors
from tests.test_provenance import CONFIG, HOW
from tests.test_provenance import SAID as STATED
from vit_jax.config.outputs import Outputs
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.runs.values import to_dict
from vit_jax.tasks.table import untrained_run

NAMES = ["ant", "bee", "cat"]
SAID = Options(sets=STATED)
NONSENSE = [
    None, True, 0, -1, 1, 2**40, 10**400, 1e-30, 1e308, 1.5, "", "x", "1", "²", [], [1],
    [0, 0], [-1, -1], [1e9, 1e9], [16, 16], [0.5, 0.5], [1, 2, 3], [0, 0, 0],
    ["a"], ["a", "b", "c"], [[1]], [None], {}, {"a": 1}, {"a": {"b": 1}}, {"0": "a"}, {"0": 1, "1": [], "2": {}},
]  # fmt: skip
GONE = object()
TRIES = 50  # of each file, by a fixed seed
PICTURE = Image.new("RGB", (13, 7))


@pytest.fixture(params=["huggingface@v4", "timm", "vit-jax@vit", "converted"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Weights of a layout with its library's side files; or an .npz that a conversion wrote, with its provenance."""
    layout = LAYOUTS["timm" if request.param == "converted" else request.param]
    save_file(tensors(layout, CONFIG), tmp_path / "model.safetensors")
    sides = layout.write_side(CONFIG, Facts(preprocess=HOW, outputs=Outputs("", tuple(NAMES))))
    if layout.dialect == "vit-jax":
        sides = {"config.json": {"config": to_dict(untrained_run(CONFIG)), "preprocess": HOW, "class_names": NAMES}}
    if request.param == "converted":
        with (reading := read(str(tmp_path / "model.safetensors"), SAID)).source:
            write(plan(reading, "timm"), str(tmp_path / "model.npz"))
        (tmp_path / "model.safetensors").unlink()
        sides = {}
    for name, said in sides.items():
        (tmp_path / name).write_text(json.dumps(said))
    return tmp_path


def test_nonsense_in_a_side_file_is_refused_or_has_no_effect(folder: Path) -> None:
    for file in sorted(folder.glob("*.json")):
        sound = json.loads(file.read_text())
        use(folder)
        cases = [(path, bad) for path in paths(sound) for bad in (*NONSENSE, *([GONE] if path else []))]
        for path, bad in random.Random(0).sample(cases, min(TRIES, len(cases))):
            file.write_text(json.dumps(put(sound, path, bad)))
            try:
                use(folder)
            except UserError:
                continue
            except Exception as error:
                raise AssertionError(f"{file.name}: {'.'.join(map(str, path))} = {bad!r:.60}") from error
        file.write_text(json.dumps(sound))


def use(folder: Path) -> None:
    """All that is done with what side files say, but for the weights."""
    with (reading := read(str(folder))).source:
        describe_source(reading)
        way = plan(reading, reading.layout.name)
        json.dumps(LAYOUTS["huggingface@v4"].write_side(way.config, way.facts), allow_nan=False)
        json.dumps(LAYOUTS["timm"].write_side(way.config, way.facts), allow_nan=False)
        if way.facts.preprocess is not None:
            how = Preprocess.from_dict(way.facts.preprocess)
            pixels = how.apply(PICTURE)
            assert pixels.shape == (*how.image, CONFIG.channels) == (8, 8, 3)
            assert np.isfinite((pixels / np.float32(255) - np.float32(how.mean)) / np.float32(how.std)).all()
        names = way.facts.outputs.names
        assert not names or (len(names) == CONFIG.classes and all(isinstance(n, str) for n in names))


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys to every part of a JSON value; of long lists and objects the first few."""
    yield path
    if isinstance(value, dict | list):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value))[
            : 30 if isinstance(value, dict) else 2
        ]:
            yield from paths(part, (*path, key))


def put(value: Any, path: tuple[Any, ...], bad: Any) -> Any:
    """A copy of a JSON value with another part at a path, or none."""
    if not path:
        return bad
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if bad is GONE and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = put(value[path[0]], path[1:], bad)
    return copy
