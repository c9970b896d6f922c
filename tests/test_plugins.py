"""Names of other packages: found by their entry points, listed, refused in a sentence, never in the way of a run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

import vit_jax
from vit_jax.commands import cli
from vit_jax.config.network import NetworkConfig
from vit_jax.errors import UserError
from vit_jax.models.networks import NETWORKS, network_named
from vit_jax.models.vit_config import ViTConfig
from vit_jax.plugins import HOOKS, Plugin, Table
from vit_jax.runs import Run
from vit_jax.tasks.image_spec import ImageSpec
from vit_jax.tasks.table import TASKS, untrained_run
from vit_jax.training.hooks import Hook


def package(folder, name, code, **groups):
    """A package of one file with entry points {group: {name: what it stands for}}, as pip leaves it in a folder."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = [
        f"[vit_jax.{group}]\n" + "\n".join(f"{k} = {v}" for k, v in each.items()) for group, each in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def run(folder, *words):
    """(exit code, stdout, stderr) of `vit-jax` in a process that finds the packages of a folder."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_command_of_a_package_is_listed_and_runs_and_one_that_cannot_be_loaded_harms_nothing(tmp_path):
    code = "import sys\ndef main():\n    print('hello', sys.argv)\n    return 3\n"
    package(tmp_path, "greeter", code, commands={"hello": "greeter:main", "train": "greeter:main"})
    package(tmp_path, "torn", "import nothing_like_it", commands={"torn": "torn:main"}, presets={"torn": "torn:run"})
    code, out, err = run(tmp_path, "hello", "--you")
    assert code == 3 and out == "hello ['python -m vit_jax hello', '--you']\n"
    assert err == "note     the command 'train' of the package greeter is not used: vit-jax has that name\n"
    code, out, err = run(tmp_path, "torn")
    assert code == 2 and "error: the command 'torn' of the package torn: cannot be loaded (ModuleNotFoundError: " in err
    code, out, err = run(tmp_path, "train", "torn")
    assert code == 2 and "the preset 'torn' of the package torn: cannot be loaded (ModuleNotFoundError: " in err
    code, out, _ = run(tmp_path)
    assert code == 0 and "  hello      of the package greeter" in out
    code, out, _ = run(tmp_path, "plugins")
    assert code == 0 and "hello: greeter, greeter:main" in out
    code, out, err = run(tmp_path, "train", "--help")
    assert code == 0 and "  digits " in out and err.count("note ") == 1


@pytest.mark.parametrize(
    ("table", "use", "base", "abstract"),
    [
        (NETWORKS, lambda: network_named("ViT"), "NetworkConfig", NetworkConfig),
        (TASKS, lambda: untrained_run(ViTConfig()), "TaskSpec", ImageSpec),
    ],
)
def test_what_is_no_network_or_task_is_blamed_on_its_package_and_harms_no_other_name(
    table, use, base, abstract, monkeypatch, capsys
):
    expected = use()
    wrong = {"number": 7, "other": dict, "bare": abstract}
    for name, target in wrong.items():
        monkeypatch.setitem(table.others, name, Plugin(target, package="wrong"))
    monkeypatch.setattr(table, "_left_out", set())
    assert use() == expected and set(table) == set(table.ours)
    said = capsys.readouterr().err.splitlines()
    start = f"note     the {table.kind} "
    assert len(said) == len(wrong) and all(line.startswith(start) and "it is left out" in line for line in said)
    assert (
        f"{start}'other' of the package wrong: cannot be loaded (TypeError: it is no subclass of {base}); " in said[1]
    )
    with pytest.raises(UserError, match=rf"{table.kind} 'bare' of the package wrong: .* lacks "):
        table["bare"]


def test_our_own_names_are_loaded_without_a_look_at_other_packages(monkeypatch):
    monkeypatch.setattr("vit_jax.plugins._entry_points", lambda: pytest.fail("looked"))
    table = Table("thing", "things", {"one": Plugin("vit_jax.errors:UserError")})
    with table.blaming("one"):
        assert "one" in table and table["one"] is UserError


def test_every_table_is_listed(capsys):
    tables = [name for name, value in vars(cli).items() if isinstance(value, Table)]
    cli._list_plugins([])
    lines = capsys.readouterr().out
    assert len(tables) > 5 and all(f"{vars(cli)[name].group:14}" in lines for name in tables)
    assert all(plugin.says for plugin in vars(cli)["COMMANDS"].ours.values())


class Noting(Hook):
    """Notes what it is called for, and fails where its argument says."""

    seen: ClassVar[list[str]] = []

    def note(self, what):
        self.seen.append(what)
        if what == self.argument:
            raise RuntimeError("broken")

    def check(self, run):
        self.note("check")

    def begin(self, folder, run, step):
        self.note("begin")

    def due(self, step):
        return step == 2

    def before(self, state, batch):
        self.note(f"before {state.step + 1} {batch['image'].shape}")

    def step(self, state, metrics):
        self.note(f"step {state.step} {'loss' in metrics}")

    def row(self, step, values):
        self.note(f"row {step} {next(iter(values)).partition('/')[0]}")

    def saved(self, state):
        self.note(f"saved {state.step}")

    def end(self, folder, again):
        self.note(f"end {again} {(folder.path / 'summary.json').exists()}")

    def close(self):
        self.note("close")


@pytest.mark.parametrize("fails", ["", "begin", "end False True"])
def test_a_hook_of_a_package_is_called_around_a_run_and_its_failure_loses_nothing(tmp_path, monkeypatch, capsys, fails):
    monkeypatch.setitem(HOOKS.others, "noting", Plugin(Noting, package="notes"))
    monkeypatch.setattr(Noting, "seen", [])
    run = vit_jax.preset("digits").run
    fields = {"hooks": (f"noting:{fails}",), "max_steps": 4, "steps_per_dispatch": 2, "log_every": 2}
    folder = tmp_path / "run"
    vit_jax.train(run, folder=folder, fields=fields)
    called = ["check", "begin", "before 2 (32, 8, 8, 1)", "step 2 True", "row 2 train", "row 4 train", "saved 4"]
    called += ["end False True", "close"]
    assert Noting.seen == ([*called[: called.index(fails) + 1], "close"] if fails else called)
    said = capsys.readouterr().out
    why = f"has failed in {fails.partition(' ')[0]} (RuntimeError: broken) at test_plugins.py, line "
    left_out = rf"the hook 'noting' of the package notes {re.escape(why)}\d+; the run goes on without it"
    assert bool(re.search(left_out, said)) == bool(fails)
    assert json.loads((folder / "summary.json").read_text())["step"] == 4
    assert json.loads((folder / "config.json").read_text())["config"]["hooks"] == [f"noting:{fails}"]
    with pytest.raises(UserError, match=r"^hooks 'nothing' is none: give noting"):
        vit_jax.train(run, folder=tmp_path / "other", fields={"hooks": ("nothing",)})
    for given, said in ((("noting:1", "noting:2"), "is there twice: give once"), (("wandb:x",), "field of its own")):
        with pytest.raises(UserError, match=said):
            vit_jax.train(run, folder=tmp_path / "other", fields={"hooks": given})
    assert not (tmp_path / "other").exists()


def example(title):
    """The code of a section of CONTRIBUTING.md."""
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^## {title}$.*?```python\n(.*?)```", page, re.M | re.S)
    return code


def test_the_hook_and_the_command_of_the_page_do_what_it_says(tmp_path):
    package(tmp_path, "patience", example("A hook"), hooks={"stop-when": "patience:StopWhen"})
    package(tmp_path, "podium", example("A command"), commands={"best": "podium:main"})
    words = ["train", "digits", "--epochs", "2", "--log-every", "1", "--dir", str(tmp_path), "--hooks"]
    code, _, err = run(tmp_path, *words, "stop-when:low")
    assert code == 2 and "hooks: stop-when:low is no loss; give a number" in err and not (tmp_path / "digits").exists()
    code, _, err = run(tmp_path, *words, "stop-when:2")
    losses = [row["loss"] for row in Run(tmp_path / "digits").metrics()]
    assert code == 130 and "SIGINT: saved at step " in err and losses[-1] < 2 <= min(losses[:-1])
    assert run(tmp_path, *words, "stop-when:0")[0] == 0
    code, out, _ = run(tmp_path, "best", str(tmp_path / "digits"), "--metric", "accuracy")
    assert code == 0 and out.split()[0] == f"{tmp_path}/digits" and 0 < float(out.split()[2]) <= 1
    assert "the metric to print (default: loss)" in " ".join(run(tmp_path, "best", "--help")[1].split())
    for words, said in ((["--metric", "f1"], "metric f1: the run has none of that name; choose from step, "),
                        (["--metrics", "f1"], "no field --metrics; nearest: metric")):  # fmt: skip
        code, _, err = run(tmp_path, "best", str(tmp_path / "digits"), *words)
        assert code == 2 and said in " ".join(err.split())
