"""Comparing runs: the table against hand-counted values, the curves, and folders that are no runs."""

import json
import os
import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax import runs
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import CheckFailed, Interrupted, UserError
from vit_jax.figures import curves as comparison
from vit_jax.files.atomic import write_json
from vit_jax.files.digests import with_digest
from vit_jax.files.output import print_table, text_width
from vit_jax.presets.table import preset
from vit_jax.reports import compare
from vit_jax.runs import several
from vit_jax.runs.folder import recorded_ending

BASE = replace(preset("digits").run, model=replace(preset("digits").run.model, classes=10))
DATA = {"name": "digits", "sizes": {"train": 8, "test": 2}, "content": "c", "version": 2}


def made(path, run=BASE, *, seed=0, accuracy=0.9, epochs=4, ended="finished", test=True, data=DATA, weights="raw"):
    """A run's folder, as training leaves it: two rows of training and one evaluation of both weights in each epoch."""
    folder = runs.Run(path)
    names, preprocess = [str(k) for k in range(10)], {"image": [8, 8], "channels": 1, "fit": "crop", "size": 0}
    preprocess |= {"interpolation": "bilinear", "background": 255, "mean": [0.3], "std": [0.4]}
    kept = {"class_names": names, "preprocess": preprocess}
    folder.create(runs.record_of(replace(run, seed=seed), "digits", data=data, **kept))
    rows = []
    for epoch in range(1, epochs + 1):
        for half in (epoch - 0.5, epoch):
            row = {"kind": "train", "step": int(half * 10), "epoch": half, "loss": 2 / half + seed, "lr": 1e-3}
            rows.append(row | {"cpu_seconds": 3 * half})
        for kind, more in (("raw", 0.0), ("ema", 0.05)):
            value = accuracy * epoch / epochs + more
            evaluation = {"kind": "eval", "split": "validation", "weights": kind, "step": epoch * 10, "epoch": epoch}
            rows.append({**evaluation, "loss": 1 - value, "accuracy": value})
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ended:
        best = {"step": epochs * 10, "accuracy": accuracy, "loss": 1 - accuracy, "weights": weights}
        summary = {"status": ended, "step": epochs * 10, "epoch": float(epochs), "seconds": 10.0 + seed, "best": best}
        tested = {"last": {"accuracy": 0.1, "loss": 9.0}, "best": {"accuracy": accuracy - 0.1, "loss": 0.5}}
        folder.write_summary({**summary, **({"test": tested} if test else {})}, {})
    return folder


def model(**fields):
    return replace(BASE, model=replace(BASE.model, **fields))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def shown(capsys, *arguments) -> str:
    capsys.readouterr()
    assert compare.command([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def ablation() -> None:
    """Three positions, three seeds each."""
    for k, position in enumerate(("learned", "none", "sincos2d")):
        for seed in range(3):
            made(
                f"runs/{position}/seed-{seed}", model(position=position), seed=seed, accuracy=0.9 - k / 10 + seed / 100
            )


def test_runs_that_were_selected_by_different_metrics_are_compared_by_each():
    made("runs/plain", accuracy=0.9)
    folder = made("runs/even", accuracy=0.8)
    rows = [row | {"balanced_accuracy": 0.7} for row in map(json.loads, folder.metrics_file.read_text().splitlines())]
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    best = {"step": 40, "balanced_accuracy": 0.7, "loss": 0.2, "weights": "raw"}
    folder.write_summary({"status": "finished", "step": 40, "epoch": 4.0, "seconds": 10.0, "best": best}, {})
    found = vit_jax.compare("runs/even", "runs/plain")
    even, plain = (line["results"] for line in found["lines"])
    assert even["validation balanced_accuracy"]["values"] == [0.7]
    assert even["validation accuracy"]["values"] + plain["validation accuracy"]["values"] == pytest.approx([0.8, 0.9])


def test_a_group_is_one_line_with_mean_and_standard_deviation(capsys):
    ablation()
    table = vit_jax.compare()
    assert [(line["name"], line["runs"], line["status"]) for line in table["lines"]] == [
        (name, 3, "finished") for name in ("learned", "none", "sincos2d")
    ]
    assert [line["fields"] for line in table["lines"]] == [
        {"model.position": name} for name in ("learned", "none", "sincos2d")
    ]
    values = [0.9, 0.91, 0.92]
    first = table["lines"][0]["results"]
    for name, by in (("validation accuracy", 0), ("test accuracy", -0.1)):
        assert first[name]["values"] == pytest.approx([v + by for v in values])
        assert first[name]["mean"] == pytest.approx(0.91 + by)
        assert first[name]["std"] == pytest.approx(statistics.stdev(values))
    assert first["seconds"]["mean"] == 11 and first["core-seconds"]["mean"] == 12 and first["best epoch"]["mean"] == 4
    assert first["parameters"]["mean"] > table["lines"][1]["results"]["parameters"]["mean"]  # no positions, fewer
    out = shown(capsys)
    line = next(line for line in out.splitlines() if line.startswith("learned"))
    assert line.split()[:4] == ["learned", "learned", "3", "0.9100"] and "+-0.0100" in line and " 11 +-1 " in line
    assert not table["notes"] and "note" not in out and out.endswith("curves are in runs/comparison.png\n")


def test_single_runs_show_every_identity_field_that_differs_and_budgets(capsys):
    made("runs/a", replace(BASE, name="a", keep=7, max_steps=30))
    made("runs/b", replace(model(width=128, heads=8), name="b", keep=1), seed=5)
    fields = vit_jax.compare("a", "b")["lines"][1]["fields"]
    assert fields == {"model.width": 128, "model.heads": 8, "seed": 5, "max_steps": 0}
    assert vit_jax.compare("a")["lines"][0]["fields"] == {}
    assert "runs" not in shown(capsys, "a", "b").splitlines()[1].split()


def test_results_are_those_of_the_weights_that_validation_chose():
    made("runs/raw")
    made("runs/ema", replace(BASE, ema=0.9), weights="ema")
    lost = made("runs/lost", replace(BASE, ema=0.9), weights="ema")  # its best weights could not be tested
    summary = lost.summary()
    del summary["test"]["best"]
    lost.write_summary(summary, {})
    found = compare.gather([])
    assert {line.name: line.members[0].kind for line in found.lines} == {"ema": "ema", "lost": "ema", "raw": "raw"}
    assert found.results["test loss"] == [[0.5], [9.0], [0.5]]


def test_what_has_no_validation_or_no_test_or_no_end_is_shown_as_far_as_it_is(capsys):
    made("runs/whole")
    made("runs/untested", test=False)
    made("runs/going", ended="", epochs=2)
    made("runs/budget", ended="stopped: max_steps")
    bare = made("runs/bare")
    summary = {"status": "finished", "step": 7, "epoch": 1.0, "seconds": 1.0, "best": None}
    bare.write_summary({**summary, "test": {"last": {"accuracy": 0.5, "loss": 1.0}}}, {})
    table = {line["name"]: line for line in vit_jax.compare()["lines"]}
    assert "test accuracy" not in table["untested"]["results"] and "validation loss" not in table["bare"]["results"]
    assert table["bare"]["results"]["test accuracy"]["mean"] == 0.5
    assert table["going"]["status"] == "lost" and table["going"]["results"]["steps"]["mean"] == 20
    out = shown(capsys)
    assert "note: going is not finished (lost): its results are those so far" in out
    assert "note: budget is not finished (stopped: max_steps)" in out


def test_each_run_says_how_it_ended(capsys):
    made("runs/seeds/seed-0")
    ends = {"diverged": CheckFailed("the loss is nan at step 7; the last good ..."), "killed": KeyboardInterrupt()}
    ends |= {
        "told": Interrupted("SIGTERM: saved at step 4; go on with: ...", "SIGTERM"),
        "full": UserError("x", "full"),
    }
    for name, error in ends.items():
        folder = made(f"runs/{name}", ended="stopped: max_steps")
        with pytest.raises(type(error)), recorded_ending(folder):
            raise error
    made("runs/seeds/seed-1", ended="", epochs=2)
    made("runs/moved", ended="").metrics_file.unlink()
    Path("runs/moved/provenance.json").touch()
    ours = made("runs/ours", ended="")
    with ours.lock():
        found = {line["name"]: line["status"] for line in vit_jax.compare()["lines"]}
    assert found == {
        "diverged": "diverged: the loss is nan at step 7", "full": "stopped: x: full", "told": "stopped: SIGTERM",
        "killed": "stopped: KeyboardInterrupt", "moved": "converted, not trained", "ours": "running",
        "seeds": "finished, lost",
    }  # fmt: skip
    rows = [line.split() for line in shown(capsys).splitlines()]
    assert [row[-1] for row in rows if row[0] in ("ours", "diverged")] == ["diverged", "lost"]
    assert next(row for row in rows if row[0] == "seeds")[-4:] == ["1", "finished,", "1", "lost"]


def test_cpu_time_is_unknown_where_some_steps_did_not_log_it():
    log = made("runs/old").metrics_file
    first, *rows = log.read_text().splitlines()
    assert "core-seconds" in vit_jax.compare()["lines"][0]["results"]
    row = {name: value for name, value in json.loads(first).items() if name != "cpu_seconds"}
    log.write_text("\n".join([json.dumps(row), *rows, ""]))
    assert "core-seconds" not in vit_jax.compare()["lines"][0]["results"]
    nothing = [json.dumps({**json.loads(line), "cpu_seconds": 0.0}) for line in (first, *rows)]
    log.write_text("\n".join([*nothing, ""]))
    assert "core-seconds" not in vit_jax.compare()["lines"][0]["results"], "all of it was compilation"


def test_folders_that_are_no_runs_or_damaged_are_named_in_a_line_each(capsys):
    made("runs/good")
    made("runs/group/seed-0")
    for name, text in {"hf": '{"model_type": "vit"}', "cut": '{"format', "group/seed-1": "[]"}.items():
        Path("runs", name).mkdir()
        Path("runs", name, "config.json").write_text(text)
    evil = Path("runs/\x1b[31mred")
    evil.mkdir()
    (evil / "config.json").write_text('{"format": 3, "preset": "\\u001b]0;x\\u0007"}')
    made("runs/summary").summary_file.write_text('{"status": 3}')
    log = made("runs/log").metrics_file
    log.write_text('{"kind": "eval", "step": 3, "split": "validation", "epoch": {}, "loss": "x"}\nno row\n')
    deep = made("runs/deep").config_file
    record = json.loads(deep.read_text())
    del record["digest"]
    deep.write_text(json.dumps({**record, "config": {**record["config"], "model": {"depth": 10**9}}}))
    os.mkfifo(Path("runs/good/plots.fifo"))
    out = shown(capsys)
    left_out = [line.split()[1] for line in out.splitlines() if " is left out: " in line]
    assert left_out == [r"\x1b[31mred", "cut", "deep", "group/seed-1", "hf", "summary"]
    assert out.replace("\n", "").isprintable() and "Traceback" not in out
    assert [line["name"] for line in vit_jax.compare()["lines"]] == ["good", "group", "log"]
    with pytest.raises(UserError, match=r"hf is left out: .*another program's"):
        compare.gather(["hf"])


def test_a_seed_without_a_run_is_named_and_one_that_lost_its_config_is_read_from_a_checkpoint(capsys):
    for seed in range(3):
        made(f"runs/group/seed-{seed}", seed=seed)
    for seed in (1, 2):
        folder = runs.Run(f"runs/group/seed-{seed}")
        saved = {"step": 40, "notes": {}, "arrays": {"model": {}, "optimizer": {}}, "config": folder.record()}
        if seed == 2:
            write_json(folder.digest_file(40), with_digest(saved))
        folder.config_file.unlink()
    Path("runs/group/seed-notes").mkdir()
    notes = shown(capsys).split("note: ")[1:]
    assert len(notes) == 2 and notes[0] == "group/seed-1 is left out: it holds no run\n"
    assert "its copy in checkpoint 40 is used" in notes[1]
    assert vit_jax.compare()["lines"][0]["results"]["validation accuracy"]["values"] == [0.9, 0.9]


def test_runs_of_several_tasks_and_data_sets_are_said_to_be(capsys):
    made("runs/a")
    made("runs/b", data={**DATA, "content": "other"})
    assert "note: the data of digits was not the same for all runs" in shown(capsys)
    made("copies/a")
    made("copies/b", replace(BASE, data=replace(BASE.data, source="copy.npz")))
    assert "note" not in shown(capsys, "copies")
    sentences = preset("numbers").run
    c = runs.Run("runs/c")
    words = {side: ["<pad>", "<bos>", "<eos>", *map(str, range(40))] for side in ("source", "target")}
    sizes = {"source_vocabulary": 43, "target_vocabulary": 43, "outputs": 43}
    run = replace(sentences, model=replace(sentences.model, **sizes))
    c.create(runs.record_of(run, "numbers", data=None, vocabulary=words))
    out = shown(capsys)
    assert isinstance(run.data, SentenceData)
    assert "the runs are of 2 tasks (classify, translate): their metrics cannot be compared" in out
    assert "the runs are of 2 data sets (digits, numbers)" in out
    fields = vit_jax.compare()["lines"][2]["fields"]  # those that both tasks have
    assert fields["task"] == "translate" and fields["data.source"] == "numbers" and "optim.name" in fields
    assert "model.encoder_depth" not in fields and "model.patch" not in fields


def test_names_paths_and_folders_of_runs(capsys):
    made("runs/a")
    made("runs/b")
    made("elsewhere/sweep/a")
    names = lambda *given: [line.name for line in compare.gather(given).lines]  # noqa: E731
    assert names() == names("runs") == ["a", "b"]
    assert names("b", "runs/a", "runs/b/", "./runs/b") == ["b", "a"]
    assert names("elsewhere/sweep") == ["a"] and names("a", "elsewhere/sweep/a") == ["runs/a", "sweep/a"]
    made("b")
    for given, says in {
        "b": "is both ./b and runs/b; give one of these paths",
        "aa": "no such run, or folder of runs; nearest: a",
        "": "the name of a run is empty",
        "else": "folder of runs; runs/ holds a, b",
    }.items():
        with pytest.raises(UserError, match=re.escape(says)):
            compare.gather([given])
    assert names("./b") == ["b"]
    with pytest.raises(UserError, match="nowhere/ holds no runs; train one"):
        compare.gather([], "nowhere")


def test_the_picture_is_replaced_where_it_is_ours_by_default_and_else_not(capsys):
    made("runs/a")
    assert shown(capsys).endswith("curves are in runs/comparison.png\n")
    made("runs/b", accuracy=0.4)
    before = Path("runs/comparison.png").read_bytes()
    assert shown(capsys).endswith("curves are in runs/comparison.png (replaced)\n")
    assert Path("runs/comparison.png").read_bytes() != before
    Path("mine.png").write_text("mine")
    with pytest.raises(UserError, match=r"out mine.png: exists already; add `force"):
        compare.command(["--out", "mine.png"])
    assert Path("mine.png").read_text() == "mine"
    assert "mine.png" in shown(capsys, "--out", "mine.png", "--force")
    with Image.open("mine.png") as image:
        assert image.format == "PNG"


def test_a_folder_of_runs_that_cannot_be_written_has_its_table_all_the_same(capsys, monkeypatch):
    made("runs/a")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "no picture: " in shown(capsys) and not Path("runs/comparison.png").exists()


def test_curves_are_means_over_seeds_with_a_band_and_those_of_the_chosen_weights(monkeypatch, tmp_path):
    calls = []
    draw = comparison.draw_comparison
    monkeypatch.setattr(comparison, "draw_comparison", lambda *a: (calls.append(a), draw(*a)))
    for seed in range(3):
        made(f"runs/g/seed-{seed}", seed=seed, accuracy=0.6 + seed / 10, epochs=4 - (seed == 2))
    made("runs/one", replace(model(width=32), ema=0.9), weights="ema", accuracy=0.5)
    compare.draw(compare.gather([]), tmp_path / "a.png")
    ((panels, names, _, title),) = calls
    assert list(panels) == ["training loss", "validation loss", "validation accuracy"] and title == "4 runs"
    assert names == ["g (3 seeds, width 64, ema 0)", "one (width 32, ema 0.9, averaged weights)"]
    group, one = panels["validation accuracy"]
    assert group.epochs.tolist() == [1, 2, 3] and one.epochs.tolist() == [1, 2, 3, 4]  # those that all seeds have
    each = np.array([[0.6 * k / 4, 0.7 * k / 4, 0.8 * k / 3] for k in (1, 2, 3)])
    np.testing.assert_allclose(group.values, each.mean(1))
    np.testing.assert_allclose(group.spread, each.std(1, ddof=1))
    np.testing.assert_allclose(one.values, [0.5 * k / 4 + 0.05 for k in (1, 2, 3, 4)])
    assert one.spread is None and panels["training loss"][0].values[0] == pytest.approx(2 / 0.5 + 1)


@pytest.mark.parametrize("count", [1, 28])
def test_every_curve_has_a_look_of_its_own_and_a_name_in_the_legend(count, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    legends, legend = [], Axes.legend
    monkeypatch.setattr(Axes, "legend", lambda ax, *a, **how: legends.append(a) or legend(ax, *a, **how))
    curve = comparison.Series(np.arange(5.0), np.arange(5.0))
    names = [f"run {i} " + "x" * 70 for i in range(count)]
    comparison.draw_comparison(
        {"training loss": [curve] * count, "none": [None] * count}, names, tmp_path / "a.png", "t"
    )
    ((lines, texts),) = legends
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == count and len(texts) == count and all(text.endswith("…") for text in texts)
    with Image.open(tmp_path / "a.png") as image:
        assert max(image.size) < 1500


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_a_table_is_as_wide_as_the_terminal(width, capsys):
    names = ["run", "東京" * 12, "größer-" * 9, "b"]
    columns = [[f"a.b{i}. title {i}", "1", "x" * 50, str(i)] for i in range(9)]
    print_table(names, [columns[:4], columns[4:]], width)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(text_width, lines)) <= max(width, 13 + 2 + 32)
    for i in range(9):
        assert any(f"{i}" in line for line in lines)
    assert sum(line.startswith("b ") for line in lines) == sum(line.startswith("run ") for line in lines) > 0


def test_many_runs_are_in_one_table_in_the_order_of_their_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(compare, "MANY", 9)
    for i in range(12):
        made(f"runs/sweep-{i}", replace(BASE, epochs=i + 1), ended="stopped: max_steps", epochs=1)
    lines = shown(capsys).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("sweep-")]
    assert names == [f"sweep-{i}" for i in range(12)], "each once, and 2 before 10"
    assert max(map(len, lines[: len(names)])) <= 80
    assert [line for line in lines if "no room for" in line] == [
        "note: 80 columns have no room for seconds, core-seconds, parameters, ended; widen the terminal, or set COLUMNS"
    ]
    unfinished = [line for line in lines if "not finished" in line]
    assert len(unfinished) == 1 and "sweep-0 is not finished" in unfinished[0] and "for 11 others" in unfinished[0]


def test_titles_are_the_shortest_ends_that_differ():
    paths = [Path(path) for path in ("/a/x/1", "/a/y/1", "/b/y/1", "/b/y/2")]
    assert list(several.titles(paths).values()) == ["x/1", "a/y/1", "b/y/1", "2"]
