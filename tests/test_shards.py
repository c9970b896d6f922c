"""Shards: what they hold is what a folder holds, wherever they lie; what is cut, mixed or replaced is refused."""

import gzip
import io
import itertools
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests import loopback_s3
from tests.image_sources import a_run, everything, names, open_dataset, write_images
from vit_jax.commands.prediction.sources import sources_of
from vit_jax.data.batches import batches
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.captions.open import open_captions
from vit_jax.data.images.blocks import BlockOrder
from vit_jax.data.texts.pairs import find_pairs_of_items, place
from vit_jax.errors import UserError
from vit_jax.extras.shards.index import open_indexes
from vit_jax.extras.shards.pattern import find_shards
from vit_jax.extras.shards.tar import scan_tar


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tar(*members, form=tarfile.GNU_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def png(seed=0):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def samples(labels, first=0):
    """The members of samples with these labels in .cls."""
    pairs = (((f"{i:04}.png", png(i)), (f"{i:04}.cls", label.encode())) for i, label in enumerate(labels, first))
    return [*itertools.chain(*pairs)]


def write_shards(folder, **shards):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in shards.items():
        (folder / f"{name}.tar").write_bytes(content if isinstance(content, bytes) else tar(*content))
    return folder


def shards_of(root, count):
    """The images of a class folder, sorted, in `count` tars."""
    files = sorted(root.rglob("*.*"))
    members = [
        [(f"{kind}/{file.name}", file.read_bytes()), (f"{kind}/{file.stem}.cls", kind.encode())]
        for file in files
        for kind in [file.parent.name]
    ]
    each = -(-len(files) // count)
    return [tar(*itertools.chain(*members[i * each : (i + 1) * each])) for i in range(count)]


@pytest.mark.parametrize("memory", [4, 0])
def test_a_run_takes_the_same_batches_from_shards_as_from_a_folder(tmp_path, memory):
    root = write_images(tmp_path / "folder", 7)
    folder = open_dataset(a_run(f"folder:{root}", memory=memory))
    with loopback_s3.serving() as bucket:
        for i, content in enumerate(shards_of(root, 3)):
            (tmp_path / f"pets-{i}.tar").write_bytes(content)
            bucket.objects[f"x/pets-{i}.tar"] = content
        sources = [
            (f"wds:{tmp_path}/pets-{{0..2}}.tar", ""),
            ("wds:pets-*.tar", "s3://bucket/x"),
            ("wds:s3://bucket/**/*-?.tar", ""),
        ]
        opened = [open_dataset(a_run(source, dir=place, memory=memory)) for source, place in sources]
        for found in opened:
            assert found.preprocess == folder.preprocess and found.same_as(opened[0].identity)
            for name, split in folder.splits.items():
                order = folder.order(4, 1) if name == "train" else None
                rows = order.indices(3) if order else np.arange(len(split))
                ours, theirs = found.splits[name].batch(rows), split.batch(rows)
                assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
                assert names(found.splits[name])[0].partition(" ")[2] in split.name(0)


def test_an_index_is_kept_and_no_tar_is_read_again(tmp_path, monkeypatch):
    contents = shards_of(write_images(tmp_path / "folder", 5), 2)
    with loopback_s3.serving() as bucket:
        bucket.objects = {f"{i}.tar": content for i, content in enumerate(contents)}
        first = open_dataset(a_run("wds:s3://bucket/*.tar", memory=0, normalize="half")).identity
        assert {"0.tar.index.npz", "1.tar.index.npz"} < {*bucket.objects}
        for cache in ("cache", "elsewhere"):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
            with monkeypatch.context() as only_indexes:
                only_indexes.setattr("vit_jax.extras.shards.samples.scan_tar", None)
                assert open_dataset(a_run("wds:s3://bucket/*.tar", memory=0, normalize="half")).identity == first
        bucket.objects["1.tar"] = tar(*samples("ab"))  # beside an index of another
        assert open_dataset(a_run("wds:s3://bucket/*.tar", memory=0, normalize="half")).identity != first


def test_a_shard_that_is_replaced_while_a_run_reads_it_ends_the_run(tmp_path):
    with loopback_s3.serving() as bucket:
        bucket.objects["0.tar"] = tar(*samples("abababababab"))
        found = open_dataset(a_run("wds:s3://bucket/0.tar", memory=0, normalize="half", skip_unreadable=True))
        bucket.objects["0.tar"] = tar(*samples("abababababab", 1))
        with pytest.raises(UserError, match=r"s3://bucket/0\.tar: was replaced while"):
            everything(found.splits["train"])


def test_names_are_read_as_webdataset_reads_them(tmp_path):
    read = {  # {member: (key, field)}, of webdataset 1.0.2
        "a/b.c.png": ("a/b", "c.png"), "v1.2/x.png": ("v1.2/x", "png"), "Z.PNG": ("Z", "png"),
        "./z.png": ("./z", "png"), "none": None, ".hidden.png": None, "__meta__/x.png": None,
        f"{'long/' * 50}q.png": (f"{'long/' * 50}q", "png"),
    }  # fmt: skip
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        members = [(name, png()) for name in read if not name.endswith("c.png")] + [
            ("a/b.c.png", png()),
            ("a/b.png", png()),
        ]
        folder = write_shards(tmp_path / str(form), x=tar(*members, form=form))
        (index,) = open_indexes(find_shards("data.source", f"{folder}/*.tar", ""), scan_tar)
        assert [*index.keys] == [*(pair[0] for pair in [*read.values()][1:] if pair), "a/b"]


@pytest.mark.parametrize(
    "shards, said",
    [
        ({"x": tar(*samples("ab"))[:700]}, "x.tar: is cut: it ends in the content of 0000.png"),
        ({"x": gzip.compress(tar(*samples("ab")))}, "is compressed"),
        ({"x": b"no tar at all" * 99}, "is no tar"),
        ({"x": tar(*samples("ab")) + tar(*samples("ab"))}, "more after its end mark"),
        ({"x": tar()}, "holds no samples"),
        ({"x": samples("ab")[:-1]}, "the sample 0001 has no .cls, which others have"),
        ({"x": samples("ab")[1:]}, "the sample 0000 has no image, which others have"),
        ({"x": samples("ab"), "y": samples("ab")[::2]}, "x.tar has cls, and y.tar has none"),
        ({"x": [*samples("ab"), *samples("a")]}, "has the sample 0000 in two places"),
        ({"x": [*samples("ab")[2:], *samples("a"), *samples("ab")[2:]]}, "has the sample 0001 in two places"),
        ({"x": [*samples("a"), *samples("a")]}, "the sample 0000 has .png twice"),
        ({"x": [("a.png", png()), ("a.jpg", png()), ("a.cls", b"0")]}, "has two images, png and jpg"),
        ({"x": samples("a ")}, "x.tar 0001: its .cls is empty"),
        ({"x": [("a.png", png()), ("a.cls", b"\xff\xfe")]}, "a.cls is no text in UTF-8"),
        ({"x": samples("ab")[::2]}, "no labels beside the images"),
        ({"x": samples("11")}, "none is 0"),
    ],
)
def test_what_is_no_whole_shard_is_refused_by_name(tmp_path, shards, said):
    with pytest.raises(UserError, match=said):
        open_dataset(a_run(f"wds:{write_shards(tmp_path / 'd', **shards)}/*.tar"))


def test_no_cut_of_a_tar_is_read_as_a_whole_one(tmp_path):
    whole = tar(*samples("ab"))
    last = whole.rindex(b"0001.cls") + 1024  # the end of the last content
    for size in range(512, last + 1024, 512):
        folder = write_shards(tmp_path / str(size), x=whole[:size])
        with pytest.raises(UserError, match=r"x.tar: is (cut|no tar)"):
            open_indexes(find_shards("data.source", f"{folder}/x.tar", ""), scan_tar)


def test_classes_have_the_numbers_of_their_sorted_names(tmp_path):
    one, two = samples("dacdacdac"), samples("bbbdbbbd", 9)
    forward = open_dataset(a_run(f"wds:{write_shards(tmp_path / 'd', x=one, y=two)}/*.tar", validation=0, test=0))
    backward = open_dataset(a_run(f"wds:{write_shards(tmp_path / 'e', x=two, y=one)}/*.tar", validation=0, test=0))
    for found, said in ((forward, "dacdacdacbbbdbbbd"), (backward, "bbbdbbbddacdacdac")):
        assert "".join(found.class_names[k] for k in found.splits["train"].labels) == said
        assert found.class_names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "fields, more, expected",
    [
        ([b'{"label": 2}', b'{"label": 0}', b'{"label": 1}'], {}, (["0", "1", "2"], [2, 0, 1])),
        ([b'{"kind": "b"}', b'{"kind": "a"}', b'{"kind": "b"}'], {"labels": ("kind",)}, (["a", "b"], [1, 0, 1])),
        ([b'{"tags": ["b", "a"]}', b'{"tags": []}', b'{"tags": ["b"]}'], {"labels": ("tags",)},
         (["a", "b"], [[1, 1], [0, 0], [0, 1]])),
        ([b'{"age": 1.5}', b'{"age": 2}', b'{"age": 4}'], {"labels": ("age",), "target": "number"},
         (["age"], [[1.5], [2], [4]])),
        ([b'{"x": 1}', b'{"x": 1}', b'{"y": 2}'], {"labels": ("x",)}, "x.tar 0002: its .json lacks 'x'"),
        ([b"[]", b"[]", b"[]"], {}, "x.tar 0000: its .json is no object"),
        ([b'{"z": 1}'] * 3, {}, "which keys of its .json are the labels\\? There are z"),
        ([b'{"age": 1.5}'] * 3, {"labels": ("age",)}, "classes or amounts"),
    ],
)  # fmt: skip
def test_labels_may_be_in_json(tmp_path, fields, more, expected):
    members = itertools.chain(*(((f"{i:04}.png", png(i)), (f"{i:04}.json", text)) for i, text in enumerate(fields)))
    run = a_run(f"wds:{write_shards(tmp_path / 'd', x=[*members])}/x.tar", validation=0, test=0, **more)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            open_dataset(run)
        return
    found = open_dataset(run)
    assert (list(found.class_names), found.splits["train"].labels.tolist()) == expected


def test_labels_and_names_of_classes_may_be_in_files_beside_the_shards(tmp_path):
    folder = write_shards(tmp_path / "d", x=samples("ab")[::2], y=samples("10", 2)[::2])
    (tmp_path / "labels.csv").write_text("file,label\n0003,cat\n0000.png,dog\n0001,cat\n0002,emu\n")
    (tmp_path / "names.txt").write_text("emu\ncat\ndog\nowl\n")
    files = {"label_table": str(tmp_path / "labels.csv"), "validation": 0, "test": 0}
    found = open_dataset(a_run(f"wds:{folder}/*.tar", **files))
    assert (found.class_names, found.splits["train"].labels.tolist()) == (("cat", "dog", "emu"), [1, 0, 2, 0])
    found = open_dataset(a_run(f"wds:{folder}/*.tar", class_names=str(tmp_path / "names.txt"), **files))
    assert (found.class_names, found.splits["train"].labels.tolist()) == (("emu", "cat", "dog", "owl"), [2, 1, 0, 1])
    write_shards(tmp_path / "d", z=samples("ab", 9)[::2])
    with pytest.raises(UserError, match=r"z.tar 0009: .*labels\.csv has no row of it"):
        open_dataset(a_run(f"wds:{folder}/*.tar", **files))
    with pytest.raises(UserError, match=r"data\.class_names is for shards, and data.source digits is none"):
        open_dataset(a_run("digits", class_names="x"))


def test_splits_are_those_that_shards_are_called(tmp_path):
    write_shards(tmp_path / "train", **{f"s-{i}": samples("ab" * 4) for i in range(2)})
    write_shards(tmp_path / "val", s=samples("aab"))
    found = open_dataset(a_run(f"wds:{tmp_path}/{{train,val}}/*.tar", test=0))
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 16, "validation": 3}
    assert names(found.splits["validation"])[0] == "val/s.tar 0000"
    write_shards(tmp_path / "other", s=samples("aab"))
    found = open_dataset(a_run(f"wds:{tmp_path}/*/*.tar", validation=0, test=0))
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 22}


def test_patterns(tmp_path):
    folder = write_shards(tmp_path / "d", **{f"s-{i:02}": samples("ab") for i in (3, 9, 10)})
    (folder / "list.txt").write_text("# mine\ns-10.tar\n\ns-03.tar\n")
    for pattern, found in {
        "s-*.tar": ["s-03.tar", "s-09.tar", "s-10.tar"], "s-0?.tar": ["s-03.tar", "s-09.tar"],
        "s-[01]9.tar": ["s-09.tar"], "s-{09..10}.tar": ["s-09.tar", "s-10.tar"], "list.txt": ["s-03.tar", "s-10.tar"],
        "{s-03,s-{09,10}}.tar": ["s-03.tar", "s-09.tar", "s-10.tar"],
    }.items():  # fmt: skip
        assert find_shards("", f"{folder}/{pattern}", "").short == found
        assert find_shards("", pattern, str(folder)).short == found
    for pattern, said in {
        "*.tgz": "nothing in .* is called so", "": "names no shards", "{9..3}": "count upwards",
        "{a": "without its other", "{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}{0..9}": "more than 1,000,000",
        "az://x/y.tar": "az:// is not known",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=said):
            find_shards("data.source", pattern, "" if ":" in pattern else str(folder))
    with pytest.raises(UserError, match=r"s-04\.tar.*is not there"):
        open_dataset(a_run(f"wds:{folder}/s-{{03..04}}.tar"))


def test_a_list_may_have_urls_and_lie_in_the_store(tmp_path):
    urls = tmp_path / "urls.txt"
    urls.write_text("s3://bucket/d/1.tar\n# none\ns3://bucket/e/2.tar\n")
    with loopback_s3.serving() as bucket:
        bucket.objects |= {"d/1.tar": tar(*samples("ab")), "e/2.tar": tar(*samples("ba", 2)), "0.tar": b""}
        bucket.objects |= {
            "own.txt": b"d/1.tar\ne/2.tar\n",
            "d/near.list": b"1.tar\n",
            "other.txt": b"s3://b/x.tar\n0.tar",
        }
        for pattern, where in ((str(urls), ""), (str(urls), "s3://bucket"), ("s3://bucket/own.txt", ""),
                               ("own.txt", "s3://bucket")):  # fmt: skip
            assert find_shards("", pattern, where).short == ["d/1.tar", "e/2.tar"]
        assert find_shards("", "s3://bucket/d/near.list", "").short == ["1.tar"]
        assert open_dataset(a_run(f"wds:{urls}", validation=0, test=0)).sizes == {"classes": 2}
        several = "^data.source: names shards in several stores, such as s3://bucket; give those of one$"
        for pattern, said in (("none.txt", r"s3://bucket/none\.txt: is not there"), ("other.txt", several)):
            with pytest.raises(UserError, match=said):
                find_shards("data.source", pattern, "s3://bucket")


def test_an_unreadable_image_is_replaced_alike_whether_images_are_in_memory_or_not(tmp_path):
    members = samples("abcdefgh" * 5)
    members[22] = (members[22][0], b"no image")
    source = f"wds:{write_shards(tmp_path / 'd', x=members)}/x.tar"
    with pytest.raises(UserError, match=r"1 unreadable image: x\.tar 0011"):
        open_dataset(a_run(source))
    opened = [open_dataset(a_run(source, skip_unreadable=True, memory=memory)) for memory in (4, 0)]
    assert opened[0].identity == opened[1].identity and "1 unreadable image replaced" in " ".join(opened[0].remarks)
    ours, theirs = (found.splits["train"].batch(np.arange(len(found.splits["train"]))) for found in opened)
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    for found in opened:  # what is measured has the label of the image that was looked at
        train = found.splits["train"]
        np.testing.assert_array_equal(train.labels, train.batch(np.arange(len(train)))["label"])
    write_shards(
        tmp_path / "d", x=[(name, b"none" if name > "0020.q" and name[-1] == "g" else x) for name, x in members]
    )
    with pytest.raises(UserError, match="images cannot be read, more than 1%, such as"):
        open_dataset(a_run(source, skip_unreadable=True))


def test_an_index_of_another_shard_is_not_taken_for_its_own(tmp_path):
    folder = write_shards(tmp_path / "d", x=samples("ab"))
    (index,) = open_indexes(find_shards("", f"{folder}/x.tar", ""), scan_tar)
    (folder / "x.tar.index.npz").write_bytes(index.to_bytes())
    write_shards(folder, x=samples("ba", 5))  # of as many bytes
    (found,) = open_indexes(find_shards("", f"{folder}/x.tar", ""), scan_tar)
    assert found.size == index.size and found.texts == {"cls": ("b", "a")}
    for damage in (b"", index.to_bytes()[:-40], json.dumps({}).encode()):
        (folder / "x.tar.index.npz").write_bytes(damage)
        write_shards(folder, x=samples("ba", 5))
        (again,) = open_indexes(find_shards("", f"{folder}/x.tar", ""), scan_tar)
        assert again.keys == found.keys


# ------------------------------------------------------------------------------------------------------ parquet


def write_parquet(path, labels, classes=(), group=4, first=0, column="image", **more):
    """A parquet file as datasets writes it: the features of its columns in the schema's metadata."""
    import pyarrow as pa
    import pyarrow.parquet

    images = [{"bytes": png(i), "path": f"{i}.png"} for i in range(first, first + len(labels))]
    features = {column: {"_type": "Image"}}
    features |= {"label": {"_type": "ClassLabel", "names": [*classes]}} if classes else {}
    table = pa.table({column: images, "label": labels, **more})
    stated = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table.replace_schema_metadata(stated), path, row_group_size=group)
    return path


@pytest.mark.parametrize("memory", [4, 0])
def test_parquet_gives_what_the_same_images_in_a_folder_give(tmp_path, memory):
    labels = [1, 0, 1, 1, 0, 2, 2, 0, 1, 2, 0]
    for part, start, stop in ((0, 0, 7), (1, 7, 11)):
        write_parquet(tmp_path / f"p/train-{part}.parquet", labels[start:stop], "xyz", 3, start)
    for i, label in enumerate(labels):
        (tmp_path / "folder" / "xyz"[label]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / "xyz"[label] / f"{i:02}.png").write_bytes(png(i))
    rows = np.argsort(labels, kind="stable")  # of the folder's images
    folder = open_dataset(a_run(f"folder:{tmp_path}/folder", validation=0, test=0)).splits["train"].batch(np.arange(11))
    with loopback_s3.serving() as bucket:
        for i in range(2):
            bucket.objects[f"train-{i}.parquet"] = (tmp_path / f"p/train-{i}.parquet").read_bytes()
        identities = []
        for place in (str(tmp_path / "p"), "s3://bucket"):
            found = open_dataset(a_run("parquet:train-*.parquet", dir=place, memory=memory, validation=0, test=0))
            batch = found.splits["train"].batch(rows)
            assert all(np.array_equal(batch[key], folder[key]) for key in ("image", "label"))
            order = found.order(2, 0)
            assert type(order) is BlockOrder and found.class_names == ("x", "y", "z")
            train = found.splits["train"]
            assert [*order.starts] == [0, 3, 6, 7, 10, 11] and names(train)[7] == "train-1.parquet row 0"
            for i, taken in enumerate(batches(train, order, 0, 10)):
                assert np.array_equal(taken["image"], train.take(order.indices(i)))
            identities.append(found)
    assert identities[0].same_as(identities[1].identity)


@pytest.mark.parametrize(
    "write, said",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-300]), "is cut: it has no end mark"),
        (lambda path: path.write_bytes(b"none"), "is no parquet file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-900] + path.read_bytes()[-800:]), "cannot be read"),
        (lambda path: write_parquet(path, [0, None, 1], "xy"), "row 1 has no label"),
        (lambda path: write_parquet(path, [0, 3, 1], "xy"), "row 1: its label is 3, and its feature names 2 classes"),
        (lambda path: write_parquet(path, [0, -1, 1], "xy"), "row 1: its label is -1, and its feature names 2 classes"),
        (lambda path: write_parquet(path, [0, 1], "xy", image2=[b"x", b"y"], column="pixels"), None),
        (lambda path: write_parquet(path, [0, 1], "yx"), "label has other names of classes than in a.parquet"),
        (lambda path: write_parquet(path, [], "xy"), "has no rows"),
    ],
)
def test_what_is_no_whole_parquet_file_is_refused_by_name(tmp_path, write, said):
    write_parquet(tmp_path / "d/a.parquet", [0, 1, 0, 1], "xy")
    write(write_parquet(tmp_path / "d/b.parquet", [0, 1, 0, 1], "xy"))
    if said is None:
        open_dataset(a_run(f"parquet:{tmp_path}/d/*.parquet", validation=0, test=0))
        return
    with pytest.raises(UserError, match=f"b.parquet.*{said}"):
        open_dataset(a_run(f"parquet:{tmp_path}/d/*.parquet", validation=0, test=0))


def test_a_split_of_parquet_without_labels_is_left_out(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [0, 1, 0, 1] * 5, "xy")
    write_parquet(tmp_path / "test-0.parquet", [-1, -1, -1], "xy")
    found = open_dataset(a_run(f"parquet:{tmp_path}/*.parquet"))
    assert "the test split has no labels and is left out" in " ".join(found.remarks) and len(found.splits["test"]) > 3


def test_parquet_without_features_is_read_by_the_names_of_its_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({"img": [png(i) for i in range(4)], "label": ["b", "a", "b", "c"], "age": [1.5, 2.0, 3.0, 4.0]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    found = open_dataset(a_run(f"parquet:{tmp_path}/x.parquet", validation=0, test=0))
    assert (found.class_names, found.splits["train"].labels.tolist()) == (("a", "b", "c"), [1, 0, 1, 2])
    found = open_dataset(a_run(f"parquet:{tmp_path}/x.parquet", validation=0, test=0, labels=("age",), target="number"))
    assert found.splits["train"].source_labels.tolist() == [[1.5], [2], [3], [4]]
    # Booleans are the classes 0 and 1, as in a table.
    there = table.append_column("there", pa.array([False, True, True, False]))
    pyarrow.parquet.write_table(there, tmp_path / "x.parquet")
    found = open_dataset(
        a_run(f"parquet:{tmp_path}/x.parquet", validation=0, test=0, labels=("there",), target="class")
    )
    assert (found.class_names, found.splits["train"].labels.tolist()) == (("0", "1"), [0, 1, 1, 0])
    pyarrow.parquet.write_table(table.drop_columns(["img"]), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet row 0 has no image"):
        open_dataset(a_run(f"parquet:{tmp_path}/x.parquet"))


# ------------------------------------------------------------------------------------------------ texts


def test_pairs_of_texts_may_be_in_shards(tmp_path):
    pairs = [("one two", "eins zwei"), ("three\vfour", "drei"), ("five", "fünf")]
    members = [
        [(f"{i}.en.txt", left.encode()), (f"{i}.de.txt", right.encode())] for i, (left, right) in enumerate(pairs)
    ]
    write_shards(tmp_path / "d", **{"train-0": itertools.chain(*members[:2]), "val-0": members[2]})
    found = find_pairs_of_items(f"wds:en-de:{tmp_path}/d/*.tar")
    assert [*found["train"]] == pairs[:2] and [*found["validation"]] == pairs[2:]
    assert place(found["train"], 1, 1) == "train-0.tar 1 de.txt"
    for source, said in (
        (f"wds:{tmp_path}/d/*.tar", "does not say which fields"),
        (f"wds:en-fr:{tmp_path}/d/*.tar", "no text fr .de.txt, en.txt"),
    ):
        with pytest.raises(UserError, match=said):
            find_pairs_of_items(source)


@pytest.mark.parametrize("opened", [
    lambda: open_dataset(a_run("mds:x/*.mds")), lambda: sources_of("pixels", ["mds:x/*.mds"], ""),
    lambda: open_captions(CaptionData(source="mds:x/*.mds"), 8, 1, (4, 4)),
])  # fmt: skip
def test_mds_is_refused_with_what_to_write_instead(opened):
    with pytest.raises(UserError, match=r"names shards of MDS, which are not read; write the images as tars"):
        opened()
