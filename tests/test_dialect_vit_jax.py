"""Our own layout: run folders and exported files as sources, and written run folders that every command accepts."""

import contextlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from convert.containers import orbax
from convert.containers.run_folder import is_run, open_run
from convert.containers.source import Spec
from convert.dialects import LAYOUTS
from convert.recognise.reading import Options, read
from convert.verify.command import both
from tests.parity.cases import TRANSFORMER
from tests.random_weights import weights
from vit_jax.commands.evaluate import evaluate
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.images.preprocess import Preprocess
from vit_jax.errors import UserError
from vit_jax.files.digests import text_digest
from vit_jax.models.state import split_model
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs import Run
from vit_jax.runs.values import to_dict
from vit_jax.tasks.table import task_spec, untrained_run
from vit_jax.weights import load as trained
from vit_jax.weights.checkpoint import Checkpoints, SavedState
from vit_jax.weights.start import start

pytestmark = pytest.mark.usefixtures("quick_compilation")
VIT = ViTConfig(
    image=(8, 4), patch=2, channels=1, classes=3, width=12, depth=2, heads=3, hidden=20, layer_scale=0.1, registers=2
)
SEQ = replace(
    TRANSFORMER, encoder_depth=1, decoder_depth=1, source_vocabulary=9, target_vocabulary=7, position="learned"
)
PREPROCESS = Preprocess((8, 4), 1, "crop", 0, "bilinear", 255, (0.3,), (0.7,)).to_dict()
NAMES = ["ant", "bee", "cat"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests work inside their own folder."""
    monkeypatch.chdir(tmp_path)


def a_run(path, config=VIT, steps=(4, 9), best=None, ema=0.0):
    """A run folder as training leaves it; a step's weights are those of seed `step`, its average's of 100 + step."""
    task = "classify" if isinstance(config, ViTConfig) else "translate"
    run = RunConfig(
        task, config, task_spec(task).data(), task_spec(task).augment(), OptimConfig(name="momentum"), ema=ema
    )
    words = {"source": [f"s{i}" for i in range(9)], "target": [f"t{i}" for i in range(7)]}
    needed = (
        {"preprocess": PREPROCESS, "class_names": NAMES} if isinstance(config, ViTConfig) else {"vocabulary": words}
    )
    folder = Run(path)
    folder.create({"preset": "mine", "config": to_dict(run), "data": {"name": "drawn"}, **needed})
    for step in steps:
        average = unflatten(weights(config, 100 + step)) if ema else None
        state = SavedState(
            np.int32(step), unflatten(weights(config, step)), {"trace": unflatten(weights(config, 50))}, average
        )
        Checkpoints(folder).save(state, {"best": best, "environment": {"versions": {}}}, best and best["step"], 9)
    return folder


def same(found, expected):
    assert found.keys() == expected.keys()
    assert all(found[n].dtype == x.dtype and np.array_equal(found[n], x) for n, x in expected.items())


# ------------------------------------------------------------------------------------------ sources


@pytest.mark.parametrize("config", [VIT, SEQ])
def test_a_run_is_read_with_all_that_it_knows(config):
    a_run("run", config)
    with (reading := read("run")).source:
        assert reading.config == config and reading.source.container == "orbax"
        same({n: t.read() for n, t in reading.tensors.items()}, weights(config, 9))
        if config is VIT:
            assert reading.facts.preprocess == PREPROCESS and reading.facts.outputs.names == tuple(NAMES)
        else:
            assert reading.facts.extra["vocabulary"]["target"][6] == "t6"
    with read("run", Options(step=4)).source as source:
        assert np.array_equal(
            source.tree["model"][next(iter(config.shapes()))].read(), next(iter(weights(config, 4).values()))
        )


def taken(path, **options):
    """(the step, which weights) that are read: the tensors are those of `a_run`, raw or averaged."""
    with (reading := read(str(path), Options(**options))).source as source:
        found = {n: t.read() for n, t in reading.tensors.items()}
        kind = next(k for k, far in (("raw", 0), ("ema", 100)) if same_values(found, weights(VIT, source.step + far)))
        assert f"step {source.step} (" in reading.chosen and {"raw": "model", "ema": "ema"}[kind] == reading.label
        return source.step, kind


def same_values(found, expected):
    return all(np.array_equal(found[n], x) for n, x in expected.items())


BESTS = {
    "nothing noted": (None, (9, "ema")),
    "by raw weights": ({"step": 4, "weights": "raw"}, (4, "raw")),
    "by averaged weights": ({"step": 4, "weights": "ema"}, (4, "ema")),
    "the last by raw weights": ({"step": 9, "weights": "raw"}, (9, "raw")),
}


@pytest.mark.parametrize("case", BESTS)
def test_the_best_step_is_taken_with_the_weights_that_it_was_chosen_by(case):
    best, expected = BESTS[case]
    a_run("run", ema=0.9, best=best)
    step = expected[0]
    assert taken("run") == expected
    if case in ("nothing noted", "by raw weights"):
        assert taken("run", key="model") == (step, "raw")
        assert taken("run", key="ema") == (step, "ema")
        assert taken("run", step="last")[0] == 9 and taken("run", step=4)[0] == 4
        assert taken("run", training=True) == (9, "raw")
        assert taken("run", training=True, step="best") == (step, "raw")
    network = vit_jax.load("run")
    assert network.step == step


def test_a_run_without_an_average_gives_its_raw_weights():
    a_run("run", best={"step": 4, "weights": "raw"})
    assert taken("run") == (4, "raw") and taken("run", step="last") == (9, "raw")
    with pytest.raises(UserError, match="run: key ema names no set of weights; there is model"):
        read("run", Options(key="ema"))
    with pytest.raises(UserError, match="there is no step 5; it holds 9, 4"):
        open_run("run", 5)


def test_a_resume_does_not_go_back_and_uses_take_the_best(tmp_path, convert):
    a_run("run", ema=0.9, best={"step": 4, "weights": "raw"})
    said = "step 4 (the best by validation, the last is 9), its raw weights (`key model`)"
    last = "step 9 (the last, the best by validation is 4), its raw weights (`key model`)"
    for target, flags, expected in (
        ("a.safetensors", (), said), ("b.pt", ("--to", "torch-ref", "--weights-only"), said), ("c", (), last),
        ("d.pt", ("--to", "torch-ref"), last), ("e", ("--weights-only",), said), ("f", ("--step", "best"), said),
    ):  # fmt: skip
        code, out, _ = convert("run", tmp_path / target, *flags)
        assert code == 0 and f"weights   {expected}" in out, target
        assert ("left out  optimizer" in out) != ("optimizer's state is converted" in out)
    assert Run("c").complete_steps() == [9] and Run("f").complete_steps() == [4]
    with read("a.safetensors").source as source:
        made = json.loads(source.metadata["provenance"])["source"]
    assert (made["step"], made["key"]) == (4, "model")
    assert said in convert("inspect", "run")[1]
    assert "made from  run, step 4, model (vit-jax@vit, sha256 " in convert("inspect", "a.safetensors")[1]
    same(flatten(trained.weights(Run("c"), VIT, ema=True)[1]), weights(VIT, 109))


def test_a_file_of_torch_ref_gives_the_weights_that_its_run_would(convert):
    a_run("run", ema=0.9)
    assert convert("run", "x.pt", "--to", "torch-ref")[0] == 0
    for flags, seed in (((), 109), (("--key", "model"), 9), (("--key", "ema"), 109)):
        code, out, _ = convert("x.pt", "y.safetensors", "--force", *flags)
        assert code == 0 and "weights   step 9, its " in out
        same(load_file("y.safetensors"), weights(VIT, seed))
    assert convert("x.pt", "back")[0] == 0
    _, back, _ = trained.weights(Run("back"), VIT, ema=False)
    same(flatten(back), weights(VIT, 9))


def test_verify_compares_the_step_and_the_weights_that_the_target_says_it_was_made_of(tmp_path, convert, monkeypatch):
    run = a_run("run", ema=0.9, best={"step": 4, "weights": "ema"})

    def compared(target, **options):
        with contextlib.ExitStack() as opened:
            a, b, _ = both(str(run.path), str(tmp_path / target), Options(**options), opened)
            return (a.source.step, a.label), (b.source.step, b.label)

    for target in ("c", "x.pt"):  # the last step's raw weights; the run's own are the best step's averaged ones
        assert convert(run.path, tmp_path / target, "--to", "torch-ref" if target == "x.pt" else "vit-jax")[0] == 0
        assert compared(target) == ((9, "model"), (9, "model"))
        assert compared(target, step=4) == ((4, "ema"), (9, "ema"))
    monkeypatch.setitem(sys.modules, "torch", None)  # tensors alone are compared
    code, out, _ = convert(run.path, "a.safetensors", "--verify")
    said = "step 4 (the best by validation, the last is 9), its averaged weights (`key ema`)"
    assert code == 0 and f"A         {run.path}: vit-jax@vit, {said}" in out
    assert json.loads(Path("a.safetensors.certificate.json").read_text())["source"]["weights"] == said
    shutil.rmtree(run.checkpoints / "9")
    assert compared("c") == ((4, "ema"), (9, "ema"))  # what it was made of is gone


@pytest.mark.parametrize("adaptation", ["resize=12x8:timm", "head=drop"])
def test_a_run_and_what_was_adapted_from_it_are_the_same_in_both_orders(tmp_path, convert, monkeypatch, adaptation):
    run, target = a_run("run", ema=0.9, best={"step": 4, "weights": "ema"}).path, tmp_path / "a.safetensors"
    assert convert(run, target, "--adapt", adaptation, "--dtype", "float16")[0] == 0
    monkeypatch.setitem(sys.modules, "torch", None)  # tensors alone are compared
    said = []
    for i, order in enumerate([(run, target), (target, run)]):
        code, out, error = convert("verify", *order, "--json", f"{i}.json")
        assert code == 0, out + error
        assert [line.split()[:2] for line in out.splitlines()[:2]] == [["A", f"{order[0]}:"], ["B", f"{order[1]}:"]]
        assert f"--adapt {adaptation}" not in out and "DIFFERS" not in out
        found = json.loads(Path(f"{i}.json").read_text())
        said.append({key: found[key] for key in ("source", "target", "adaptations", "differences", "verdict")})
    assert said[0] == said[1] and said[0]["adaptations"] == [adaptation]


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("x", "step x: give best, last, or the number of a step"),
        ("-1", "step -1: give"),
        ("7", "there is no step 7"),
    ],
)
def test_a_step_that_is_none_is_one_sentence(convert, flag, told):
    a_run("run")
    code, _, error = convert("run", "a.safetensors", f"--step={flag}")
    assert code == 2 and told in error and len(error.splitlines()) == 1


def test_a_checkpoint_with_a_damaged_digest_is_passed_over_as_by_load(convert):
    run = a_run("run", best={"step": 4, "weights": "raw"})
    damage_digest(run)
    code, out, _ = convert(run.path, "a.safetensors", "--step", "last")
    assert code == 0 and "left out  checkpoint 9 (its digest file is damaged)" in out
    assert vit_jax.load(run.path, "last").step == 4
    same(load_file("a.safetensors"), weights(VIT, 4))


def test_best_weights_that_are_lost_are_one_sentence_that_helps(convert):
    run = a_run("run", best={"step": 4, "weights": "raw"})
    shutil.rmtree(run.checkpoints / "4")
    code, _, error = convert(run.path, "a.safetensors")
    assert code == 2 and "the best checkpoint, of step 4, is not there; take the last with `step last" in error
    assert convert(run.path, "a.safetensors", "--step", "last")[0] == 0


def damage_array(run):
    """Another value under a valid checksum of the container."""
    arrays = weights(VIT, 9)
    arrays["head.bias"][1] += 1
    shutil.rmtree(run.checkpoints / "9/model")
    specs = unflatten({n: Spec(a.dtype, a.shape) for n, a in arrays.items()})
    orbax.write(str(run.checkpoints / "9/model"), specs, ((tuple(n.split(".")), a) for n, a in arrays.items()), {})


def rewrite(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def forge_digest(run):
    record = {**json.loads(run.digest_file(9).read_text()), "arrays": [1]}
    del record["digest"]
    run.digest_file(9).write_text(json.dumps({**record, "digest": text_digest(record)}))


def damage_digest(run):
    record = json.loads(run.digest_file(9).read_text())
    run.digest_file(9).write_text(json.dumps({**record, "step": 8}))


DAMAGES = {
    "an array": (damage_array, "step 9, model.head.bias, is damaged (its digest differs)"),
    "a digest": (damage_digest, "the digest file of step 9 is damaged"),
    "a forged digest": (forge_digest, "the digest file of step 9 is damaged"),
    "a config": (
        lambda run: rewrite(run.config_file, config={"task": []}),
        "config.json: task '[]' is not known to this version",
    ),
    "a config of its own kind": (
        lambda run: rewrite(run.config_file, config=[]),
        "config.json: list is not a group of fields",
    ),
    "statistics": (
        lambda run: rewrite(run.config_file, preprocess={**PREPROCESS, "mean": [0.5, 0.5]}),
        "its preprocess is damaged",
    ),
    "names": (lambda run: rewrite(run.config_file, class_names=[1, 2, 3]), "its class_names is damaged"),
    "an item": (
        lambda run: shutil.rmtree(run.checkpoints / "9/model"),
        "step 9, model, does not hold the arrays that were saved",
    ),
    "a step": (lambda run: shutil.rmtree(run.checkpoints / "9"), "nothing has been saved here yet"),
    "a preprocessing": (
        lambda run: run.config_file.write_text(run.config_file.read_text().replace('"preprocess"', '"process"')),
        "lacks preprocess",
    ),
    "a field": (
        lambda run: run.config_file.write_text(run.config_file.read_text().replace('"depth"', '"deep"')),
        "model.deep is no field",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_run_is_one_sentence(tmp_path, convert, case):
    damage, told = DAMAGES[case]
    damage(a_run("run", steps=(9,)))
    code, _, error = convert("run", "out.safetensors")
    assert code == 2 and told in error and len(error.splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_what_export_wrote_says_its_own_config(convert):
    a_run("run")
    vit_jax.export("run", "a.safetensors")
    with (reading := read("a.safetensors")).source:
        assert reading.config == VIT
    config = json.dumps(to_dict(replace(untrained_run(VIT), seed=1)))
    for damaged in ("{", config[:-1] + ', "seed": 2}'):  # cut; a key twice
        metadata = {"format": "vit-jax", "config": damaged}
        save_file(load_file("a.safetensors"), "b.safetensors", metadata=metadata)
        with pytest.raises(UserError, match="the config in the file's metadata is damaged"):
            read("b.safetensors")


# ------------------------------------------------------------------------------------------ targets


def test_a_file_of_a_version_with_fewer_fields_has_their_defaults():
    config = to_dict(replace(untrained_run(VIT), seed=1))
    for newer in ("stem", "stem_kernel"):
        del config["model"][newer]
    metadata = {"format": "vit-jax", "config": json.dumps(config)}
    save_file(weights(VIT), "older.safetensors", metadata=metadata)
    with (reading := read("older.safetensors")).source:
        assert reading.config == VIT


def stated(config, layout):
    """The flags that tell a layout a config."""
    values = {k: v for k, v in to_dict(config).items() if k in LAYOUTS[layout].fields}
    shown = {k: "x".join(map(str, v)) or "()" if isinstance(v, list) else v for k, v in values.items()}
    return ["--set", *(f"{k}={v}" for k, v in shown.items())]


@pytest.fixture
def foreign():
    """A network without a run: our names, no words beside."""
    save_file(weights(VIT), "file.safetensors")
    return ["file.safetensors", *stated(VIT, "vit-jax@vit")]


def test_a_network_without_a_run_becomes_one_that_loads_and_predicts(convert, foreign):
    code, told, error = convert(foreign[0], "runs/vit", *foreign[1:], "--set", "mean=0.3", "--set", "std=0.7")
    assert code == 0, error
    assert "classes are called by their numbers" in told and is_run("runs/vit")
    loaded = vit_jax.load("runs/vit")
    assert loaded.class_names == ("0", "1", "2") and loaded.preprocess.to_dict()["mean"] == [0.3]
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 4, 1)).astype(np.uint8)
    expected = trained._network(untrained_run(VIT), unflatten(weights(VIT)))((images / 255 - 0.3) / 0.7)
    np.testing.assert_allclose(loaded.logits(list(images)), np.asarray(expected), atol=1e-5)
    assert len(loaded.predict(list(images), top=2)[0]) == 2


def test_such_a_run_starts_others_and_is_itself_of_no_data(tmp_path, monkeypatch, convert, inside, foreign):
    assert convert(foreign[0], "runs/vit", *foreign[1:], "--set", "mean=0.3", "--set", "std=0.7")[0] == 0
    monkeypatch.chdir(tmp_path)
    started = start(replace(untrained_run(VIT), init="vit"), {}).parameters
    same(started, weights(VIT))
    done = inside("train", "--resume", "vit")
    assert done.returncode == 2 and "data.source unknown: no such set" in done.stderr
    with pytest.raises(UserError, match="no such set"):
        evaluate("vit")


def test_sentences_need_words_or_numbers(tmp_path, convert):
    a_run("run", SEQ)
    assert convert("run", "a.safetensors", "--to", "torch-ref")[0] == 0
    code, told, _ = convert("a.safetensors", "again")
    assert code == 0 and "by their ids" not in told
    assert vit_jax.load("again").target.entries[6] == "t6"
    tensors = load_file("a.safetensors")
    save_file(tensors, "bare.safetensors")
    words = stated(SEQ, "torch-ref@transformer")
    code, told, error = convert("bare.safetensors", "numbered", *words)
    assert code == 0 and "words are called by their ids" in told, error
    translator = vit_jax.load("numbered")
    assert translator.target.entries == ("<pad>", "<bos>", "<eos>", "<unk>", "id4", "id5", "id6")
    models = [vit_jax.load(tmp_path / name).model for name in ("run", "numbered")]
    assert models[0].config == models[1].config
    same(*(flatten(split_model(model)[1]) for model in models))


def test_networks_of_vectors_and_unknown_images_make_no_run(tmp_path, convert, foreign):
    vectors = replace(SEQ, source_vocabulary=0)
    save_file(weights(vectors), "v.safetensors")
    words = stated(vectors, "vit-jax@transformer")
    for arguments, told in (
        (["v.safetensors", *words], "this network takes or gives vectors; write it as FILE.safetensors"),
        ([*foreign, "--weights-only"], "does not state the mean and std of its images"),
    ):
        code, _, error = convert(arguments[0], "out", *arguments[1:])
        assert code == 2 and told in error and not Path("out").exists() and not list(tmp_path.glob(".*"))


def test_a_run_is_never_written_over(convert):
    a_run("run")
    a_run("there")
    before = {p: p.read_bytes() for p in Path("there").rglob("*") if p.is_file()}
    for force in ((), ("--force",)):
        code, _, error = convert("run", "there", *force)
        assert code == 2 and "a run is never written over" in error
    assert {p: p.read_bytes() for p in Path("there").rglob("*") if p.is_file()} == before


def test_a_run_holds_float32(convert, foreign):
    save_file(weights(VIT, dtype=np.float16), foreign[0])
    statistics = ("--set", "mean=0.3", "--set", "std=0.7")
    code, _, error = convert(foreign[0], "out", *foreign[1:], *statistics)
    assert code == 2 and "is float16, and a run's arrays are float32; add `dtype float32" in error
    assert convert(foreign[0], "out", *foreign[1:], *statistics, "--dtype", "float32")[0] == 0
    same(
        flatten(trained.weights(Run("out"), VIT)[1]),
        {n: x.astype(np.float32) for n, x in weights(VIT, dtype=np.float16).items()},
    )


def test_digests_are_those_that_training_checks(tmp_path, convert):
    a_run("run")
    assert convert("run", "copy", "--from", "vit-jax")[0] == 0
    ours, copy = (json.loads(Run(tmp_path / name).digest_file(9).read_text()) for name in ("run", "copy"))
    assert ours["arrays"] == copy["arrays"]
    assert copy["digest"] == text_digest({k: v for k, v in copy.items() if k != "digest"})
    saved, skipped = Checkpoints(Run("copy")).restore(VIT.shapes())
    assert saved.step == 9 and not skipped
    same(flatten(saved.state.moments["trace"]), weights(VIT, 50))
    assert Run("copy").config() == Run("run").config()
    assert Run("copy").record()["data"] == {"name": "drawn"}
