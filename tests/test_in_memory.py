"""Networks and state dicts in memory are loaded and written as the same ones in files are."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from convert.verify.libraries import load
from vit_jax.commands.evaluate import command as evaluate_command
from vit_jax.errors import UserError
from vit_jax.tasks.predictor import Predictor

pytestmark = pytest.mark.usefixtures("working_folder")
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (3, 32, 32, 3), np.uint8)
STATED = {"mean": [0.5] * 3, "std": [0.25] * 3}
CLASSES = ["ant", "bee", "cat"]
TOLD = {"image": 32, "heads": 3, "eps": 1e-6, "activation": "gelu", "pool": "cls"}  # what its tensors do not say


@pytest.fixture(scope="module")
def vit():
    return vit_jax.build("vit-ti16", classes=3, image=32, depth=1)


@pytest.fixture(scope="module")
def state(vit):
    return vit_jax.export(vit, to="timm")


def test_a_state_dict_is_what_the_file_of_its_layout_holds(vit, state):
    for layout, suffix in (("timm", ""), ("torchvision", ".safetensors"), ("vit-jax", ".safetensors")):
        vit_jax.export(vit, f"of-{layout}{suffix}", to=layout, class_names=CLASSES, fields=STATED)
        file = load_file(f"of-{layout}{suffix}" if suffix else f"of-{layout}/model.safetensors")
        memory = vit_jax.export(vit, to=layout)
        assert file.keys() == memory.keys() and all((file[name] == memory[name]).all() for name in file)
    assert all(x.dtype == np.float16 for x in vit_jax.export(vit, to="timm", dtype="float16").values())


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: {"state_dict": x, "epoch": 3}], ids=["plain", "checkpoint"])
def test_a_state_dict_computes_what_its_file_does(state, wrapped, tmp_path):
    save_file(state, tmp_path / "vit.safetensors")
    of_file = vit_jax.load(tmp_path / "vit.safetensors", fields=TOLD | STATED, class_names=CLASSES)
    of_memory = vit_jax.load(wrapped(state), fields=TOLD | STATED, class_names=CLASSES)
    assert (of_memory.logits(PIXELS) == of_file.logits(PIXELS)).all()
    assert of_memory.predict(PIXELS[0]) == of_file.predict(PIXELS[0]) and of_memory.class_names == tuple(CLASSES)


def test_tensors_of_torch_are_read_to_the_bit(state):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in state.items()}
    assert all((vit_jax.export(vit_jax.load(tensors, fields=TOLD), to="timm")[n] == x).all() for n, x in state.items())
    half = {name: x.detach().bfloat16() for name, x in tensors.items()}
    back = vit_jax.export(vit_jax.load(half, fields=TOLD), to="timm", dtype="bfloat16")
    assert all((torch.tensor(back[n].astype(np.float32)) == x.float()).all() for n, x in half.items())


def test_a_network_of_transformers_goes_there_and_back():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    transformers = load("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8,
        id2label=dict(enumerate(CLASSES)), label2id={name: i for i, name in enumerate(CLASSES)},
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(config).eval()
    beside = {"config.json": theirs.config.to_dict(), "preprocessor_config.json": {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 16, "width": 16},
        "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }}  # fmt: skip
    net = vit_jax.load(theirs.state_dict(), beside=beside)
    pixels = PIXELS[:, :16, :16]
    with torch.no_grad():
        expected = theirs(torch.tensor(pixels).permute(0, 3, 1, 2) / 127.5 - 1).logits.numpy()
    assert net.class_names == tuple(CLASSES) and net.logits(pixels) == pytest.approx(expected, abs=1e-5)
    theirs.load_state_dict({n: torch.tensor(x) for n, x in vit_jax.export(net, to="huggingface@v5").items()})


def test_a_network_is_used_as_it_is_while_it_is_trained(vit):
    net = vit_jax.load(vit, fields=STATED, class_names=CLASSES)
    before = net.logits(PIXELS)
    assert net.model is vit and net.class_names == tuple(CLASSES)
    bias = vit.head.bias[...]
    vit.head.bias[...] = bias + 1
    assert net.logits(PIXELS) == pytest.approx(before + 1, abs=1e-5)
    vit.head.bias[...] = bias


def test_what_is_written_is_verified_and_rounded(vit, tmp_path, capsys):
    pytest.importorskip("torch")
    files = vit_jax.export(vit, tmp_path / "x.safetensors", to="torch-ref", fields=STATED, verify=True)
    assert "verdict   the same function" in capsys.readouterr().out and files
    assert (tmp_path / "x.safetensors.certificate.json").exists()


def test_large_weights_are_cut_into_files_that_their_library_opens(vit, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    transformers = load("transformers")
    whole = vit_jax.export(vit, to="timm")
    sizes = sorted(x.nbytes for x in whole.values())
    for size in (sizes[-1] + 1, "500kB", 10**9):
        vit_jax.export(vit, tmp_path / f"{size}", to="huggingface", fields=STATED, shard_size=size)
        files = sorted((tmp_path / f"{size}").glob("*.safetensors"))
        assert (len(files) == 1) == (size == 10**9) and all(file.stat().st_size < sizes[-1] * 3 for file in files[1:])
        again = vit_jax.export(vit_jax.load(tmp_path / f"{size}"), to="timm")
        assert all((again[name] == x).all() for name, x in whole.items())
        theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / f"{size}")
        assert (theirs.classifier.weight.detach().numpy() == whole["head.weight"]).all()
    for path, size, says in (
        (tmp_path / "x.safetensors", "5GB", "shard_size: is for the files in a folder"),
        (tmp_path / "x", "5 gigs", "shard_size is '5 gigs': give a number of bytes"),
        (tmp_path / "x", "5GB", "shard_size: is for the files in a folder of safetensors"),
    ):
        with pytest.raises(UserError, match=says):
            vit_jax.export(vit, path, shard_size=size)
    assert not (tmp_path / "x").exists()


def test_a_bare_network_says_what_it_lacks_by_each_of_its_methods(vit):
    bare = vit_jax.load(vit)
    assert isinstance(bare, Predictor) and "lacks preprocess" in repr(bare)
    for use in (bare.predict, bare.features, lambda x: bare.capture(x, ["pooled"]), lambda x: [*bare.answer(x)]):
        with pytest.raises(UserError, match=r"state that with vit_jax.load\(..., fields="):
            use(PIXELS)


def test_what_is_not_known_of_weights_in_memory_is_asked_for(vit, state, tmp_path):
    torch_like = {name: object() for name in state}
    for call, says in (
        (
            lambda: vit_jax.load(state),
            r"^the state dict: its tensors cannot tell .*beside=",
        ),
        (lambda: vit_jax.load({}), "^the state dict: holds no arrays"),
        (lambda: vit_jax.load(torch_like), "holds no arrays"),
        (lambda: vit_jax.load(3), "^path: int is none; give the path"),
        (lambda: vit_jax.load(vit, fields={"depth": 3}), "'depth' is not a field of this network"),
        (lambda: vit_jax.load(vit, fields=[("mean", 0.5)]), "^fields: is a list; give a dict"),
        (lambda: vit_jax.load(vit, which="last"), "weights in memory: is not a run"),
        (lambda: vit_jax.load(vit, fields=STATED, class_names=["a"]), "the network has 3 classes"),
        (lambda: vit_jax.load(tmp_path, beside={"config.json": {}}), "beside: is for a state dict"),
        (lambda: vit_jax.export(vit, verify=True), "verify: compares what was written"),
        (lambda: vit_jax.export(vit, tmp_path / "x.onnx", dtype="bfloat16"), "is a program"),
        (lambda: vit_jax.export(vit, tmp_path / "x.npz", dtype="int8"), r"^dtype int8: there are float16"),
    ):
        with pytest.raises(UserError, match=says) as told:
            call()
        assert "\n" not in str(told.value)
    assert not [*tmp_path.iterdir()]


@pytest.fixture(scope="module")
def trained(working_folder):
    """The folder of a run of two steps on digits."""
    fields = {"width": 16, "depth": 1, "heads": 2, "hidden": 32, "max_steps": 2, "accumulate": 1, "ema": 0.9}
    return vit_jax.train(vit_jax.preset("digits", fields=fields).run)["folder"]


def rows(file):
    return Path(file).read_text(encoding="utf-8").splitlines()


def test_a_loaded_run_is_measured_as_the_command_measures_its_folder(trained, capsys):
    for which, split in (("best", "validation"), ("last", "test")):
        words = [trained, "--split", split, "--weights", which, "--csv", f"{which}.csv"]
        assert evaluate_command([*words]) == 0
        net = vit_jax.load(trained, which)
        step, result = vit_jax.evaluate(net, split)
        again = vit_jax.evaluate(trained, split, which)[1]
        assert step == 2 and result.metrics == again.metrics
        names = np.array(net.class_names)[result.predicted]
        assert [row.split(",")[2] for row in rows(f"{which}.csv")[1:]] == names.tolist()
    assert "note" not in capsys.readouterr().err


def test_a_network_of_an_own_loop_is_measured_on_arrays_by_its_statistics(vit):
    labels = np.array([0, 1, 2])
    net = vit_jax.load(vit, fields=STATED, class_names=CLASSES)
    result = vit_jax.evaluate(net, data=(PIXELS, labels), class_names=CLASSES)[1]
    assert result.predicted.tolist() == net.logits(PIXELS).argmax(-1).tolist()
    for given, options, says in (
        (vit, {}, "does not state how images are preprocessed"),
        (net, {"data": None}, "^the network: no run here, .*`data.source folder:PATH"),
        (net, {"which": "last"}, "^a network in memory: is not a run"),
        (net, {"source_language": "de"}, "belong to weights"),
        (3, {}, "^path: int is none"),
    ):
        with pytest.raises(UserError, match=says):
            vit_jax.evaluate(given, **{"data": (PIXELS, labels), **options})
