"""`--init`: what given weights decide of a run and what they cannot follow, and that the run begins as they end."""

import json
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from convert import rules
from convert.__main__ import main as convert_main
from convert.adapt.kernels import POSITIONS
from convert.dialects import LAYOUTS
from tests.test_features import library
from vit_jax import export, train
from vit_jax.commands import train as command
from vit_jax.config.dotted import replace_fields
from vit_jax.config.run import RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.runs.values import flat, to_dict
from vit_jax.training.job import choose_folder, open_data, open_job
from vit_jax.training.loop import Loop
from vit_jax.training.state import first_state
from vit_jax.training.stopping import Caught
from vit_jax.weights import load as weights
from vit_jax.weights import start as starting
from vit_jax.weights.interop import open_weights
from vit_jax.weights.opening import check_unchanged

# A network that timm could have trained, and what its config.json says of it.
VIT = ViTConfig(image=32, patch=8, classes=3, width=24, depth=2, heads=4, hidden=96)
TIMM = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 3,
    "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 4},
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "mean": [0.5, 0.4, 0.3],
        "std": [0.25, 0.5, 0.5],
        "interpolation": "bicubic",
        "crop_pct": 0.8,
        "num_classes": 3,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    },
}
FILLED = {
    "data.fit": "crop",
    "data.size": 40,
    "data.interpolation": "bicubic",
    "data.background": 0,
    "augment.normalize": "given",
    "augment.mean": (0.5, 0.4, 0.3),
    "augment.std": (0.25, 0.5, 0.5),
}
SMALL = "--data.source folder:photos --batch 4 --epochs 1 --max-steps 1"
STATED = "--model.image 32 --model.heads 4 --model.eps 1e-6 --model.activation gelu --model.pool cls"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch, without_pictures):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path):
    """A folder of JPEGs of three classes, of many sizes."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for i in range(24):
        folder = tmp_path / "photos" / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (*draw.integers(30, 70, 2), 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def timm(tmp_path, photos):
    """The folder that timm would leave of VIT, with random weights."""
    return timm_folder(tmp_path / "vit")


def timm_folder(path, config=VIT, **others):
    path.mkdir(exist_ok=True)
    rows = LAYOUTS["timm"].rows(config)
    save_file(rules.write(rules.narrow(rows), drawn(config)), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**TIMM, **others}))
    return path


def drawn(config, seed=0):
    """Random weights of a network, {our parameter name: array}."""
    draw = np.random.default_rng(seed)
    return {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in config.shapes().items()}


def parsed(text):
    """The run that a command line gives."""
    return command.parse(shlex.split(text))[1].run()


def begun(run):
    """(job, {name: array} that a run begins with)."""
    job = open_job(run, open_data(run), Run("nowhere"))
    state, _, _ = first_state(job, None)
    assert state.step == 0
    return job, {name: np.asarray(x) for name, x in flatten(state.tree.parameters).items()}


def first_logits(run, count=5):
    """(the first images as the run prepares them, uint8 [n, h, w, C], the logits of its network before step 1)."""
    job, parameters = begun(run)
    pixels = job.data.splits["train"].take(np.arange(count))
    network = weights._network(job.run, unflatten(parameters))
    return pixels, np.asarray(network(job.task.images({"image": pixels}, np.float32)))


def convert(text, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["convert", *shlex.split(text)])
    assert convert_main() == 0


def changed_fields(run, base):
    """The fields in which a run differs from another, beside those of its network and its init."""
    a, b = flat(run), flat(base)
    return {name for name in a if a[name] != b[name] and not name.startswith("model.")} - {"init"}


# ------------------------------------------------------------------- what weights decide, and what not


def test_weights_decide_the_network_and_how_images_are_prepared_and_nothing_else(timm):
    base, run = preset("finetune").run, parsed("--init vit")
    assert function(replace(run.model, classes=3)) == function(VIT) and run.model.classes == base.model.classes
    assert {name: flat(run)[name][0] for name in FILLED} == FILLED
    assert changed_fields(run, base) <= FILLED.keys()
    assert starting.preset("finetune", init="vit").run == run == vit_jax.preset("finetune", "vit").run


def test_flags_go_over_config_over_weights_over_the_preset(timm):
    given = "--init vit --new-head --data.interpolation nearest --optim.lr 0.5 --model.dropout 0.2"
    run = parsed(f"cifar10-48x4 {given}")
    base = preset("cifar10-48x4").run
    assert (run.data.interpolation, run.optim.lr, run.model.dropout) == ("nearest", 0.5, 0.2)
    assert (run.model.width, run.data.fit, run.data.size) == (24, "crop", 40)
    assert (run.data.source, run.epochs, run.augment.crop_padding) == ("cifar10", base.epochs, 4)
    assert parsed("--init vit --data.fit stretch").data.size == 0  # a size that only crop uses
    other = parsed("--init vit --augment.normalize half").augment
    assert (other.normalize, other.mean, other.std) == ("half", (), ())
    assert parsed("--init vit --augment.mean 0.1 0.2 0.3").augment.std == (0.25, 0.5, 0.5)


def test_a_run_gives_its_own_fields(timm, monkeypatch):
    convert("vit runs/first --set interpolation=bilinear", monkeypatch)
    run = parsed(f"--init first {SMALL}")
    assert {name: flat(run)[name][0] for name in FILLED} == {**FILLED, "data.interpolation": "bilinear"}
    assert function(replace(run.model, classes=3)) == function(VIT)
    _, parameters = begun(run)
    assert all(np.array_equal(parameters[name], x) for name, x in drawn(VIT).items())


def function(model):
    return {name: getattr(model.normal(), name) for name in model.function_fields()}


def sizes(model):
    return {name: getattr(model, name) for name in ("source_vocabulary", "target_vocabulary", "outputs")}


# ------------------------------------------------------------------------ the function of the weights


def test_a_run_begins_with_timms_logits(tmp_path, photos):
    torch = pytest.importorskip("torch")
    timm = library("timm")
    fields = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=4, num_classes=3)
    model = timm.create_model("vit_tiny_patch16_224", **fields).eval()
    statistics = model.pretrained_cfg = dict(model.pretrained_cfg, input_size=(3, 32, 32), mean=(0.5, 0.4, 0.3))
    from timm.models import save_for_hf

    save_for_hf(model, str(tmp_path / "theirs"), model_config={"model_args": fields}, safe_serialization=True)
    pixels, logits = first_logits(parsed(f"--init theirs {SMALL}"))
    prepared = (pixels / 255 - np.array(statistics["mean"])) / np.array(statistics["std"])
    with torch.no_grad():
        theirs = model(torch.tensor(prepared, dtype=torch.float32).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(logits, theirs, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("rule", POSITIONS)
def test_another_image_is_what_convert_resizes(timm, rule, monkeypatch):
    """Enlarged by each library's kernel; data.size grows with the image."""
    run = parsed(f"--init vit {SMALL} --model.image 48 --init-resize {rule}")
    assert (run.model.image, run.data.size) == (48, 60)
    convert(f"vit resized.safetensors --adapt resize=48x48:{rule}", monkeypatch)
    again = starting.fill_run(replace(run, init="resized.safetensors", init_resize="none"))
    found, resized = (
        starting.start(replace(each, model=replace(each.model, classes=3)), {}).parameters for each in (run, again)
    )
    assert found.keys() == resized.keys()
    assert all(np.array_equal(found[name], resized[name]) for name in found)
    if rule == "timm":
        assert np.array_equal(first_logits(run)[1], first_logits(again)[1])


def test_positions_of_an_unknown_image_are_resampled_as_those_of_a_square_one(timm):
    """So does every library that resamples them."""
    save_file(load_file("vit/model.safetensors"), "bare.safetensors")
    resize = "--model.image 64 48 --init-resize timm"
    known, found = (
        begun(parsed(f"--init {file} {SMALL} {resize}"))[1] for file in ("vit", f"bare.safetensors {STATED}")
    )
    assert known["position"].shape == (1 + 8 * 6, 24)
    assert all(np.array_equal(known[name], found[name]) for name in known)


def test_the_rules_are_those_of_convert():
    assert set(get_args(get_type_hints(RunConfig)["init_resize"])) == {"none", *POSITIONS}


def test_other_channels_are_what_convert_makes_of_them(timm, monkeypatch, capsys):
    run = parsed(f"--init vit {SMALL} --model.channels 1 --init-channels timm")
    assert run.augment.normalize == preset("finetune").run.augment.normalize and run.augment.mean == ()
    _, parameters = begun(run)
    assert "how its inputs were prepared is not known, so this run's fields apply: " in " ".join(
        capsys.readouterr().out.split()
    )
    convert("vit grey.safetensors --adapt channels=1 --set mean=0.5 --set std=0.5", monkeypatch)
    with open_weights("grey.safetensors") as opened:
        grey = opened.to_use()
    assert all(np.array_equal(parameters[name], grey[name]) for name in grey)


# ----------------------------------------------------------------------------- every kind of weights


def test_one_line_starts_from_every_kind_of_weights(timm, monkeypatch):
    """timm's bare file, a run, an export, a converted file, those of torch_ref: the same network, to the bit."""
    torch = pytest.importorskip("torch")
    import torch_ref

    expected = drawn(VIT)
    save_file(load_file("vit/model.safetensors"), "bare.safetensors")
    convert("vit runs/mine", monkeypatch)
    convert("vit ours.safetensors", monkeypatch)
    convert("vit hf --to huggingface --adapt eps=1e-6", monkeypatch)
    export("runs/mine", "exported.safetensors")
    save_file(expected, "names.safetensors")
    state = torch_ref.load(torch_ref.build(VIT), expected).state_dict()
    mine = to_dict(replace(preset("vit-1024x6").run, model=VIT))
    torch.save({"model": state, "optimizer": {}, "step": 1, "config": mine}, "saved.pt")
    torch.save(state, "twin.pt")
    files = [
        "bare.safetensors " + STATED,
        "exported.safetensors",
        "ours.safetensors",
        "runs/mine",
        "mine",
        "hf",
        "saved.pt",
    ]
    runs = [parsed(f"--init {line} {SMALL}") for line in files]
    # Our own names alone tell nothing of the network: a preset does.
    plain = replace(preset("vit-1024x6").run, model=VIT, batch=4, data=runs[0].data)
    runs += [starting.fill_run(replace(plain, init=file)) for file in ("names.safetensors", "twin.pt")]
    for run in runs:
        _, found = begun(run)
        assert found.keys() == expected.keys(), run.init
        assert all(np.array_equal(found[name], expected[name]) for name in expected), run.init
    for file in ("names.safetensors", "twin.pt"):
        with pytest.raises(UserError, match=rf"^init {file}: states no config; name the preset whose network it hold"):
            parsed(f"--init {file} {SMALL} {STATED} --model.classes 3")


def test_googles_npz_is_told_its_image(photos, capsys):
    config = replace(VIT, activation="gelu_tanh")
    rows = LAYOUTS["augreg@linen"].rows(config)
    np.savez("google.npz", **rules.write(rows, drawn(config)))
    with pytest.raises(UserError, match=r"^init google.npz: its tensors cannot tell image; give `model.image ...`, or"):
        parsed(f"--init google.npz {SMALL}")
    _, found = begun(parsed(f"--init google.npz {SMALL} --model.image 32"))
    assert all(np.array_equal(found[name], x) for name, x in drawn(config).items())


def test_the_hubs_cache_serves_without_network(timm, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    revision = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "hub" / "models--o--n"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(revision)
    (place / "snapshots").mkdir()
    timm.rename(place / "snapshots" / revision)
    asked = []
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "model_info", lambda *_, **__: asked.append(1) or 1 / 0)  # any error but the hub's own
    _, found = begun(parsed(f"--init hf://o/n {SMALL}"))
    assert np.array_equal(found["blocks.1.mlp.fc1.kernel"], drawn(VIT)["blocks.1.mlp.fc1.kernel"])
    assert len(asked) == 1  # once, however often the weights are opened


# ----------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "--init vit --model.no-query-bias --model.eps 1e-5 --model.image 64",
            "its model.image is 32, here it is 64, its model.eps is 1e-06, here it is 1e-05, its "
            "model.query_bias is True, here it is False; give `model.eps 1e-06` and `model.query_bias True` and add "
            "`init_resize timm` (or hf, dino, torchvision, google, flexi) to fit the weights to that",
        ),
        ("--init vit --model.image 30 --init-resize timm", "model.image 30x30 is not divisible by patch 8x8"),
        ("--init vit --model.image 32 64 --init-resize google", "google resamples only square grids, and the new"),
        ("--init nothing.safetensors", "no such file, folder or run; runs/ holds none"),
        ("--init photos", "holds no weights"),
        ("--init .", "(safetensors file); give ./NAME with one of these names\n"),
        ("--init group", "runs, one for each seed; give one of them, such as group/seed-0"),
        ("--init cut.safetensors", "is damaged or no safetensors file"),
        ("--init owner/name", "; on Hugging Face's hub it is hf://owner/name"),
    ],
)
def test_what_weights_cannot_follow_is_refused_in_a_sentence_before_the_data_is_opened(timm, inside, line, said):
    save_file(load_file("vit/model.safetensors"), "bare.safetensors")
    Path("group/seed-0").mkdir(parents=True)
    Path("group/seed-0/config.json").write_text("{}")
    Path("cut.safetensors").write_bytes(Path("bare.safetensors").read_bytes()[:100])
    for dry in ([], ["--dry-run"]):
        result = inside("train", *shlex.split(line), "--data.source", "folder:nowhere", *dry)
        assert result.returncode == 2 and result.stdout == ""
        assert result.stderr.startswith("vit-jax: error: init ") or "model.image 30x30" in result.stderr
        assert said in result.stderr and len(result.stderr.splitlines()) == 1
    assert not Path("runs").exists()


def test_a_run_in_python_that_is_not_filled_in_is_refused(timm):
    run = replace(preset("finetune").run, init="vit")
    with pytest.raises(
        UserError,
        match=r"^init vit: its model\.image is 32, here it is 224, .*; give `model\.patch 8` and `model\.width 24`",
    ):
        train(replace_fields(run, {"data.source": "folder:nowhere"}))
    assert not Path("runs").exists()


def test_a_dry_run_refuses_what_the_values_are_and_writes_nothing(timm, inside, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    shown = inside("train", *shlex.split(f"--init vit {SMALL} --dry-run"))
    assert shown.returncode == 0 and "\ninit     vit: timm, 40 tensors, digest " in shown.stdout
    told = shown.stdout.partition("\ninit")[2].partition("\ntime")[0]
    assert all(len(line) <= 80 for line in told.splitlines())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    tensors = load_file("vit/model.safetensors")
    tensors["blocks.1.mlp.fc2.weight"] = np.full_like(tensors["blocks.1.mlp.fc2.weight"], np.nan)
    save_file(tensors, "vit/model.safetensors")
    result = inside("train", *shlex.split(f"--init vit {SMALL} --dry-run"))
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "init vit: blocks.1.mlp.fc2.weight holds NaN or infinity" in result.stderr
    assert "--allow-nonfinite" not in result.stderr
    result = inside("train", *shlex.split(f"--init vit {SMALL} --dry-run --model.classes 0 --data.test 0"))
    assert result.returncode == 2


def test_classes_that_the_data_determines_name_the_new_head(timm, photos, inside):
    (photos / "d").mkdir()
    (photos / "a" / "0.jpg").rename(photos / "d" / "0.jpg")
    (photos / "a" / "3.jpg").rename(photos / "d" / "3.jpg")
    told = inside("train", *shlex.split(f"--init vit {SMALL} --data.test 0 --data.validation 0")).stderr
    assert told.endswith(
        "init vit: its model.classes is 3, here it is 4; add `new_head True` to start with a new head\n"
    )
    job, found = begun(parsed(f"--init vit {SMALL} --data.test 0 --data.validation 0 --new-head"))
    assert job.run.model.classes == 4 and found["head.kernel"].shape == (24, 4)
    assert np.array_equal(found["norm.scale"], drawn(VIT)["norm.scale"])


# ------------------------------------------------------------------- the record, and the same command again


def begin(line):
    """Make the folder of the run that a command line names, as training does before its first step."""
    name, options, _ = command.parse(shlex.split(line))
    folder = Run(Path("runs") / name)
    run = options.run()
    Loop(open_job(run, open_data(run), folder, name), Caught()).recording.log.close()
    return folder


def test_the_same_command_finds_its_run_and_resuming_needs_no_weights(timm, inside):
    line = f"--init vit {SMALL} --model.image 48 --init-resize timm --data.validation 0 --data.test 0"
    shown = inside("train", *shlex.split(line))
    assert shown.returncode == 0, shown.stderr
    noted = Run("runs/finetune").record()["init"]
    assert noted["layout"] == "timm" and noted["tensors"] == 40 and noted["digest"][:12] in shown.stdout
    assert "positions are resampled by timm from 4x4 to 6x6" in noted["changed"][0]
    expected = {**FILLED, "data.size": 60, "augment.mean": [0.5, 0.4, 0.3], "augment.std": [0.25, 0.5, 0.5]}
    assert expected.items() <= noted["filled"].items() and noted["filled"]["model.depth"] == 2
    assert "model.classes" not in noted["filled"] and "optim.lr" not in noted["filled"]
    again = inside("train", *shlex.split(line), "--dry-run")
    assert (
        again.returncode == 0
        and choose_folder(parsed(line), "finetune", difference=lambda *_: "").path == Run("runs/finetune").path
    )
    shutil.move("vit", "moved")
    tensors = load_file("moved/model.safetensors")
    for init, number in (("moved", ""), ("other", "-2")):
        found = inside("train", *shlex.split(line.replace("vit", init, 1)), "--max-steps", 1)
        assert f"run      runs/finetune{number}: " in found.stdout, found
        shutil.copytree("moved", "other", dirs_exist_ok=True)
        save_file({**tensors, "norm.weight": tensors["norm.weight"] + 1}, "other/model.safetensors")
    refused = inside("train", "--resume", "finetune", "--init", "other").stderr
    assert "runs/finetune: holds another run: init is other, and was moved; give" in refused
    shutil.rmtree("moved"), shutil.rmtree("other"), shutil.rmtree("runs/finetune-2")
    resumed = inside("train", "--resume", "finetune", "--max-steps", 1)
    assert resumed.returncode == 0 and "going on after step 1" in resumed.stdout
    assert [path.name for path in Path("runs").iterdir()] == ["finetune"]


def test_what_a_run_has_other_than_its_weights_is_neither_recorded_nor_said_to_be_theirs(timm):
    run = parsed(f"--init vit {SMALL} --data.size 36 --augment.mean 0.1 0.1 0.1 --data.interpolation bicubic")
    started = starting.start(run, open_data(run).metadata())
    said = " ".join(started.description.split())
    assert "prepared: data.fit crop, data.interpolation bicubic, data.background 0, augment.normalize given," in said
    assert "other than it, this run has data.size 36, augment.mean 0.1 0.1 0.1" in said
    filled = started.record["filled"]
    assert {"data.size", "augment.mean"} & filled.keys() == set() and filled["augment.std"] == [0.25, 0.5, 0.5]


def save_step(folder):
    """What makes a run one that can go on without its weights."""
    (folder.checkpoints / "1").mkdir(parents=True)
    folder.digest_file(1).parent.mkdir(exist_ok=True)
    folder.digest_file(1).write_text("{}")


def test_weights_that_changed_or_are_gone_leave_their_run_to_resume(timm, inside):
    line, go_on = f"--init vit {SMALL} --model.depth 2", "`resume runs/finetune`"
    folder = begin(line)
    tensors = load_file("vit/model.safetensors")
    save_file({**tensors, "norm.weight": tensors["norm.weight"] + 1}, "vit/model.safetensors")
    with pytest.raises(UserError, match="its init vit has changed since it began; restore that, or start anew under"):
        begin(line)  # of a run that has saved nothing, the weights are needed
    told = inside("train", *shlex.split(line)).stderr
    assert "its init vit has changed" in told and "`resume" not in told
    save_file(tensors, "vit/model.safetensors")
    begin(line)
    save_step(folder)
    for other in (replace(VIT, hidden=48), replace(VIT, depth=1), VIT):
        timm_folder(Path("vit"), other, model_args={**TIMM["model_args"], "depth": other.depth})
        changed = load_file("vit/model.safetensors")
        save_file({**changed, "norm.weight": changed["norm.weight"] + 1}, "vit/model.safetensors")
        told = inside("train", *shlex.split(line))
        assert told.returncode == 2 and told.stderr.count("\n") == 1
        said = (
            "its model.depth is 1, here it is 2; give `model.depth 1`; runs/finetune, which began from it, no longer "
            "needs it"
            if other.depth == 1
            else "is no longer what runs/finetune began from"
        )
        assert said in told.stderr and go_on in told.stderr
    timm_folder(Path("vit"))
    save_file(tensors, "vit/model.safetensors")
    check_unchanged(parsed(line), "finetune")
    # Another image is another run, of the same weights.
    check_unchanged(parsed(f"{line} --model.image 48 --init-resize timm"), "finetune")
    shutil.rmtree("vit")
    told = inside("train", *shlex.split(line))
    assert told.returncode == 2 and told.stderr.count("\n") == 1
    assert "init vit: no such file, folder or run; runs/ holds finetune; " in told.stderr
    assert told.stderr.endswith(f"runs/finetune, which began from it, no longer needs it: go on with that by {go_on}\n")
    assert "`resume" not in inside("train", *shlex.split(line), "--name", "other").stderr
    assert [path.name for path in Path("runs").iterdir()] == ["finetune"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--init vit --model.depth 6", "its model.depth is 2, here it is 6"),
        ("numbers --init vit --name finetune", "holds a ViT, and the run trains a Transformer"),
        (f"--init bare.safetensors {STATED} --model.image 64", "correct `model.image"),
    ],
)
def test_an_error_that_weights_have_no_part_in_names_no_run(timm, inside, line, said):
    save_file(load_file("vit/model.safetensors"), "bare.safetensors")
    init = f"bare.safetensors {STATED}" if "bare" in line else "vit"
    save_step(begin(f"--init {init} {SMALL}"))
    told = inside("train", *shlex.split(line), "--data.source", "folder:photos").stderr
    assert said in told and "`resume" not in told and told.count("\n") == 1


# --------------------------------------------------------------------------- beside a config of another network


def test_a_config_of_another_network_is_one_sentence_and_its_remedies_are_followed(timm, inside):
    recipe = to_dict(preset("mnist").run)
    Path("a.json").write_text(json.dumps(recipe))
    line = "--config a.json --init vit"
    told = inside("train", *shlex.split(line))
    assert told.returncode == 2 and told.stderr == (
        'vit-jax: error: --config a.json: its network is "ViT 64 x 4, 4 heads, 49 patches" and init vit holds '
        '"ViT 24 x 2, 4 heads, 16 patches"; to train the latter, give a copy of a.json without "model", '
        'to train the former from random weights, give --init ""\n'
    )
    run = parsed('--config a.json --init ""')
    assert (run.model, run.init) == (preset("mnist").run.model, "")
    del recipe["model"]
    Path("b.json").write_text(json.dumps(recipe))
    run = parsed("--config b.json --init vit")
    assert (run.model.width, run.model.depth, run.epochs, run.data.source) == (24, 2, 5, "mnist")
    # What the two have no other name for is said field by field.
    Path("c.json").write_text(json.dumps({"model": {"eps": 1e-5}}))
    told = inside("train", *shlex.split("--config c.json --init vit --data.source folder:photos"))
    assert "init vit: its model.eps is 1e-06, here it is 1e-05; give `model.eps 1e-06" in told.stderr


def test_a_config_of_another_task_names_both_networks(timm, inside):
    Path("a.json").write_text(json.dumps(to_dict(preset("numbers").run)))
    for named in ((), ("finetune",)):
        told = inside("train", *named, "--config", "a.json", "--init", "vit")
        assert told.returncode == 2 and told.stderr == (
            "vit-jax: error: --config a.json: its task is translate, which trains a Transformer, and init vit holds a "
            "ViT; start from weights of a Transformer, or leave --config out\n"
        )


# ------------------------------------------------------------- what inputs and outputs mean: words, classes


def run_of(name, **fields):
    """A run of one step, and of a network as small as can be."""
    run = preset("digits").run if "pairs" not in str(fields["source"]) else preset("numbers").run
    depths = dict(depth=1) if run.task == "classify" else dict(encoder_depth=1, decoder_depth=1)
    lengths = {} if run.task == "classify" else dict(lengths=(4,), tokens=64)
    data = replace(run.data, source=str(fields.pop("source")), **lengths)
    model = replace(run.model, width=8, heads=2, hidden=8, **depths)
    return replace(run, data=data, model=model, max_steps=1, name=name, **fields)


def trained(name, **fields):
    return train(run_of(name, **fields))["status"]


def begins(name, **fields):
    """Whether a run gets to its first step."""
    begun(run_of(name, **fields))
    return True


def archive(prefix):
    """An .npz set of ten classes whose names begin so."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (200, 8, 8), np.uint8), np.arange(200) % 10
    np.savez(f"{prefix}.npz", images=images, labels=labels, class_names=np.array([f"{prefix}{i}" for i in range(10)]))
    return f"{prefix}.npz"


def pairs(folder, words, path):
    """Sentences of these words, in a folder."""
    (path / folder).mkdir()
    for language in ("x", "y"):
        lines = [f"{a} {b}" for a in words.split() for b in words.split() for _ in range(8)]
        (path / folder / f"train.{language}").write_text("\n".join(lines))
    return f"pairs:x-y:{folder}"


def test_other_class_names_of_equal_number_need_a_new_head(tmp_path, rewrite_record):
    first, second = archive("a"), archive("b")
    trained("first", source=first)
    with pytest.raises(
        UserError,
        match=r"^init first: its class 0 is 'a0' and here it is 'b0'; add `new_head True` to start with a new head$",
    ):
        trained("second", source=second, init="first")
    assert not (tmp_path / "runs" / "second").exists()
    assert begins("second", source=second, init="first", new_head=True)
    assert begins("third", source=first, init="first", seed=1)
    export("runs/first", "first.safetensors")
    with pytest.raises(
        UserError, match=r"^init first\.safetensors: its class 0 is 'a0' and here it is 'b0'; add `new_head True` to "
    ):
        trained("second again", source=second, init="first.safetensors")
    assert begins("third again", source=first, init="first.safetensors")
    # Classes that are only numbered (as of a file that names none) say nothing against it.
    numbered = Run("runs/first")
    rewrite_record(numbered, class_names=[str(k) for k in range(10)])
    assert begins("fourth", source=second, init="first")


def test_a_translating_run_gives_its_network_and_another_vocabulary_is_refused(tmp_path):
    one, two = pairs("one", "red green blue black", tmp_path), pairs("two", "rot schwarz blau weiss", tmp_path)
    trained("first", source=one)
    for new_head in (False, True):
        with pytest.raises(
            UserError,
            match=r"^init first: its source id 4 is '.*' and here it is '.*'; start from weights .* the same ones$",
        ):
            trained("second", source=two, init="first", new_head=new_head)
    export("runs/first", "first.safetensors")
    model = Run("runs/first").config().model
    for weights_of in ("first", "first.safetensors"):  # without a preset, for its task; the words are the data's
        run = parsed(f"--init {weights_of} --data.source {one} --data.tokens 64 --data.lengths 4")
        assert run.task == "translate" and function(replace(run.model, **sizes(model))) == function(model)
        assert run.optim == preset("finetune").run.optim and sizes(run.model) == dict.fromkeys(sizes(model), 0)
        _, parameters = begun(run)
        assert parameters.keys() == model.shapes().keys()
    with pytest.raises(UserError, match=r"^init first: holds a Transformer, and the run trains a ViT; name a preset"):
        parsed("digits --init first")
    with pytest.raises(UserError, match=r"^init first.safetensors: its source id 4 is "):
        trained("second", source=two, init="first.safetensors")
    assert begins("second", source=one, init="first", epochs=2)
    with pytest.raises(
        UserError, match=r"^init first: its model.source_vocabulary is \d+, here it is \d+, .* the same words$"
    ):
        trained("third", source=pairs("three", "a b c d e f g", tmp_path), init="first")
