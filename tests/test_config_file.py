"""`--config FILE` of vit_jax.train: a printed config trains the same run; what is no config is one sentence."""

import json
import os
from dataclasses import replace

import pytest

from vit_jax import errors
from vit_jax.commands import train as train_command
from vit_jax.config.run import RunConfig
from vit_jax.files import terminal
from vit_jax.presets.table import PRESETS, preset
from vit_jax.runs.values import flat, to_dict


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys, *words) -> str:
    """What --print-config prints."""
    assert train_command.command([*words, "--print-config"]) == 0
    return capsys.readouterr().out


def run_of(*words) -> RunConfig:
    return train_command.parse([*words])[1].run()


@pytest.mark.parametrize("name", [*PRESETS, "vit-ti8"])
def test_a_printed_config_is_the_same_run(name, capsys, place):
    words = [name, "--epochs", "7", "--optim.lr", "0.01", "--seed", "3", "--dir", "elsewhere", "--max-steps", "9"]
    (place / "a.json").write_text(printed(capsys, *words))
    assert run_of("--config", "a.json") == run_of(*words) != preset(name).run
    assert printed(capsys, "--config", "a.json") == (place / "a.json").read_text()


def test_flags_go_over_the_file_and_the_file_over_the_preset(place):
    (place / "a.json").write_text(
        json.dumps({"epochs": 7, "batch": 8, "optim": {"lr": 0.5}, "model": {"patch": [2, 4]}})
    )
    expected = {"epochs": 9, "batch": 8, "optim.lr": 0.5, "model.patch": (2, 4)}
    for words in (["mnist"], []):
        run = run_of(*words, "--epochs", "9", "--config", "a.json")
        base = flat(preset(words[0] if words else "digits").run)
        assert {name: v for name, (v, _) in flat(run).items() if v != base[name][0]} == expected


def test_a_file_without_a_preset_names_the_run_and_tells_the_task(place):
    (place / "mine.json").write_text(json.dumps({"task": "translate", "batch": 3}))
    name, options, _ = train_command.parse(["--config", "mine.json"])
    assert name == "mine" and options.run() == replace(preset("numbers").run, batch=3)
    assert train_command.parse(["numbers", "--config", "mine.json"])[0] == "numbers"


def test_a_runs_own_config_json_is_taken_too(place):
    record = {"format": 4, "preset": "mnist", "config": to_dict(preset("mnist").run), "data": None}
    (place / "config.json").write_text(json.dumps(record))
    name, options, _ = train_command.parse(["--config", "config.json"])
    assert (name, options.run()) == ("mnist", preset("mnist").run)
    (place / "config.json").write_text(json.dumps({**record, "preset": "../../x"}))
    assert train_command.parse(["--config", "config.json"])[0] == "config"


@pytest.mark.parametrize(
    ("content", "sentence"),
    {
        "": "is not JSON (Expecting value",
        '{"epochs": 3': "is not JSON (Expecting ',' delimiter",
        "[1]": "holds no JSON object",
        '{"epoch": 3}': "epoch is no field; nearest: epochs",
        '{"epochs": "3"}': "epochs is '3'; give a whole number",
        '{"optim": 3}': "optim is 3; give a group of fields",
        '{"optim": {"lr": NaN}}': "is not JSON (NaN is not a number in JSON)",
        '{"optim": {"lr": 1e999}}': "optim.lr is inf: give a finite number",
        '{"epochs": 1, "epochs": 2}': "is not JSON (the key 'epochs' occurs twice)",
        '{"format": 99, "epochs": 2}': "format 99 is not ",
        '{"format": 1, "preset": "digits", "config": {"epochs": 2}}': "format 1 is not 4",
        '{"task": "detect"}': "task 'detect' is not known",
        '{"task": "translate"}': "task is translate, but the preset is one of classify",
        '{"name": "../../x"}': "name is '../../x': give the name of one folder",
        '{"name": "\\u001b[31m"}': r"name is '\x1b[31m'",
        '{"\\u001b[31m": 1}': r"\x1b[31m is no field",
        '{"epochs": "' + "x" * 5000 + '"}': "xxx...x",
        '{"a": ' * 3000: "is not JSON (",
        '{"epochs": ' + "9" * 5000 + "}": "is not JSON (Exceeds the limit",
        " " * (2 << 20): "has more than 1 MB",
    }.items(),
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_config_is_one_sentence(content, sentence, place, capsys):
    (place / "bad.json").write_text(content)
    assert terminal.run_command(lambda: train_command.command(["digits", "--config", "bad.json"])) == errors.USER
    error = capsys.readouterr().err
    assert error.startswith("vit-jax: error: ") and sentence in error
    assert error.count("\n") == 1 and error.strip().isprintable() and len(error) < 800
    assert [p.name for p in place.iterdir()] == ["bad.json"]


@pytest.mark.parametrize("path", ["nothing.json", ".", "/dev/zero", "pipe", "x" * 5000])
def test_what_is_no_file_is_one_sentence_and_is_not_waited_for(path, place, capsys):
    os.mkfifo(place / "pipe")
    assert terminal.run_command(lambda: train_command.command(["--config", path])) == errors.USER
    error = capsys.readouterr().err
    assert error.startswith(f"vit-jax: error: --config {path[:50]}") and error.count("\n") == 1 and len(error) < 1000
