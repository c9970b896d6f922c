"""Runs of earlier versions: folders of format 1 resume, are measured and converted, or are refused in one sentence."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from convert.dialects.own import run_facts
from vit_jax.config import RunConfig, TransformerConfig, from_dict, to_dict
from vit_jax.config.formats import FORMAT, cannot_go_on, upgraded
from vit_jax.errors import UserError
from vit_jax.presets import PRESETS, preset
from vit_jax.runs import Run
from vit_jax.training import finish

# Each was made by the version before format 2 and stopped at step 8; uninterrupted.jsonl is of the run that was not.
FIXTURES = Path(__file__).parent / "fixtures"
OLD = {"classify": "--max-steps 12", "translate": "--max-steps 12"}


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "runs" / "old"
    with tarfile.open(FIXTURES / f"run-format-1-{request.param}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("old", OLD, indirect=True)
def test_a_run_of_format_1_goes_on_as_it_would_have(old, inside, monkeypatch):
    """Losses are compared to 1e-5, as they were computed on another machine. Figures are drawn of one of the two."""
    task = json.loads((old / "config.json").read_text())["config"]["task"]
    steps = OLD[task]
    if task == "translate":
        monkeypatch.setattr(finish, "draw", lambda *_: None)
    done = inside("train", "--resume", old, *steps.split(), "--log-every", 1)
    assert done.returncode == 0, done.stderr
    expected = [json.loads(line) for line in (old / "uninterrupted.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["loss"] for row in expected if row["kind"] == "train"}
    found = {row["step"]: row["loss"] for row in Run(old).metrics() if row["kind"] == "train"}
    assert list(found) == list(range(1, 13))
    for step, loss in found.items():
        assert loss == pytest.approx(losses[step], rel=1e-5), step


@pytest.mark.parametrize("old", OLD, indirect=True)
def test_a_run_of_format_1_keeps_only_what_its_task_read(old):
    record = Run(old).record()
    run = from_dict(RunConfig, record["config"])
    assert to_dict(run)["format"] == FORMAT == 4
    assert from_dict(RunConfig, to_dict(run)) == run
    dropped = {
        f"{part}.{name}"
        for part in ("data", "augment")
        for name in record["config"][part].keys() - to_dict(run)[part].keys()
    }
    images = {"dir", "fit", "size", "interpolation", "background", "skip_unreadable", "memory", "threads"}
    expected = {
        "classify": {"data.tokens", "data.lengths", "data.shuffle_sources"},
        "translate": {
            *(f"data.{name}" for name in images),
            "augment.crop_padding",
            "augment.flip",
            "augment.normalize",
        },
    }
    assert dropped == expected[run.task]


@pytest.mark.parametrize("old", ["classify"], indirect=True)
def test_a_float64_run_of_format_1_that_drew_crops_is_refused_but_can_be_measured(old, inside):
    record = json.loads((old / "config.json").read_text())
    record["config"]["compute_dtype"] = "float64"
    (old / "config.json").write_text(json.dumps(record))
    before = sorted(p.name for p in old.rglob("*"))
    done = inside("train", "--resume", old)
    assert (
        done.returncode == 2 and "drew crops and flips in float64" in done.stderr and len(done.stderr.splitlines()) == 1
    )
    assert set(before) <= {p.name for p in old.rglob("*")} and not (old / "summary.json").exists()
    assert inside("evaluate", old).returncode == 0 and not jax.config.jax_enable_x64
    # Nor does a conversion make it one that goes on.
    refused = inside("convert", old, old.with_name("new"))
    assert (
        refused.returncode == 2
        and "drew crops and flips in float64" in refused.stderr
        and not old.with_name("new").exists()
    )


@pytest.mark.parametrize(
    ("record", "refused"),
    [
        ({"format": 1, "config": {"compute_dtype": "float64", "augment": {"flip": True}}}, True),
        ({"format": 1, "config": {"compute_dtype": "float64", "augment": {"crop_padding": 1}}}, True),
        ({"format": 1, "config": {"compute_dtype": "float64", "augment": {"flip": False, "crop_padding": 0}}}, False),
        ({"format": 1, "config": {"compute_dtype": "float32", "augment": {"flip": True}}}, False),
        ({"format": 3, "config": {"format": 3, "compute_dtype": "float64", "augment": {"flip": True}}}, False),
        ({"format": 1, "config": {"task": "translate", "compute_dtype": "float64", "augment": {"flip": True}}}, False),
        ({"format": 1, "config": {"overfit_batches": 2, "compute_dtype": "float64", "augment": {"flip": True}}}, False),
    ],
)
def test_only_runs_whose_draws_changed_are_refused(record, refused):
    assert bool(cannot_go_on(record)) == refused


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_json(name):
    run = preset(name).run
    assert from_dict(RunConfig, json.loads(json.dumps(to_dict(run)))) == run
    assert next(iter(to_dict(run))) == "format"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": 5, "task": "classify"}, "format 5 is not 4"),
        ({"format": 3, "task": "clasify"}, "task 'clasify' is not known to this version of vit-jax; nearest: classify"),
        ({"format": 3}, "task is missing"),
        ({"format": 3, "task": "classify", "data": {"tokens": 5}}, "there is no field data.tokens; nearest: "),
        ({"format": 3, "task": "translate", "augment": {"flip": True}}, "there is no field augment.flip"),
        ({"format": 3, "task": "classify", "model": 5}, "model is 5, which is not a group of fields"),
        ("digits", "str is not a group of fields"),
        ([], "list is not a group of fields"),
    ],
)
def test_what_is_no_config_is_refused_in_one_sentence(values, message):
    with pytest.raises(UserError) as error:
        from_dict(RunConfig, values)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_task_that_this_version_does_not_know_is_one_sentence_at_every_door(tmp_path, inside):
    folder = tmp_path / "runs" / "later"
    Run(folder).create({"preset": "digits", "config": {"format": 3, "task": "captoin"}, "data": None})
    for command in (("train", "--resume", folder), ("evaluate", folder), ("predict", folder, "x.png")):
        done = inside(*command)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "the task 'captoin' is not known to this version of vit-jax" in done.stderr


def test_a_config_that_names_no_task_is_of_images_as_it_was_then(tmp_path):
    folder = Run(tmp_path / "old")
    config = {"epochs": 3, "model": {"image": 8, "channels": 1, "patch": 4, "classes": 2}}
    old = {"preset": "digits", "config": config, "data": None, "class_names": ["0", "1"], "preprocess": PREPROCESS}
    folder.path.mkdir()
    folder.config_file.write_text(json.dumps({"format": 1, **old}))
    assert folder.record()["class_names"] == ["0", "1"] and not folder.remark()
    assert folder.config().task == "classify" and folder.config().epochs == 3


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("class_names", 5), ("class_names", [1]), ("preprocess", {}), ("preprocess", {**PREPROCESS, "mean": ["a"]})],
)
def test_what_a_run_keeps_is_checked_before_it_is_used(tmp_path, name, value):
    folder = Run(tmp_path / "run")
    config = to_dict(preset("digits").run)
    folder.create(
        {"preset": "digits", "config": config, "data": None, "class_names": [], "preprocess": PREPROCESS, name: value}
    )
    with pytest.raises(UserError, match=f"its {name} is damaged; restore the file"):
        folder.record()


def test_upgrading_leaves_what_it_is_given_as_it_was():
    values = {"task": "translate", "data": {"tokens": 5, "fit": "crop"}, "augment": {"flip": True}}
    assert upgraded(values) == {"task": "translate", "data": {"tokens": 5}, "augment": {}}
    assert values["augment"] == {"flip": True} and "fit" in values["data"]


def test_a_field_that_was_renamed_is_read_by_its_old_name_from_runs_and_from_files(tmp_path):
    run = replace(preset("numbers").run, model=replace(preset("numbers").run.model, position="learned"))
    values = to_dict(run)
    values["model"]["positions"] = values["model"].pop("position")
    older = {**values, "format": 2}
    assert from_dict(RunConfig, older) == run and upgraded(older)["model"]["position"] == "learned"
    assert from_dict(TransformerConfig, values["model"]) == run.model
    assert run_facts({"config": older}).config["position"] == "learned"
    with pytest.raises(UserError, match=r"there is no field positions"):
        from_dict(TransformerConfig, {"position": "none", "positions": "learned"})
