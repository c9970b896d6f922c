"""Tables of labels: what is read by name, what is asked, what is refused with its line, and how it is split."""

import csv
import io
import json
import os
import random

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, open_dataset
from vit_jax.config.outputs import Outputs
from vit_jax.data.images.sources.layout import WHOLE
from vit_jax.data.images.tables.columns import Declared
from vit_jax.data.images.tables.files import find_table, metadata_in
from vit_jax.data.images.tables.open import describe, open_table, open_test_table, read_table
from vit_jax.data.images.tables.rows import read_rows
from vit_jax.errors import UserError
from vit_jax.kinds.table import kind_of


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with i0.png to i9.png."""
    folder = tmp_path_factory.mktemp("table")
    for i in range(10):
        Image.new("L", (8, 8), 20 * i).save(folder / f"i{i}.png")
    return folder


def written(root, text, name="t.csv"):
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return find_table(f"csv:{root / name}")


def table(root, text, name="t.csv", **stated):
    return read_table(written(root, text, name), Declared(**stated))


def rows(header, cells):
    """A table of the first images, one for each of the cells after the first column."""
    return "\n".join([header, *(f"i{i},{text}" for i, text in enumerate(cells))]) + "\n"


def test_cells_are_those_of_the_csv_module(tmp_path):
    """Whatever it writes is read as it was; of any text either the same rows are read, or none."""
    rng, path = random.Random(0), tmp_path / "t.csv"
    for trial in range(200):
        delimiter = rng.choice(",;\t|")
        letters = ["a", "é", '"', delimiter, "\n", " ", "1", ""]
        cells = [tuple("".join(rng.choices(letters, k=3)) for _ in range(3)) for _ in range(4)]
        file = io.StringIO()
        end, quoting = rng.choice(["\n", "\r\n"]), rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerows([("x", "y", "z"), *cells])
        path.write_bytes((b"\xef\xbb\xbf" if trial % 2 else b"") + file.getvalue().encode())
        assert read_rows(path).cells == cells
        text = "x,y\n" + "".join(rng.choices(["a", "b", '"', ",", "\n", ",a", '""'], k=9))
        path.write_text(text)
        try:
            found = read_rows(path).cells
        except UserError:
            continue
        assert found == [tuple(row) for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row][1:]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1: is empty"),
        (b"image\na.png\n", "has no column of labels beside image"),
        (b"image,label;x\n1,2\n", "line 1: has commas and semicolons"),
        (b"image,a,a \n1,2,3\n", "line 1: two columns are called 'a'"),
        (b"image,a,\n1,2,3\n", "line 1: column 3 has no name"),
        (b"image,label\n", "has no rows"),
        (b"image,label\n1,2\n\n1\n", "line 4: has 1 cell, and the first line 2"),
        (b"image,label\n1,2,3\n", "line 2: has 3 cells, and the first line 2; put a cell in quotes that has commas"),
        (b'image,label\n1,"a\nb"\n2,"c\n3,d\n', "line 4: a quote that begins there has no end"),
        (b'image,label\n1,"a"b\n', "line 2: 'b' follows a quote"),
        (b'image,label\n1,5" pipe\n2,6" pipe\n', "line 2: the cell '5\" pipe\\n2' has a quote inside"),
        ("image,label\n1,ä\n".encode("latin-1"), "line 2: is no UTF-8 (it has the byte 0xe4)"),
        ("image,label\n1,2\n".encode("utf-16"), "line 1: is UTF-16"),
        ("image,label\n1,2\n".encode("utf-16-le"), "line 1: has a zero byte"),
        (b"image,label\n1,a\0\n", "line 2: has a zero byte"),
        (b"image,label\r1,2\r", "ends its lines with CR alone"),
        (b"image,label\n" + b"x" * (200 << 20), "line 2: has more than 1,048,576 bytes"),
        (b"a," * 1_000_000 + b"b\n", "line 1: has more than 1,048,576 bytes"),
        (b"a," * 300_000 + b"b\n", "line 1: has 300,001 columns; give 10,000 at most"),
        (b'image,label\n1,"' + b'"\n"\n' * 300_000, "line 3: has 1 cell"),
        (b'image,label\n1,"' + b"a\n" * 600_000, "line 2: a quote that begins there has no end"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(tmp_path, content, said):
    with pytest.raises(UserError) as caught:
        table(tmp_path, content)
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"file_name": 1', "line 1: is no JSON"),
        ('{"file_name": "i0.png", "a": 1}\n[1]', "line 2: is no object of JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ('{"file_name": "i0.png", "label": {"a": 1}}', "line 1, column label: is an object"),
        ('{"file_name": "i0.png", "label": NaN}', "NaN is not a number"),
        ('{"file_name": "i0.png", "label": [0, 1, 0]}', "lists of numbers: are they labels or amounts?"),
        ("[" * 200_000, "line 1: is no JSON"),
    ],
)
def test_what_is_no_json_lines_is_refused_with_its_line(root, content, said):
    with pytest.raises(UserError) as caught:
        table(root, content, "metadata.jsonl")
    assert said in str(caught.value)


def test_a_table_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    os.symlink(tmp_path / "round.csv", tmp_path / "round.csv")
    for name, said in (("pipe.csv", "a pipe"), ("round.csv", "a circle"), ("none.csv", "no file"), ("", "a folder")):
        with pytest.raises(UserError) as caught:
            read_table(find_table(f"csv:{tmp_path / name}"), Declared())
        assert said in str(caught.value)


ONE_HOT = rows("image,MEL,NV,BCC", ("1.0,0.0,0.0", "0.0,1.0,0.0", "0.0,0.0,1.0", "1.0,0.0,0.0"))


@pytest.mark.parametrize(
    ("text", "stated", "kind", "names", "values"),
    [
        # names are sorted, not in the order in which they appear
        (rows("image,label", ["zebra", "ant", "zebra", "10", "9"]), {"target": "class"}, "class", "10 9 ant zebra",
         [3, 2, 3, 0, 1]),
        (rows("image,breed", ("granny smith", "fuji", "fuji")), {}, "class", ("fuji", "granny smith"), [1, 0, 0]),
        (rows("image,label", ("NA", "None", "NA")), {}, "class", "NA None", [0, 1, 0]),
        (rows("image,labels", ("b a", "", "c", "a")), {"separator": " "}, "set", "a b c",
         [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]),
        (ONE_HOT, {"labels": ("NV", "MEL", "BCC"), "target": "class"}, "class", "NV MEL BCC", [1, 0, 2, 1]),
        (ONE_HOT, {"labels": ("NV", "MEL")}, "set", "NV MEL", [[0, 1], [1, 0], [0, 0], [0, 1]]),
        (rows("image,a,b", ("1,", "True,0", "0,False")), {"labels": ("a", "b")}, "set", "a b",
         [[1, -1], [1, 0], [0, 0]]),
        (rows("image,depth", ("1e-1", "-2.50", "+3")), {"target": "number"}, "number", "depth",
         [[0.1], [-2.5], [3.0]]),
        (rows("image,x,y", ("1,2", ".5,1.", "3,4")), {"labels": ("y", "x")}, "number", "y x",
         [[2, 1], [1, 0.5], [4, 3]]),
        # Excel's first line; pandas' index, and a header with blanks and a mark
        ("sep=;\nimage;label\ni0;a\ni1;b\ni2;a\n", {}, "class", "a b", [0, 1, 0]),
        ("\ufeff, Image , label \n0,i0, a \n1,i1,b\n2,i2,a\n", {}, "class", "a b", [0, 1, 0]),
    ],
)  # fmt: skip
def test_labels_are_read_by_what_the_table_says(root, text, stated, kind, names, values):
    found = table(root, text, **stated).labels
    names = tuple(names.split() if isinstance(names, str) else names)
    assert (found.outputs.kind, found.outputs.names) == (kind, names)
    assert found.values.tolist() == values
    assert found.values.dtype == {"class": np.int32, "set": np.int8, "number": np.float64}[kind]


def test_json_lines_hold_what_a_csv_file_holds_and_lists(root):
    lines = [
        {"file_name": "i0.png", "label": ["b", "a"], "objects": {"box": [1]}},
        {"file_name": "i1.png", "label": None},
        {"file_name": "i2.png", "label": ["a"], "id": 7},
    ]
    found = table(root, "\n".join(map(json.dumps, lines)), "metadata.jsonl").labels
    assert (found.outputs.kind, found.outputs.names) == ("set", ("a", "b"))
    assert found.values.tolist() == [[1, 1], [0, 0], [1, 0]]
    points = "\n".join(json.dumps({"file_name": f"i{i}.png", "xy": [i, 0.1]}) for i in range(3))
    found = table(root, points, "metadata.jsonl", target="number").labels
    assert (found.outputs.names, found.values.tolist()) == (("xy[0]", "xy[1]"), [[0, 0.1], [1, 0.1], [2, 0.1]])


@pytest.mark.parametrize(
    ("text", "stated", "said"),
    [
        # which columns
        (rows("image,id,label", ("1,a",)), {}, "image and id may all name the images; give the column of the files"),
        (rows("picture,label", ("a",)), {}, "`data.file_column picture`"),
        ("i0.png,a\ni1.png,b\n", {}, "write the names of the columns into its first line"),
        (rows("image,age,MEL,NV", ("30,1,1", "40,0,1")), {},
         "which columns are the labels? age (30, 40), MEL (1, 0), NV (1); give one or several, such as "
         "`data.labels MEL NV`"),
        (rows("image,label", ("a", "b")), {"group": "patiemt"}, "data.group is patiemt"),
        (rows("image,label", ("a", "b")), {"labels": ("image",)}, "so is data.file_column"),
        # which kind
        (rows("image,n", "123"), {}, "are they classes or amounts?; give `data.target class` or `data.target number"),
        (rows("image,n", ("1", "NA", "2")), {}, "numbers such as '1' (line 2) and texts such as 'NA' (line 3)"),
        (ONE_HOT, {"labels": ("MEL", "NV", "BCC")}, "give `data.target class` or `data.target set"),
        (rows("image,a,b", ("1,-1", "0,1")), {"labels": ("a", "b")}, "line 2, column b: is -1"),
        (rows("image,labels", ("a b", "a")), {"target": "set"}, 'such as `data.separator " "'),
        (rows("image,labels", ("a b", "a")), {"target": "class", "separator": " "}, "data.separator is ' '"),
        # cells
        (rows("image,label", ("a", "", "b")), {}, "line 3, column label: is empty; write a class"),
        (rows("image,n", ("1", "", "2")), {"target": "number"}, "line 3, column n: is empty; write a number"),
        (rows("image,n", ("1", '"1,5"', "2")), {"target": "number"}, "line 3, column n: is '1,5'"),
        (rows("image,n", ("1", '"1,000"')), {"target": "number"}, "write 1000, or 1.000 if"),
        (rows("image,n", ("1", "1_0", "2")), {"target": "number"}, "line 3, column n: is '1_0'"),
        (rows("image,n", ("1", "nan", "2")), {"target": "number"}, "line 3, column n: is 'nan'"),
        (rows("image,n", ("1", "\uff11", "2")), {"target": "number"}, "line 3, column n: is '\uff11'"),
        (rows("image,a,b", ("1,0", "NA,1")), {"labels": ("a", "b")}, "line 3, column a: is 'NA'"),
        (rows("image,a,b", ("1,0", "1,1", "0,1")), {"labels": ("a", "b"), "target": "class"},
         "line 3: has 2 columns with 1, and data.target is class"),
        (rows("image,n", ("1", "001", "1")), {"target": "class"}, "line 3, column n: is '001', and line 2 has '1'"),
        (rows("image,l", ("a a", "b")), {"separator": " "}, "line 2, column l: has 'a' twice"),
        (rows("image,caption", ("a cat", "a dog", "a cow")), {}, "another text in each of the 3 rows"),
        # splits and groups
        (rows("image,label,split", ("a,train", "b,fold1")), {}, "line 3, column split: is 'fold1'"),
        (rows("image,label,split", ("a,train", "b,")), {}, "line 3, column split: is empty"),
        (rows("image,label,split", ("a,val", "b,test", "a,val")), {}, "has no row in train"),
        (rows("image,label,split", ("a,train", "b,train", "a,Val", "c,val")), {}, "line 5: 'c' is in validation but"),
        (rows("image,a,b,split", ("1,0,train", "1,0,train", "0,1,dev")), {"labels": ("a", "b"), "target": "set"},
         "line 4: 'b' is in validation but not in train"),
        (rows("image,a,b", ("1,0", "0,0", "1,0")), {"labels": ("a", "b")}, "no row has 'b'"),
        (rows("image,label,split,who", ("a,train,p1", "b,train,p2", "a,test,p1")), {"group": "who"},
         "line 4, column who: 'p1' is in test here, and in train in line 2"),
        (rows("image,label,who", ("a,p1", "b,")), {"group": "who"}, "line 3, column who: is empty"),
        # files
        ("image,label\n/i0.png,a\n", {}, "line 2, column image: is '/i0.png', an absolute path"),
        ("image,label\nx/../i0.png,a\n", {}, "which leads out of the folder"),
        ("image,label\nhttp://x/i0.png,a\n", {}, "an address"),
        ("image,label\n,a\n", {}, "line 2, column image: is empty"),
        ("image,label\ni0,a\n" + "".join(f"x{i},a\n" for i in range(7)), {},
         "7 of its 8 images are not in T: 'x0' (line 3), 'x1' (line 4), 'x2' (line 5), 'x3' (line 6), 'x4' (line 7), "),
        ("image,label\ni0.png,a\ni1,b\n./i0,b\n", {}, "line 4, column image: is the image of line 2 again"),
        ("image,label,split\ni0.png,a,train\ni1,b,train\n./i0,a,test\n", {}, "line 4, column image: is the image of"),
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_or_in_none_is_said_in_one_sentence(root, text, stated, said):
    with pytest.raises(UserError) as caught:
        open_table(written(root, text), Declared(**stated))
    message = str(caught.value).replace(str(root), "T").replace(os.path.relpath(root), "T")
    assert said in message and "\n" not in message


def test_files_without_extension_equal_rows_and_images_without_row(tmp_path):
    for name in ("a.png", "b.1.jpg", "sub/c.JPEG", "left.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name, "PNG")
    text = "image_id;label\na;x\nb.1;y\nsub/c;x\na.png;x\n"
    found = table(tmp_path, text)
    assert [os.path.relpath(path, tmp_path) for path in found.paths] == ["a.png", "b.1.jpg", "sub/c.JPEG"]
    assert "left out: 1" in found.remarks[-1] and "left out: 1, such as" in found.remarks[-2]
    (tmp_path / "a.webp").touch()
    with pytest.raises(UserError, match=r"line 2, column image_id: is 'a', and a.png and a.webp are there"):
        table(tmp_path, text)


def test_a_colon_in_a_name_is_part_of_it_and_the_folder_comes_after_the_last(tmp_path):
    (tmp_path / "im").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "im/i0.png")
    (tmp_path / "a:b.csv").write_text("file,label\ni0,x\n")
    place = find_table(f"csv:{tmp_path}/a:b.csv:{tmp_path}/im")
    assert place.name == "a:b" and read_table(place, Declared()).paths == [str(tmp_path / "im/i0.png")]


def test_hugging_face_metadata_is_found_in_a_folder_or_in_those_of_its_splits(tmp_path):
    for split, names in (("train", "aba"), ("valid", "c")):
        (tmp_path / split).mkdir()
        for name in names:
            Image.new("L", (8, 8)).save(tmp_path / split / f"{name}.png")
        (tmp_path / split / "metadata.csv").write_text(
            "\n".join(["file_name,id,label", *(f"{name}.png,7,cat" for name in names)])
        )
    found = read_table(metadata_in(tmp_path), Declared())
    assert [os.path.relpath(path, tmp_path) for path in found.paths] == ["train/a.png", "train/b.png", "valid/c.png"]
    assert found.splits == ["train", "train", "validation"] and found.rows.where(2).endswith(
        "valid/metadata.csv line 2"
    )
    with pytest.raises(UserError, match="its only class is cat"):
        open_dataset(a_run(f"folder:{tmp_path}"))
    (tmp_path / "valid/metadata.csv").write_text("file_name,id\nc.png,a\n")
    with pytest.raises(UserError, match=r"label: is empty; .*; or move metadata.csv away, to learn the names"):
        open_dataset(a_run(f"folder:{tmp_path}"))
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "train/a.png", "label": "cat"}')
    with pytest.raises(UserError, match="keep one of them"):
        metadata_in(tmp_path)


def test_what_was_understood_is_said(root):
    found = table(root, rows("image,labels", ("rust scab", "scab", "rust", "scab", "granny smith")))
    assert any("'rust scab' is made of the names of others" in remark for remark in found.remarks)
    assert not table(root, rows("image,labels", ("granny smith", "fuji", "fuji"))).labels.remarks
    found = table(root, rows("image,labels", ("rust scab", "scab", "rust")), separator=";")
    assert [remark[:50] for remark in found.labels.remarks] == [
        "no cell has two labels with ';' between them",
        "the label 'rust scab' is made of the names of othe",
    ]
    found = table(
        root,
        rows("image,MEL,NV,who,split", ("1,,p1,train", "0,1,p1,train", "0,0,p2,test")),
        labels=("MEL", "NV"),
        group="who",
    )
    first, counts = describe(found)
    assert "3 images by column image" in first and "a set of labels an image by 2 columns of 0 and 1" in first
    assert "2 groups by column who; splits by column split" in first
    assert counts == "MEL 1, NV 1; images with none of them: 1; unknown cells, which are not learned from: 1"


def of_network(source, network):
    """The labels of a source without splits, as a network has them."""
    return kind_of(source.outputs).matched("", "", source.splits[WHOLE].labels, network.names)


def test_labels_of_another_table_are_those_of_the_network_by_name(root):
    """In another order, with a label that the network lacks a column of, and with classes that are not there."""
    network = Outputs("set", ("a", "b", "c"))
    place = written(root, rows("image,c,age,a", ("1,30,0", "0,40,", "1,50,1")))
    source = open_test_table(place, Declared(labels=("a", "b", "c")), network)
    labels, _ = of_network(source, network)
    assert labels.tolist() == [[0, -1, 1], [-1, -1, 0], [1, -1, 1]]
    assert open_test_table(place, Declared(separator=" "), network).splits[WHOLE].labels.shape == (3, 2)
    cells = written(root, rows("image,what", ("c a", "", "b")))
    source = open_test_table(cells, Declared(labels=("a", "b", "c"), separator=" "), network)
    assert source.splits[WHOLE].labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    network = Outputs("class", ("9", "a", "c"))
    for text in (rows("image,label", "cac"), rows("image,c,n,a", ("1,5,0", "0,5,1", "1,5,0"))):
        source = open_test_table(written(root, text), Declared(), network)
        assert of_network(source, network)[0].tolist() == [2, 1, 2]
    network = Outputs("number", ("y", "x"))
    source = open_test_table(written(root, rows("image,x,y", ("1,2", "3,4"))), Declared(), network)
    assert of_network(source, network)[0].tolist() == [[2, 1], [4, 3]]
