"""Sets by name on a fresh machine: fetched from a server on this machine, checked, in the order of TFDS."""

import importlib.util
import io
import os
import re
import shutil
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, everything, open_dataset
from tests.official_sets import cifar_members, contents, serving, small, tar, with_files
from vit_jax.data.prepared import FETCHED
from vit_jax.errors import UserError
from vit_jax.extras.sets import archives, prepare
from vit_jax.extras.sets.archives import OFFICIAL, CifarSet


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home, and no other place of sets."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "tensorflow_datasets"


@pytest.fixture
def table(monkeypatch):
    """Replaces a set of the table by a small one at an address, or several."""

    def replaced(name, official, files, *addresses):
        monkeypatch.setitem(OFFICIAL, name, with_files(official, files, addresses))

    return replaced


def of(name, **data):
    """A run on a small set, which has two images of each class or less."""
    return a_run(name, image=OFFICIAL[name].shape[0], channels=OFFICIAL[name].shape[2], validation=0.0, **data)


def refusal(name, **data):
    with pytest.raises(UserError) as caught:
        open_dataset(of(name, **data))
    assert "\n" not in str(caught.value) and str(caught.value).isprintable()
    return str(caught.value)


# ------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_table_is_that_of_tfds(name):
    folder = Path(importlib.util.find_spec("tensorflow_datasets").origin).parent / "url_checksums"
    rows = [line.split("\t") for line in (folder / f"{name}.txt").read_text().splitlines()]
    ours = {a.addresses[0]: (str(a.bytes), a.sha256, a.name) for a in OFFICIAL[name].archives}
    assert ours == {address: tuple(rest) for address, *rest in rows}


def test_help_states_how_much_is_fetched():
    assert {name: round(sum(a.bytes for a in each.archives) / 1e6) for name, each in OFFICIAL.items()} == FETCHED


def test_other_addresses_are_those_of_torchvision():
    found = importlib.util.find_spec("torchvision")
    if found is None:
        pytest.skip("torchvision is not installed")
    theirs = (Path(found.origin).parent / "datasets/mnist.py").read_text()
    for name in ("mnist", "fashion_mnist"):
        archives = OFFICIAL[name].archives
        for address in archives[0].addresses[name == "mnist" :]:  # of mnist the first is TFDS's
            assert f'"{address.removesuffix(archives[0].name)}"' in theirs
        assert all(f'"{archive.name}"' in theirs for archive in archives)


@pytest.mark.parametrize("name", OFFICIAL)
def test_sizes_and_shapes_are_those_of_the_builder(name):
    import tensorflow_datasets as tfds

    builder, official = tfds.builder(name), OFFICIAL[name]
    features = builder.info.features
    assert features["image"].shape == official.shape and features["label"].num_classes == official.classes
    assert official.version == str(builder.version)
    assert isinstance(official, CifarSet) or [*official.names] == features["label"].names
    assert OFFICIAL[name].splits == {
        "train": 50_000 if isinstance(OFFICIAL[name], CifarSet) else 60_000,
        "test": 10_000,
    }


# --------------------------------------------------------------------------------- what is prepared


def write_as_tfds(root, name, made, classes, monkeypatch):
    """Let TFDS itself write the records of a set, whose keys are the places in its archive."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=root, file_format="array_record")
    features = builder.info.features
    features["label"].names = [*classes]

    def records(split):
        for i, (pixels, label) in enumerate(zip(*made[split], strict=True)):
            file = io.BytesIO()
            Image.fromarray(pixels.squeeze()).save(file, "png")
            record = {"image": file.getvalue(), "label": int(label), "coarse_label": 0, "id": f"{split}_{i:05d}"}
            yield i, {key: value for key, value in record.items() if key in features}

    monkeypatch.setattr(builder, "_make_download_manager", lambda **_: SimpleNamespace(downloaded_size=0))
    monkeypatch.setattr(builder, "_split_generators", lambda *_: {split: records(split) for split in made})
    builder.download_and_prepare()


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ("fashion_mnist", "cifar10") else x for x in OFFICIAL]
)
def test_a_set_by_name_is_fetched_once_and_is_the_data_that_tfds_writes(
    home, table, name, tmp_path, monkeypatch, capfd
):
    """Its images, labels and classes in their order, and so every run; what a run knows its data by, too."""
    official, files, made = small(name)
    with serving(files) as (address, asked):
        table(name, official, files, address)
        data = open_dataset(of(name))
        assert open_dataset(of(name)).identity == data.identity  # and asks the server nothing
    assert sorted(asked) == sorted((f"/{file}", None) for file in files)
    assert [path.relative_to(home) for path in home.rglob("*")] == [Path(name), Path(name, f"{official.version}.npz")]
    assert "tensorflow" not in sys.modules
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["fetch"] * len(files) + ["prepared"]
    write_as_tfds(tmp_path / "theirs", name, made, data.class_names, monkeypatch)
    for memory in (4.0, 0.0):
        theirs = open_dataset(of(name, dir=str(tmp_path / "theirs"), memory=memory))
        ours = open_dataset(of(name, memory=memory))
        assert ours.identity == theirs.identity == data.identity and ours.same_as(theirs.identity)
        assert ours.outputs == theirs.outputs and ours.preprocess == theirs.preprocess
        for split in ("train", "test"):
            np.testing.assert_array_equal(everything(ours.splits[split]), everything(theirs.splits[split]))
            np.testing.assert_array_equal(ours.splits[split].labels, theirs.splits[split].labels)
            assert ours.splits[split].name(3) == theirs.splits[split].name(3)


def test_a_folder_that_tfds_has_prepared_is_read_before_our_own_file(home, table, tmp_path, monkeypatch):
    official, files, made = small("cifar10")
    _, _, other = small("cifar10", seed=1)
    with serving(files) as (address, _):
        table("cifar10", official, files, address)
        ours = open_dataset(of("cifar10"))
    write_as_tfds(home, "cifar10", other, ours.class_names, monkeypatch)
    pixels = {*map(bytes, other["test"][0])}
    assert {*map(bytes, everything(open_dataset(of("cifar10")).splits["test"]))} == pixels
    shutil.rmtree(home / "cifar10/3.0.2")
    run = of("cifar10")
    for source in ("cifar10", "cifar10:3.0.2"):
        assert open_dataset(replace(run, data=replace(run.data, source=source))).identity == ours.identity
    assert {*map(bytes, everything(open_dataset(of("cifar10")).splits["test"]))} == {*map(bytes, made["test"][0])}


def test_a_second_preparation_repeats_the_file(home, table, tmp_path):
    official, files, _ = small("cifar10")
    with serving(files) as (address, _):
        table("cifar10", official, files, address)
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder in folders:
            folder.mkdir()
            open_dataset(of("cifar10", dir=str(folder)))
    a, b = ((f / "cifar10/3.0.2.npz").read_bytes() for f in folders)
    assert a == b
    assert not home.exists()


def other_pixel(path):
    with np.load(path) as file:
        arrays = dict(file)
    arrays["train_images"][0, 0, 0, 0] ^= 1
    np.savez(path, **arrays)


def other_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    {
        "a pixel": (other_pixel, "is damaged: its digest is not that of its arrays"),
        "another file": (lambda path: np.savez(path, images=np.zeros(3)), "is damaged: its digest is not"),
        "a bit": (other_bit, "cannot be read (Bad CRC-32"),
        "cut": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "cannot be read (File is not a zip file"),
        "text": (lambda path: path.write_text("text"), "cannot be read ("),
        "folder": (lambda path: (path.unlink(), path.mkdir()), "is no regular file but a folder"),
        "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "is no regular file but a pipe"),
    }.values(),
    ids=["a pixel", "another file", "a bit", "cut", "text", "folder", "pipe"],
)
def test_a_damaged_file_is_named_and_stays(home, damage, says):
    _, _, made = small("cifar10")
    pixels, labels = ({split: made[split][i] for split in made} for i in (0, 1))
    path = prepare.write_set(home, "cifar10", prepare.SetArrays(pixels, labels, tuple("0123456789")))
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    text = refusal("cifar10")
    assert f"{path}: {says}" in text and "it" in text.rpartition(";")[2]
    assert before is None or path.read_bytes() == before


def test_archives_put_there_by_hand_are_used_without_a_network_and_kept(home, table, capsys):
    official, files, _ = small("mnist")
    table("mnist", official, files, "http://127.0.0.1:9/")
    place = home / "downloads/mnist"
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    open_dataset(of("mnist", download=False))
    assert sorted(path.name for path in place.iterdir()) == sorted(files)
    assert f"{place / 'train-images-idx3-ubyte.gz'}" in (said := capsys.readouterr().out) and "no longer needed" in said


# ------------------------------------------------------------------------------------------ refusals


def test_without_a_network_one_sentence_names_place_address_and_flag(home, table):
    official, files, _ = small("cifar10")
    table("cifar10", official, files, "http://127.0.0.1:9/")
    text = refusal("cifar10")
    assert "127.0.0.1:9 could not be reached (Connection refused)" in text and "`data.dir" in text
    assert "http://127.0.0.1:9/cifar-10-binary.tar.gz" in text and str(home / "downloads/cifar10") in text
    for name in ("mnist", "cifar100"):  # as they are: their servers have no address here
        assert "could not be reached (tests do not reach the network)" in refusal(
            name
        ) or "Connection refused" in refusal(name)


def test_a_dry_run_says_what_it_would_fetch_and_writes_nothing(home, table, inside, tmp_path):
    official, files, _ = small("cifar10")
    table("cifar10", official, files, "http://127.0.0.1:9/")
    tiny = "cifar10-48x4 --dry-run --batch 8 --model.depth 1 --model.width 8 --model.heads 2 --model.hidden 8"
    done = inside("train", *tiny.split())
    assert done.returncode == 0 and "train 40, validation 4, test 8" in done.stdout, done.stderr
    said = "would fetch cifar-10-binary.tar.gz (0.2 MB) from http://127.0.0.1:9/cifar-10-binary.tar.gz to "
    assert f"{said}{home / 'downloads/cifar10'}, and prepare {home / 'cifar10/3.0.2.npz'}" in done.stdout
    done = inside("train", *tiny.split(), "--data.no-download")
    assert done.returncode == 2 and "data.download is false" in done.stderr
    assert not home.exists() and not (tmp_path / "runs").exists()


def test_a_stated_folder_must_exist_and_be_one(home, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent", tmp_path / "file"):
        assert (
            refusal("cifar10", dir=str(path))
            == f"data.dir {path}: no such folder; make it, or give `data.dir` another one"
        )
    home.write_text("")
    assert f"data.dir {home}: no such folder" in refusal("cifar10")


def test_another_file_by_hand_is_named_and_not_removed(home, table):
    official, files, _ = small("cifar10")
    table("cifar10", official, files, "http://127.0.0.1:9/")
    place = home / "downloads/cifar10/cifar-10-binary.tar.gz"
    place.parent.mkdir(parents=True)
    good = files[place.name]
    for content, wrong in ((good[:-1], "bytes instead of"), (good[:-1] + b"x", "SHA-256"), (b"", "0 bytes")):
        place.write_bytes(content)
        text = refusal("cifar10")
        assert f"{place}: is not the official archive" in text and wrong in text and "remove it" in text
        assert place.read_bytes() == content
    place.unlink()
    os.mkfifo(place)
    assert "it is not a file" in refusal("cifar10")


def test_a_folder_without_its_json_is_no_set_and_stays(home, table):
    official, files, _ = small("mnist")
    (home / "mnist/3.0.1").mkdir(parents=True)
    (home / "mnist/3.0.1/mine.txt").write_text("mine")
    with serving(files) as (address, _):
        table("mnist", official, files, address)
        open_dataset(of("mnist"))
    assert (home / "mnist/3.0.1/mine.txt").read_text() == "mine" and (home / "mnist/3.0.1.npz").is_file()


def test_what_a_killed_process_left_is_used_or_cleared(home, table):
    official, files, _ = small("cifar10")
    (home / "cifar10").mkdir(parents=True)
    (home / "cifar10/3.0.2.part").write_text("half")
    part = home / "downloads/cifar10/cifar-10-binary.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(files["cifar-10-binary.tar.gz"][:5000])
    (part.parent / ".lock").write_text("123")
    with serving(files) as (address, asked):
        table("cifar10", official, files, address)
        open_dataset(of("cifar10"))
    assert asked == [("/cifar-10-binary.tar.gz", "bytes=5000-")]
    assert [path.name for path in (home / "cifar10").iterdir()] == ["3.0.2.npz"] and not (home / "downloads").exists()


def test_another_tfds_set_is_told_how_to_prepare(home, monkeypatch):
    with pytest.raises(UserError) as caught:
        open_dataset(a_run("svhn_cropped"))
    (line,) = re.findall('python -c "(.*)"', str(caught.value))
    with monkeypatch.context() as patch:  # the line is one that TFDS takes, up to what needs TensorFlow and a network
        asked = []
        patch.setattr("tensorflow_datasets.core.DatasetBuilder.download_and_prepare", lambda self: asked.append(self))
        exec(line, {})
    assert asked[0].name == "svhn_cropped" and asked[0].info.file_format.value == "array_record"
    with pytest.raises(UserError, match=r"tfds\.builder\('svhn_cropped:3\.0\.0', "):  # however it is written
        open_dataset(a_run("svhn_cropped/3.0.0"))


def test_a_full_disk_is_told_and_what_was_fetched_stays(home, table, monkeypatch):
    official, files, _ = small("cifar10")
    with serving(files) as (address, asked):
        table("cifar10", official, files, address)
        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            text = refusal("cifar10")
        assert "(No space left on device); free space or mend permissions there" in text
        assert "`data.dir` another" in text
        assert [path.name for path in home.rglob("*") if path.is_file()] == ["cifar-10-binary.tar.gz.part"]
        assert not (home / "cifar10").exists()
        open_dataset(of("cifar10"))
    assert len(asked) == 1


# ------------------------------------------------------------------------------------- bad archives


def bad_tar(case):
    import tarfile

    made = contents("cifar10")
    members, batches = cifar_members("cifar10", made, [f"class {i}" for i in range(10)])
    first = "cifar-10-batches-bin/data_batch_1.bin"
    link, bomb = tarfile.TarInfo(first), tarfile.TarInfo("bomb")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    bomb.size = 1 << 40
    if case == "absolute":
        members = {f"/{name}": content for name, content in members.items()}
    elif case == "link":
        members[first] = link
    elif case == "bomb":
        members = {"bomb": bomb, **members}
    elif case == "short":
        members[first] = members[first][:-1]
    elif case == "fewer":
        members[first] = members[first][:-3073]
    elif case == "long":
        members[first] += b"x"
    elif case == "missing":
        del members["cifar-10-batches-bin/batches.meta.txt"]
    content = tar(members) if case != "cut" else tar(members)[:5000]
    return replace(OFFICIAL["cifar10"], batches=batches), {
        "cifar-10-binary.tar.gz": content if case != "text" else b"text"
    }


@pytest.mark.parametrize("case", ["absolute", "link", "bomb", "short", "fewer", "long", "missing", "cut", "text"])
def test_archives_of_another_form_are_refused(home, table, case):
    """Also where the table would let them pass: nothing is extracted, links are not followed, sizes are exact."""
    official, files = bad_tar(case)
    with serving(files) as (address, _):
        table("cifar10", official, files, address)
        text = refusal("cifar10")
    assert "cifar-10-binary.tar.gz.part: cannot be read (" in text and "remove it" in text
    assert not list(home.glob("cifar10/*"))


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"\1" + b[1:], lambda b: b""])
def test_idx_files_of_another_shape_are_refused(home, table, change):
    import gzip

    official, files, _ = small("mnist")
    for name in list(files)[:2]:
        changed = {**files, name: gzip.compress(change(gzip.decompress(files[name])))}
        with serving(changed) as (address, _):
            table("mnist", official, changed, address)
            assert "it does not hold bytes of shape" in refusal("mnist")
        shutil.rmtree(home)


# ---------------------------------------------------------------------------------------- downloading


@pytest.mark.parametrize(
    "faults, requests",
    [
        ({"cut": 60_000}, [None, "bytes=60000-", "bytes=120000-"]),
        ({"cut": 60_000, "quiet": True}, [None, "bytes=60000-", "bytes=120000-"]),
        ({"quiet": True}, [None]),
    ],
)
def test_a_connection_that_breaks_off_is_taken_up_again(home, table, faults, requests):
    official, files, _ = small("cifar10")
    with serving(files, **faults) as (address, asked):
        table("cifar10", official, files, address)
        open_dataset(of("cifar10"))
    assert [wanted for _, wanted in asked][: len(requests)] == requests


@pytest.mark.parametrize(
    "faults, requests",
    [
        ({"ranges": False}, ["bytes=9-"]),
        ({"ranges": "refused"}, ["bytes=9-", None]),
        ({"shift": 1}, ["bytes=9-", None]),
    ],
)
def test_a_server_that_does_not_send_the_rest_sends_the_whole(tmp_path, faults, requests):
    _, files, _ = small("cifar10")
    path = tmp_path / "part"
    with serving(files, **faults) as (address, asked):
        (archive,) = with_files(OFFICIAL["cifar10"], files, (address,)).archives
        path.write_bytes(files[archive.name][:9])
        archives.fetch(archive, path)
    assert path.read_bytes() == files[archive.name] and [wanted for _, wanted in asked] == requests


def test_a_beginning_of_another_file_is_dropped(tmp_path):
    """As one that another version of the file left, or an address that served something else."""
    _, files, _ = small("cifar10")
    path = tmp_path / "part"
    with serving(files) as (address, _):
        (archive,) = with_files(OFFICIAL["cifar10"], files, (address,)).archives
        for start in (b"other", b"x" * archive.bytes, b"x" * (archive.bytes + 1)):
            path.write_bytes(start)
            archives.fetch(archive, path)
            assert path.read_bytes() == files[archive.name]


@pytest.mark.parametrize(
    "faults, says",
    [
        ({"status": 404}, "answered with the status 404"),
        ({"cut": 0}, "broke off after 0 of"),
        ({"cut": 100}, "broke off 6 times"),
        ({"more": b"x"}, "serves another file"),
        ({"more": b"x", "quiet": True}, "serves another file: more than"),
        ({"tampered": True}, "serves another file: SHA-256"),
        ({"stall": 5000}, "sent nothing for 0 seconds"),
        ({"stall": 0}, "sent nothing for 0 seconds"),
    ],
)
def test_an_address_that_fails_is_named_and_the_next_one_asked(tmp_path, monkeypatch, faults, says):
    monkeypatch.setattr(archives, "STALL", 0.3)
    _, files, _ = small("cifar10")
    (name,) = files
    served = {name: files[name][:-1] + b"x"} if faults.pop("tampered", None) else files
    path = tmp_path / "part"
    with serving(served, **faults) as (bad, _), serving(files) as (good, asked):
        (archive,) = with_files(OFFICIAL["cifar10"], files, (bad,)).archives
        with pytest.raises(archives.NotFetched) as caught:
            archives.fetch(archive, path)
        assert says in str(caught.value) and str(caught.value).isprintable() and bad.split("/")[2] in str(caught.value)
        assert not path.exists() or files[name].startswith(path.read_bytes())
        archives.fetch(replace(archive, addresses=(bad + name, good + name)), path)
    assert path.read_bytes() == files[name] and len(asked) == 1


def test_all_addresses_of_a_host_share_one_wait(tmp_path, monkeypatch):
    """Large servers have eight, which a connection tries one after the other."""
    _, files, _ = small("cifar10")
    waits = []

    def connect(place, timeout, source=None):
        waits.append(timeout * len(found))
        raise TimeoutError("timed out")

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{i}", 80)) for i in range(8)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", connect)
    for scheme in ("http", "https"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme.upper()}_PROXY", raising=False)
        (archive,) = with_files(OFFICIAL["cifar10"], files, (f"{scheme}://far.example/",)).archives
        with pytest.raises(archives.NotFetched, match=r"far\.example sent nothing for 30 seconds"):
            archives.fetch(archive, tmp_path / "part")
    assert waits == [30.0, 30.0]


def test_proxies_of_the_environment_are_used(tmp_path, monkeypatch):
    _, files, _ = small("cifar10")
    with serving(files) as (proxy, asked):
        monkeypatch.setenv("http_proxy", proxy)
        (archive,) = with_files(OFFICIAL["cifar10"], files, ("http://far.example/",)).archives
        archives.fetch(archive, tmp_path / "part")
    assert asked == [("http://far.example/cifar-10-binary.tar.gz", None)]


# ------------------------------------------------------------------------------------- two at once


def test_of_two_one_prepares_and_the_other_waits_and_says_so(home, table, capsys, monkeypatch):
    official, files, _ = small("cifar10")
    found = []
    monkeypatch.setattr(prepare, "_WAIT", 0.1)
    with serving(files, slow=0.01) as (address, asked):
        table("cifar10", official, files, address)
        threads = [
            threading.Thread(target=lambda: found.append(open_dataset(of("cifar10")).identity)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 2 and found[0] == found[1] and len(asked) == 1
    assert f"waiting  for process {os.getpid()}, which prepares cifar10 in {home}" in capsys.readouterr().out
    assert not (home / "downloads").exists()
