"""The place of a conversion: one of several writers has it, and a killed one leaves nothing half and nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.containers import writer
from convert.containers.source import Spec
from convert.dialects import LAYOUTS
from convert.plan import target
from convert.plan.claim import HOST, STILL, claim
from convert.write import write
from tests.hostile import test_target
from tests.hostile.child import CONTEXT
from tests.hostile.converting import convert, told
from tests.hostile.test_target import SAID
from tests.random_weights import tensors
from vit_jax.errors import UserError
from vit_jax.files.atomic import lock_file
from vit_jax.models.vit_config import ViTConfig

# Large enough that writing takes a while, small enough that a hundred are written in a minute.
CONFIG = ViTConfig(image=8, patch=4, classes=5, width=192, depth=4, heads=2, hidden=768)
TARGETS = {  # {name: --to}
    "out.safetensors": "timm",
    "out.pt": "timm",
    "out": "huggingface",
    "run": "vit-jax",
}
Files = dict[str, bytes]


def model(path: Path, seed: int) -> str:
    """A network of some megabytes as one of timm's files."""
    theirs = tensors(LAYOUTS["timm"], CONFIG, seed)
    arrays = (((name,), array) for name, array in theirs.items())
    writer(str(path))[1](str(path), {name: Spec(a.dtype, a.shape) for name, a in theirs.items()}, arrays, {})
    return str(path)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The files of two networks of the same shapes."""
    folder = tmp_path_factory.mktemp("sources")
    return model(folder / "first.safetensors", 1), model(folder / "second.safetensors", 2)


def words(place: Path) -> list[str]:
    return [str(place), "--to", TARGETS[place.name], *SAID]


def contents(place: Path) -> Files:
    """{path beside or inside: bytes} of all that belongs to a target."""
    files = {str(p.relative_to(place.parent)): p for p in place.parent.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(".")}


def leftovers(place: Path) -> list[str]:
    return [p.name for p in place.parent.iterdir() if p.name.startswith(".")]


# --------------------------------------------------------------------------------------- several writers


@pytest.mark.parametrize("name", TARGETS)
def test_of_four_writers_one_has_the_place(name: str, sources: tuple[str, str], tmp_path: Path) -> None:
    place = tmp_path / name
    ready = CONTEXT.Barrier(4)
    pipes = [CONTEXT.Pipe(duplex=False) for _ in range(4)]
    for i, (_, there) in enumerate(pipes):
        CONTEXT.Process(target=told, args=(there, ready, sources[i % 2], *words(place)), daemon=True).start()
    ended = [here.recv() for here, _ in pipes]
    assert sorted(code for code, _ in ended) == [0, 2, 2, 2], ended
    for code, said in ended:
        assert code == 0 or (said.count("\n") == 1 and ("is being written" in said or "exists" in said)), said
    assert not leftovers(place)
    assert convert(str(place), str(tmp_path / "back.safetensors"), "--to", "timm") == (0, "")  # digests hold


@pytest.mark.parametrize("name", ["out.pt", "out", "run"])
def test_what_another_program_puts_there_meanwhile_stays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, honest = tmp_path / name, write.own_side
    small = test_target.model(tmp_path / "small.safetensors")

    def meanwhile(*given: Any) -> Any:
        place.write_text("precious") if place.suffix else (place / "precious").mkdir(parents=True)
        return honest(*given)

    monkeypatch.setattr(write, "own_side", meanwhile)
    code, said = convert(str(small), *words(place))
    assert code == 2 and said.count("\n") == 1 and "exists" in said
    assert not leftovers(place)
    assert place.read_text() == "precious" if place.suffix else [p.name for p in place.iterdir()] == ["precious"]


def test_a_writer_who_is_at_work_keeps_the_place_and_its_files(tmp_path: Path) -> None:
    with claim(tmp_path / "out.pt") as workspace:
        (workspace / "half").write_text("precious")
        with pytest.raises(UserError, match=f"process {os.getpid()} on {HOST}"), claim(tmp_path / "out.pt"):
            pass
        with claim(tmp_path / "out"), claim(tmp_path / "out.pt.npz"):  # other places, whose names are alike
            pass
        assert (workspace / "half").read_text() == "precious"
    assert not list(tmp_path.iterdir())


def test_without_locks_the_file_is_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    with claim(tmp_path / "out"), pytest.raises(UserError, match=r"remove \.out\.lock"), claim(tmp_path / "out"):
        pass
    with claim(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_that_fails_is_not_taken_for_another_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(fcntl, "flock", refuse)
    says = r"out: \.out\.lock beside it cannot be locked \(Permission denied\); choose a target on a file system"
    with pytest.raises(UserError, match=says), claim(tmp_path / "out"):
        pass


def test_a_run_and_a_conversion_lock_alike(tmp_path: Path) -> None:
    """Each sees that the other has a file."""

    def taken(process: str) -> None:
        raise BlockingIOError(process)

    place, lock = tmp_path / "out", tmp_path / ".out.lock"
    with claim(place), pytest.raises(BlockingIOError, match=HOST), lock_file(lock, taken):
        pass
    with lock_file(lock, taken), pytest.raises(UserError, match="being written"), claim(place):
        pass


def test_what_no_living_process_owns_is_cleared(tmp_path: Path) -> None:
    hour = time.time() - STILL - 60
    left = {  # {name: whether the next writer clears it}
        f".out.{HOST}.1.tmp": True,  # the number of a process that lives, and is no writer
        f".out.{HOST}.{os.getpid()}.tmp": True,
        ".out.elsewhere.7.tmp": False,  # another machine's, whose locks may not show here
        ".out.long-ago.7.tmp": True,
        f".out.pt.{HOST}.7.tmp": False,  # another target's
        ".out.notes.tmp": False,
        ".out.7.tmp": False,  # as older versions called it
        ".out.8.tmp": True,
    }
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("half")
    for folder in (tmp_path / ".out.long-ago.7.tmp", tmp_path / ".out.8.tmp"):
        for path in (folder, folder / "part"):
            os.utime(path, (hour, hour))
    (tmp_path / ".out.lock").write_text("process 1 on elsewhere")
    with claim(tmp_path / "out"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(name for name, cleared in left.items() if not cleared)


@pytest.mark.parametrize("kind", ["a file of another program", "symlink", "link", "pipe", "folder"])
def test_what_is_no_lock_of_a_conversion_stays(kind: str, tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / ".out.lock"
    precious.write_text("process of something precious")
    make = {"symlink": lock.symlink_to, "link": lock.hardlink_to, "pipe": lambda _: os.mkfifo(lock)}
    make |= {"folder": lambda _: lock.mkdir(), "a file of another program": lambda file: shutil.copy(file, lock)}
    make[kind](precious)
    before = lock.lstat()
    with pytest.raises(UserError, match=r"\.out\.lock beside it is needed, and no conversion"), claim(tmp_path / "out"):
        pass
    assert precious.read_text() == "process of something precious"
    assert os.path.samestat(lock.lstat(), before) and lock.lstat().st_size == before.st_size


def test_a_link_named_like_what_a_writer_left_is_not_followed_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / f".out.{HOST}.1.tmp").symlink_to(tmp_path / "precious")
    began = time.monotonic()
    with claim(tmp_path / "out"):
        pass
    assert time.monotonic() - began < 2
    assert (tmp_path / "precious").is_dir() and (tmp_path / f".out.{HOST}.1.tmp").is_symlink()


@pytest.mark.parametrize("name", ["out.pt.certificate.json", "out.pt.json", "out/provenance.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place)
    small = test_target.model(tmp_path / "small.safetensors")
    given = words(tmp_path / re.sub(r"(/provenance|\.certificate)?\.json", "", name))
    process = CONTEXT.Process(target=convert, args=(str(small), *given, "--force"), daemon=True)
    process.start()
    process.join(20)
    waits = process.is_alive()
    process.kill()
    assert not waits and place.is_fifo()


# ------------------------------------------------------------------------------------------- other disks


def test_where_files_cannot_be_moved_the_old_ones_stay(
    sources: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound folder, as containers have: it is no mount point by its numbers, and takes no file from beside it."""
    place = tmp_path / "out"
    assert convert(sources[0], *words(place)) == (0, "")
    before, move = contents(place), os.replace

    def across(a: Path, b: Path) -> None:
        if (Path(a).parent == place) != (Path(b).parent == place):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        move(a, b)

    monkeypatch.setattr(target, "exchange", lambda a, b: False)
    monkeypatch.setattr(os, "replace", across)
    code, said = convert(sources[1], *words(place), "--force")
    assert code == 2 and "another disk is mounted" in said
    assert contents(place) == before and not leftovers(place)


def test_a_linked_folder_is_written_beside_what_it_links_to(sources: tuple[str, str], tmp_path: Path) -> None:
    """Which may be another disk. Others that write there by its own name are kept out, too."""
    there = tmp_path / "there" / "real"
    assert convert(sources[0], *words(there.with_name("out"))) == (0, "")
    there.with_name("out").rename(there)
    (tmp_path / "out").symlink_to(there)
    before = (there / "model.safetensors").read_bytes()
    with claim(there):
        code, said = convert(sources[1], *words(tmp_path / "out"), "--force")
        assert code == 2 and "is being written" in said
    assert convert(sources[1], *words(tmp_path / "out"), "--force") == (0, "")
    assert (tmp_path / "out").is_symlink() and not leftovers(there) and not leftovers(tmp_path / "out")
    assert (there / "model.safetensors").read_bytes() != before


# ----------------------------------------------------------------------------------------- killed writers


@pytest.mark.parametrize("name", ["out.pt", "out"])
def test_however_far_the_moves_get_no_weights_have_files_of_others(
    name: str, sources: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each move, and each removal, the process ends in turn."""
    place = tmp_path / name
    outcomes = list(ends(place, sources, monkeypatch))
    assert len(outcomes) > 3
    old, new = outcomes[0], outcomes[-1]
    for found in outcomes:
        weights = str(Path(name, "model.safetensors")) if name == "out" else name
        whole = old if found[weights] == old[weights] else new
        assert found.items() <= whole.items()
        assert name != "out" or found == whole


def ends(place: Path, sources: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    assert convert(sources[0], *words(place)) == (0, "")
    yield contents(place)
    for last in range(20):
        moves = iter(range(20))

        def counted(move: Any, moves: Iterator[int] = moves, last: int = last) -> Any:
            def act(*given: Any, **more: Any) -> Any:
                if next(moves) == last:
                    raise KeyboardInterrupt
                return move(*given, **more)

            return act

        def settle(self: target.Target, workspace: Path, honest: Any = target.Target.settle) -> Any:
            with monkeypatch.context() as patch:
                for where, what in ((os, "rename"), (os, "replace"), (Path, "unlink"), (target, "exchange")):
                    patch.setattr(where, what, counted(getattr(where, what)))
                return honest(self, workspace)

        with monkeypatch.context() as patch:
            patch.setattr(target.Target, "settle", settle)
            code, _ = convert(sources[1], *words(place), "--force")
        yield contents(place)
        if code == 0:
            return
        assert code == 130
        assert convert(sources[0], *words(place), "--force") == (0, "")


def kill(place: Path, sources: tuple[str, str], count: int, seed: int) -> dict[str, int]:
    """Kill `count` writers of a target at moments drawn uniformly from a whole conversion; how often what was found.

    Asserts that the target is the old one, none, or the new one, and that the next conversion leaves nothing beside.
    """
    replaced = TARGETS[place.name] != "vit-jax"  # a run is never written over
    wholes = []
    for source in sources:
        began = time.monotonic()
        assert convert(source, *words(place), *["--force"] * bool(wholes)) == (0, "")
        lasts = time.monotonic() - began
        wholes.append(contents(place))
        if not replaced:
            remove(place)
            wholes = [{}]
    rng, counts = np.random.default_rng(seed), {"old": 0, "new": 0, "left behind": 0}
    for _ in range(count):
        process = CONTEXT.Process(target=convert, args=(sources[1], *words(place), "--force"), daemon=True)
        if replaced:
            assert convert(sources[0], *words(place), "--force") == (0, "")
        process.start()
        time.sleep(float(rng.uniform(0, 1.5 * lasts)))
        process.kill()
        process.join()
        found = contents(place)
        is_old = found == wholes[0]
        counts["old" if is_old else "new"] += 1
        counts["left behind"] += bool(leftovers(place))
        if not is_old and not replaced:
            assert convert(str(place), str(place.with_name("back.safetensors")), "--to", "timm") == (0, "")
            place.with_name("back.safetensors").unlink()
            remove(place)
        elif not is_old:
            weights = f"{place.name}/model.safetensors" if place.is_dir() else place.name
            assert found[weights] in (wholes[0][weights], wholes[1][weights])
            assert found.items() <= wholes[1].items() or found.items() <= wholes[0].items()
    assert convert(sources[1], *words(place), "--force") == (0, "")
    assert not leftovers(place)
    return counts


def remove(place: Path) -> None:
    shutil.rmtree(place)


def test_a_killed_writer_leaves_the_old_or_the_new_and_nothing_beside(sources: tuple[str, str], tmp_path: Path) -> None:
    kill(tmp_path / "out", sources, 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_25_killed_writers_of_each_kind(name: str, sources: tuple[str, str], tmp_path: Path) -> None:
    counts = kill(tmp_path / name, sources, 25, 1)
    print(name, counts)
    assert counts["old"] and counts["left behind"]
