"""Data that lies elsewhere is the same data by its content, and where it is not, a sentence says what differs."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, write_images, write_npz, write_tfds
from vit_jax import runs
from vit_jax.config.run import RunConfig
from vit_jax.data.images import pixels
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import UserError
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.presets.table import preset
from vit_jax.runs.choice import choose
from vit_jax.runs.values import marked_fields
from vit_jax.training.job import Origin, open_data, with_data


def begin(path, run):
    """The folder of a run, as training makes it before the first step."""
    data, folder = open_data(run), runs.Run(path)
    listings = {split: listing.parts for split, listing in data.listings.items()}
    record = runs.record_of(with_data(run, data), "run", **data.metadata(), data=data.identity, listings=listings)
    folder.create(record)
    return folder


def texts(source):
    return RunConfig("translate", TransformerConfig(width=8, heads=2, hidden=8), SentenceData(source=str(source)))


def captions(source):
    run = preset("shapes").run
    return replace(run, data=replace(run.data, source=f"captions:{source}"))


def write_texts(path):
    path.write_text("".join(f"a b{i % 5}\tx y{i % 7}\n" for i in range(40)))


def write_captions(path):
    write_images(path, 10, size=(32, 32), classes=("all",))
    names = sorted(p.name for p in (path / "all").iterdir())
    (path / "captions.csv").write_text("image,caption\n" + "".join(f"all/{n},a red {n[0]} dog\n" for n in names))


def write_table(path):
    write_images(path, 9)
    names = sorted(f"{p.parent.name}/{p.name}" for p in path.rglob("*.*g"))
    (path / "labels.csv").write_text("image,label\n" + "".join(f"{n},{n.partition('/')[0]}\n" for n in names))


def first_changed(path):
    return f"its first example that is not as it was is {path}/dog/2.png"


def remove_one(path):
    (path / "cat" / "0.png").unlink()


def rename_class(path):
    (path / "dog").rename(path / "fox")


def pair_again(path):
    path.write_text(path.read_text().replace("b1\tx y0", "b2\tx y0"))


def paint_one(path):
    Image.new("RGB", (20, 14)).save(path / "dog" / "2.png")


@pytest.mark.parametrize(
    ("write", "run_of", "change", "said"),
    [
        (lambda p: write_images(p, 9), lambda p: a_run(f"folder:{p}", channels=3), remove_one,
         "it has 17 examples, and had 18"),
        (lambda p: write_images(p, 9), lambda p: a_run(f"folder:{p}", channels=3), rename_class,
         "its class 1 is 'fox', and was 'dog'"),
        (lambda p: write_images(p, 9), lambda p: a_run(f"folder:{p}", channels=3), paint_one, first_changed),
        (lambda p: write_npz(f"{p}.npz"), lambda p: a_run(f"{p}.npz"), lambda p: write_npz(f"{p}.npz", seed=1),
         "its first example that is not as it was is images[0]"),
        (lambda p: write_tfds(p), lambda p: a_run("pets", image=(4, 6), dir=str(p)), lambda p: p.rmdir(), None),
        (write_table, lambda p: a_run(f"csv:{p}/labels.csv", channels=3),
         lambda p: (p / "labels.csv").write_text((p / "labels.csv").read_text().replace("2.png,dog", "2.png,cat")),
         "its numbers of examples are the same, but their content is not"),
        (write_texts, lambda p: texts(f"tsv:{p}"), lambda p: p.write_text(p.read_text().replace("y6", "y5")),
         "its words, or how they are split, are others"),
        (write_texts, lambda p: texts(f"tsv:{p}"), pair_again,
         "its numbers of examples are the same, but their content is not"),
        (write_captions, captions, lambda p: Image.new("RGB", (32, 32)).save(p / "all/0.png"),
         "its numbers of examples are the same, but their content is not"),
    ],
    ids=["a file less", "a class renamed", "an image", "npz", "prepared", "a table", "words", "texts", "captions"],
)  # fmt: skip
def test_a_run_is_found_by_what_its_data_is_and_not_by_where(tmp_path, write, run_of, change, said):
    old, new = tmp_path / "old", tmp_path / "elsewhere" / "new"
    write(old)
    run = replace(run_of(old), dir=str(tmp_path), name="run")
    folder = begin(tmp_path / "run", run)
    new.parent.mkdir()
    for path in (path for path in (old, tmp_path / "old.npz") if path.exists()):
        shutil.move(path, new.with_suffix(path.suffix))
    moved = replace(run_of(new), dir=str(tmp_path), name="run")
    origin = Origin()
    assert origin.difference(folder, moved) == ""
    assert choose(moved, "run", True, difference=origin.difference).path == folder.path
    assert origin.open(moved, folder) is origin.open(moved, folder), "opened once"
    if said is None:  # its place is no identity, and nothing was opened to know that
        return
    change(new)
    said = said(new) if callable(said) else said
    clause = Origin().difference(folder, moved)
    assert clause.startswith(f"data.source is {moved.data.source}, and was {run.data.source}: {said}"), clause
    with pytest.raises(UserError, match=r"holds another run: data\.source is .*; give what it was made"):
        choose(moved, "run", True, difference=Origin().difference)
    assert choose(moved, "run", False, difference=Origin().difference).path.name == "run-2"


def test_the_images_of_a_moved_set_that_is_too_large_for_memory_are_not_read_again(tmp_path, monkeypatch):
    run = a_run(f"folder:{write_images(tmp_path / 'old', 9)}", channels=3, memory=0.0)
    monkeypatch.setattr("vit_jax.data.images.sources.index.SETTLED", -(10**12))  # the files are old enough
    folder = begin(tmp_path / "run", run)
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved = replace(run, data=replace(run.data, source=f"folder:{tmp_path / 'new'}"))
    read, look = [], pixels.Images._look
    monkeypatch.setattr(
        pixels.Images, "_look", lambda self, seen, rows, _: (read.extend(rows), look(self, seen, rows, _))
    )
    assert Origin().difference(folder, moved) == "" and not read
    (tmp_path / "new/dog/2.png").touch()
    assert Origin().difference(folder, moved) == "" and len(read) == 1
    assert np.array_equal(read, [11])


def test_all_fields_that_name_places_are_known_as_such():
    own = {"data.source", "init", "init_encoder", "teacher"}
    of_shards = {"data.class_names", "data.label_table"}
    assert marked_fields(preset("digits").run, "place") == own | of_shards
    assert marked_fields(texts("numbers"), "place") == marked_fields(captions("x"), "place") == own | {"data.tokenizer"}
    assert marked_fields(preset("coco-caption").run, "place") == own
