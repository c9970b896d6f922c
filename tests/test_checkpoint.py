"""Checkpoints: what was saved comes back bit for bit or not at all, whatever happens to the files."""

import errno
import json
import os
import resource
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.trees import flatten
from vit_jax.errors import UserError
from vit_jax.files.digests import array_digest, text_digest
from vit_jax.runs import Run
from vit_jax.weights import checkpoint
from vit_jax.weights.checkpoint import Checkpoints, Saved, SavedState

# Whatever breaks, stderr belongs to our own sentence.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")

NOTES = {"best": {"step": 1, "weights": "raw", "accuracy": 0.1 + 0.2}, "stale": 0, "environment": {"cores": 2}}


def tree(seed: int) -> dict[str, Any]:
    """A parameter tree of a few kinds of array."""
    draw = np.random.default_rng(seed)
    return {
        "patch": {"kernel": draw.normal(size=(16, 24)).astype(np.float32), "bias": np.zeros(24, np.float32)},
        "blocks": {str(i): {"norm1": {"scale": draw.normal(size=24).astype(np.float32)}} for i in (0, 1, 10)},
        "cls_token": draw.normal(size=24).astype(np.float32),
    }


def state(step: int, ema: bool = True) -> SavedState:
    return SavedState(
        np.asarray(step, np.int32),
        tree(step),
        {"mu": tree(step + 1000), "nu": tree(step + 2000)},
        tree(step + 3000) if ema else None,
    )


def flat(s: SavedState) -> dict[str, np.ndarray]:
    return flatten({"step": s.step, "model": s.parameters, "moments": s.moments, "ema": s.ema or {}})


def same(a: SavedState, b: SavedState) -> bool:
    """Whether two states are equal in every bit."""
    x, y = ({name: np.asarray(v) for name, v in flat(s).items()} for s in (a, b))
    return x.keys() == y.keys() and all(
        x[n].dtype == y[n].dtype and x[n].shape == y[n].shape and x[n].tobytes() == y[n].tobytes() for n in x
    )


PARAMETERS = flatten(tree(0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    """A run with sound checkpoints 10 and 20. Do not change it: copy it."""
    folder = Run(tmp_path_factory.mktemp("whole") / "run")
    folder.create({"preset": "digits"})
    checkpoints = Checkpoints(folder)
    for step in (10, 20):
        checkpoints.save(state(step), {**NOTES, "step": step}, None, keep=9)
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Run:
    """A copy of it, to be damaged."""
    shutil.copytree(whole.path, tmp_path / "run")
    return Run(tmp_path / "run")


def begun(place: Path) -> Run:
    """A run that has saved nothing yet."""
    folder = Run(place / "run")
    folder.create({})
    return folder


def contents(run: Run) -> dict[str, bytes]:
    return {str(p.relative_to(run.path)): p.read_bytes() for p in sorted(run.path.rglob("*")) if p.is_file()}


def restored(run: Run) -> tuple[Saved | None, list[str]]:
    return Checkpoints(run).restore(PARAMETERS)


# ------------------------------------------------------------------------------------- there and back


def test_a_state_comes_back_bit_for_bit_with_its_notes(run):
    saved, skipped = restored(run)
    assert saved is not None
    assert (saved.step, skipped, saved.notes) == (20, [], {**NOTES, "step": 20})
    assert same(saved.state, state(20))
    by_shape = {name: x.shape for name, x in PARAMETERS.items()}
    assert same(Checkpoints(run).read(20, by_shape).state, state(20)), "shapes do as well as arrays"
    assert same(Checkpoints(run).read(10, PARAMETERS).state, state(10))


@pytest.mark.parametrize("moments", [{}, {"trace": tree(5)}], ids=["sgd", "momentum"])
def test_other_optimizers_and_no_average(tmp_path, moments):
    folder, given = begun(tmp_path), SavedState(np.asarray(3, np.int32), tree(1), moments, None)
    Checkpoints(folder).save(given, {}, None, keep=1)
    saved, _ = restored(folder)
    assert saved is not None and same(saved.state, given) and saved.state.ema is None
    assert {p.name for p in (folder.checkpoints / "3").iterdir() if p.is_dir()} == {"model", "optimizer"}


def test_values_that_equality_does_not_see(tmp_path):
    """-0.0, the payload of a NaN, denormal numbers, other dtypes, arrays on a device."""
    odd = np.array([0x80000000, 0x7FC12345, 0x00000001, 0x7F800000], np.uint32).view(np.float32)
    parameters = {
        "a": odd,
        "b": jnp.asarray(odd),
        "c": jnp.arange(4, dtype=jnp.bfloat16),
        "d": np.arange(4, dtype=np.float64),
        "e": np.float32(2),
    }
    folder = begun(tmp_path)
    given = SavedState(np.asarray(1, np.int32), parameters, {}, None)
    Checkpoints(folder).save(given, {}, None, keep=1)
    saved, _ = Checkpoints(folder).restore(parameters)
    assert saved is not None and same(saved.state, given)


def test_nothing_saved_is_no_error(tmp_path):
    folder = Run(tmp_path / "run")
    assert restored(folder) == (None, [])
    folder.create({})
    assert restored(folder) == (None, [])


def test_another_network_does_not_take_the_weights(run):
    for wrong in (
        {**PARAMETERS, "patch.bias": np.zeros(25)},
        {**PARAMETERS, "patch.bias": (24, 1)},
        {**PARAMETERS, "more": np.zeros(1)},
        {"patch.bias": np.zeros(24)},
    ):
        with pytest.raises(UserError, match="its parameters are not this network's"):
            Checkpoints(run).read(20, wrong)


def test_a_name_with_a_dot_is_refused_before_anything_is_written(run):
    before = contents(run)
    given = state(30)
    for name in ("a.b", ""):
        with pytest.raises(ValueError, match="non-empty strings without"):
            Checkpoints(run).save(SavedState(given.step, {name: np.zeros(1, np.float32)}, {}, None), {}, None, keep=2)
    assert contents(run) == before


def test_a_save_returns_when_everything_is_on_disk(run):
    """No part of it goes on in the background: what lies there at once is what lies there later."""

    def running() -> set[str]:
        return {t.name for t in threading.enumerate() if "save" in t.name or "commit" in t.name}

    Checkpoints(run).save(state(30), NOTES, None, keep=9)
    assert not running()
    copy = Run(run.path.with_name("copy"))
    shutil.copytree(run.path, copy.path)
    saved, _ = restored(copy)
    assert saved is not None and saved.step == 30 and same(saved.state, state(30))
    assert not list(run.checkpoints.glob("*tmp*")) and not list(run.digests.glob("*tmp*"))


def test_other_tools_read_the_steps_with_orbax_alone(run):
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(run.checkpoints, item_names=("model", "optimizer", "ema")) as manager:
        assert manager.all_steps() == [10, 20]
        items = {item: ocp.args.StandardRestore() for item in ("model", "optimizer", "ema")}
        read = manager.restore(20, args=ocp.args.Composite(**items))
    given = state(20)
    expected = {"model": given.parameters, "optimizer": {"step": given.step, **given.moments}, "ema": given.ema}
    for item, values in expected.items():
        got = {n: np.asarray(x) for n, x in flatten(read[item]).items()}
        assert got.keys() == flatten(values).keys()
        assert all(np.array_equal(got[n], x) for n, x in flatten(values).items())
    with ocp.StandardCheckpointer() as checkpointer:
        model = checkpointer.restore(run.checkpoints / "10" / "model")
    assert np.array_equal(model["patch"]["kernel"], state(10).parameters["patch"]["kernel"])


# ------------------------------------------------------------------------------------------- damage


def flip(file: Path, byte: int, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[byte] ^= 1 << bit
    file.write_bytes(data)


def largest(run: Run, step: int) -> Path:
    return max((p for p in (run.checkpoints / str(step)).rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def zero_page(file: Path) -> None:
    size = file.stat().st_size
    with open(file, "r+b") as f:
        f.seek(size // 2)
        f.write(bytes(min(512, size - size // 2)))


@pytest.mark.parametrize("harm", [cut, empty, zero_page, os.unlink], ids=lambda f: f.__name__)
@pytest.mark.parametrize("target", ["arrays", "digest", "metadata", "manifest"])
def test_a_damaged_file_is_passed_over_with_its_reason(run, target, harm):
    folder = run.checkpoints / "20"
    file = {
        "arrays": largest(run, 20),
        "digest": run.digest_file(20),
        "metadata": folder / "model" / "_METADATA",
        "manifest": folder / "ema" / "manifest.ocdbt",
    }[target]
    harm(file)
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 10 and same(saved.state, state(10))
    (reason,) = skipped
    assert reason.startswith("checkpoint 20: ") and "\n" not in reason
    assert run.complete_steps() == ([10] if target == "digest" and harm is os.unlink else [20, 10]), (
        "nothing is deleted"
    )


@pytest.mark.parametrize("item", ["model", "optimizer", "ema", ""])
def test_a_folder_that_is_gone_or_emptied_is_passed_over(run, item):
    target = run.checkpoints / "20" / item
    shutil.rmtree(target)
    saved, (reason,) = restored(run)
    assert saved is not None and saved.step == 10
    assert reason.startswith("checkpoint 20: ")
    target.mkdir()
    saved, (reason,) = restored(run)
    assert saved is not None and saved.step == 10


def test_swapped_items_and_swapped_steps_are_noticed(run):
    def swap(a: Path, b: Path) -> None:
        a.rename(a.with_name("aside"))
        b.rename(a)
        a.with_name("aside").rename(b)

    folder = run.checkpoints / "20"
    swap(folder / "model", folder / "ema")
    saved, (reason,) = restored(run)
    assert saved is not None and saved.step == 10 and "model" in reason
    swap(folder / "model", folder / "ema")
    swap(folder, run.checkpoints / "10")
    with pytest.raises(
        UserError, match=r"no checkpoint is valid \(checkpoint 20: .* is damaged .*; checkpoint 10: .* is damaged"
    ):
        restored(run)
    swap(folder, run.checkpoints / "10")
    swap(run.digest_file(10), run.digest_file(20))
    with pytest.raises(
        UserError, match="checkpoint 20: its digest file is damaged; checkpoint 10: its digest file is damaged"
    ):
        restored(run)


def test_a_renamed_step_is_not_another_step(run):
    (run.checkpoints / "20").rename(run.checkpoints / "200")
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 10
    assert [reason.split(":")[0] for reason in skipped] == ["checkpoint 200", "checkpoint 20"]
    assert "has no digest" in skipped[0]
    run.digest_file(20).rename(run.digest_file(200))
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 10, "not even with its digest: that knows its step"
    assert skipped == ["checkpoint 200: its digest file is damaged"]


@pytest.mark.parametrize("stray", ["empty", "file", "link", "dangling", "temporary", "other name", "half"])
def test_stray_things_are_not_steps(run, stray):
    place = run.checkpoints / "30"
    if stray == "empty":
        place.mkdir()
    elif stray == "file":
        place.write_text("no step")
    elif stray == "link":
        place.symlink_to(run.checkpoints / "20")
    elif stray == "dangling":
        place.symlink_to(run.path / "nowhere")
    elif stray == "temporary":
        shutil.copytree(run.checkpoints / "20", run.checkpoints / "30.orbax-checkpoint-tmp")
    elif stray == "other name":
        shutil.copytree(run.checkpoints / "20", run.checkpoints / "20.bak")
    else:
        shutil.copytree(run.checkpoints / "20" / "model", place / "model")
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 20 and same(saved.state, state(20))
    assert len(skipped) == (stray in ("link", "half"))
    Checkpoints(run).save(state(30), NOTES, None, keep=2)
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 30 and same(saved.state, state(30)) and not skipped, (
        "and they are not in the way"
    )
    assert stray != "link" or not (run.checkpoints / "30").is_symlink()


def test_a_step_may_have_moved_behind_a_link(run, tmp_path):
    """A user may keep large folders elsewhere; the link alone is removed with the step."""
    shutil.move(run.checkpoints / "20", tmp_path / "elsewhere")
    (run.checkpoints / "20").symlink_to(tmp_path / "elsewhere")
    saved, _ = restored(run)
    assert saved is not None and saved.step == 20
    Checkpoints(run).save(state(30), NOTES, None, keep=1)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["30"]
    assert (tmp_path / "elsewhere" / "model").is_dir()


@pytest.mark.parametrize("harm", ["arrays", "digests", "digests gone", "folders gone"])
def test_when_none_is_sound_that_is_said_and_nothing_deleted(run, harm):
    if harm == "arrays":
        for step in (10, 20):
            flip(largest(run, step), largest(run, step).stat().st_size // 2, 3)
    elif harm == "digests":
        for step in (10, 20):
            flip(run.digest_file(step), 5, 0)
    else:
        shutil.rmtree(run.digests if harm == "digests gone" else run.checkpoints)
    before = contents(run)
    with pytest.raises(UserError, match=r"no checkpoint is valid \(.* 20: .*; .* 10: .*\); .* another `name") as error:
        restored(run)
    assert "\n" not in str(error.value)
    assert contents(run) == before


def test_a_first_save_that_was_cut_off_is_no_damage(tmp_path, monkeypatch):
    """Killed between Orbax's rename and the digest: nothing had been saved, so the run starts again."""
    folder = begun(tmp_path)
    monkeypatch.setattr(Checkpoints, "_write_record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Checkpoints(folder).save(state(10), NOTES, None, keep=2)
    monkeypatch.undo()
    assert (folder.checkpoints / "10").is_dir()
    saved, (reason,) = restored(folder)
    assert saved is None and reason.startswith("checkpoint 10: has no digest")
    Checkpoints(folder).save(state(10), NOTES, None, keep=2)
    saved, skipped = restored(folder)
    assert saved is not None and same(saved.state, state(10)) and not skipped


# ---------------------------------------------------------------------------------------- retention


def steps(run: Run) -> list[int]:
    """The steps on disk, with nothing beside them."""
    assert sorted(p.name for p in run.checkpoints.iterdir()) == sorted(p.stem for p in run.digests.iterdir())
    return run.complete_steps()


def test_the_newest_and_the_best_are_kept(tmp_path):
    folder = begun(tmp_path)
    checkpoints = Checkpoints(folder)
    for step, best, expected in (
        (1, None, [1]),
        (2, 2, [2, 1]),
        (3, 2, [3, 2]),
        (4, 2, [4, 3, 2]),
        (5, 2, [5, 4, 2]),
        (6, 6, [6, 5]),
        (7, 6, [7, 6]),
    ):
        checkpoints.save(state(step), NOTES, best, keep=2)
        assert steps(folder) == expected
    checkpoints.save(state(8), NOTES, 6, keep=1)
    assert steps(folder) == [8, 6]


def test_the_digest_goes_first_and_the_number_second(run, monkeypatch):
    """Cut off at any point of a deletion, there is no step that is half deleted."""
    seen = []

    def look(path, *_, **__):
        seen.append((run.digest_file(10).exists(), (run.checkpoints / "10").exists(), Path(path).name))

    def look_and_stop(path, *_, **__):
        look(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "sync_folder", look)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", look_and_stop)
    with pytest.raises(KeyboardInterrupt):
        Checkpoints(run).save(state(30), NOTES, None, keep=2)
    assert seen == [(False, True, "digests"), (False, False, "10.deleted.orbax-checkpoint-tmp")]
    monkeypatch.undo()
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 30 and not skipped
    Checkpoints(run).clear()
    assert steps(run) == [30, 20]


def test_a_step_saved_after_a_damaged_newer_one_is_not_what_goes(run):
    """With one to keep and 20 damaged, 10 is restored and 15 saved: it is 15 that must survive."""
    flip(largest(run, 20), largest(run, 20).stat().st_size // 2, 0)
    checkpoints = Checkpoints(run)
    checkpoints.save(state(15), NOTES, None, keep=1)
    saved, (reason,) = checkpoints.restore(PARAMETERS)
    assert saved is not None and saved.step == 15 and reason.startswith("checkpoint 20")
    checkpoints.save(state(20), NOTES, None, keep=1)
    assert steps(run) == [20], "training came to it again"
    saved, skipped = checkpoints.restore(PARAMETERS)
    assert saved is not None and same(saved.state, state(20)) and not skipped


def test_clear_removes_what_killed_saves_left_and_nothing_else(run):
    before = contents(run)
    for name in ("30.orbax-checkpoint-tmp", "30.orbax-checkpoint-tmp-1234", "10.deleted.orbax-checkpoint-tmp"):
        shutil.copytree(run.checkpoints / "20", run.checkpoints / name)
    for file in (run.digests / "30.json.tmp", run.path / "config.json.tmp", run.path / "metrics.jsonl.tmp"):
        file.write_text("{")
    (run.path / "notes.txt").write_text("mine")
    Checkpoints(run).clear()
    assert contents(run) == {**before, "notes.txt": b"mine"}


def test_notes_can_be_replaced(run):
    checkpoints = Checkpoints(run)
    checkpoints.note(20, {"best": None})
    saved, skipped = checkpoints.restore(PARAMETERS)
    assert saved is not None and saved.notes == {"best": None} and same(saved.state, state(20)) and not skipped


# ----------------------------------------------------------------------------- saves that cannot be


def intact(run: Run, before: dict[str, bytes]) -> None:
    """Steps 10 and 20 are as they were, and a save that failed left nothing."""
    assert contents(run) == before
    assert steps(run) == [20, 10]
    saved, skipped = restored(run)
    assert saved is not None and saved.step == 20 and not skipped


@pytest.mark.parametrize("moment", ["before", "orbax", "sync", "digest"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_a_failed_save_is_one_sentence_and_leaves_no_trace(run, monkeypatch, moment, code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    checkpoints, before = Checkpoints(run), contents(run)
    with monkeypatch.context() as patch:
        if moment == "before":
            patch.setattr(checkpoint.shutil, "disk_usage", fail)
        elif moment == "orbax":
            patch.setattr(checkpoints.checkpointer, "save", fail)
        elif moment == "sync":
            patch.setattr(checkpoint, "sync_tree", fail)
        else:
            patch.setattr(os, "replace", fail)
        with pytest.raises(UserError) as error:
            checkpoints.save(state(30), NOTES, None, keep=2)
    said = str(error.value)
    assert "step 30 could not be saved" in said and "step 20 is intact" in said and "\n" not in said
    assert ("the disk is full" in said) == (code == errno.ENOSPC)
    intact(run, before)
    checkpoints.save(state(30), NOTES, None, keep=9)
    assert steps(run) == [30, 20, 10], "and with room again it goes on"


def test_too_little_room_is_known_before_anything_is_written(run, monkeypatch):
    before = contents(run)
    usage = shutil.disk_usage(run.path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"the disk is full.*step 30 could not.*step 20 is intact; free some space and"):
        Checkpoints(run).save(state(30), NOTES, None, keep=2)
    intact(run, before)


def test_a_bug_while_saving_stays_a_bug(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "sync_tree", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Checkpoints(run).save(state(30), NOTES, None, keep=2)
    assert run.complete_steps() == [20, 10]


@pytest.mark.parametrize("limit", [0, 200, 3000])
def test_files_that_the_system_does_not_let_grow(run, limit):
    """The real thing: the limit bites inside TensorStore, or in the digest."""
    checkpoints, before = Checkpoints(run), contents(run)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        with pytest.raises(UserError, match="the disk is full, so step 30 could not be saved; step 20 is intact"):
            checkpoints.save(state(30), NOTES, None, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    intact(run, before)
    checkpoints.save(state(30), NOTES, None, keep=9)
    assert steps(run) == [30, 20, 10]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("closed", ["checkpoints", "digests"])
def test_somebody_who_may_not_write(whole, closed):
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are root's alone
        os.chmod(place, 0o755)
        run = Run(Path(place) / "run")
        shutil.copytree(whole.path, run.path)
        shutil.chown(run.digests if closed == "checkpoints" else run.checkpoints, 65534)
        checkpoints, before = Checkpoints(run), contents(run)
        os.seteuid(65534)
        try:
            with pytest.raises(UserError, match=r"step 30 could not.*step 20 is intact; make the folder writable and"):
                checkpoints.save(state(30), NOTES, None, keep=2)
        finally:
            os.seteuid(0)
        intact(run, before)


def test_the_digest_file_is_text_that_others_can_check(run):
    """What runs.py says of it is enough to verify a checkpoint without this file's code."""
    record = json.loads(run.digest_file(20).read_text())
    digest = record.pop("digest")
    assert digest == text_digest(record)
    assert set(record) == {"step", "notes", "arrays"} and record["step"] == 20
    assert record["arrays"]["model"]["patch.kernel"] == array_digest(state(20).parameters["patch"]["kernel"])
    assert record["arrays"]["optimizer"].keys() == {
        "step",
        *(f"{role}.{n}" for role in ("mu", "nu") for n in PARAMETERS),
    }
