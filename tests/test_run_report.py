"""report.html: what it says of a run, that nothing in it is loaded or runs, and that it opens whatever is missing."""

import base64
import hashlib
import html
import json
import math
import re
import shlex
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from vit_jax import runs
from vit_jax.errors import UserError
from vit_jax.extras.report import charts, parts, tables
from vit_jax.extras.report import command as report_command
from vit_jax.extras.report import keep as kept
from vit_jax.extras.report.command import command, report
from vit_jax.extras.report.hook import leave_report
from vit_jax.figures.parts import Attention, Classes, Positions, Texts
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.presets.images import finetuned
from vit_jax.presets.table import preset
from vit_jax.reports.comparison import gather
from vit_jax.runs.values import with_fields

BASE = preset("digits").run
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{ 7*7 }}"
LARGEST = 3_000_000  # bytes of a report


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def made(name, run=BASE, rows=None, ended="finished", names=None):
    """A run's folder in runs/, as training leaves it."""
    folder = runs.Run(f"runs/{name}")
    names = names or [str(k) for k in range(run.model.classes)]
    preprocess = {"image": [8, 8], "channels": 1, "fit": "crop", "size": 0, "interpolation": "bilinear"}
    preprocess |= {"background": 255, "mean": [0.3], "std": [0.4]}
    environment = {"versions": {"jax": "0.10.2"}, "device": "cpu"}
    data = {"name": "digits", "sizes": {}, "content": "c", "version": 2}
    folder.create(
        runs.record_of(run, "digits", data=data, class_names=names, preprocess=preprocess, environment=environment)
    )
    folder.plots.mkdir()
    rows = training() if rows is None else rows
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ended:
        best = {"step": 40, "accuracy": 0.93, "loss": 0.21, "weights": "raw"}
        summary = {"status": ended, "step": 40, "epoch": 4.0, "seconds": 12.5, "best": best}
        folder.write_summary({**summary, "test": {"best": {"accuracy": 0.875, "loss": 0.5}}}, {})
    return folder


def training(steps=40, **changes):
    out = []
    for step in range(1, steps + 1):
        row = {"kind": "train", "step": step, "epoch": step / 10, "loss": 2 / step, "accuracy": 0.5, "lr": 1e-3}
        row |= {"grad_norm": 1.0, "images_per_second": 900.0, "memory": 1 << 29, "cpu_seconds": 0.1 * step}
        out.append(row | changes)
        if step % 10 == 0:
            out.append({"kind": "eval", "split": "validation", "weights": "raw", "step": step, "epoch": step / 10,
                        "loss": 1 / step, "accuracy": 1 - 1 / step})  # fmt: skip
    return out


def keep(folder, names, examples=6):
    """What a classifier keeps beside its figures."""
    k, rng = len(names), np.random.default_rng(0)
    confusion = np.eye(k, dtype=int) * 9
    confusion[0, 1] = 4
    images = rng.integers(0, 256, (examples, 8, 8, 1), np.uint8)
    worst = [
        {"name": f"test[{i}]", "image": x, "true": 0, "predicted": 1, "confidence": 0.9} for i, x in enumerate(images)
    ]
    scores = {name: np.linspace(0.5, 1, k) for name in ("precision", "recall", "f1")}
    kept.keep(folder.plots, Classes("test split, best weights", names, confusion, scores, worst))
    weights = rng.dirichlet(np.ones(5), (2, 3, 5)).astype(np.float32)  # [L, H, N, N] of a cls token and 2 x 2 patches
    looks = [{"title": names[0], "image": x, "grid": (2, 2), "weights": weights} for x in images[:2]]
    kept.keep(folder.plots, Attention("best weights", looks, ["cls token"]))
    kept.keep(folder.plots, Positions("best weights", rng.standard_normal((5, 7)), 1, (2, 2)))
    return weights


class Page(HTMLParser):
    """The elements of a page, and what stands in its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.said, self.inside = [], [], "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.said += f" {data}"


def page_of(*names, **options):
    text = report(*names, **options).read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    return Page(text)


def drawn(page):
    return json.loads(page.scripts[0])


# ------------------------------------------------------------------------------------- what it says


def test_a_run_is_shown_with_settings_results_cost_versions_and_a_command_that_repeats_it(capsys):
    run = replace(BASE, epochs=4, seed=3, model=replace(BASE.model, width=32, cls_token=False, pool="mean"))
    keep(made("a", run), list("0123456789"))
    page = page_of("a")
    said = " ".join(page.said.split())
    weights = "best weights (raw), epoch 4, step 40"
    for part in ("model.width 32", "seed 3 0", "epochs 4 of 4", f"test, by the {weights} test accuracy 0.8750",
                 f"validation, by the {weights} validation accuracy 0.9300", "jax 0.10.2",
                 "seconds of wall clock 12.5", "core-seconds of training steps 4",
                 "peak memory, GiB 0.5", "images per second (median) 900"):  # fmt: skip
        assert part in said, part
    command_line = re.search(r"python -m vit_jax\.train digits .*", page.said)[0]
    from vit_jax.commands import train as train_command

    again = train_command.parse(shlex.split(command_line)[3:])[1].run()
    assert again == replace(run, name="a-again")
    for field, value in (("loss.name", "binary"), ("data.target", "class")):  # which data alone may decide otherwise
        stated = with_fields(run, {field: value, "data.source": "other.npz", "name": field})
        made(field, stated)
        words = tables.command_of(gather([field]).lines[0])
        by_data = {"model.classes": 0, "name": f"{field}-again"}
        assert train_command.parse(shlex.split(words)[3:])[1].run() == with_fields(stated, by_data)
    assert command(["a"]) == 0 and capsys.readouterr().out == "the report is in runs/a/report.html\n"


def test_a_run_on_texts_from_given_weights_is_repeated_by_finetune():
    run = replace(finetuned(TransformerConfig), init="opus", epochs=2)
    sizes = {f"model.{name}": 9 for name in ("source_vocabulary", "target_vocabulary", "outputs")}
    run = with_fields(run, {"data.source": "tsv:pairs.tsv", **sizes})
    words = [f"w{i}" for i in range(9)]
    folder = runs.Run("runs/tuned")
    folder.create(runs.record_of(run, "finetune", data={"name": "tsv"}, vocabulary={"source": words, "target": words}))
    words = tables.command_of(gather(["tuned"]).lines[0])
    stated = "--name tuned-again --data.source tsv:pairs.tsv --epochs 2 --init opus"
    assert {*words.split()} == {*f"python -m vit_jax.train finetune {stated}".split()}


def test_its_charts_have_the_values_of_the_log_and_those_of_compare():
    made("a", rows=training(memory=3 << 28))
    page = page_of("a")
    models = json.dumps(drawn(page)["charts"])
    assert all(title in page.said for title in ("Loss", "Accuracy", "Learning rate", "Gradient norm", "Memory"))
    # Training and validation twice, four of training alone; a line also has a look for when others are chosen.
    assert models.count('"Line"') == 3 * 8
    assert re.search(r"training: from 2 to 0\.05, lowest 0\.05, highest 2", str(page.elements))
    assert "training: from 0.75 to 0.75, lowest 0.75, highest 0.75" in str(page.elements), "memory, in GiB"


def test_a_comparison_begins_with_the_differing_field_and_draws_all_runs():
    made("plain")
    made("faulty", replace(BASE, loss=replace(BASE.loss, label_smoothing=0.3)))
    page = page_of("plain", "faulty")
    said = " ".join(page.said.split())
    assert said.index("The differing fields") < said.index("loss.label_smoothing") < said.index("Curves")
    smoothing = BASE.loss.label_smoothing
    assert f"loss.label_smoothing {smoothing:g} 0.3" in said
    assert runs.Run("runs").path.joinpath("report.html").is_file()
    assert all(name in json.dumps(drawn(page)["charts"][0]) for name in ("plain", "faulty"))


def test_a_group_is_one_line_with_a_band_and_the_command_of_all_its_runs():
    for seed in range(2, 5):  # without validation
        made(f"group/seed-{seed}", replace(BASE, seed=seed, epochs=4), training(steps=9))
    page = page_of("group")
    assert runs.Run("runs/group").path.joinpath("report.html").is_file()
    assert '"VArea"' in json.dumps(drawn(page)["charts"][0])
    assert "Training accuracy over epochs" in str(page.elements) and "epochs 4 30" in " ".join(page.said.split())
    assert "python -m vit_jax.train digits --name group-again --seeds 3 --epochs 4 --seed 2" in page.said


def test_converted_weights_are_shown_with_their_origin_and_certificate():
    folder = made("converted", rows=[], ended="")
    (folder.path / "provenance.json").write_text('{"source": {"name": "x.bin", "layout": "timm"}, "config": {}}')
    certificate = {"verdict": "the same function", "differences": {"logits": 2e-7}, "config": {"fields": {"width": 8}}}
    (folder.path.parent / "converted.certificate.json").write_text(json.dumps(certificate))
    said = " ".join(page_of("converted").said.split())
    assert "status converted, not trained" in said and "nothing was trained" in said and "has not ended" not in said
    assert "source.layout timm" in said and "verdict the same function differences.logits 2e-07" in said
    assert "config.fields" not in said


@pytest.mark.slow
def test_of_many_runs_the_curves_of_the_best_are_drawn_and_the_page_stays_small():
    for i in range(40):
        made(f"many/{i}", replace(BASE, seed=i), training(400, loss=1.0 + i))
    page = page_of("many")
    assert "curves: those of 12 runs are left out; the others have the lowest validation loss" in page.said
    assert "a curve has 400 values, too many to draw" in page.said and "150 in all" in page.said
    labels = {x["value"] for x in found_in(drawn(page)["charts"][0], "label") if isinstance(x, dict)}
    assert len(labels) == 28


def found_in(value, name):
    """All values of a key in nested JSON."""
    if isinstance(value, dict):
        yield from (each for key, each in value.items() if key == name)
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from found_in(each, name)


# ------------------------------------------------------------------------------------- nothing runs


def test_names_with_scripts_are_text_and_the_policy_allows_two_scripts_and_no_network():
    names = [EVIL, *map(str, range(1, 10))]
    folder = made("evil", names=names)
    keep(folder, names)
    kept.keep(folder.plots, Texts(EVIL, 5, 1, [
        {"name": EVIL, "references": [EVIL], "said": EVIL, "source": EVIL, "score": 1.5}
    ]))  # fmt: skip
    page = page_of("evil")
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 3 and EVIL in page.said and EVIL in drawn(page)["classes"]["names"]
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    policies = [
        attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    allowed = dict(part.split(" ", 1) for part in policies[0].split("; "))
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in page.scripts[1:]]
    assert allowed["default-src"] == "'none'" and allowed["script-src"].split() == digests
    assert allowed["img-src"] == "data:" and not re.search("unsafe-eval|https?:|\\*", policies[0])
    for tag, attrs in page.elements:
        assert not {"href", "srcset", "action"} & attrs.keys() and attrs.get("src", "data:").startswith("data:"), tag


def test_a_picture_in_a_kept_file_is_a_picture_or_the_part_is_left_out():
    folder = made("a")
    keep(folder, list("0123456789"))
    content = json.loads((folder.plots / "classes.json").read_text())
    for url in ("https://example.org/x.png", "data:image/svg+xml;base64,AAAA", 'data:image/png;base64,"x', 7):
        content["worst"][0]["image"] = url
        (folder.plots / "classes.json").write_text(json.dumps(content))
        page = page_of("a")
        assert "classes.json: is damaged (Damaged: an image), and left out" in page.said
        assert drawn(page)["classes"] is None and drawn(page)["attention"]


# ------------------------------------------------------------------------------------- what is missing


def test_whatever_is_missing_or_damaged_the_report_opens_and_says_so():
    rows = training()
    rows[3]["loss"] = rows[4]["loss"] = None
    folder = made("interrupted", rows=rows, ended="")
    with open(folder.metrics_file, "a") as file:
        file.write('{"kind": "train", "step": \nnot json\n{"kind": "train", "step": 41, "loss": NaN, "epoch": 4.1}\n')
    said = page_of("interrupted").said
    assert re.findall(r"\S+ values of .* are no numbers", said) == ["3 values of loss are no numbers"]
    assert "2 lines of metrics.jsonl cannot be read, and are left out" in said
    assert "has not ended" in said and "no result of each class and no attention: the run has not ended" in said

    folder = made("damaged")
    folder.summary_file.write_text('{"status": 3}')
    folder.metrics_file.unlink()
    folder.metrics_file.mkdir()
    for name in ("classes", "texts", "attention", "positions"):
        (folder.plots / f"{name}.json").write_text(
            '{"about": 3, "names": [1], "prefix": "x", "worst": {}, "grid": [1]}'
        )
    said = page_of("damaged").said
    assert "summary.json: is damaged" in said and "metrics.jsonl: is no regular file" in said
    assert len(re.findall(r"\w+\.json: is damaged \(", said)) == 4 and "there are no curves" in said

    made("empty", rows=[], ended="stopped: max_steps")
    assert "there are no curves" in page_of("empty").said
    best = {"step": 20, "accuracy": 0.5, "weights": "ema"}
    summary = {"status": "finished", "step": 33, "epoch": 3.3, "seconds": 1.0, "best": best}
    stages = ("0.5:model.dropout=0.3", "0.2:model.dropout=0.2")
    folder = made("averaged", replace(BASE, epochs=5, stages=stages), ended="")
    folder.write_summary({**summary, "test": {"last_ema": {"accuracy": 0.25}}}, {})
    said = " ".join(page_of("averaged").said.split())
    for part in ("epochs 3 of 5", f"training curves jump wherever a stage begins (`stages {' '.join(stages)}`)",
                 "test, by the last weights (averaged), epoch 3.3, step 33 test accuracy 0.2500",
                 "by the best weights (averaged), epoch 2, step 20 validation accuracy 0.5000"):  # fmt: skip
        assert part in said, part
    with pytest.raises(UserError, match="nothing: no such run"):
        report("nothing")
    with pytest.raises(UserError, match=r"runs: none given"):
        command([])


def test_a_million_steps_are_thinned_to_their_extremes_and_a_sentence_says_so():
    rows = [{"kind": "train", "step": 20 * i, "epoch": i / 100, "loss": 1.0, "lr": 1e-3} for i in range(1, 50_001)]
    rows[31_234]["loss"] = 77.0  # a peak of one value
    made("long", rows=rows)
    page = page_of("long")
    assert "a curve has 50,000 values, too many to draw" in page.said
    assert "highest 77" in str(page.elements)
    ramp = np.linspace(0, 1, 1_000_000)
    x, y = charts.moving_mean(ramp, ramp, 600)  # of a straight line it is that line, away from its ends
    assert len(x) == 600
    np.testing.assert_allclose(y[20:-20], x[20:-20], rtol=1e-9)
    values = np.ones(1_000_000)
    values[123_456], values[654_321] = 5, -5
    places = charts.thin_out(values)
    assert len(places) <= charts.POINTS and {0, 123_456, 654_321, 999_999} <= {*places.tolist()}
    assert (np.diff(places) > 0).all() and charts.thin_out(values[:600]).tolist() == list(range(600))


def test_a_thousand_classes_fit(monkeypatch):
    names = [f"class number {i}" for i in range(1000)]
    run = replace(BASE, model=replace(BASE.model, classes=1000))
    folder = made("many", run, names=names)
    rng = np.random.default_rng(0)
    confusion = rng.poisson(0.05, (1000, 1000)) + 50 * np.eye(1000, dtype=int)
    scores = {name: rng.random(1000) for name in ("precision", "recall", "f1")}
    images = rng.integers(0, 256, (40, 224, 224, 3), np.uint8)
    worst = [
        {"name": f"test[{i}]", "image": x, "true": i, "predicted": 0, "confidence": 0.5} for i, x in enumerate(images)
    ]
    kept.keep(folder.plots, Classes("test split", names, confusion, scores, worst))
    maps = rng.dirichlet(np.ones(197), (12, 197)).astype(np.float32)
    looks = [{"title": "x", "image": x, "grid": (14, 14), "weights": np.stack([maps] * 12)} for x in images[:2]]
    kept.keep(folder.plots, Attention("best weights", looks, ["cls token"]))
    kept.keep(folder.plots, Positions("best weights", rng.standard_normal((197, 16)), 1, (14, 14)))
    page = page_of("many")
    shown = drawn(page)["attention"][0]
    kept_cells = len(drawn(page)["classes"]["cells"]) // 3
    assert kept_cells == parts.CELLS and re.search(
        r"the confusion matrix lacks the [\d,]+ rarest of its cells", page.said
    )
    assert "attention: only 1 of 2 examples is kept, from 26 of its 197 tokens" in page.said
    assert shown["shape"] == [12, 12, 26, 197] and shown["queries"][:2] == ["cls token", "row 2, column 2"]
    assert shown["cells"][:3] == [None, 14 + 1, 14 + 4] and shown["mean"] == "all of these"
    monkeypatch.setattr(report_command, "LARGEST", 2_000_000)
    page = page_of("many")
    assert re.search(r"attention is left out: with it this page would have 2\.\d MB", page.said)
    assert drawn(page)["attention"] is None and drawn(page)["positions"]


def test_a_run_ends_without_its_report_where_that_cannot_be_written(capsys, monkeypatch):
    folder = made("a")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "vit_jax.extras.report.contents", None)  # as if a library of it were not there
        leave_report(folder)
    (folder.path / "report.html").mkdir()
    leave_report(folder)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("skipped    the report: ") and first.endswith("with `vit-jax report runs/a`")
    assert second.startswith("skipped    the report: runs/a/report.html: cannot be written (")


# ------------------------------------------------------------------------------------- what is kept


def test_attention_comes_back_within_a_step_of_its_square_root():
    weights = keep(made("a"), list("0123456789"))
    example = drawn(page_of("a"))["attention"][0]
    stored = np.frombuffer(base64.b64decode(example["weights"]), np.uint8).reshape(example["shape"])
    np.testing.assert_allclose(np.sqrt(weights), stored / 255, atol=0.5 / 255 + 1e-6)
    assert example["keys"] == ["cls token", *(f"row {i}, column {j}" for i in (1, 2) for j in (1, 2))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "count", "layers", "heads", "note"),
    [
        ((12, 12, 65, 65), 4, 12, 12, "only 1 of 4 examples"),
        ((6, 4, 197, 197), 2, 6, 4, "only 1 of 2 examples is kept, from 50 of its 197 tokens"),
        ((24, 16, 577, 577), 1, 24, 1, "from 37 of its 577 tokens, with the mean of its 16 heads"),
        ((24, 16, 5185, 5185), 1, 0, 0, "left out"),
    ],
)
def test_attention_that_is_too_much_loses_examples_then_tokens_then_heads_then_layers(
    shape, count, layers, heads, note
):
    side = math.isqrt(shape[2])
    found, said = kept.fit_attention([np.broadcast_to(np.float32(0.5), shape)] * count, (side, side))
    assert note in said and bool(found) == bool(layers)
    for some in found:
        assert some.weights.shape[:2] == (layers, heads) and some.layers == list(range(layers))
        assert some.weights.shape[2] == len(some.looking) and some.looking[0] == 0
    assert sum(some.weights.size for some in found) <= kept.WEIGHTS


def test_of_too_many_layers_some_are_kept_the_last_among_them():
    numbers = np.arange(10, dtype=np.float32)[:, None, None, None]
    found, said = kept.fit_attention([np.broadcast_to(numbers, (10, 1, 30, 30))], most=2800)
    assert said == "in 3 of its 10 layers" and found[0].layers == [3, 6, 9]
    assert found[0].weights[:, 0, 0, 0].tolist() == [3, 6, 9]


def test_the_page_has_one_heading_of_each_section_and_labels_for_what_is_drawn():
    keep(made("a"), list("0123456789"))
    page = page_of("a")
    assert [tag for tag, _ in page.elements].count("h1") == 1
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len({*ids})
    assert all(attrs["aria-labelledby"] in ids for _, attrs in page.elements if "aria-labelledby" in attrs)
    assert all(attrs.get("alt") for tag, attrs in page.elements if tag == "img")
    assert all(attrs.get("aria-label") for _, attrs in page.elements if attrs.get("role") in ("img", "region"))
    assert html.unescape(dict(page.elements)["html"]["lang"]) == "en"
