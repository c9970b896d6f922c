"""Distillation: its loss by hand and by vit-pytorch, what the teacher sees, and runs with a teacher."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from convert import rules
from convert.dialects import LAYOUTS
from convert.verify.libraries import load as load_library
from convert.verify.libraries import torch_ref, vit_pytorch
from tests.parity.weights import weights
from torch_ref.train import check_supported
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.network import Teacher
from vit_jax.config.run import RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.images.config import ImageData
from vit_jax.data.images.sources.open import open_image_source
from vit_jax.errors import UserError
from vit_jax.extras.sets.archives import OFFICIAL
from vit_jax.machine import division
from vit_jax.machine.targets import HERE, read_target
from vit_jax.models import lowering
from vit_jax.models.build import definition, network_class
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.tasks.can import HasFrozen
from vit_jax.tasks.classify import distil
from vit_jax.tasks.classify.distil_spec import DistilLoss
from vit_jax.tasks.computed import task_of
from vit_jax.tasks.table import TASKS
from vit_jax.training import finish
from vit_jax.training.engine.engine import Engine
from vit_jax.training.engine.optim import Optimizer
from vit_jax.weights.opening import open_teacher

# Small, with nothing square; the names of vit-pytorch's DistillWrapper.
STUDENT = ViTConfig(
    image=(4, 6),
    patch=(2, 3),
    classes=5,
    width=8,
    depth=1,
    heads=2,
    hidden=12,
    head_width=3,
    eps=1e-5,
    query_bias=False,
    key_bias=False,
    value_bias=False,
    stem_pre_norm=True,
    stem_norm=True,
    distill_token=True,
    distill_position=False,
    distill_head=True,
    distill_norm=True,
)
# Its dropout would show if it were not in evaluation mode.
TEACHER = ViTConfig(image=(6, 4), patch=2, classes=5, width=12, depth=1, heads=2, hidden=8, dropout=0.4, drop_path=0.4)
SEEN = {"fit": "crop", "size": 0, "interpolation": "bilinear", "background": 255}
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)  # of the teacher
BATCH = {
    "image": np.random.default_rng(0).integers(0, 256, (6, 4, 6, 3)).astype(np.uint8),
    "label": np.array([0, 4, 2, 2, 1, 3], np.int32),
}
KEYS = jax.random.split(jax.random.key(0), 6)


def a_run(model=STUDENT, loss=None, **fields):
    data, augment = ImageData(source="digits"), ImageAugment()
    return RunConfig("distil", model, data, augment, loss=loss or DistilLoss(), batch=6, **fields)


def a_teacher(model=TEACHER, path="t", names=(), **preprocess):
    seen = {"image": list(model.image), "channels": model.channels, "mean": MEAN, "std": STD, **SEEN, **preprocess}
    metadata = {"preprocess": seen, **({"class_names": list(names)} if names else {})}
    return Teacher(path, "vit-jax@vit", model, metadata, weights(model))


def taught(run, teacher=None):
    task = task_of(run, {"preprocess": {"mean": [0.45, 0.5, 0.55], "std": [0.2, 0.3, 0.25]}})
    return task.able(HasFrozen).load(teacher or a_teacher())


pytestmark = pytest.mark.usefixtures("quick_compilation")


# ------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("norm", [True, False], ids=["LayerNorm", "no LayerNorm"])
def test_loss_and_gradients_are_those_of_vit_pytorchs_wrapper(norm):
    """The wrapper's teacher is torch_ref's, given images of its own size, by torch's resizing, and normalisation."""
    torch = pytest.importorskip("torch", reason="PyTorch cannot be imported, so ours is not compared with vit-pytorch")
    try:
        load_library("torchvision"), load_library("vit_pytorch")
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"vit-pytorch cannot be imported: {error}")
    model = replace(STUDENT, distill_norm=norm)
    tree, rows = weights(model), LAYOUTS["vit-pytorch-distill@1.16.5"].rows(model)
    known = torch_ref.with_parameters(TEACHER, weights(TEACHER)).module.double().eval()
    of = [torch.tensor(x, dtype=torch.float64).view(3, 1, 1) for x in ((0.45, 0.5, 0.55), (0.2, 0.3, 0.25), MEAN, STD)]

    class Seeing(torch.nn.Module):
        def forward(self, images):
            pixels = images * of[1] + of[0]
            pixels = torch.nn.functional.interpolate(pixels, (6, 4), mode="bilinear", antialias=True)
            return known((pixels - of[2]) / of[3])

    wrapper = vit_pytorch.wrapper(model).double()
    state = rules.write(rows, tree)
    wrapper.load_state_dict({name: torch.from_numpy(x) for name, x in state.items()})
    wrapper.teacher = Seeing()
    pixels = torch.from_numpy(BATCH["image"]).permute(0, 3, 1, 2).double() / 255
    losses = (DistilLoss(alpha=0.3), DistilLoss(hard=True))
    with jax.enable_x64(True):
        tasks = [taught(a_run(model, c, compute_dtype="float64")) for c in losses]
        network = definition(model, dtype="float64", param_dtype="float64")

        def weighted(now, weights):  # one program for both losses
            student = merge(network, now)
            ours = jax.numpy.stack([task.loss(student, BATCH, KEYS)[0] for task in tasks])
            return (weights * ours).sum(), ours

        step = jax.jit(jax.grad(weighted, has_aux=True))
        found = [step(unflatten(tree), weights) for weights in np.eye(2)]
    for i, (c, (gradients, ours)) in enumerate(zip(losses, found, strict=True)):
        wrapper.zero_grad()
        wrapper.temperature, wrapper.alpha, wrapper.hard = c.temperature, c.alpha, c.hard
        theirs = wrapper((pixels - of[0]) / of[1], torch.from_numpy(BATCH["label"]).long())
        theirs.backward()
        slopes = rules.read(rows, {n: x.grad.numpy() for n, x in wrapper.named_parameters() if n in state})
        assert float(ours[i]) == pytest.approx(theirs.item(), rel=1e-12, abs=0)
        mine = flatten(gradients)
        assert mine.keys() == slopes.keys()
        for name, slope in slopes.items():
            np.testing.assert_allclose(mine[name], slope, rtol=0, atol=1e-10 * max(1, abs(slope).max()))


def test_a_teacher_is_built_for_the_devices_that_compute_it(monkeypatch):
    """A CPU that rounds factors has no activations in bfloat16; a GPU for which it plans has."""
    monkeypatch.setattr(lowering, "rounds_factors", lambda dtype, target: dtype == "bfloat16" and target is HERE)
    task = task_of(a_run(compute_dtype="bfloat16"), {"preprocess": {"mean": MEAN, "std": STD}})
    for target, dtype in ((HERE, "float32"), (read_target("h100"), "bfloat16"), (read_target("v5e:2x2"), "bfloat16")):
        found = task.able(HasFrozen).load(a_teacher(), target)
        assert merge(found.teacher, found.frozen_arrays["parameters"]).dtype == dtype


def test_each_head_gives_its_own_logits_and_the_pool_decides_which_predict():
    network = network_class(STUDENT)
    both = replace(STUDENT, pool="cls_distill")
    images = np.random.default_rng(1).standard_normal((2, 4, 6, 3)).astype(np.float32)
    one, two = (merge(definition(c), unflatten(weights(c))) for c in (STUDENT, both))
    (logits, distilled), first, mean = jax.jit(lambda x: (one.both(x), one(x), two(x)))(images)
    np.testing.assert_allclose(first, logits, rtol=1e-6)
    np.testing.assert_allclose(mean, (logits + distilled) / 2, rtol=1e-5)
    assert np.abs(logits - distilled).max() > 0.1
    with pytest.raises(ValueError, match="no class token and distillation token with a head each"):
        network(replace(STUDENT, distill_head=False, distill_norm=False)).both(images)


# ------------------------------------------------------------------------------------- what it sees


@pytest.mark.parametrize(
    ("kernel", "size", "trim"),
    [("bilinear", 8, 0), ("bicubic", 20, 0), ("nearest", 12, 0), ("bicubic", 12, 0), ("bilinear", 8, 3)],
)
def test_the_teacher_sees_the_augmented_image_resized_as_pillow_does(kernel, size, trim, monkeypatch):
    seen = []
    monkeypatch.setattr(distil, "merge", lambda *_: lambda images: seen.append(images) or images[:, 0, :, 0])
    teacher = a_teacher(replace(TEACHER, image=(size, size), patch=4), image=[size, size], interpolation=kernel,
                        trim=[trim, 0])  # fmt: skip
    images = np.random.default_rng(2).integers(90, 166, (6, 12, 12, 3)).astype(np.uint8)  # nothing to clip
    task = replace(taught(a_run(), teacher), augment=ImageAugment(flip=True))
    prepared = np.asarray(task.prepare({"image": images}, KEYS)["image"])
    assert (prepared != images).any()
    task.teacher_logits(prepared)
    pixels = (np.asarray(seen[0]) * STD + MEAN) * 255
    for mine, image in zip(pixels, prepared, strict=True):
        theirs = np.asarray(Image.fromarray(image).resize((size, size + trim), Image.Resampling[kernel.upper()]))[:size]
        assert np.abs(mine - theirs).max() < 1.01  # Pillow rounds after each of its two passes


def test_the_teacher_is_an_argument_of_the_compiled_step_and_does_not_change():
    run = a_run(accumulate=2, scan=True, remat="full")
    task = taught(run)
    engine = Engine(run, partial(definition, STUDENT), task, Optimizer(run.optim, 4, 2, STUDENT.parameters()))
    first = engine.frozen_arrays
    losses = []
    for scale in (1, 3, 1):
        engine.frozen_arrays = jax.tree.map(lambda x, by=scale: jax.device_put(np.asarray(x) * by, x.sharding), first)
        state = engine.start(jax.tree.map(np.float32, unflatten(weights(STUDENT))))
        state, metrics = engine.train(state, BATCH)
        losses.append(float(metrics["loss"]))
    assert losses[0] == losses[2] != losses[1] and engine.compiled._cache_size() == 1
    state = engine.start(jax.tree.map(np.float32, unflatten(weights(STUDENT))))
    state, metrics = engine.train_together(state, [BATCH, BATCH])
    assert float(metrics["loss"][0]) == losses[0] != float(metrics["loss"][1])
    tree = jax.tree.map(np.float32, unflatten(weights(STUDENT)))
    whole, _ = jax.jit(lambda tree: task.loss(merge(definition(STUDENT), tree), BATCH, KEYS))(tree)
    assert float(whole) == pytest.approx(losses[0], rel=1e-5)
    assert flatten(state.parameters).keys() == weights(STUDENT).keys()


def test_nothing_is_differentiated_through_the_teacher():
    """The step with it has as many matrix products more than one with its logits as its forward pass has."""
    tree, network, run = unflatten(weights(STUDENT)), definition(STUDENT), a_run()
    logits = replace(a_teacher(), config=None, arrays={"logits": np.zeros((9, 5))})

    def products(f, *arguments):
        return jax.jit(f).lower(*arguments).as_text().count("dot_general")

    with_network, with_logits = (
        products(jax.value_and_grad(lambda now: task.loss(merge(network, now), batch, KEYS)[0]), tree)  # noqa: B023
        for task, batch in ((taught(run), BATCH), (taught(run, logits), {**BATCH, "taught": np.zeros((6, 5))}))
    )
    assert with_network - with_logits == products(taught(run).teacher_logits, BATCH["image"]) > 5


def test_the_memory_of_a_run_has_the_teacher(monkeypatch):
    run, teacher = a_run(accumulate=1), a_teacher(path="big.safetensors")
    needed = sum(x.size for x in teacher.arrays.values()) * 4
    assert division.run_bytes(run, teacher)[0] - division.run_bytes(run)[0] == needed
    limit = sum(division.run_bytes(run))
    monkeypatch.setattr(division, "memory", lambda: (limit, 1))
    division.check_memory(run)
    with pytest.raises(UserError, match=r" and the teacher big\.safetensors take at least "):
        division.check_memory(replace(run, teacher="big.safetensors"), teacher)


# ------------------------------------------------------------------------------------------------ runs

SMALL = "--model.image 8 --model.channels 1 --model.patch 4 --model.width 8 --model.depth 1 --model.heads 2"
REST = "--model.hidden 8 --data.source digits --augment.crop-padding 0 --augment.no-flip --batch 256 --epochs 1"
STUDENTS = ["cifar10-48x4-distil", *SMALL.split(), *REST.split()]


def lines(done):
    """The one line of an error, after its exit code is checked."""
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


@pytest.mark.slow
def test_a_run_with_a_teacher_from_start_to_evaluation(digits_run, working_folder, inside, monkeypatch):
    monkeypatch.setattr(finish, "draw", lambda *_: "")  # no figures
    command = ["train", *STUDENTS, "--name", "pupil", "--teacher", "teacher.safetensors"]
    known = vit_jax.load(digits_run)
    vit_jax.export(known, "teacher.safetensors")
    begun = inside(*command, "--max-steps", 2, cwd=working_folder)
    assert begun.returncode == 0, begun.stderr
    told = next(line for line in begun.stdout.splitlines() if line.startswith("teacher "))
    assert told.startswith("teacher  teacher.safetensors: vit-jax@vit, ViT 16 x 1, 2 heads, 16 patches, images 8x8x1, ")
    assert ", mean " in told and ", std " in told
    assert "MB for weights, gradients, optimizer and teacher, before" in begun.stdout
    run = Run(working_folder / "runs/pupil")
    frozen = run.record()["frozen"]
    saved = run.saved(2)["arrays"]
    assert {*saved} == {"model", "optimizer"} and saved["model"].keys() == run.config().model.parameters().keys()
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert {"loss", "accuracy", "distillation", "agreement"} <= rows[0].keys()

    Path("kept").write_bytes(Path("teacher.safetensors").read_bytes())
    Path("teacher.safetensors").unlink()
    other = network_class(known.run.model)(known.run.model)
    vit_jax.export(other, "teacher.safetensors", fields=dict(mean=[0.3], std=[0.4]))
    refused = lines(inside(*command, cwd=working_folder))
    assert "its frozen arrays (a teacher) are not those that this run began with" in refused
    Path("teacher.safetensors").unlink()
    assert "teacher teacher.safetensors: no such file, folder or run" in lines(inside(*command, cwd=working_folder))
    assert inside("evaluate", "pupil", cwd=working_folder).returncode == 0  # which needs no teacher

    vit_jax.export(other, "other.safetensors", fields=dict(mean=[0.3], std=[0.4]))
    refused = lines(inside(*command, "--teacher", "other.safetensors", cwd=working_folder))
    assert "teacher is other.safetensors, and was teacher.safetensors; give what it was made from" in refused
    shutil.move("kept", "moved.safetensors")
    ended = inside(*command, "--teacher", "moved.safetensors", cwd=working_folder)
    assert run.config().teacher == "moved.safetensors"
    assert ended.returncode == 0 and "going on after step 2" in ended.stdout
    assert run.record()["frozen"] == frozen and run.summary()["status"] == "finished"

    source = open_image_source(run.config().data).splits["train"]
    logits = known.logits(list(source.pixels))
    np.savez("logits.npz", logits=logits, labels=source.labels)
    told = inside(
        "train", *STUDENTS, "--name", "cached", "--teacher", "logits.npz", "--max-steps", 2, cwd=working_folder
    )
    assert "teacher  logits.npz: logits of 1,797 images, 10 classes" in told.stdout
    cached = [json.loads(line) for line in Run(Path("runs/cached")).metrics_file.read_text().splitlines()]
    for one, other in zip(rows, cached, strict=True):  # as with the network itself
        assert one["step"] == other["step"] and one["loss"] == pytest.approx(other["loss"], rel=1e-5)


@pytest.mark.parametrize("folder", [True, False], ids=["a run", "a file"])
def test_a_teacher_is_what_load_opens(folder, digits_run, tmp_path):
    """The best weights, averaged if validation chose these, and their own normalisation."""
    known = vit_jax.load(digits_run)
    path = str(digits_run) if folder else str(vit_jax.export(known, tmp_path / "t.safetensors")[0])
    run = a_run(replace(STUDENT, channels=1, classes=10), teacher=path)
    pixels = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 1)).astype(np.uint8)
    task = task_of(run, {"preprocess": {"mean": [0.1], "std": [0.2]}}).able(HasFrozen).load(open_teacher(run))
    np.testing.assert_allclose(jax.jit(task.teacher_logits)(pixels), known.logits(pixels), atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (STUDENTS, "teacher is empty: give `teacher"),
        (["digits", "--teacher", "x.pt"], "teacher is x.pt, but the task classify learns from none"),
        ([*STUDENTS, "--teacher", "gone"], "teacher gone: no such file, folder or run"),
        ([*STUDENTS, "--teacher", "words.safetensors"], "teacher words.safetensors: holds a Transformer"),
        ([*STUDENTS, "--teacher", "logits.npy", "--augment.flip"], "but augment.flip is True: give the network itself"),
        ([*STUDENTS, "--teacher", "logits.npy", "--model.classes", "7"], "logits of 10 classes and this run has 7"),
        ([*STUDENTS, "--teacher", "ids.npy"], "teacher ids.npy: logits are int64 [3, 10]; give finite"),
        ([*STUDENTS, "--teacher", "text.npz"], "teacher text.npz: is no readable file of numpy"),
        ([*STUDENTS, "--teacher", "bare.safetensors", "--model.channels", "3"], "does not state how images are prepro"),
        ([*STUDENTS, "--teacher", "seven.safetensors", "--model.classes", "0"], "has 7 classes and this run has 10"),
        ([*STUDENTS, "--teacher", "{run}", "--model.channels", "3"], "images of 1 channels and this run has 3"),
    ],
)  # fmt: skip
def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_written(
    words, message, digits_run, tmp_path, inside
):
    for name, model in (
        ("bare", replace(TEACHER, classes=10)),
        ("seven", replace(TEACHER, classes=7, channels=1)),
        ("words", TransformerConfig(8, 2, hidden=8, source_vocabulary=5, target_vocabulary=5, outputs=5)),
    ):
        if f"{name}.safetensors" in words:
            stated = dict(mean=[0.5], std=[0.5]) if name == "seven" else {}
            vit_jax.export(network_class(model)(model), tmp_path / f"{name}.safetensors", fields=stated)
    (tmp_path / "text.npz").write_text("no weights")
    np.save(tmp_path / "logits.npy", np.zeros((1796, 10), np.float32))
    np.save(tmp_path / "ids.npy", np.zeros((3, 10), np.int64))
    before = {*tmp_path.iterdir()}
    assert message in lines(inside("train", *[word.format(run=digits_run) for word in words]))
    assert {*tmp_path.iterdir()} == before


def test_logits_are_compared_with_the_images_of_the_data_but_not_with_what_stands_for_it(tmp_path, monkeypatch):
    """Before a set is fetched its labels are not known; copies of an image in a batch do not change the image."""
    monkeypatch.setitem(OFFICIAL, "mnist", replace(OFFICIAL["mnist"], splits={"train": 30, "test": 5}))
    model = replace(STUDENT, image=28, patch=14, channels=1, classes=10)
    run = replace(a_run(model), data=ImageData(source="mnist", dir=str(tmp_path)), augment=ImageAugment(repeats=2))
    data = distil.Distil.open_data(run, fetch=False)
    teacher = Teacher("t.npz", "logits", None, {}, {"logits": np.zeros((30, 10)), "labels": np.zeros(30, np.int32)})
    refuse = TASKS["distil"].check_teacher
    refuse(teacher, run, data)
    with pytest.raises(UserError, match=r"its labels are not those of data\.source mnist"):
        refuse(teacher, run, replace(data, stands_in=False))
    with pytest.raises(UserError, match=r"has logits of 29 images and data\.source mnist has 30"):
        refuse(replace(teacher, arrays={"logits": np.zeros((29, 10))}), run, data)
    cropped = replace(run, augment=ImageAugment(scale=(0.5, 1.0), repeats=2))
    with pytest.raises(UserError, match=r"but augment.scale is 0.5 1.0: give .*, or set augment.scale to 1.0 1.0$"):
        refuse(teacher, cropped, data)
    refuse(teacher, replace(cropped, overfit_batches=1), data)  # which does not augment


def test_the_pytorch_reference_says_that_it_has_no_teacher():
    run = preset("cifar10-48x4-distil").run
    for each in (run, replace(run, teacher="x.pt")):
        with pytest.raises(UserError, match="task is distil, whose teacher the PyTorch reference does not have"):
            check_supported(each)


def test_a_open_teacher_other_classes_or_none_is_refused():
    refuse, run = TASKS["distil"].check_teacher, a_run()
    names = ["ant", "bee", "cat", "dog", "eel"]
    data = SimpleNamespace(metadata=lambda: {"class_names": names})
    for teacher, message in (
        (a_teacher(names=("ant", "bee", "cow", "dog", "eel")), "its class 2 is 'cow' and here it is 'cat'"),
        (a_teacher(replace(TEACHER, classes=0)), "has no head and so no classes"),
        (replace(a_teacher(), metadata={"outputs": {"kind": "set"}}), "its outputs are a set of labels"),
    ):
        with pytest.raises(UserError, match=f"^teacher t: {message}"):
            refuse(teacher, run, data)
    refuse(a_teacher(names=names), run, data)
    refuse(a_teacher(), a_run(replace(STUDENT, classes=0)), None)
