"""The run folder: which one a run gets, its lock, its small files and what counts as a step."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vit_jax import runs
from vit_jax.augmentation.config import ImageAugment
from vit_jax.commands.train import command
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.files import atomic
from vit_jax.files.atomic import write_json
from vit_jax.files.digests import array_digest, text_digest
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs import Run, choose, find
from vit_jax.runs.values import FORMAT

PREPROCESS = {
    "image": [8, 8],
    "channels": 1,
    "fit": "crop",
    "size": 0,
    "interpolation": "bilinear",
    "background": 255,
    "mean": [0.5],
    "std": [0.5],
}
RUN = RunConfig(
    task="classify",
    model=ViTConfig(image=8, channels=1, patch=4, classes=10, width=16, depth=1, heads=2, hidden=16),
    data=ImageData(source="digits"),
    augment=ImageAugment(),
)


def begun(path: Path, run: RunConfig = RUN) -> Run:
    """A run folder as training makes it."""
    folder = Run(path)
    folder.create(
        runs.record_of(
            run, "digits", preprocess=PREPROCESS, class_names=[str(k) for k in range(10)], data={"name": "digits"}
        )
    )
    return folder


@pytest.fixture
def place(tmp_path: Path) -> RunConfig:
    """RUN, kept in a folder of its own."""
    return replace(RUN, dir=str(tmp_path))


def children(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


# ---------------------------------------------------------------------------------- which folder


def test_a_free_name_is_taken(place, tmp_path):
    assert choose(place, "digits", named=False).path == tmp_path / "digits"
    assert not children(tmp_path), "choosing makes nothing"


def test_the_same_run_goes_on(place, tmp_path):
    begun(tmp_path / "digits", place)
    for named in (False, True):
        assert choose(place, "digits", named).path == tmp_path / "digits"


def test_another_run_gets_the_next_free_number_and_finds_it_again(place, tmp_path):
    begun(tmp_path / "digits", place)
    other, third = replace(place, seed=1), replace(place, seed=2)
    assert choose(other, "digits", named=False).path == tmp_path / "digits-2"
    begun(tmp_path / "digits-2", other)
    assert choose(third, "digits", named=False).path == tmp_path / "digits-3"
    assert choose(other, "digits", named=False).path == tmp_path / "digits-2"
    assert choose(place, "digits", named=False).path == tmp_path / "digits"


def test_a_named_folder_of_another_run_is_refused_with_the_fields(place, tmp_path):
    folder = begun(tmp_path / "mine", place)
    before = folder.config_file.read_bytes()
    other = replace(place, seed=7, optim=OptimConfig(lr=0.5), log_every=3)
    with pytest.raises(UserError, match=r"optim\.lr 0\.001 -> 0\.5, seed 0 -> 7") as refused:
        choose(other, "mine", named=True)
    assert "log_every" not in str(refused.value), "execution fields may differ"
    assert folder.config_file.read_bytes() == before


def test_classes_left_to_the_data_are_no_difference(place, tmp_path):
    begun(tmp_path / "digits", place)
    assert choose(replace(place, model=replace(place.model, classes=0)), "digits", named=True)
    with pytest.raises(UserError, match=r"model\.classes 10 -> 11"):
        choose(replace(place, model=replace(place.model, classes=11)), "digits", named=True)


@pytest.mark.parametrize("left", ["digits", "digits/notes.txt", "digits/a/b"])
def test_what_is_no_run_is_left_alone(place, tmp_path, left):
    file = tmp_path / left
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    with pytest.raises(UserError, match="exists and is not a run; choose another `name"):
        choose(place, "digits", named=True)
    assert choose(place, "digits", named=False).path == tmp_path / "digits-2"
    assert file.read_text() == "mine"


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", "config.json.tmp"]], ids=str)
def test_what_a_killed_start_leaves_is_free(place, tmp_path, left):
    (tmp_path / "digits" / "checkpoints").mkdir(parents=True)
    for name in left:
        (tmp_path / "digits" / name).write_text("1")
    assert choose(place, "digits", named=True).path == tmp_path / "digits"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[1]", b'{"format": 1}\xff', b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"],
    ids=lambda d: str(d[:12]),
)
def test_a_damaged_config_is_said_and_never_passed_over(place, tmp_path, damage):
    folder = begun(tmp_path / "digits", place)
    folder.config_file.write_bytes(damage)
    for named in (False, True):
        with pytest.raises(
            UserError,
            match=r"config\.json: (cannot be read as JSON|holds no JSON object).*"
            r"restore the file or start a new run with `name",
        ):
            choose(place, "digits", named)
    with pytest.raises(UserError):
        folder.config()
    assert folder.config_file.read_bytes() == damage
    assert choose(place, "other", named=True).path == tmp_path / "other"


def test_a_config_that_lacks_a_part_or_has_another_format_is_refused(place, tmp_path):
    folder = begun(tmp_path / "digits", place)
    whole = json.loads(folder.config_file.read_text())
    for part in ("preset", "config", "preprocess", "class_names", "data"):
        folder.write_record({k: v for k, v in whole.items() if k != part})
        with pytest.raises(UserError, match=f"lacks {part}"):
            folder.record()
    folder.write_record({**whole, "format": 99})
    with pytest.raises(UserError, match=f"format 99 is not {FORMAT}.*; read it with the version"):
        folder.record()
    assert choose(place, "digits", named=False).path == tmp_path / "digits-2"


def test_a_group_of_seeds_is_a_folder_of_runs(place, tmp_path):
    assert choose(place, "digits", named=False, group="seed").path == tmp_path / "digits"
    for seed in (0, 1):
        begun(tmp_path / "digits" / f"seed-{seed}", replace(place, seed=seed))
    (tmp_path / "digits" / "summary.json").write_text("{}")
    assert choose(place, "digits", named=True, group="seed").path == tmp_path / "digits", "more seeds join the group"
    other = replace(place, epochs=99)
    assert choose(other, "digits", named=False, group="seed").path == tmp_path / "digits-2"
    with pytest.raises(UserError, match="epochs 10 -> 99"):
        choose(other, "digits", named=True, group="seed")


def test_a_group_and_a_run_do_not_share_a_folder(place, tmp_path):
    begun(tmp_path / "single", place)
    with pytest.raises(UserError, match="holds a single run, not one per seed"):
        choose(place, "single", named=True, group="seed")
    assert choose(place, "single", named=False, group="seed").path == tmp_path / "single-2"
    begun(tmp_path / "group" / "seed-0", place)
    with pytest.raises(UserError, match="is not a run"):
        choose(place, "group", named=True)
    assert choose(place, "group", named=False).path == tmp_path / "group-2"


def test_a_group_is_not_taken_for_a_run_or_for_weights(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        begun(Path(f"runs/group/seed-{seed}"), place)
    for text in ("group", "runs/group"):
        with pytest.raises(
            UserError, match="is a group of 2 runs, one for each seed; give one of them, such as runs/group/seed-0"
        ):
            runs.find(text)
    with pytest.raises(UserError, match="is a group of 2 runs"):
        runs.is_foreign("runs/group")


def test_find_takes_a_path_or_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/digits", "runs/mnist", "elsewhere/mine", "runs/group/seed-0"):
        begun(Path(name))
    Path("mnist").mkdir()  # a folder of the user's that is no run does not hide one
    for text, there in (
        ("digits", "runs/digits"),
        ("runs/digits", "runs/digits"),
        ("mnist", "runs/mnist"),
        ("elsewhere/mine", "elsewhere/mine"),
        (str(tmp_path / "runs" / "mnist"), "runs/mnist"),
        ("group/seed-0", "runs/group/seed-0"),
    ):
        assert find(text).path == tmp_path / there
    with pytest.raises(UserError, match="digit: no such folder or run; nearest: digits"):
        find("digit")
    with pytest.raises(UserError, match="else: no such folder or run; runs/ holds digits, group, mnist"):
        find("else")
    with pytest.raises(UserError, match="nowhere/ holds none: train one"):
        find("digits-2", "nowhere")
    assert str(find("digits")) == os.path.join("runs", "digits")


def test_resume_takes_the_runs_own_fields_and_refuses_others(place, tmp_path):
    folder = begun(tmp_path / "digits", place)
    before = children(folder.path)
    with pytest.raises(
        UserError,
        match=r"digits: holds another run, which differs in seed 0 -> 3; "
        r"leave these as they were, or start a new run from its weights with --init \S+ --name NEW",
    ):
        command(["--resume", str(folder.path), "--seed", "3"])
    with pytest.raises(UserError, match=r"--name new: --resume \S+ goes on in the run's own folder; leave --name out"):
        command(["--resume", str(folder.path), "--name", "new"])
    with pytest.raises(UserError, match="digit: no such folder or run; nearest: digits"):
        command(["--resume", "digit", "--dir", str(tmp_path)])
    with pytest.raises(UserError, match="uses the config of that run: leave out the preset 'mnist'"):
        command(["mnist", "--resume", str(folder.path)])
    assert children(folder.path) == before


# --------------------------------------------------------------------------------------- the lock


def holder(folder: Path) -> "subprocess.Popen[str]":
    """Another process that holds a folder until its stdin is closed or it is killed."""
    script = (
        "import sys; from vit_jax.runs import Run\n"
        "with Run(sys.argv[1]).lock():\n    print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("end", ["kill", "terminate", "close"])
def test_the_lock_names_its_holder_and_ends_with_it(tmp_path, end):
    folder, process = Run(tmp_path / "digits"), holder(tmp_path / "digits")
    with (
        pytest.raises(
            UserError, match=rf"in use by process {process.pid}; wait for it, end it, or choose another `name"
        ),
        folder.lock(),
    ):
        pass
    assert process.stdin is not None
    process.stdin.close() if end == "close" else getattr(process, end)()
    process.wait(30)
    with folder.lock():
        assert (folder.path / ".lock").read_text() == str(os.getpid())


def test_the_lock_is_free_after_its_block_and_after_an_error(tmp_path):
    folder = Run(tmp_path / "digits")
    with pytest.raises(RuntimeError), folder.lock():
        raise RuntimeError
    with folder.lock(), pytest.raises(UserError, match=f"process {os.getpid()}"), folder.lock():
        pass


@pytest.mark.skipif(os.name == "nt", reason="says so of a lock that another process has")
@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_not_taken_for_another_process(number, tmp_path, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.chdir(tmp_path)
    says = (
        rf"^digits/.lock: cannot be locked \({os.strerror(number)}\); choose a folder on a file system that has locks"
    )
    with pytest.raises(UserError, match=says), Run("digits").lock():
        pass


def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path, monkeypatch):
    """The process that had the lock removes it as this one waits at the door: taking it then takes nothing."""
    folder, lock = Run(tmp_path / "digits"), atomic.try_lock
    removals = []

    def lock_as_it_goes(file):
        if not removals:
            removals.append((folder.path / ".lock").unlink())
            folder.path.rmdir()
        return lock(file)

    monkeypatch.setattr(atomic, "try_lock", lock_as_it_goes)
    with folder.lock():
        process = subprocess.run(
            [sys.executable, "-c", f"from vit_jax.runs import Run\nwith Run({str(folder.path)!r}).lock(): pass"],
            capture_output=True,
            text=True,
        )
    assert removals and f"in use by process {os.getpid()}" in process.stderr


def test_a_lock_that_another_process_removes_just_before_it_is_looked_at_is_made_anew(tmp_path, monkeypatch):
    path, take, taken = tmp_path / "folder" / ".lock", atomic.try_lock, []

    def removed_once(file):
        taken.append(take(file))
        if len(taken) == 1:
            path.unlink()
        return taken[-1]

    monkeypatch.setattr(atomic, "try_lock", removed_once)
    monkeypatch.setattr(Path, "exists", lambda self: True)  # as it was a moment before
    with atomic.lock_file(path, lambda process: None):
        assert path.read_text() == str(os.getpid()) and taken == [True, True]


# ------------------------------------------------------------------------------------ small files


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}

    def fail(*_):
        raise OSError(28, "No space left on device")

    for broken in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, fail)
            with pytest.raises(OSError, match="No space left"):
                write_json(file, {"a": 2})
        assert children(tmp_path) == ["a.json"], "nothing is left to fill a full disk"
        assert json.loads(file.read_text()) == {"a": 1}
    with pytest.raises(ValueError):
        write_json(file, {"a": float("nan")})
    assert json.loads(file.read_text()) == {"a": 1}


def test_metrics_without_the_line_that_a_crash_cut_off(tmp_path):
    folder = begun(tmp_path / "digits")
    assert folder.metrics() == [] and folder.summary() is None
    lines = [json.dumps({"kind": "train", "step": i, "loss": 0.1 + 0.2 * i}) for i in range(4)]
    folder.metrics_file.write_bytes(
        "\n".join([*lines, "5", '{"step": 3}', "[]", lines[0].replace("0.1", '"0.1"')]).encode()
        + b'\n{"kind": "train", "\xff\n{"'
    )
    assert [row["step"] for row in folder.metrics()] == [0, 1, 2, 3]
    folder.drop_metrics(lambda row: row["step"] == 2)
    assert folder.metrics_file.read_text() == "".join(line + "\n" for i, line in enumerate(lines) if i != 2)


def test_steps_are_numbers_with_a_folder_and_a_digest(tmp_path):
    folder = begun(tmp_path / "digits")
    for step in (3, 20, 100):
        (folder.checkpoints / str(step)).mkdir()
        (folder.checkpoints / str(step) / "model").write_text("")
        folder.digest_file(step).write_text("{}")
    assert folder.complete_steps() == folder.steps() == [100, 20, 3]
    for stray in ("7", "003", "5.orbax-checkpoint-tmp", "best", "-4", "1e3", "٣"):
        (folder.checkpoints / stray).mkdir()
        folder.digest_file(1).with_name(f"{stray}.json.tmp").write_text("{}")
    (folder.checkpoints / "900").write_text("a plain file")
    assert folder.complete_steps() == folder.steps() == [100, 20, 3], (
        "nothing stray is a step, not even an empty folder of a higher number"
    )
    folder.digest_file(100).unlink()
    folder.digest_file(400).write_text("{}")
    assert folder.complete_steps() == [20, 3]
    assert folder.steps() == [400, 100, 20, 3], "what has lost its folder or its digest is known, to be said"


# ---------------------------------------------------------------------------------------- digests


def test_an_array_digest_is_of_dtype_shape_and_values():
    import ml_dtypes

    x = np.arange(6, dtype=np.float32)
    same = [x, x.copy(), np.arange(12, dtype=np.float32)[::2] / 2, x.astype(">f4")]
    assert len({array_digest(a) for a in same}) == 1
    others = [x, x.reshape(2, 3), x.reshape(3, 2), -x, x[:5], x[:0]]
    others += [x.astype(dtype) for dtype in (np.float64, np.int32, ml_dtypes.bfloat16)]
    others += [np.float32(0), np.zeros(1, np.float32), np.float32(-0.0), x.reshape(2, 3).T]
    assert len({array_digest(np.asarray(a)) for a in others}) == len(others)
    assert array_digest(np.asfortranarray(x.reshape(2, 3))) == array_digest(x.reshape(2, 3))


def test_every_bit_of_an_array_counts():
    x = np.frombuffer(np.random.default_rng(0).bytes(32), np.uint8)
    flipped = [
        np.frombuffer((int.from_bytes(x.tobytes(), "little") ^ 1 << bit).to_bytes(32, "little"), np.uint8)
        for bit in range(256)
    ]
    assert len({array_digest(a) for a in [x, *flipped]}) == 257


def test_a_text_digest_does_not_see_order_or_layout():
    assert text_digest({"a": 1, "b": [1.5, None]}) == text_digest(json.loads('{ "b": [1.50, null], "a": 1 }'))
    assert text_digest({"a": 1}) != text_digest({"a": 1.0})


def test_trees_and_flat_names():
    tree = {"a": {"b": 1, "0": {"c": 2}}, "d": 3}
    assert flatten(tree) == {"a.b": 1, "a.0.c": 2, "d": 3}
    assert unflatten(flatten(tree)) == tree
    for bad in ({"a.b": 1}, {"a": {"": 1}}, {1: 2}, {"a": {0: 1}}):
        with pytest.raises(ValueError, match="non-empty strings without"):
            flatten(bad)
