"""Predictions in parts: whatever the workers, their deaths and the store, the table is the one of one command."""

import csv
import shutil
import threading

import numpy as np
import pytest
from PIL import Image

from tests import loopback_s3
from tests.test_shards import tar, write_parquet
from vit_jax.commands import predict
from vit_jax.commands.parts import claims
from vit_jax.commands.parts.claims import Claims
from vit_jax.commands.parts.evaluations import from_bytes, to_bytes
from vit_jax.commands.parts.job import begin, work
from vit_jax.errors import UserError
from vit_jax.files.stores.open import open_store

FACTS = {"what": "numbers", "inputs": 47, "part_size": 5}


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "LEASE", 0.6)
    with loopback_s3.serving() as bucket:
        yield open_store(str(tmp_path / "out") if request.param == "folder" else "s3://bucket/out"), bucket


def numbers(job, done=None):
    def compute(part):
        if done is not None:
            done.append(part)
        return repr([*range(*job.span(part))]).encode()

    return compute


def test_workers_share_a_job_and_take_over_what_the_dead_and_the_failed_have_left(store):
    """One has died with a claim, one fails in its second part, three go on; each part is computed by one of them."""
    job, bucket = begin(store[0].url, FACTS, ".txt"), store[1]
    dead, tries, done = Claims(job.store), [], []
    assert dead.take(3) and job.count == 10

    def fail(part):
        tries.append(part)
        if len(tries) == 2:
            raise UserError("this one", "fails", "")
        return numbers(job)(part)

    with pytest.raises(UserError, match="this one"):
        work(job, fail, lambda n: None, print)
    said, mine = [], []
    threads = [
        threading.Thread(target=lambda: mine.append(work(job, numbers(job, done), lambda n: None, said.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(mine) == 9 and sorted([tries[0], *done]) == [*range(10)]
    assert sum("part 3 is taken over" in each for each in said) == 1
    assert [job.read(part) for part in range(10)] == [numbers(job)(part) for part in range(10)]
    assert job.span(9) == (45, 47) and work(job, numbers(job), lambda n: None, print) == 0
    if bucket.objects:
        puts = [name for method, name, _ in bucket.requests if method == "PUT" and "/parts/" in name]
        assert len(puts) == len({*puts}) == 10


def test_the_claim_of_a_slow_worker_stays_its_own(store):
    """Its part takes three leases, in which another waits."""
    job, done, said = begin(store[0].url, {**FACTS, "inputs": 5}, ".txt"), [], []
    entered = threading.Event()

    def slowly(part):
        entered.set()
        threading.Event().wait(3 * claims.LEASE)
        return numbers(job, done)(part)

    slow = threading.Thread(target=lambda: work(job, slowly, lambda n: None, print))
    slow.start()
    entered.wait(30)
    assert work(job, numbers(job, done), lambda n: None, said.append) == 0
    slow.join(30)
    assert done == [0] and len(said) == 1 and said[0].startswith("waiting for 1 parts of other workers")


@pytest.mark.parametrize("fault", ["503", pytest.param("late", marks=pytest.mark.slow)])
def test_a_store_that_lists_late_or_fails_for_a_while_changes_no_part(fault, monkeypatch):
    monkeypatch.setattr(claims, "LEASE", 0.3)
    with loopback_s3.serving() as bucket:
        job = begin("s3://bucket/out", FACTS, ".txt")
        late = {name: "late" for name in ("out/parts/00000002.txt", "out/claims/00000004-0")}
        bucket.faults |= late if fault == "late" else {"*": [503, 0, 503, 503, 0] * 3}
        timer = threading.Timer(0.8, bucket.faults.clear)
        timer.start()
        work(job, numbers(job), lambda n: None, print)
        timer.join()
        bucket.faults.clear()
        assert [job.read(part) for part in range(10)] == [numbers(job)(part) for part in range(10)]


def test_a_store_without_conditions_and_one_that_is_only_read_are_refused(tmp_path):
    with loopback_s3.serving() as bucket:
        bucket.faults["*"] = "unconditional"
        with pytest.raises(UserError, match=r"does not honour conditional writes"):
            begin("s3://bucket/out", FACTS, ".txt")
        assert not bucket.objects
        with pytest.raises(UserError, match=r"a plain server is only read; give a folder, s3:// or gs://$"):
            begin(loopback_s3.os.environ["AWS_ENDPOINT_URL"], FACTS, ".txt")
    with pytest.raises(UserError, match=r"^ftp://x: ftp:// is not known; give a folder, s3://"):
        begin("ftp://x", FACTS, ".txt")


# ------------------------------------------------------------------------------------------ of networks


@pytest.fixture(scope="module")
def place(tmp_path_factory, digits_run, quick_compilation):
    """A folder with a run, and the same eleven images as a folder, a list, a table and shards; one is no image."""
    folder = tmp_path_factory.mktemp("parts")
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
    (folder / "table.csv").write_text("file,label\n" + "".join(f"images/{file.name},1\n" for file in files))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


def table(file):
    with open(file, newline="") as opened:
        return [*csv.reader(opened)]


def told(*arguments):
    with pytest.raises(UserError) as error:
        predict.command([*map(str, arguments)])
    return str(error.value)


@pytest.mark.parametrize(
    "source",
    [
        *("images", "csv:table.csv", "wds:s3://bucket/*.tar"),
        *(pytest.param(other, marks=pytest.mark.slow) for other in ("list.txt", "wds:{a,b}.tar", "s3://bucket/images")),
    ],
)
def test_a_merged_table_has_the_rows_of_one_command_and_the_reasons_of_others(source, place, capsys):
    """The same whatever holds the images; names are those of the source."""
    with loopback_s3.serving() as bucket:
        bucket.objects |= {f"images/{file.name}": file.read_bytes() for file in (place / "images").iterdir()}
        bucket.objects |= {name: (place / name).read_bytes() for name in ("a.tar", "b.tar")}
        out = "s3://bucket/out" if "s3" in source else str(place / f"out {source.replace('/', ' ')}")
        job = ["--parts", out, "--part-size", "4", "--batch", "2"]
        assert predict.command(["run", source, *job]) == 0
        assert predict.command(["--parts", out, "--merge", "joined.csv", "--force"]) == 0
        assert "joined.csv has 31 rows of 3 parts" in capsys.readouterr().out
        whole = ["run", source, "--batch", "2", "--skip-unreadable", "--csv", "whole.csv", "--force"]
        assert predict.command(whole) == 0
    joined, expected = table("joined.csv"), table("whole.csv")
    assert [row[:4] for row in joined if not row[4]] == expected[1:]
    assert [row for row in joined[1:] if row[4]] == [
        [joined[13][0], "", "", "", "not a JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM image"]
    ]
    assert joined[0] == ["file", "rank", "class", "probability", "reason"] and "04" in joined[13][0]
    by_place = table("joined.csv") if source == "images" else None
    if by_place is None:
        assert predict.command(["run", "images", "--batch", "2", "--skip-unreadable", "--csv", "a.csv", "--force"]) == 0
        assert [row[1:] for row in table("a.csv")] == [row[1:] for row in expected]


def test_parts_may_be_parquet_and_shards_too(place, capsys):
    from pyarrow import parquet

    write_parquet(place / "p" / "x.parquet", [0, 1] * 5, "ab", 3)
    for kind in ("csv", "parquet"):
        flags = ["--parts", f"out {kind}", "--part-size", "4", "--format", kind]
        assert predict.command(["run", "parquet:p/*.parquet", "list.txt", *flags]) == 0
        assert predict.command(["--parts", f"out {kind}", "--merge", f"both.{kind}"]) == 0
    rows = parquet.read_table("both.parquet").to_pylist()
    texts = [["" if value is None else f"{value:.6f}" if name == "probability" else str(value)
              for name, value in row.items()] for row in rows]  # fmt: skip
    assert texts == table("both.csv")[1:] and len(texts) == 61
    assert "name that ends in .parquet" in told("--parts", "out parquet", "--merge", "x.csv")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_every_probability_in_parts_is_that_of_one_command(kind, place, tmp_path):
    from pyarrow import parquet

    whole, joined = "every.csv", tmp_path / f"joined.{kind}"
    assert predict.command(["run", "images", "--skip-unreadable", "--probabilities", whole, "--force"]) == 0
    job = ["--parts", str(tmp_path / "out"), "--part-size", "4", "--format", kind, "--probabilities", str(joined)]
    assert predict.command(["run", "images", *job]) == 0
    found = table(joined) if kind == "csv" else parquet.read_table(joined).to_pylist()
    rows = found[1:] if kind == "csv" else [[*row.values()] for row in found]
    readable, expected = [row[:-1] for row in rows if not row[-1]], table(whole)[1:]
    assert [row[0] for row in readable] == [row[0] for row in expected] and len(rows) == 11
    values = [[[*map(float, row[1:])] for row in each] for each in (readable, expected)]
    assert np.allclose(*values, rtol=1e-5)  # of batches of other sizes
    assert [row[0] for row in rows if row[-1]] == ["images/04.png"]
    assert "but the parts in" in told("run", "images", *job[:-2])


def test_features_in_parts_are_those_of_one_command_and_nan_where_an_image_cannot_be_read(place, tmp_path, capsys):
    some = ["--features", "whole.npz", "--blocks", "-1"]
    assert predict.command(["run", "images", "--skip-unreadable", *some, "--force"]) == 0
    job = ["--parts", str(tmp_path / "out"), "--part-size", "1", "--batch", "2", "--blocks", "-1"]
    assert predict.command(["run", "images", *job, "--features", str(tmp_path / "joined.npz")]) == 0
    assert "1 could not be read" in capsys.readouterr().out
    with np.load(tmp_path / "joined.npz") as joined, np.load("whole.npz") as whole:
        bad = joined["reason"] != ""
        assert joined["files"][bad].tolist() == ["images/04.png"]
        for name in whole.files:
            same = np.array_equal if name == "files" else lambda a, b: np.allclose(a, b, atol=1e-5)
            assert same(joined[name][~bad], whole[name])
            assert name == "files" or np.isnan(joined[name][bad]).all()
    said = told("run", "images", *job, "--features", tmp_path / "other.npz", "--no-norm")
    assert said.startswith("norm is false, but the parts in")
    (tmp_path / "out/parts/00000003.npz").write_bytes(b"none")
    assert "00000003.npz: is damaged" in told("--parts", tmp_path / "out", "--merge", tmp_path / "again.npz")


def test_what_is_not_the_same_job_is_refused_with_both_values(place, tmp_path):
    out = str(tmp_path / "out")
    assert predict.command(["run", "images", "--parts", out, "--part-size", "4"]) == 0
    other = shutil.copytree("run", tmp_path / "other")
    where = f"but the parts in {out} were begun with "
    assert f"part_size is 5, {where}4: give that again" in told("run", "images", "--parts", out, "--part-size", 5)
    again = ["--parts", out, "--part-size", 4]
    assert f"top is 2, {where}3" in told("run", "images", *again, "--top", 2)
    assert f"format is parquet, {where}csv" in told("run", "images", *again, "--format", "parquet")
    assert f"inputs is 2, {where}11" in told("run", "images/00.png", "images/01.png", *again)
    reversed_ = [str(file) for file in sorted((place / "images").iterdir(), reverse=True)]
    assert told("run", *reversed_, *again).startswith("source is ")
    for flag in (["--no-ema"], ["--weights", "last", "--no-ema"]):
        assert told(other, "images", *again, *flag).startswith("weights is ")
    assert told(other, "images", *again, "--no-ema", "--merge", tmp_path / "x.csv").startswith("weights is ")
    assert not (tmp_path / "x.csv").exists()
    shutil.rmtree(f"{out}/claims")
    for part in (0, 2):
        (tmp_path / "out" / "parts" / f"0000000{part}.csv").unlink()
    Claims(open_store(out)).take(2)
    said = told("--parts", out, "--merge", tmp_path / "x.csv")
    assert "2 of 3 parts are missing: 0 (claimed by nobody), 2 (claimed by " in said and "without --merge" in said
    for facts, says in ((b"{", "job.json: cannot be read as JSON"), (b"{}", "holds no predictions in parts")):
        (tmp_path / "out" / "job.json").write_bytes(facts)
        assert says in told("--parts", out, "--merge", tmp_path / "x.csv")


def test_where_parts_cannot_be_and_what_they_are_not_mixed_with(place, tmp_path, monkeypatch):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    images = ["run", "images"]
    assert "holds a.txt, and no job.json" in told(*images, "--parts", tmp_path / "notes")
    assert "is a run; choose another folder" in told(*images, "--parts", shutil.copytree("run", tmp_path / "run"))
    assert "is what the command reads" in told(*images, "--parts", "images")
    assert "has no job.json: no parts were begun there" in told("--parts", tmp_path / "none", "--merge", "x.csv")
    assert "has no job.json" in told(*images, "--parts", tmp_path / "none", "--merge", "x.csv")
    assert "another worker cannot read; give a file that lists them" in told("run", "-", "--parts", tmp_path / "none")
    for flags in (["--json"], ["--explain", "ig"], ["--skip-unreadable"]):
        assert "is of a command that does all" in told(*images, "--parts", tmp_path / "none", *flags)
    for flags, said in (
        (["--csv", "y.csv", "--features", "y.npz"], "csv is given, and so is --features"),
        (["--features", "y.npz", "--format", "csv"], "format is csv, and features are .npz"),
        (["--probabilities", "y.parquet"], "the parts are csv; give a name that ends in .csv"),
    ):
        assert said in told(*images, "--parts", tmp_path / "none", *flags)
    for flags in (["--part-size", 3], ["--format", "csv"], ["--merge", "x.csv"]):
        assert "add --parts OUT" in told(*images, *flags)
    monkeypatch.setitem(predict.sys.modules, "pyarrow.parquet", None)
    assert "pip install pyarrow, or give --format csv" in told(*images, "--parts", "new", "--format", "parquet")
    assert not (tmp_path / "none").exists()


def evaluated(capsys, *arguments):
    """What evaluate prints of a result, and its table of every probability."""
    from vit_jax.commands import evaluate

    capsys.readouterr()
    assert evaluate.command(["run", *arguments, "--csv", "e.csv", "--probabilities", "p.csv", "--force"]) == 0
    said = capsys.readouterr().out
    return said[said.index("  loss") :], table("e.csv"), table("p.csv")


@pytest.mark.parametrize(
    "more",
    [
        ("--flip", "--bootstrap", "50"),
        pytest.param(("--data.source", "digits", "--split", "test"), marks=pytest.mark.slow),
    ],
)
def test_an_evaluation_in_parts_is_that_of_one_command_to_the_bit(more, place, tmp_path, capsys):
    """359 examples, a number that neither parts nor batches divide."""
    whole = evaluated(capsys, "--batch", "50", *more)
    parts = ["--batch", "50", *more, "--parts", str(tmp_path / "out"), "--part-size", "120"]
    assert evaluated(capsys, *parts) == whole and len(list((tmp_path / "out" / "parts").iterdir())) == 4
    (tmp_path / "out" / "parts" / "00000001.npz").unlink()
    from vit_jax.commands import evaluate

    with pytest.raises(UserError, match=r"1 of 4 parts are missing: 1 \(claimed by .*without --merge"):
        evaluate.command(["run", *parts, "--merge"])
    shutil.rmtree(tmp_path / "out" / "claims")
    assert evaluated(capsys, *parts) == whole == evaluated(capsys, *parts, "--merge")
    for flag, value, said in (
        ("--split", "train", "split"),
        ("--batch", "60", "part_size"),
        ("--part-size", "9", "part"),
    ):
        with pytest.raises(UserError, match=f"^{said}.* is .*, but the parts in .* were begun with "):
            evaluate.command(["run", *parts, flag, value])
    (tmp_path / "out" / "parts" / "00000001.npz").write_bytes(b"none")
    with pytest.raises(UserError, match=r"00000001\.npz: is damaged"):
        evaluate.command(["run", *parts, "--merge"])


def test_outputs_of_every_kind_come_back_as_they_were():
    import ml_dtypes

    rng = np.random.default_rng(0)
    kinds = ("float32", "float64", ml_dtypes.bfloat16, "int32", "bool")
    out = {str(np.dtype(kind)): rng.normal(size=(3, 2)).astype(kind) for kind in kinds}
    back, order = from_bytes("x", to_bytes(out, np.array([2, 0, 1])))
    assert [*order] == [2, 0, 1] and back.keys() == out.keys()
    assert all(x.dtype == back[name].dtype and x.tobytes() == back[name].tobytes() for name, x in out.items())
