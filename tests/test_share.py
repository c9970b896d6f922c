"""Fixed shares of predictions and evaluations: joined, they are to the bit what one command gives."""

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import loopback_s3
from tests.test_shards import tar
from vit_jax.commands import evaluate, predict
from vit_jax.commands import share as join
from vit_jax.commands.share import check_draws, read_arrays, read_outputs, read_share, write_outputs
from vit_jax.errors import UserError


@pytest.fixture(scope="module")
def place(tmp_path_factory, digits_run, quick_compilation):
    """A folder with a run, and the same eleven images as a folder, a list, a table and shards; one is no image."""
    folder = tmp_path_factory.mktemp("shares")
    shutil.copytree(digits_run, folder / "run")
    (folder / "images").mkdir()
    for i in range(11):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i:02}.png")
    (folder / "images" / "04.png").write_bytes(b"no image")
    files = sorted((folder / "images").iterdir())
    members = [(file.name, file.read_bytes()) for file in files]
    (folder / "a.tar").write_bytes(tar(*members[:7]))
    (folder / "b.tar").write_bytes(tar(*members[7:]))
    (folder / "list.txt").write_text("".join(f"images/{file.name}\n" for file in files))
    (folder / "good.txt").write_text("".join(f"images/{file.name}\n" for file in files if file.name != "04.png"))
    (folder / "table.csv").write_text("file,label\n" + "".join(f"images/{file.name},1\n" for file in files))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


def shares(folder, of, *arguments, flag="--csv", suffix=".csv", command=predict.command, only=None):
    """The files of all shares of a command, or of some, which writes one with a flag."""
    files = [str(folder / f"{flag}{i}{suffix}") for i in range(1, 1 + (only or of))]
    for i, file in enumerate(files, 1):
        assert command([*map(str, arguments), "--share", f"{i}/{of}", flag, file]) == 0
    return files


def joined(files, to):
    assert join.command([*files, "--to", str(to), "--force"]) == 0
    return to


def told(*arguments, command=predict.command):
    with pytest.raises(UserError) as error:
        command([*map(str, arguments)])
    return str(error.value)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "a/b", "-1/3", "1/3/3", "١/٣"])
def test_a_share_is_one_of_those_that_a_slurm_array_from_one_counts(text):
    with pytest.raises(UserError, match=r"^share is .*: give I/N"):
        read_share(text)
    assert read_share("") is None


@pytest.mark.parametrize("count", [1, 3, 8, 359])
def test_shares_are_all_batches_once_and_about_equally_many(count):
    for of in {1, count // 2 or 1, count}:
        each = [read_share(f"{i}/{of}").batches(count) for i in range(1, of + 1)]
        assert [*range(count)] == [batch for some in each for batch in some]
        assert max(map(len, each)) - min(map(len, each)) <= 1 <= min(map(len, each))
    with pytest.raises(UserError, match=f"give at most {count} shares"):
        read_share(f"1/{count + 1}").batches(count)


@pytest.mark.parametrize(
    "source",
    [
        *("images", "wds:s3://bucket/*.tar"),
        *(pytest.param(other, marks=pytest.mark.slow) for other in ("csv:table.csv", "list.txt", "s3://bucket/images")),
    ],
)
def test_joined_tables_are_those_of_one_command_whatever_holds_the_images(source, place, tmp_path):
    """One image cannot be read: in tables of shares it is a number alone, and of whole ones no row."""
    with loopback_s3.serving() as bucket:
        bucket.objects |= {f"images/{file.name}": file.read_bytes() for file in (place / "images").iterdir()}
        bucket.objects |= {name: (place / name).read_bytes() for name in ("a.tar", "b.tar")}
        job = ["run", source, "--batch", "2", "--skip-unreadable"]
        for flag in ("--csv", "--probabilities") if source == "images" else ("--probabilities",):
            assert predict.command([*job, flag, str(tmp_path / "whole.csv"), "--force"]) == 0
            files = shares(tmp_path, 3, *job, flag=flag)
            together = joined(reversed(files), tmp_path / "joined.csv")
            assert together.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    rows = [[*csv.reader(Path(file).read_text().splitlines())] for file in files]
    assert rows[0][0][0].startswith("row?rows=11&batch=2&weights=")
    assert [row[0] for row in rows[0][1:]] == [*"0123"] and rows[1][1] == ["4"]


def test_joined_features_are_those_of_one_command(place, tmp_path):
    """To the bit where all images can be read; without those that cannot, batches are others."""
    for source, skip, same in (("good.txt", [], np.array_equal), ("images", ["--skip-unreadable"], np.allclose)):
        job = ["run", source, *skip, "--batch", "4", "--blocks", "-1"]
        assert predict.command([*job, "--features", str(tmp_path / "whole.npz"), "--force"]) == 0
        files = shares(tmp_path, 2, *job, "--force", flag="--features", suffix=".npz")
        with np.load(joined(files, tmp_path / "joined.npz")) as found, np.load(tmp_path / "whole.npz") as whole:
            assert found.files == whole.files and found["files"].tolist() == whole["files"].tolist()
            assert all(same(found[name], whole[name]) for name in set(whole.files) - {"files"})
            assert all(found[name].dtype == whole[name].dtype for name in whole.files)
    assert [read_arrays(file)["left_out"].tolist() for file in files] == [[], [4]]


def test_a_share_of_python_is_that_of_the_command(place):
    whole = vit_jax.predict("run", ["good.txt"], batch=2)
    found = [vit_jax.predict("run", ["good.txt"], batch=2, share=f"{i}/3") for i in (1, 2, 3)]
    assert [each for some in found for each in some] == [*whole] and all(found)
    with pytest.raises(UserError, match=r"^share is 1/2, and these inputs are in memory"):
        vit_jax.predict("run", np.zeros((4, 8, 8), np.uint8), share="1/2")
    with pytest.raises(UserError, match=r"^share is 1/6, and there are 5 batches"):
        vit_jax.predict("run", "good.txt", batch=2, share="1/6")


def evaluated(capsys, *arguments):
    """What evaluate prints of a result, and its tables."""
    capsys.readouterr()
    assert evaluate.command(["run", *arguments, "--csv", "e.csv", "--probabilities", "p.csv", "--force"]) == 0
    said = capsys.readouterr().out
    return said[said.index("  loss") :], open("e.csv").read(), open("p.csv").read()


@pytest.mark.parametrize(
    "more",
    [
        ("--flip", "--bootstrap", "50"),
        pytest.param(("--data.source", "digits", "--split", "test"), marks=pytest.mark.slow),
    ],
)
def test_an_evaluation_of_joined_outputs_is_that_of_one_command_to_the_bit(more, place, tmp_path, capsys):
    """359 examples, a number that neither shares nor batches divide."""
    whole = evaluated(capsys, "--batch", "50", *more)
    job = ["run", "--batch", "50", *(more[:1] if "--bootstrap" in more else more)]
    files = shares(tmp_path, 2, *job, flag="--outputs", suffix=".npz", command=evaluate.command)
    said_of_shares = capsys.readouterr().out
    assert "share 2/2 of test" in said_of_shares and ": 159 examples" in said_of_shares
    all_of_them = str(joined(files[::-1], tmp_path / "all.npz"))
    assert evaluated(capsys, "--batch", "50", *more, "--joined", all_of_them) == whole

    def said(*flags):
        return told("run", *flags, command=evaluate.command)

    flags = [*job[1:], "--joined"]
    assert "rows 200 to 358 of 359 are in none of these files" in said(*flags, files[0])
    for other, name in (["--split", "train"], "rows"), (["--batch", "60"], "batch"), (["--weights", "last"], "weights"):
        if name != "weights" or "--flip" in more:
            ema = ["--no-ema"] if name == "weights" else []
            assert f"all.npz: is of {name} " in said(*flags, all_of_them, *other, *ema)
    told_apart = said("--batch", "60", "--joined", all_of_them)
    assert "but this evaluation of batch 60; give the shares of one job" in told_apart


def test_the_evaluate_door_of_python_takes_shares_too(place, tmp_path):
    whole = vit_jax.evaluate("run", batch=50)[1]
    for i in (1, 2):
        step, some = vit_jax.evaluate("run", batch=50, share=f"{i}/2", outputs=tmp_path / f"{i}.npz")
        assert len(some.predicted) in (200, 159) and step > 0
    joined([str(tmp_path / "1.npz"), str(tmp_path / "2.npz")], tmp_path / "all.npz")
    again = vit_jax.evaluate("run", batch=50, joined=tmp_path / "all.npz")[1]
    assert again.metrics == whole.metrics and np.array_equal(again.predicted, whole.predicted)
    with pytest.raises(UserError, match=r"^outputs run/plots/1\.npz: is of the run run; choose another name"):
        vit_jax.evaluate("run", batch=50, share="1/2", outputs="run/plots/1.npz")


def test_what_is_not_of_a_share_is_refused(place, tmp_path):
    def said(*flags):
        return told("run", *flags, command=evaluate.command)

    for flags, what in (
        (["--share", "1/2"], "share is given alone: give outputs, too"),
        (["--outputs", "x.npz"], "outputs is given alone: give share, too"),
        (["--share", "1/2", "--outputs", "x.csv"], "outputs is x.csv: give a name that ends in .npz"),
        (["--joined", "x.npz", "--probe", "knn"], "probe is knn, which learns from all of train"),
        *(
            (["--share", "1/2", "--outputs", "x.npz", *flag], f"{flag[0][2:]} needs all examples")
            for flag in (["--csv", "x.csv"], ["--bootstrap", "50"], ["--report", "x"], ["--joined", "x.npz"])
        ),
    ):
        assert what in said(*flags)
    assert "give a file that lists them" in told("run", "-", "--share", "1/2")
    assert "share is 1/3, and there are 1 batches" in told("run", "images", "--share", "1/3")

    class Draws:
        decoding = type("Decoding", (), {"sample": True})

    check_draws(Draws(), False)
    with pytest.raises(UserError, match=r"^sample draws for each input"):
        check_draws(Draws(), True)


def test_gaps_doubles_and_foreign_shares_are_refused_and_nothing_is_written(place, tmp_path):
    job, to = ["run", "good.txt", "--batch", "2"], tmp_path / "to.csv"
    a, b, c = files = shares(tmp_path, 3, *job)
    to.write_text("mine")

    def said(*given, force="--force"):
        found = told(*given, "--to", to, force, command=join.command)
        assert to.read_text() == "mine" and len(found.splitlines()) == 1
        return found

    assert f"to {b}: is what the command reads; choose another name" in told(
        *files, "--to", b, "--force", command=join.command
    )
    assert "exists already; add `force True` to overwrite it" in said(*files, force="--no-force")
    assert "rows 2 to 5 of 10 are in none of these files" in said(a, c)
    assert "rows 0 to 1 of 10" in said(c, b) and "rows 6 to 9 of 10" in said(b, a)
    again = said(*files, b)
    assert again.startswith("row 2 is in ") and again.count("--csv2.csv") == 2 and "give each share once" in again
    assert "give the files of all shares, and --to FILE" in told(*files, command=join.command)
    other = tmp_path / "other"
    other.mkdir()
    for flags, name in (
        (["run", "good.txt", "--batch", "2", "--no-ema", "--weights", "last"], "weights"),
        (["run", "images/00.png", "images/01.png", "--batch", "1"], "rows"),
        (["run", "list.txt", "--batch", "2", "--skip-unreadable"], "rows"),
        (["run", *reversed(open("good.txt").read().split()), "--batch", "2"], "inputs"),
        (["run", "good.txt", "--batch", "3"], "batch"),
        (["run", "good.txt", "--batch", "2", "--top", "2"], "top"),
    ):
        (foreign,) = shares(other, 2, *flags, "--force", only=1)
        assert f"{Path(foreign).name}: is of {name} " in said(a, b, c, foreign)
    values = shares(tmp_path, 3, *job, flag="--probabilities")
    assert "--probabilities3.csv: has other columns than " in said(a, b, values[2])


def test_files_that_no_share_wrote_whole_are_refused(place, tmp_path):
    a, b = shares(tmp_path, 2, "run", "good.txt", "--batch", "2")
    content = open(a, "rb").read()
    lines = content.splitlines(keepends=True)

    def said(*files, to="to.csv"):
        return told(*files, "--to", tmp_path / to, command=join.command)

    for damaged, what in (
        (content[:-3], "it is cut off"),
        (b"", "it is cut off"),
        (b"".join(lines[:-3]), "rows 3 to 3 of 10 are in none of these files"),
        (b"".join([lines[0], *lines[4:], *lines[1:4]]), "the rows are in another order than their job's"),
        (lines[0] + lines[1].partition(b",")[2], "line 2 is no row of it"),
        (content.replace(b"\r\n0,", b"\r\n99,", 1), "has a row that is none of its 10"),
        (b"\r\n", "does not say which rows it has"),
        (b"file,rank\r\n", "does not say which rows it has"),
        (b"row?rows=many,rank\r\n", "does not say which rows it has"),
    ):
        open(a, "wb").write(damaged)
        assert what in said(a, b), damaged
    open(a, "wb").write(content)
    assert "the files end in .csv and .npz" in said(a, b, to="to.npz")
    for damaged in (b"none", b""):
        (tmp_path / "x.npz").write_bytes(damaged)
        assert "x.npz: cannot be read" in said(tmp_path / "x.npz", to="to.npz")
    whole = {"row": np.arange(3), "left_out": np.arange(0), "job": "row?rows=3", "pooled": np.zeros(3)}
    for wrong in ({}, {"row": np.zeros(3)}, {"left_out": np.zeros(1)}, {"pooled": np.zeros(2)}, {"pooled": 0}):
        np.savez(tmp_path / "x.npz", **({**whole, **wrong} if wrong else {"pooled": np.zeros(3)}))
        assert "x.npz: cannot be read" in said(tmp_path / "x.npz", to="to.npz"), wrong
    (tmp_path / "old" / "parts").mkdir(parents=True)
    (tmp_path / "old" / "job.json").write_text("{}")
    (tmp_path / "old" / "parts" / "00000000.csv").write_bytes(b"file,rank,class,probability,reason\r\n")
    assert "old: is a folder of --parts, which is gone" in said(tmp_path / "old")
    assert "00000000.csv: does not say which rows it has" in said(tmp_path / "old" / "parts" / "00000000.csv")
    assert not list(tmp_path.glob("to.*"))


def test_parts_are_gone_and_name_shares():
    for command, words in ((predict.command, ["run", "x.png"]), (evaluate.command, ["run"])):
        for flag in ("--parts", "--merge", "--part-size"):
            said = told(*words, flag, "x", command=command)
            assert f"there is no field {flag}: each command takes a fixed share of the rows: --share I/N" in said
    assert "tables are CSV" in told("run", "x.png", "--format", "parquet")


def test_outputs_of_every_kind_come_back_as_they_were(tmp_path):
    import ml_dtypes

    rng = np.random.default_rng(0)
    kinds = ("float32", "float64", ml_dtypes.bfloat16, "int32", "bool")
    out = {str(np.dtype(kind)): rng.normal(size=(3, 2)).astype(kind) for kind in kinds}
    file, facts = str(tmp_path / "x.npz"), {"rows": "3", "content": "outputs of an evaluation"}
    write_outputs(file, out, np.array([2, 0, 1]), facts)
    back = read_outputs(str(joined([file], tmp_path / "y.npz")), facts)
    assert back.keys() == out.keys()
    assert all(x[[1, 2, 0]].tobytes() == back[name].tobytes() for name, x in out.items())
    assert all(x.dtype == back[name].dtype for name, x in out.items())


@pytest.mark.slow
def test_the_recipe_for_ray_data_says_what_one_command_says(place, tmp_path):
    """The code of docs/cluster.md, run by two workers of a real Ray on this machine."""
    pytest.importorskip("ray.data", reason="the extra ray is not installed")
    from pyarrow import parquet

    page = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```python\n(import.*?|from.*?)^```$", page, re.S | re.M)
    shutil.copytree("images", tmp_path / "images")
    (tmp_path / "images" / "04.png").unlink()
    for word, path in (("RUN", place / "run"), ("IMAGES", tmp_path / "images"), ("OUT", tmp_path / "out")):
        recipe = recipe.replace(f'"{word}"', repr(str(path)))
    recipe = recipe.replace("batch_size=64", "batch_size=2")
    with tempfile.TemporaryDirectory() as short:  # of sockets, whose paths have at most 107 bytes
        here = f"import ray\nray.init(num_cpus=4, include_dashboard=False, _temp_dir={short!r})\n"
        (tmp_path / "recipe.py").write_text(here + recipe)
        done = subprocess.run([sys.executable, tmp_path / "recipe.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = parquet.read_table(tmp_path / "out").sort_by("row").to_pylist()
    assert [row["row"] for row in rows] == [*range(10)]
    whole = vit_jax.predict("run", [row["file"] for row in rows], top=1, batch=2)
    assert [row["class"] for row in rows] == [said[0][0] for _, said in whole]
    assert np.allclose([row["probability"] for row in rows], [said[0][1] for _, said in whole])
