"""A folder in a store: whole after a kill between any two requests, and of one writer."""

import json
import socket
import threading

import pytest

from tests import loopback_s3
from vit_jax.config.run import RunConfig
from vit_jax.errors import UserError
from vit_jax.extras.stores import mirror as mirrors
from vit_jax.extras.stores import objects
from vit_jax.extras.stores.mirror import Mirror
from vit_jax.extras.stores.records import Records
from vit_jax.files.places import local_copy, store_of
from vit_jax.runs import choose

SAVES = 4


class Kill(BaseException):
    """As a kill is: nothing in the product catches it."""


class Dying:
    """A store that is asked nothing more after some requests."""

    def __init__(self, store, requests):
        self.store, self.left, self.lock = store, requests, threading.Lock()

    def __getattr__(self, name):
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def request(*args):
            with self.lock:
                self.left -= 1
                if self.left < 0:
                    raise Kill
            return found(*args)

        return request


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(mirrors, "BEAT", 0.05)
    monkeypatch.setattr(mirrors, "LEASE", 0.4)


@pytest.fixture
def bucket():
    with loopback_s3.serving() as found:
        yield found


def save(folder, number):
    """What a run writes when it saves: a log that grows, a checkpoint in the place of the one before, its digests."""
    folder.mkdir(exist_ok=True, parents=True)
    with open(folder / "metrics.jsonl", "a") as log:
        log.write(f"row {number}\n" * 3)
    (folder / "config.json").write_text("{}")
    (folder / "config.json.tmp").write_text("half")
    (folder / f"checkpoints/{number}").mkdir(parents=True)
    (folder / f"checkpoints/{number}/array").write_bytes(bytes([number]) * 100)
    (folder / f"digests-{number}.json").write_text(str(number))
    for old in (folder / f"checkpoints/{number - 1}/array", folder / f"digests-{number - 1}.json"):
        old.unlink(missing_ok=True)


def held(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def saved(tmp_path, number):
    """What the folder holds once these saves are done."""
    folder = tmp_path / f"expected-{number}"
    if not folder.exists():
        folder.mkdir()
        for each in range(1, number + 1):
            save(folder, each)
        (folder / "config.json.tmp").unlink(missing_ok=True)
    return held(folder)


def take(store, folder, said=None, lives=lambda place: False):
    taken = Mirror(store, folder)
    taken.take(folder.name, folder.name, lives, (said if said is not None else []).append)
    return taken


def live(store, folder, reported):
    """Go on from what is saved to the end; `reported` gets the number of each save that is done."""
    mine = take(store, folder)
    for number in range(len((folder / "metrics.jsonl").read_bytes()) // 18 + 1 if held(folder) else 1, SAVES + 1):
        save(folder, number)
        mine.commit()
        reported.append(number)
    mine.release()


def test_a_kill_between_any_two_requests_loses_nothing_that_was_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(mirrors, "_Pulse", lambda *_: type("Pulse", (), {"stop": lambda self: None})())
    for requests in range(1000):
        store, reported = store_of(str(tmp_path / f"store-{requests}")), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirrors, "PART", 60)
            try:
                live(Dying(store, requests), tmp_path / f"first-{requests}", reported)
                break
            except Kill:
                pass
        found, said = tmp_path / f"second-{requests}", []
        take(store, found, said)
        done = reported[-1] if reported else 0
        assert held(found) in ([saved(tmp_path, done)] + ([saved(tmp_path, done + 1)] if done < SAVES else []))
        assert not said
        live(store, tmp_path / f"third-{requests}", reported)
        assert Mirror(store, tmp_path / f"read-{requests}").pull(said.append)
        assert held(tmp_path / f"read-{requests}") == saved(tmp_path, SAVES)
        kept = [record for number in Records(store).numbers() if (record := Records(store).read(number))]
        named = {name for record in kept for file in record.files.values() for name, _ in file.parts}
        assert {*store.list("files/")} == named and not store.list("writers/")
    assert requests > 40 and reported == [*range(1, SAVES + 1)]


def test_a_kill_before_there_is_a_record_leaves_a_place_for_the_same_run(bucket, tmp_path):
    """Where the store was probed, too: what is left then is no run, and nothing of another."""
    run = RunConfig(task="classify", model=None, data=None, dir="s3://bucket")
    for requests in range(1, 12):
        bucket.objects.clear()
        with pytest.raises(Kill):
            take(Dying(store_of("s3://bucket/run"), requests), tmp_path / f"killed-{requests}")
        if Records(store_of("s3://bucket/run")).newest():
            break
        assert not choose(run, "run", True).exists()
    assert requests > 4


def test_a_log_is_kept_in_parts_and_what_is_not_new_is_not_sent_again(bucket, tmp_path):
    mine = take(store_of("s3://bucket/run"), tmp_path / "a")
    sizes = []
    for number in (1, 2, 3):
        save(tmp_path / "a", number)
        bucket.requests.clear()
        mine.commit()
        sizes.append(len([name for method, name, _ in bucket.requests if method == "PUT" and "/files/" in name]))
    assert sizes == [4, 3, 3]
    parts = [bucket.objects[f"run/{name}"] for name, _ in mine.record.files["metrics.jsonl"].parts]
    assert parts == [b"row 1\n" * 3, b"row 2\n" * 3, b"row 3\n" * 3]
    assert [name for name in bucket.objects if "checkpoints/1/" in name] == []
    mine.release()


def test_a_second_writer_is_refused_and_a_dead_one_followed(bucket, tmp_path):
    store, said = store_of("s3://bucket/run"), []
    first = take(store, tmp_path / "first")
    save(tmp_path / "first", 1)
    first.commit()
    # Known at once on this machine; elsewhere by a sign of life, or because it goes on saving.
    for lives in (lambda place: True, lambda place: None, lambda place: first.commit()):
        with pytest.raises(UserError, match=r"in use by first; .* choose another `name"):
            take(store_of("s3://bucket/run"), tmp_path / "second", said, lives)
    assert len(said) == 2 and "waiting for a sign of its life" in said[0]
    first._pulse.stop()  # as if its machine slept
    second = take(store_of("s3://bucket/run"), tmp_path / "second", said, lambda place: None)
    assert held(tmp_path / "second") == saved(tmp_path, 1)
    save(tmp_path / "first", 2)
    with pytest.raises(UserError, match="in use by second"):
        first.commit()
    first.release()
    save(tmp_path / "second", 2)
    second.commit()
    second.release()
    assert Mirror(store, tmp_path / "read").pull(said.append) and held(tmp_path / "read") == saved(tmp_path, 2)
    third = take(store, tmp_path / "third", lives=lambda place: None)  # at once: the second has said that it ended
    # One that ends while the next looks whether it lives is not in the way, though it lived then.
    fourth = take(store_of("s3://bucket/run"), tmp_path / "fourth", lives=lambda place: third.release() or True)
    fourth.release()


def test_a_copy_of_the_same_size_with_other_content_is_brought_anew(bucket, tmp_path):
    mine = take(store_of("s3://bucket/run"), tmp_path / "mine")
    save(tmp_path / "mine", 1)
    mine.commit()
    mine.release()
    assert Mirror(store_of("s3://bucket/run"), tmp_path / "read").pull(print)
    (tmp_path / "read/checkpoints/1/array").write_bytes(bytes(100))
    assert Mirror(store_of("s3://bucket/run"), tmp_path / "read").pull(print)
    assert held(tmp_path / "read") == saved(tmp_path, 1)


@pytest.mark.parametrize(
    "harm",
    [
        *("changed", "record", "ahead", "copied"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("gone", "short", "newest", "late")),
    ],
)
def test_what_a_store_has_lost_is_passed_over(bucket, tmp_path, harm):
    mine, said = take(store_of("s3://bucket/run"), tmp_path / "mine"), []
    first = bucket.objects["run/records/00000001.json"]  # of no files
    for number in (1, 2):
        save(tmp_path / "mine", number)
        mine.commit()
    mine._pulse.stop()
    last = f"run/records/{mine.record.number:08}.json"
    array = f"run/{mine.record.files['checkpoints/2/array'].parts[0][0]}"
    if harm == "gone":
        del bucket.objects[array]
    elif harm in ("short", "changed"):
        bucket.objects[array] = bucket.objects[array][:-1] if harm == "short" else bytes(100)
    elif harm == "record":
        bucket.objects[last] = bucket.objects[last].replace(b'"open"', b'"oben"')
    elif harm == "ahead":  # of the records that are there
        bucket.objects["run/records/newest.json"] = json.dumps({"number": mine.record.number + 5}).encode()
    elif harm == "copied":  # over the newest, from under another number
        bucket.objects[last] = first
    else:
        bucket.objects["run/records/newest.json"] = json.dumps({"number": mine.record.number - 1}).encode()
        bucket.faults[last] = "late"
        bucket.objects.pop("run/records/newest.json") if harm == "newest" else None
    if harm == "newest":
        del bucket.faults[last]
    assert Mirror(store_of("s3://bucket/run"), tmp_path / "read").pull(said.append)
    expected = 2 if harm in ("newest", "late", "ahead") else 1
    assert held(tmp_path / "read") == saved(tmp_path, expected)
    assert bool(said) == (harm in ("gone", "short", "changed"))
    again = take(store_of("s3://bucket/run"), tmp_path / "again")
    assert held(tmp_path / "again") == saved(tmp_path, expected)
    save(tmp_path / "again", 3)
    again.commit()
    again.release()
    assert Mirror(store_of("s3://bucket/run"), tmp_path / "end").pull(said.append)
    left = held(tmp_path / "again")
    assert held(tmp_path / "end") == {path: content for path, content in left.items() if not path.endswith(".tmp")}


@pytest.mark.parametrize(
    "place, group, said",
    [
        ("ftp://host/runs", "", "ftp:// is not known; give a folder"),
        ("s3://", "", "names no bucket"),
        ("https://host/runs", "", "dir is https://host/runs, and a plain server is only read"),
        ("s3://nowhere/runs", "", "there is no bucket nowhere"),
        ("https://host/runs", "seed", "a plain server is only read"),
        ("s3://bucket/../runs", "", "below its folder"),
        ("s3://bucket", "", "s3://bucket/data: there are objects here, and no run"),
    ],
)
def test_where_no_run_can_be_kept_is_refused(bucket, place, group, said):
    bucket.objects["data/0.tar"] = b""
    with pytest.raises(UserError, match=said):
        choose(RunConfig(task="classify", model=None, data=None, dir=place), "data", True, group)


def test_a_host_that_does_not_answer_is_named_soon(monkeypatch):
    monkeypatch.setattr(objects, "FIRST", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, loopback_s3.serving():
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
        with pytest.raises(UserError, match=f"{address} gave no answer in 0 seconds; check the network"):
            local_copy("s3://bucket/runs/digits")
        silent.settimeout(0.2)
        with pytest.raises(TimeoutError):  # it was asked once: what was never reached is not asked again and again
            for _ in range(2):
                silent.accept()


@pytest.mark.parametrize(
    "fault, said",
    [
        ("unconditional", "does not honour conditional writes"),
        ({"PUT": 403}, "s3:PutObject is wanted"),
        ({"DELETE": 403}, "s3:DeleteObject is wanted"),
        ({"HEAD": 403, "GET": 403}, "s3:GetObject is wanted"),
        ({"GET": 403}, "s3:ListBucket is wanted"),
    ],
)
def test_a_store_that_cannot_hold_it_is_refused(bucket, tmp_path, fault, said):
    bucket.faults["*"] = fault
    with pytest.raises(UserError, match=said):
        take(store_of("s3://bucket/run"), tmp_path / "mine")
    assert not bucket.objects or fault == {"DELETE": 403}
