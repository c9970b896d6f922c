"""A source of another package: what it gives is learned of, captioned, translated and predicted like any other."""

import re
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.image_sources import a_run, open_dataset
from tests.test_shards import png
from vit_jax import plugins
from vit_jax.augmentation.config import ImageAugment
from vit_jax.commands.prediction.arguments import predict
from vit_jax.commands.prediction.sources import digest_of, sources_of
from vit_jax.config.run import RunConfig
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.captions.open import open_captions
from vit_jax.data.images.config import ImageData
from vit_jax.data.items import Items, Listed, SourceRequest
from vit_jax.data.texts.config import SentenceData
from vit_jax.data.texts.open import open_sentences
from vit_jax.data.texts.pairs import find_pairs_of_items, place
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig
from vit_jax.training.train import train

KINDS, N = ("owl", "wren"), 24


def birds(rest, asked):
    """Images of two kinds, in memory and in files, with texts."""
    assert rest in asked.field and not asked.verify
    splits = ["train"] * 16 + ["validation"] * 4 + ["test"] * 4
    return [
        (f"b{i}", {"image": png(i), "label": KINDS[i % 2], "weight": 1.5 + i % 3, "en": f"a {KINDS[i % 2]} of {i}"},
         splits[i])
        for i in range(N)
    ]  # fmt: skip


@pytest.fixture
def package(monkeypatch):
    """A package with sources, as if it were installed."""
    module = ModuleType("aviary")
    texts = [{"image": png(i), "txt": f"one {KINDS[i % 2]}\nthe {KINDS[i % 2]}"} for i in range(N)]
    pairs = [{"en": f"{i} {KINDS[i % 2]}", "de": f"{KINDS[i % 2]} {i}"} for i in range(N)]
    sources = {
        "birds": birds,
        "told": lambda rest, asked: Listed("told", [(str(i), each, "") for i, each in enumerate(texts)]),
        "said": lambda rest, asked: Listed("said", [(str(i), each, "") for i, each in enumerate(pairs)]),
        "nothing": lambda rest, asked: [],
        "uneven": lambda rest, asked: [("a", {"image": b"", "label": "x"}, ""), ("b", {"image": b""}, "")],
        "two": lambda rest, asked: [("a", {"image": b"", "mask": b"", "label": "x"}, "")],
        "lists": lambda rest, asked: [("a", {"image": b"", "label": ["x"]}, "")],
        "text": lambda rest, asked: [("a", {"image": b"", "label": 1}, ""), ("b", {"image": "b.png", "label": 1}, "")],
        "dev": lambda rest, asked: [("a", {"image": b"", "label": "x"}, "dev")],
        **dict.fromkeys(("csv", "s3"), birds),
    }
    vars(module).update({f"open_{name}": source for name, source in sources.items()})
    monkeypatch.setitem(sys.modules, "aviary", module)
    points = [EntryPoint(name, f"aviary:open_{name}", "vit_jax.sources") for name in sources]
    points.append(EntryPoint("gone", "aviary_of_old:open", "vit_jax.sources"))
    monkeypatch.setattr(plugins, "_entry_points", lambda: EntryPoints(points))
    monkeypatch.delitem(vars(plugins.SOURCES), "others", raising=False)
    yield module
    vars(plugins.SOURCES).pop("others", None)


def test_labelled_images_are_learned_and_predicted(package, working_folder, tmp_path):
    model = ViTConfig(image=8, channels=1, patch=4, classes=0, width=8, depth=1, heads=1, hidden=8)
    data = ImageData(source="birds:owls")
    run = RunConfig("classify", model, data, ImageAugment(), batch=4, epochs=1, dir=str(tmp_path / "runs"), name="x")
    train(run)
    answers = predict(tmp_path / "runs" / "x", "birds:owls")
    assert len(answers) == N and {each[0][0] for _, each in answers} <= {*KINDS}
    assert [name for name, _ in answers][:2] == ["birds b0", "birds b1"]


def test_what_is_learned_is_any_field_and_images_are_known_by_what_they_are(package):
    found = open_dataset(a_run("birds:owls"))
    assert found.class_names == KINDS and [*found.splits] == ["train", "validation", "test"]
    assert found.splits["train"].labels.tolist() == [0, 1] * 8 and found.splits["test"].name(0) == "birds b20"
    assert open_dataset(a_run("birds:owls", memory=0)).same_as(found.identity)
    numbers = open_dataset(a_run("birds:owls", labels=("weight",), target="number"))
    assert numbers.splits["train"].source_labels[:3].tolist() == [[1.5], [2.5], [3.5]]
    alike = [
        (key, {**fields, "image": png(99)}, split) for key, fields, split in birds("", SourceRequest("", "", False))
    ]
    package.open_birds = lambda rest, asked: alike
    assert not open_dataset(a_run("birds:owls")).same_as(found.identity)


def test_images_may_be_files_and_numbers_may_have_names(package, tmp_path):
    for i in range(N):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    items = [(str(i), {"image": tmp_path / f"{i}.png", "label": i % 2}, "") for i in range(N)]
    package.open_birds = lambda rest, asked: Listed("files", items, {"label": KINDS})
    found = open_dataset(a_run("birds:owls", validation=0, test=0))
    assert found.class_names == KINDS and np.array_equal(found.splits["train"].labels, np.arange(N) % 2)
    (tmp_path / "3.png").unlink()
    with pytest.raises(UserError, match=r"1 unreadable image.*files 3"):
        open_dataset(a_run("birds:owls", validation=0, test=0))


def test_the_example_in_contributing_works(package, tmp_path):
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"## A source of data.*?```python\n(.*?)```", page, re.S)
    exec(code, vars(package))
    rows = [f"{i}.png,{KINDS[i % 2]},the {KINDS[i % 2]},{'' if i % 3 else 'test'}" for i in range(N)]
    (tmp_path / "birds.csv").write_text("\n".join(["file,kind,said,split", *rows]))
    for i in range(N):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    found = open_dataset(a_run(f"birds:{tmp_path}"))
    assert found.class_names == KINDS and len(found.splits["test"]) == N // 3
    assert open_dataset(a_run("birds:", dir=str(tmp_path))).same_as(found.identity)
    told = open_captions(CaptionData(source=f"birds:{tmp_path}", length=6), 8, 1, (4, 4), normalize="half")
    assert told.splits["test"].references[0] == ["the owl"]


def test_captions_are_read(package):
    found = open_captions(CaptionData(source="told:here", length=6), 8, 1, (4, 4), normalize="half")
    assert sum(map(len, found.splits.values())) > N and found.name == "told"
    assert {*found.splits["test"].references[0]} <= {f"{word} {kind}" for kind in KINDS for word in ("one", "the")}


def test_pairs_are_read(package):
    found = open_sentences(SentenceData(source="said:de-en:here"))
    assert sum(map(len, found.splits.values())) == N and found.name == "said"
    pairs = find_pairs_of_items("said:de-en:here")["train"]
    assert [*pairs][1] == ("wren 1", "1 wren") and place(pairs, 1, 2) == "said 2 en"


def test_inputs_of_a_prediction_are_known_again(package):
    digest = digest_of(sources_of("pixels", ["birds:owls"], ""))
    assert digest == digest_of(sources_of("pixels", ["birds:owls"], ""))
    package.open_birds = lambda *both: birds(*both)[1:]
    assert digest != digest_of(sources_of("pixels", ["birds:owls"], ""))


@pytest.mark.parametrize("source, said", [
    ("nothing:x", r"data\.source nothing:x: holds no items"),
    ("uneven:x", "uneven b: has the fields image, and uneven a has image, label"),
    ("dev:x", r"dev a: is of the split 'dev'; give train, validation, test"),
    ("two:x", "two a: has several images, image and mask"),
    ("lists:x", "lists a: its label is a list"),
    ("text:x", "text b: its image is a str, no image"),
    ("said:x", "said 0 has no image"),
    ("gone:x", r"the source 'gone' of the package \?: cannot be loaded \(ModuleNotFoundError"),
    ("csv:x", r"data\.source csv:x: there is no file x"),  # of ours
])  # fmt: skip
def test_what_a_source_lacks_is_said(package, source, said):
    with pytest.raises(UserError, match=said):
        open_dataset(a_run(source))


def test_a_name_of_none_is_said_as_without_sources(package):
    with pytest.raises(UserError, match=r"data\.source is unknown:x, which has no captions"):
        open_captions(CaptionData(source="unknown:x"), 8, 1, (4, 4))
    with pytest.raises(UserError, match=r"data\.source is unknown:x, which has no sentences"):
        open_sentences(SentenceData(source="unknown:x"))
    with pytest.raises(UserError, match=r"no such set.*; give digits, birds:\.\.\., .*folder:PATH"):
        open_dataset(a_run("brids"))
    with pytest.raises(UserError, match="there is no such image or folder"):
        sources_of("pixels", ["unknown:x"], "")


def test_items_of_ones_own_may_be_a_class(package):
    class Numbered(Items):
        title, fields = "drawn", ["label"]

        def __len__(self):
            return N

        def key(self, i):
            return str(i)

        def texts(self, field):
            return [str(i % 3) for i in range(N)]

        def image(self, i):
            return png(i)

        def identity(self):
            return "drawn by a seed"

    package.open_birds = lambda rest, asked: Numbered()
    found = open_dataset(a_run("birds:x", memory=0, normalize="half"))
    assert found.class_names == ("0", "1", "2") and sum(map(len, found.splits.values())) == N
    with pytest.raises(UserError, match=r"data\.order is blocks, and data\.source birds:x has no shards"):
        open_dataset(a_run("birds:x", order="blocks"))
