"""Nothing in a run's folder changes unnoticed: each file is compared with what the last save recorded of it."""

import contextlib
import io
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vit_jax
from convert.recognise.reading import Options, read
from tests.test_resume import quicken
from vit_jax import runs
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import LossConfig, OptimConfig, RunConfig
from vit_jax.config.trees import flatten
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.files.atomic import write_json
from vit_jax.files.digests import array_digest, bytes_digest, with_digest
from vit_jax.files.reading import show_path
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs import Run
from vit_jax.training import finish
from vit_jax.training.job import Job
from vit_jax.training.log import Log
from vit_jax.training.train import train
from vit_jax.weights.checkpoint import Checkpoints

pytestmark = pytest.mark.usefixtures("quick_compilation")
TINY = RunConfig(
    task="classify",
    model=ViTConfig(image=8, channels=1, patch=4, classes=0, width=16, depth=1, heads=2, hidden=16),
    data=ImageData(source="digits"),
    augment=ImageAugment(),
    optim=OptimConfig(lr=1e-2),
    loss=LossConfig(label_smoothing=0.1),
    epochs=2,
    batch=256,
    ema=0.8,
    log_every=2,
)
STOP = 7  # the run is stopped within its second epoch: 5 steps each


@pytest.fixture(scope="module")
def engines() -> dict[str, Job]:
    return {}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, engines: dict[str, Job]) -> None:
    quicken(monkeypatch, engines)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, engines: dict[str, Job]) -> Run:
    """A run with the checkpoints 5 (the best) and 7. Do not change it: copy it."""
    folder = Run(tmp_path_factory.mktemp("whole") / "run")
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch, engines)
        train(replace(TINY, max_steps=STOP), preset="digits", folder=folder)
    return folder


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Run:
    """A copy of it, to be damaged."""
    shutil.copytree(whole.path, tmp_path / "run")
    return Run(tmp_path / "run")


def rewrite(run: Run, digest: bool = False, **changes: Any) -> None:
    """Change entries of config.json, as an editor would; with `digest` as another version of us would."""
    record = {**json.loads(run.config_file.read_text()), **changes}
    write_json(run.config_file, with_digest(record) if digest else record)


def smoother(run: Run) -> dict[str, Any]:
    """The config of a run with another label smoothing, which nothing else in the folder shows."""
    config = run.record()["config"]
    return {**config, "loss": {**config["loss"], "label_smoothing": 0.3}}


# ------------------------------------------------------------------------------------ config.json


@pytest.mark.parametrize("digest", [False, True], ids=["an editor", "another run's"])
def test_a_changed_config_is_named_and_the_recorded_one_used(run, digest):
    before = run.record()
    rewrite(run, digest, config=smoother(run), class_names=["zero", *before["class_names"][1:]])
    assert run.record() == before and " and more" not in run.remark()
    assert run.remark().startswith(
        f"{show_path(run.config_file)}: differs from what checkpoint 7 has recorded, which is used: "
        "loss.label_smoothing is 0.3, recorded is 0.1, class_names is ['zero', "
    )
    rewrite(run, digest, config={**smoother(run), **dict.fromkeys(["seed", "epochs", "batch"], 7)})
    assert run.remark().endswith(" and more")


@pytest.mark.parametrize("damage", [b"", b'{"format": 4', b"\xff", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"[" * 9000])
def test_a_config_that_cannot_be_read_is_taken_from_the_checkpoint(run, damage):
    before = run.record()
    run.config_file.write_bytes(damage)
    assert run.record() == before
    assert "cannot be read as JSON" in run.remark() and "its copy in checkpoint 7 is used" in run.remark()


def test_the_copy_is_taken_from_an_older_checkpoint_where_the_newest_is_damaged_or_gone(run):
    before = run.record()
    rewrite(run, config=smoother(run))
    run.digest_file(7).write_text("{")
    assert run.record() == before and "checkpoint 5 has recorded" in run.remark()
    run.digest_file(7).unlink()
    shutil.rmtree(run.checkpoints / "7")  # all are gone but the best
    assert run.record() == before and "checkpoint 5 has recorded" in run.remark()


def test_without_a_copy_a_changed_config_is_refused_until_its_digest_is_taken_out(run):
    changed = smoother(run)
    for step in (5, 7):
        run.digest_file(step).unlink()
    assert not run.remark(), "it is what it was"
    rewrite(run, config=changed)
    with pytest.raises(UserError, match=r'was changed since it was written .* remove its entry "digest"'):
        run.record()
    record = json.loads(run.config_file.read_text())
    del record["digest"]
    write_json(run.config_file, record)
    assert run.config().loss.label_smoothing == 0.3 and not run.remark()


def test_a_copied_and_a_renamed_folder_are_the_run_that_they_were(run, tmp_path):
    run.path.rename(tmp_path / "renamed")
    moved = Run(tmp_path / "renamed")
    assert (moved.remark(), moved.log_remark(7), moved.log_remark()) == ("", "", "")
    assert vit_jax.load(moved.path).step == 5


@pytest.mark.parametrize("damage", ["changed", "cut off"])
def test_convert_takes_mean_and_names_of_classes_from_the_record(run, damage):
    before = run.record()
    rewrite(run, class_names=["zero", *before["class_names"][1:]], preprocess={**before["preprocess"], "mean": [0.7]})
    if damage == "cut off":
        run.config_file.write_bytes(run.config_file.read_bytes()[:-9])
    reading = read(str(run.path), Options())
    with reading.source:
        assert [*reading.facts.outputs.names] == before["class_names"]
        assert reading.facts.preprocess == before["preprocess"]


def test_every_door_says_what_differs_and_only_training_writes_it_back(run, inside, capsys):
    sound, changed = run.config_file.read_bytes(), smoother(run)
    said = "differs from what checkpoint 7 has recorded, which is used: loss.label_smoothing is 0.3, recorded is 0.1"
    quiet = inside("evaluate", run.path, "--split", "validation")
    rewrite(run, config=changed)
    for command in (
        ("evaluate", run.path, "--split", "validation"),
        ("predict", run.path, run.path / "a.png"),
        ("convert", run.path, run.path.with_name("x.safetensors")),
    ):
        if command[0] == "predict":
            from PIL import Image

            Image.new("L", (8, 8)).save(run.path / "a.png")
        done = inside(*command)
        assert done.returncode == 0 and done.stderr.count(said) == 1 and done.stderr.count("\n") == 1, done.stderr
        assert command[0] != "evaluate" or done.stdout == quiet.stdout
    assert run.config_file.read_bytes() != sound
    done = inside("train", "--resume", run.path, "--max-steps", STOP)
    assert done.returncode == 0 and done.stdout.count(f"{said}; the file is restored") == 1
    assert run.config_file.read_bytes() == sound
    rewrite(run, config=changed)
    with contextlib.redirect_stdout(out := io.StringIO()):
        train(replace(TINY, max_steps=STOP), preset="digits", folder=run)
    assert said in out.getvalue(), "the same command takes it as the run that it is"
    assert run.config_file.read_bytes() == sound


def test_a_config_that_is_gone_is_taken_from_the_checkpoint_and_written_again(run, inside):
    sound = run.config_file.read_bytes()
    run.config_file.unlink()
    said = "its copy in checkpoint 7 is used"
    measured = inside("evaluate", run.path, "--split", "validation")
    assert measured.returncode == 0 and said in measured.stderr and not run.config_file.exists()
    assert inside("convert", run.path, run.path.with_name("x.safetensors")).returncode == 0
    assert said in inside("compare", run.path).stdout
    assert said in inside("train", "--resume", run.path, "--max-steps", STOP).stdout
    assert run.config_file.read_bytes() == sound


@pytest.mark.parametrize("what", ["pipe", "folder"])
def test_a_config_that_is_no_file_is_that_of_a_run_all_the_same(run, what, inside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.config_file.unlink()
    os.mkfifo(run.config_file) if what == "pipe" else run.config_file.mkdir()
    says = f"run/config.json: is no regular file but a {what}; put a file in its place, or remove it"
    assert run.remark() == f"{says}; its copy in checkpoint 7 is used", "with a path as the user would type it"
    resumed = inside("train", "--resume", "run", "--max-steps", STOP)
    if what == "folder":
        assert resumed.returncode == 2 and "config.json: a folder is where a file is needed" in resumed.stderr
    else:
        assert resumed.returncode == 0 and run.config_file.is_file(), "training writes it again"
    shutil.rmtree(run.path)
    run.path.mkdir()
    os.mkfifo(run.config_file) if what == "pipe" else run.config_file.mkdir()
    with pytest.raises(UserError, match=f"^{says}$"):
        runs.find("run").record()


# -------------------------------------------------------------------------------------------- the log


def flip_in_log(run: Run, line: int, old: bytes, new: bytes) -> None:
    lines = run.metrics_file.read_bytes().split(b"\n")
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    run.metrics_file.write_bytes(b"\n".join(lines))


def test_damage_in_the_log_is_named_with_its_lines(run):
    lines = run.metrics_file.read_bytes().count(b"\n")
    first = [json.loads(line)["step"] for line in run.metrics_file.read_bytes().splitlines()]
    until_5 = sum(step <= 5 for step in first)
    assert not run.log_remark(7) and not run.log_remark()
    flip_in_log(run, 2, b'"loss": 2', b'"loss": 3')
    assert f"a value in lines 1 to {until_5} changed since step 5 was saved; the weights are not" in run.log_remark(7)
    assert f"a value in lines 1 to {lines} changed since step 7 was saved" in run.log_remark(), (
        "summary.json knows it too"
    )
    flip_in_log(run, 2, b'"kind"', b'"kind\x00')
    assert "line 2 cannot be read since step 5 was saved" in run.log_remark(7)


def test_a_log_that_is_cut_off_or_gone_is_said(run):
    size = run.saved(7)["log"]["bytes"]
    os.truncate(run.metrics_file, 100)
    assert f"ends after 100 of the {size} bytes that were saved up to step 7" in run.log_remark(7)
    run.metrics_file.unlink()
    assert f"metrics.jsonl: is gone, with {size} bytes up to step 7" in run.log_remark(7)


def test_damage_after_the_last_save_is_written_anew_and_not_named(run, inside):
    """The row that the budget wrote out of turn, after the last that a resumed run keeps."""
    kept = run.saved(7)["log"]["bytes"]
    with open(run.metrics_file, "r+b") as file:
        file.seek(kept + 5)
        file.write(b"\x00")
    assert run.log_remark() and not run.log_remark(7)
    assert "metrics.jsonl" not in inside("train", "--resume", run.path, "--max-steps", STOP).stdout


def test_training_says_it_and_goes_on_with_what_can_be_read(run, inside):
    flip_in_log(run, 2, b'"kind"', b'"kind\x00')
    done = inside("train", "--resume", run.path, "--max-steps", 8)
    assert done.returncode == 0 and "metrics.jsonl: line 2 cannot be read" in done.stdout
    assert not run.log_remark(8), "the next save records the log as it is now"
    assert "metrics.jsonl" not in inside("train", "--resume", run.path, "--max-steps", 8).stdout


def test_a_log_is_digested_as_it_grows(tmp_path, monkeypatch):
    """A save does not read it again: what it costs does not grow with the run."""
    path = tmp_path / "metrics.jsonl"
    log = Log(path, 0)
    for step in range(1, 2001):
        log.write({"kind": "train", "step": step, "loss": 0.1})
    log.write({"kind": "train", "step": 2001, "loss": 0.2}, in_turn=False)
    began = time.perf_counter()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", None)
        records = [log.sync() for _ in range(20)]
    assert time.perf_counter() - began < 1
    data = path.read_bytes()
    kept = data[: data.rindex(b'{"kind"')]
    digest = bytes_digest()
    digest.update(kept)
    assert records[-1] == {"bytes": len(kept), "digest": digest.hexdigest()}
    assert log.written()["bytes"] == len(data)
    log.close()
    again = Log(path, 2000)
    assert again.sync() == records[-1], "and goes on from what is there"
    again.close()


# -------------------------------------------------------------------------------------- summary.json


def test_a_damaged_summary_is_refused_and_made_again(run, inside):
    done = inside("train", "--resume", run.path, "--max-steps", 0)
    assert "finished at step 10" in done.stdout
    finished, summary = run.summary_file.read_bytes(), run.summary()
    run.summary_file.write_bytes(finished.replace(b'"status": "finished"', b'"status": "finishee"'))
    with pytest.raises(UserError, match=r"summary\.json: is damaged; remove the file and repeat the run's command"):
        run.summary()
    done = inside("train", "--resume", run.path, "--max-steps", 0)
    assert "summary.json: is damaged; it is written again" in done.stdout
    again = run.summary()
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in summary.items() if k != "seconds"}
    flip_in_log(run, 1, b'"loss": 2', b'"loss": 3')
    done = inside("train", "--resume", run.path)
    assert "this run is finished" in done.stdout and "metrics.jsonl: a value in lines 1 to" in done.stdout


# ---------------------------------------------------------------------------------------- durability


def test_each_save_syncs_the_log_before_it_counts_and_a_new_run_its_name(tmp_path, monkeypatch):
    synced: list[str] = []
    fsync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda n: (synced.append(os.readlink(f"/proc/self/fd/{n}")), fsync(n))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (synced.append(f"{b} in place"), move(a, b))[1])
    folder = Run(tmp_path / "a" / "runs" / "new")

    def draw(*_: Any) -> str:
        folder.plots.mkdir()
        (folder.plots / "curves.png").touch()
        return ""

    monkeypatch.setattr(finish, "draw", draw)
    train(replace(TINY, max_steps=5), preset="digits", folder=folder)
    names = [Path(name).relative_to(tmp_path).as_posix() if name.startswith(str(tmp_path)) else "" for name in synced]
    config, saved = (names.index(f"a/runs/new/{name} in place") for name in ("config.json", "digests/5.json"))
    assert {".", "a", "a/runs"} <= set(names[:config]), "a folder's name is durable before anything lies in it"
    assert {"a/runs", "a"} <= set(names[config:saved])
    assert "a/runs/new/metrics.jsonl" in names[config:saved]
    assert "a/runs/new" in names[config + 1 : saved][1:], "its name, too, which is younger than that of config.json"
    summary = names.index("a/runs/new/summary.json in place")
    last = {f"a/runs/new/{name}" for name in ("metrics.jsonl", "plots/curves.png", "plots")}
    assert last <= {*names[saved:summary]}, "nothing is done again once there is a summary"
    assert folder.saved(5)["log"]["bytes"] == folder.metrics_file.stat().st_size


# ------------------------------------------------------------------------------------- strangers' runs

EVIL = "a\x1b[31m\x07\u202eb\ud800"  # colours, rings, turns what follows around, and cannot be encoded


def model(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["config"]["model"].update(fields)


def prepared(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda record: record["preprocess"].update(fields)


@pytest.mark.parametrize(
    "forge, says",
    {
        "two names of ten": (lambda r: r.update(class_names=["a", "b"]), "its class_names is not that of its network"),
        "names that are numbers": (lambda r: r.update(class_names=[0] * 10), "its class_names is damaged"),
        "a mean in words": (prepared(mean="half"), "its preprocess is damaged"),
        "another image": (prepared(image=[16, 16]), "its preprocess is not that of its network"),
        "a huge size": (prepared(size=10**9), "its preprocess is not that of its network"),
        "a deep network": (model(depth=10**9), "1000000000"),
        "registers": (model(registers=10**12), "1000000000000"),
        "pixels": (model(image=10**6), "1000000"),
        "positions": (model(image=16000, patch=1, position="sincos2d", position_trained=False), "positions"),
        "a task of texts": (lambda r: r["config"].update(task=["classify"]), "task \"['classify']\""),
        "a control character": (lambda r: r["config"].update(task=EVIL), r"a\x1b[31m\x07\u202eb\ud800"),
        "a field's name": (lambda r: r["config"].update({EVIL: 1}), r"a\x1b[31m\x07\u202eb\ud800 is no field"),
        "a field's value": (lambda r: r["config"]["optim"].update(lr=EVIL), "optim.lr is 'a"),
        "no batch": (lambda r: r["config"].update(batch=0), "batch is 0"),
        "other data": (lambda r: r.update(data=[1]), "its data is damaged"),
        "a preset of numbers": (lambda r: r.update(preset=5), "its preset is damaged"),
    }.values(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_stranger_states_is_checked_before_anything_is_made_of_it(run, rewrite_record, forge, says, inside):
    record = json.loads(json.dumps(run.record()))
    forge(record)
    rewrite_record(run, **record)
    began = time.process_time()
    done = inside("train", "--resume", run.path)
    assert time.process_time() - began < 1
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.rstrip().isprintable()


@pytest.mark.parametrize(
    "notes",
    [
        {"best": "x"},
        {"best": {"step": "x"}},
        {"best": {"step": 5, "weights": EVIL}},
        {"totals": {"steps": "x"}},
        {"totals": {}},
    ],
    ids=str,
)
def test_notes_of_a_stranger_are_damage_where_they_are_not_of_their_types(run, notes):
    for step in (5, 7):
        saved = run.saved(step)
        write_json(run.digest_file(step), with_digest({**saved, "notes": {**saved["notes"], **notes}}))
    with pytest.raises(UserError, match=r"checkpoint 7: its digest file is damaged; checkpoint 5: its digest"):
        Checkpoints(run).restore(TINY.model.shapes())


def test_names_of_classes_are_printed_without_what_steers_a_terminal(run, rewrite_record, inside):
    from PIL import Image

    Image.new("L", (8, 8)).save(run.path / "a.png")
    rewrite_record(run, class_names=[f"{EVIL}{k} \u0645\u06cc\u200c\u062e" for k in range(10)])
    done = inside("predict", run.path, run.path / "a.png")
    assert done.returncode == 0 and r"a\x1b[31m\x07\u202eb\ud800" in done.stdout
    assert not {"\x1b", "\x07", "\u202e"} & {*done.stdout} and "\u06cc\u200c\u062e" in done.stdout, "what writing needs"


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", "digests/7.json", ".lock"])
@pytest.mark.parametrize("what", ["pipe", "folder", "gigabyte", "link"])
def test_what_is_no_file_is_neither_waited_for_nor_written_through(run, name, what, tmp_path):
    file, victim = run.path / name, tmp_path / "mine"
    victim.write_text("mine")
    file.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    elif what == "link":
        file.symlink_to(victim)
    else:
        file.touch()
        os.truncate(file, 1 << 30)
    began = time.process_time()
    with contextlib.suppress(UserError), run.lock():
        run.check_paths()
        for read in (run.record, run.summary, run.metrics, run.steps, lambda: run.saved(7), lambda: run.log_remark(7)):
            with contextlib.suppress(UserError):
                read()
        Log(run.metrics_file, 7).close()
    assert time.process_time() - began < 2 and victim.read_text() == "mine"


# --------------------------------------------------------------------------------------- bit flips


def seen(run: Run) -> tuple[dict[str, Any], list[str]]:
    """(what resume, predict, evaluate and the display of a result read, the remarks). Raises UserError."""
    record = run.record()
    saved, skipped = Checkpoints(run).restore(run.config().model.shapes())
    assert saved is not None
    state = {"step": saved.state.step, "model": saved.state.parameters, "moments": saved.state.moments}
    arrays = {name: array_digest(x) for name, x in flatten({**state, "ema": saved.state.ema}).items()}
    log = run.metrics_file.read_bytes()[: run.saved(saved.step)["log"]["bytes"]]
    remarks = [*skipped, run.remark(), run.log_remark(saved.step)]
    try:
        summary = run.summary()
    except UserError as error:
        summary = None
        remarks.append(str(error))
    values = {"record": record, "arrays": arrays, "notes": saved.notes, "log": log, "summary": summary}
    return values, [remark for remark in remarks if remark]


def judged(run: Run, sound: dict[str, Any]) -> str:
    """How a damaged run is taken: "refused", "named", "equal" or "silent"."""
    try:
        values, remarks = seen(run)
    except UserError:
        return "refused"
    if remarks:
        same = values["record"] == sound["record"]  # a remark does not excuse going on with another config
        return "named" if same else "silent"
    return "equal" if values == sound else "silent"


KINDS = {
    "config.json": "config.json",
    "digests": "digests/*.json",
    "metrics.jsonl": "metrics.jsonl",
    "summary.json": "summary.json",
    "checkpoints": "checkpoints/**/*",
}


def flips(run: Run, count: int, seed: int = 0) -> dict[str, Counter[str]]:
    """{kind of file: how often each judgement came} of single bits flipped, as many in each kind."""
    sound, _ = seen(run)
    draw, table = random.Random(seed), {kind: Counter[str]() for kind in KINDS}
    for i in range(count):
        kind = list(KINDS)[i % len(KINDS)]
        file = draw.choice([p for p in sorted(run.path.glob(KINDS[kind])) if p.is_file() and p.stat().st_size])
        before = file.read_bytes()
        data, bit = bytearray(before), draw.randrange(8 * len(before))
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        judgement = judged(run, sound)
        table[kind][judgement] += 1
        assert judgement != "silent", (file, bit)
        file.write_bytes(before)
    return table


def test_a_summary_without_its_digest_is_damaged(run):
    run.summary_file.write_text(run.summary_file.read_text().replace('"digest"', '"digesu"'))
    with pytest.raises(UserError, match="is damaged"):
        run.summary()


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_no_bit_flips_unnoticed(run, count):
    table = flips(run, count)
    print("\n".join(f"{kind:14} {dict(counts)}" for kind, counts in table.items()))
    named = [table[kind]["named"] for kind in ("config.json", "digests", "metrics.jsonl", "summary.json")]
    assert sum(named) > count / 3 and (all(named) or count < 100), "of a few, times decide which bits are flipped"
