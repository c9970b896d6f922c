"""Images with captions in files: what is read and refused, how it is split, the scores, and a run on them."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from tests.test_shards import tar
from vit_jax.data.base import GivenData
from vit_jax.data.captions import shapes
from vit_jax.data.captions.captioned import read_captioned
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.captions.open import open_captions, open_other_captions
from vit_jax.errors import UserError
from vit_jax.tasks.caption.score import bleu4, cider_d, plain

N = 24


def open_(source, **fields):
    return open_captions(CaptionData(source=source, **{"length": 14, **fields}), 32, 3, (4, 4), seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Drawn scenes as a user has them: PNGs, two captions of each, in a table and as COCO has them."""
    folder, scenes = tmp_path_factory.mktemp("captioned"), shapes.draw(N, 50)
    (folder / "images").mkdir()
    rows = []
    for i, (pixels, said) in enumerate(zip(scenes.pixels, scenes.captions, strict=True)):
        Image.fromarray(pixels).save(folder / f"images/{i}.png")
        rows += [(f"images/{i}.png", f"{said.capitalize()}."), (f"images/{i}.png", f"Look, {said}")]
    with open(folder / "captions.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    names = list(dict.fromkeys(name for name, _ in rows))
    coco = {
        "images": [{"id": 7 + i, "file_name": name, "height": 32, "width": 32} for i, name in enumerate(names)],
        "annotations": [
            {"id": i, "image_id": 7 + names.index(name), "caption": said} for i, (name, said) in enumerate(rows)
        ],
    }
    (folder / "coco.json").write_text(json.dumps(coco))
    return folder


def test_a_table_and_cocos_annotations_say_the_same(folder):
    table, coco = read_captioned(f"captions:{folder}"), read_captioned(f"coco:{folder}/coco.json:{folder}")
    assert table == coco and len(table) == N and {len(said) for said in table.values()} == {2}


def test_images_are_split_and_have_all_their_captions(folder):
    data = open_(f"captions:{folder}", test=0.25, validation=0.25)
    sizes = {name: len(split) for name, split in data.splits.items()}
    assert sizes == {"train": 2 * 14, "validation": 4, "test": 6}  # captions, images, images
    names = {name: {split.name(i) for i in range(len(split))} for name, split in data.splits.items()}
    assert not names["train"] & (names["test"] | names["validation"]) and not names["test"] & names["validation"]
    read, test = read_captioned(f"captions:{folder}"), data.splits["test"]
    for i in range(6):
        assert list(test.references[i]) == read[test.name(i)]
        pixels = np.asarray(Image.open(test.name(i)))
        assert (test.take(np.array([i]))[0] == pixels).all()
    assert data.vocabulary.open and data.vocabulary.decode(data.splits["train"].target[1]).startswith("look , a ")
    assert open_(f"captions:{folder}", test=0.25, validation=0.25).identity == data.identity
    assert open_(f"captions:{folder}", test=0.25, validation=0.25, length=15).sizes == data.sizes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("images/0.png,a\n", "captions.csv: begins with 'images/0.png,a' and not with the line image,caption"),
        ('image,caption\nimages/0.png,"a\n', "captions.csv line 2: cannot be read .*; mend its quotes"),
        ("image,caption\nimages/0.png,\n", "captions.csv line 2: the caption of 'images/0.png' is empty"),
        (b"image,caption\nimages/0.png,a \xff b\n", "captions.csv line 2: is no UTF-8 .*; save the file as UTF-8"),
        (b"", "does not begin with the line"),
        (b"image,caption\rimages/0.png,a\r", "captions.csv: ends its lines with CR alone"),
        ("image,caption\n" + "x" * 999 + ",a\n", r"line 2: there is no image 'x{100}\.\.\.' in"),
        ("image,caption\n../images/0.png,a\n", r"line 2: the image '\.\./images/0\.png' is outside"),
        ("image,caption\nimages/../../x/0.png,a\n", "line 2: the image .* is outside"),
        ("image,caption\nimages/../images/0.png,a\n", r"its path leads out and in again; .* without \.\., or"),
        ("image,caption\n/etc/passwd,a\n", "line 2: the image '/etc/passwd' is outside"),
        (None, "captions.csv cannot be read"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(folder, tmp_path, content, message):
    (tmp_path / "images").symlink_to(folder / "images")
    if content is not None:
        (tmp_path / "captions.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        read_captioned(f"captions:{tmp_path}")
    assert str(caught.value).startswith(f"data.source captions:{tmp_path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v["annotations"][3].update(image_id=99), r"annotations\[3\]: there is no image 99 among its images"),
        (lambda v: v["images"][0].update(file_name="../x.jpg"), r"annotations\[0\]: the image '../x.jpg' is outside"),
        (lambda v: v["images"][1].update(id=v["images"][0]["id"]), r"in two ways \(images: the id \d+ occurs twice\)"),
        (
            lambda v: v["images"][1].update(file_name="./" + v["images"][0]["file_name"]),
            "images: the file_name 'images/.*' occurs twice",
        ),
        (lambda v: [note.update(id=7) for note in v["annotations"]], "annotations: the id 7 occurs twice"),
        (lambda v: v["annotations"][0].update(image_id=[1]), "is no JSON of COCO's captions"),
    ],
)
def test_bad_annotations_are_refused(folder, tmp_path, change, message):
    value = json.loads((folder / "coco.json").read_text())
    change(value)
    (tmp_path / "a.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match=message):
        read_captioned(f"coco:{tmp_path}/a.json:{folder}")


def test_a_key_twice_in_annotations_is_refused(folder, tmp_path):
    (tmp_path / "a.json").write_text('{"images": [], ' + (folder / "coco.json").read_text()[1:])
    with pytest.raises(UserError, match=r"a\.json: can be understood in two ways \(the key 'images' occurs twice\)"):
        read_captioned(f"coco:{tmp_path}/a.json:{folder}")


@pytest.mark.parametrize("separator", ["\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_caption_is_not_cut_at_what_is_no_line_end(folder, tmp_path, separator):
    """The second half was another image's, where it looked like a row."""
    (tmp_path / "images").symlink_to(folder / "images")
    names, said = [f"images/{i}.png" for i in range(3)], f"a cat,{separator}images/1.png,a dog"
    rows = ["\ufeffimage,caption", f'{names[0]},"{said}"', f"{names[1]},a{separator}b", " ", f"{names[2]},c", ""]
    (tmp_path / "captions.csv").write_bytes("\r\n".join(rows).encode())
    found = read_captioned(f"captions:{tmp_path}")
    assert list(found.values()) == [[said], [f"a{separator}b"], ["c"]]


def test_what_cannot_be_trained_on_is_refused(folder, tmp_path):
    for source in ("captions:", f"captions:{folder}/x", f"coco:{folder}/coco.json", "coco::x"):
        with pytest.raises(UserError, match="there is no folder"):
            read_captioned(source)
    with pytest.raises(UserError, match=r"data.length is 9, but \d+ captions of .* such as one of .*: give 1[234], or"):
        open_(f"captions:{folder}", length=9)
    with pytest.raises(UserError, match=r"data.test 0.001 of 24 images leaves test empty"):
        open_(f"captions:{folder}", test=0.001)
    (tmp_path / "captions.csv").write_text("image,caption\n" + "".join(f"{i}.png,a b c\n" for i in range(4)))
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(b"no image" if i == 2 else (folder / f"images/{i}.png").read_bytes())
    with pytest.raises(UserError, match=r"1 unreadable image: .*2.png; replace or remove them"):
        open_(f"captions:{tmp_path}")
    left = open_(f"captions:{tmp_path}", skip_unreadable=True, validation=0.0, test=0.25)
    assert sum(map(len, left.splits.values())) == 3
    assert f"1 unreadable image left out: {tmp_path / '2.png'}" in left.remarks
    (tmp_path / "more").mkdir()
    for name in ("more/5.png", "4.JPG"):
        (tmp_path / name).touch()
    more = open_(f"captions:{tmp_path}", skip_unreadable=True, validation=0.0, test=0.25)
    assert more.remarks[-1] == f"2 images have no caption and are left out, such as {tmp_path / '4.JPG'}"
    assert more.identity == left.identity


# -------------------------------------------------------------------------- other data, and from Python


def given_(data, **fields):
    return open_captions(CaptionData(length=14, **fields), 32, 3, (4, 4), seed=1, given=GivenData(data))


def test_what_python_gives_is_what_files_hold(folder):
    """The same images and captions as arrays: the same splits, pixels, captions and vocabulary."""
    read = read_captioned(f"captions:{folder}")
    pixels, said = np.stack([np.asarray(Image.open(path)) for path in read]), list(read.values())
    files, arrays = open_(f"captions:{folder}"), given_((pixels, said))
    assert files.vocabulary.kept == arrays.vocabulary.kept and files.splits.keys() == arrays.splits.keys()
    for one, two in zip(files.splits.values(), arrays.splits.values(), strict=True):
        assert (one.target == two.target).all() and one.references == two.references
        assert (one.take(np.arange(len(one))) == two.take(np.arange(len(two)))).all()
    items = [{"image": x, "captions": texts} for x, texts in zip(pixels, said, strict=True)]
    assert given_(items).identity == given_(list(zip(pixels, said, strict=True))).identity == arrays.identity
    parts = given_({"train": (pixels[:16], said[:16]), "test": (pixels[16:], said[16:])}, validation=0.0)
    assert {name: len(split) for name, split in parts.splits.items()} == {"train": 32, "test": 8}
    assert list(parts.splits["test"].references) == said[16:] and parts.identity != arrays.identity


def test_other_images_are_measured_by_the_words_of_the_network(folder):
    known = open_(f"captions:{folder}")
    read = read_captioned(f"captions:{folder}")
    other = open_other_captions(
        CaptionData(source=f"captions:{folder}", length=14), "", known.preprocess, known.vocabulary, 1
    )
    assert (other.name, len(other.split), other.total) == ("all", N, sum(map(len, known.splits.values())))
    assert list(other.split.references) == list(read.values())
    assert known.vocabulary.decode(other.split.target[0]).startswith("a ")
    with pytest.raises(UserError, match=r"there is no split 'test'; the data has all"):
        open_other_captions(CaptionData(source=f"captions:{folder}"), "test", known.preprocess, known.vocabulary, 1)
    with pytest.raises(UserError, match=r"data.source is shapes, but"):
        open_other_captions(CaptionData(), "", known.preprocess, known.vocabulary, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((3, 4, 4, 3), np.uint8), "data: train is a ndarray of 3"),
        ((np.zeros((3, 4, 4, 3), np.uint8), ["a", "b"]), "train has 3 images and captions of 2"),
        ((np.zeros((2, 4, 4, 3), np.uint8), ["a", 5]), "captions of train are no texts"),
        ((np.zeros((2, 4, 4, 3)), ["a", "b"]), "images of train is float64 and"),
        (None, "the data of this run was given in Python"),
    ],
)
def test_what_python_cannot_give_is_refused(data, message):
    with pytest.raises(UserError, match=message) as caught:
        open_("captions") if data is None else given_(data)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------- scores


def test_cider_d_of_known_corpora():
    """Ten for identical captions of four words or more, 7.5 of three words, 0 where there is one image only."""
    said = [f"w{i} x{i} y{i} z{i} end".split() for i in range(5)]
    assert cider_d(said, [[each] for each in said]) == pytest.approx(10)
    short = [each[:3] for each in said]
    assert cider_d(short, [[each] for each in short]) == pytest.approx(7.5)
    assert cider_d(said[:1], [said[:1]]) == 0 and cider_d(said, [[each] for each in said[::-1]]) < 2.1
    assert cider_d([[]] * 5, [[each] for each in said]) == 0


def test_cider_d_by_its_formula():
    """By brute force over all n-grams, as vectors."""
    draw = np.random.default_rng(0)
    text = lambda: [f"w{i}" for i in draw.integers(0, 6, draw.integers(3, 9))]  # noqa: E731
    said, references = [text() for _ in range(7)], [[text() for _ in range(3)] for _ in range(7)]
    total = 0.0
    for one, several in zip(said, references, strict=True):
        for each in several:
            for n in range(1, 5):
                cut = lambda t, n=n: [" ".join(t[i : i + n]) for i in range(len(t) - n + 1)]  # noqa: E731
                every = sorted({g for t in (one, each) for g in cut(t)})
                df = [max(1, sum(any(g in cut(r) for r in rs) for rs in references)) for g in every]
                idf = np.log(7) - np.log(df)
                a, b = (np.array([cut(t).count(g) for g in every]) * idf for t in (one, each))
                size = np.linalg.norm(a) * np.linalg.norm(b)
                gauss = np.exp(-((len(one) - len(each)) ** 2) / 72)
                total += 10 * (np.minimum(a, b) * b).sum() / size * gauss / 4 / 3 / 7 if size else 0
    assert cider_d(said, references) == pytest.approx(total, rel=1e-9)


def test_bleu_is_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu")
    draw = np.random.default_rng(1)
    text = lambda: [f"w{i}" for i in draw.integers(0, 4, draw.integers(4, 9))]  # noqa: E731
    said, references = [text() for _ in range(30)], [[text(), text()] for _ in range(30)]
    streams = [[" ".join(each[k]) for each in references] for k in range(2)]
    theirs = sacrebleu.corpus_bleu(
        [" ".join(t) for t in said], streams, tokenize="none", smooth_method="none", force=True
    )
    assert bleu4(said, references) == pytest.approx(theirs.score, rel=1e-9) and theirs.score > 1
    assert bleu4([["a"]], [[["a"]]]) == 0 and plain("A dog, 2 cats!") == ["a", "dog", "2", "cats"]


# ------------------------------------------------------------------------------------------- shards


def test_shards_of_images_with_texts_give_what_a_folder_gives(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = read_captioned(f"captions:{folder}")
    members = [
        member
        for i, (image, captions) in enumerate(said.items())
        for member in ((f"{i:03}.png", open(image, "rb").read()), (f"{i:03}.txt", "\n".join(captions).encode()))
    ]
    for k in range(2):
        (tmp_path / f"{k}.tar").write_bytes(tar(*members[k * N : (k + 1) * N]))
    table = pa.table(
        {"image": [x for name, x in members if name.endswith("g")], "caption": ["\n".join(x) for x in said.values()]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=6)
    ours = open_(f"captions:{folder}")
    for source, memory in (
        (f"wds:{tmp_path}/*.tar", 4),
        (f"wds:{tmp_path}/*.tar", 0),
        (f"parquet:{tmp_path}/*.parquet", 0),
    ):
        theirs = open_(source, memory=memory)
        for name, split in ours.splits.items():
            one, two = split.batch(np.arange(len(split))), theirs.splits[name].batch(np.arange(len(split)))
            assert all(np.array_equal(one[key], two[key]) for key in one) and len(theirs.splits[name]) == len(split)
    (tmp_path / "0.tar").write_bytes(tar(*members[:N:2]))
    with pytest.raises(UserError, match=r"1\.tar has txt, and 0\.tar has none"):
        open_(f"wds:{tmp_path}/*.tar")
