"""Networks as programs, ONNX and StableHLO: what they compute without this package, what stands beside, refusals."""

import hashlib
import importlib.util
import json
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import vit_jax
from convert.verify.libraries.built import load as installed
from convert.write import into_program, program
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError
from vit_jax.models.build import definition
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

CUMSUM = jax.numpy.cumsum
pytestmark = pytest.mark.usefixtures("working_folder")
PLAIN = ViTConfig(image=(8, 12), channels=1, patch=4, classes=5, width=16, depth=2, heads=2, hidden=24)
ROTARY = replace(PLAIN, position="none", rotary="axial")
GATED = dict(gated=True, activation="silu", mlp_norm=True)
NETWORKS = {
    "plain": PLAIN,
    "dinov3": replace(ROTARY, registers=2, layer_scale=1.0, key_bias=False, classes=0, eps=1e-5),
    "eva02": replace(ROTARY, rotary_pairs="neighbours", rotary_places="indices", rotary_grid=16, **GATED, pool="mean"),
    "siglip": replace(PLAIN, cls_token=False, pool="map", activation="gelu_tanh", classes=0),
    "rms": replace(PLAIN, norm_kind="rms", norm_bias=False, qk_norm=True, activation="quick_gelu"),
    "stem": replace(PLAIN, stem=(6,), rotary="mixed", pool="cls_mean"),
    "resnet": ResNetConfig(image=(32, 40), classes=5, stages=(1, 1, 1, 1), width=4, hidden=4, groups=2),
}
NORMAL = {"mean": 0.4, "std": 0.25, "fit": "pad", "interpolation": "bilinear", "size": 8, "background": 255}
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def network(config, scale=0.2):
    """A network with random weights."""
    rng = np.random.default_rng(0)
    arrays = {name: scale * rng.standard_normal(shape, np.float32) for name, shape in config.shapes().items()}
    arrays |= {name: 1 + x**2 for name, x in arrays.items() if name.endswith(("scale", "variance"))}
    return merge(definition(config), jax.tree.map(jax.numpy.asarray, unflatten(arrays)))


def noise(config, batch):
    images = np.random.default_rng(batch).standard_normal((batch, *config.image, config.channels), np.float32)
    return images, np.asarray(jax.jit(network(config))(images))


@pytest.fixture(params=[".stablehlo", ".onnx"])
def suffix(request):
    """That of each kind of program whose libraries are here."""
    if request.param == ".onnx":
        pytest.importorskip("jax2onnx")
    return request.param


@pytest.fixture(scope="module")
def weights():
    """A file of weights that states all about its images."""
    vit_jax.export(network(PLAIN), "weights.safetensors", fields=NORMAL, class_names=NAMES)
    return Path("weights.safetensors").absolute()


@pytest.fixture
def refused(inside, tmp_path):
    """A conversion that ends with 2 and one sentence, and leaves all files as they were; the sentence."""

    def check(*arguments):
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        done = inside("convert", *arguments)
        assert done.returncode == 2 and done.stderr.startswith("vit-jax: error: ") and done.stderr.count("\n") == 1
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        return done.stderr

    return check


def run(path, images):
    """A program's outputs, by what the JSON beside it states."""
    said = json.loads(Path(f"{path}.json").read_text())
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return session.run([said["output"]["name"]], {said["input"]["name"]: images})[0]
    from jax import export

    return np.asarray(export.deserialize(bytearray(path.read_bytes())).call(images))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_computes_the_network_for_a_batch_of_any_size(name, suffix, tmp_path, capfd):
    config, path = NETWORKS[name], tmp_path / f"{name}{suffix}"
    written = vit_jax.export(network(config), path)
    assert {file.name for file in written} == {path.name, f"{path.name}.json"}
    assert jax.numpy.cumsum is CUMSUM and jax.numpy.cumsum(np.ones(3), -1)[-1] == 3  # jax2onnx replaces it for good
    assert "Traceback" not in (shown := "".join(capfd.readouterr())) and "Warning" not in shown
    for batch in (1, 8):
        images, expected = noise(config, batch)
        found = run(path, images)
        assert found.shape == expected.shape and found.dtype == np.float32
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_json_beside_states_all_that_its_use_takes(suffix, weights, inside, tmp_path):
    """Of a run, in whose images the program then finds what `predict` finds."""
    folder, path = tmp_path / "run", tmp_path / f"net{suffix}"
    assert inside("convert", weights, folder).returncode == 0
    done = inside("convert", folder, path)
    assert done.returncode == 0 and "of the largest output" in done.stdout, done.stderr
    assert "images [batch, 8, 12, 1] to logits [batch, 5]" in done.stdout
    said = json.loads(Path(f"{path}.json").read_text())
    assert said["input"] | {"values": ""} == {
        "name": "images", "shape": ["batch", 8, 12, 1], "axes": "NHWC", "dtype": "float32", "values": "",
    }  # fmt: skip
    assert said["output"] == {"name": "logits", "shape": ["batch", 5], "dtype": "float32"}
    assert said["class_names"] == NAMES and said["source"]["name"] == "run" and said["compared"]["difference"] < 1e-5
    assert said["preprocess"] == {**NORMAL, "mean": [0.4], "std": [0.25], "image": [8, 12], "channels": 1}
    assert said["files"] == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert {"jax", *program.KINDS[suffix].libraries} == said["versions"].keys()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 1), np.uint8)
    mean, std = (np.asarray(said["preprocess"][name], np.float32) for name in ("mean", "std"))
    logits = run(path, ((pixels / np.float32(255)) - mean) / std)
    assert logits == pytest.approx(vit_jax.load(str(folder)).logits(pixels), abs=1e-5)
    # The digest is that of the weights, in whatever file they are.
    vit_jax.export(str(weights), tmp_path / "weights.npz")
    vit_jax.export(str(tmp_path / "weights.npz"), tmp_path / f"other{suffix}")
    assert json.loads((tmp_path / f"other{suffix}.json").read_text())["weights"] == said["weights"]


ALONE = """
import sys
class Forbidden:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("vit_jax", "convert", "flax"):
            raise ImportError(name)
sys.meta_path.insert(0, Forbidden())
import numpy as np
from jax import export
program = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
assert program.platforms == ("cpu", "cuda", "tpu"), program.platforms
np.save(sys.argv[3], program.call(np.load(sys.argv[2])))
"""


def test_stablehlo_runs_in_a_process_where_this_package_cannot_be_imported(tmp_path):
    images, expected = noise(NETWORKS["eva02"], 4)
    vit_jax.export(network(NETWORKS["eva02"]), tmp_path / "net.stablehlo")
    # Compiled, it holds the weights once more: it is not kept on the disk.
    assert not list(Path(jax.config.jax_compilation_cache_dir).glob("jit_program-*"))
    np.save(tmp_path / "images.npy", images)
    command = [sys.executable, "-c", ALONE, "net.stablehlo", "images.npy", "logits.npy"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert np.load(tmp_path / "logits.npy") == pytest.approx(expected, abs=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("family", ["DINOv3ViT", "Siglip"])
def test_a_folder_of_transformers_computes_in_onnx_runtime_what_its_class_does(family, inside, tmp_path):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("jax2onnx")
    try:
        transformers = installed("transformers")
    except ImportError as error:
        pytest.skip(str(error))
    size = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    part = "Vision" if family == "Siglip" else ""
    cls, config = f"{family}{part}Model", f"{family}{part}Config"
    torch.manual_seed(0)
    theirs = getattr(transformers, cls)(getattr(transformers, config)(**size, image_size=32, patch_size=8)).eval()
    for p in theirs.parameters():
        p.data += 0.2 * torch.randn_like(p)
    theirs.save_pretrained(tmp_path / "theirs")
    done = inside("convert", "theirs", "net.onnx", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for batch in (1, 8):
        images = np.random.default_rng(batch).standard_normal((batch, 32, 32, 3), np.float32)
        with torch.no_grad():
            expected = theirs(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).pooler_output.numpy()
        found = run(tmp_path / "net.onnx", images)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_adaptations_and_rounding_are_done_on_the_way(weights, inside, tmp_path):
    double, path = tmp_path / "double.safetensors", tmp_path / "net.stablehlo"
    assert inside("convert", weights, double, "--dtype", "float64").returncode == 0
    done = inside("convert", double, path, "--dtype", "float32", "--adapt", "head=drop", "--adapt", "resize=16x16:timm")
    assert done.returncode == 0, done.stderr
    said = json.loads(Path(f"{path}.json").read_text())
    assert said["input"]["shape"] == ["batch", 16, 16, 1] and "class_names" not in said
    assert said["output"] == {"name": "features", "shape": ["batch", 16], "dtype": "float32"}
    assert [each["text"] for each in said["adaptations"]] == ["head=drop", "resize=16x16:timm"]
    assert run(path, np.zeros((2, 16, 16, 1), np.float32)).shape == (2, 16)


def test_large_weights_lie_in_a_file_beside_onnx(weights, inside, tmp_path, monkeypatch, refused):
    pytest.importorskip("jax2onnx")
    path, beside = tmp_path / "net.onnx", tmp_path / "net.onnx.data"
    with monkeypatch.context() as patch:
        patch.setattr(program, "LARGEST", 1000)
        assert inside("convert", weights, path).returncode == 0
    assert path.stat().st_size < 60_000 and beside.stat().st_size > 4000
    said = json.loads(Path(f"{path}.json").read_text())
    assert said["files"] == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (path, beside)}
    images, expected = noise(PLAIN, 8)
    assert np.abs(run(path, images) - expected).max() <= 1e-5 * np.abs(expected).max()
    assert "--force" in refused(weights, path)
    assert inside("convert", weights, path, "--force").returncode == 0 and not beside.exists()  # small again
    assert np.abs(run(path, images) - expected).max() <= 1e-5 * np.abs(expected).max()
    beside.write_text("precious")
    assert "no conversion wrote it" in refused(weights, path, "--force")


def test_stablehlo_of_large_weights_is_refused(weights, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(program, "LARGEST", 1000)
    assert "write X.onnx" in refused(weights, tmp_path / "net.stablehlo")


def test_a_full_disk_leaves_nothing_behind(suffix, weights, refused, tmp_path, monkeypatch):
    """The largest file that a process may write stands for the disk's end."""
    monkeypatch.setattr(program, "LARGEST", 1000 if suffix == ".onnx" else program.LARGEST)
    before, signals = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        told = refused(weights, tmp_path / f"net{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signals)
    assert "the disk is full" in told and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_program_that_computes_something_else_gets_no_name(weights, inside, tmp_path, monkeypatch):
    path, kind = tmp_path / "net.stablehlo", program.KINDS[".stablehlo"]
    assert inside("convert", weights, path).returncode == 0
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for wrong in (lambda y: y * np.float32(1 + 1e-4), lambda y: y * np.nan, lambda y: y[:, :1]):
        opened = replace(kind, open=lambda path, wrong=wrong: lambda images: wrong(kind.open(path)(images)))
        monkeypatch.setitem(program.KINDS, ".stablehlo", opened)
        done = inside("convert", weights, path, "--force")
        assert done.returncode == 3 and "computes other outputs than ours" in done.stderr
        assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_network_that_float32_rounds_more_may_differ_more(tmp_path):
    """Large weights make attention choose between almost equal keys: float32 itself is 1e-4 from float64 then."""
    vit_jax.export(network(replace(PLAIN, depth=6), scale=6), tmp_path / "net.stablehlo")
    said = json.loads((tmp_path / "net.stablehlo.json").read_text())["compared"]
    assert said["difference"] <= said["allowed"]
    assert into_program.relative(np.full(3, 1e6 + 1), np.full(3, 1e6)) == 1e-6  # a share of the outputs


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--to", "timm"), "--to timm: net.stablehlo is a program, which has no layout"),
        (("--verify",), "--verify: net.stablehlo is a program, which is always run and compared"),
        (("--weights-only",), "--weights-only: net.stablehlo is a program, which holds no optimizer's state"),
        (("--preset", "digits"), "--preset digits: net.stablehlo is a program, which holds no optimizer's state"),
        (("--allow-nonfinite",), "--allow-nonfinite: net.stablehlo is a program, which is run and compared"),
        (("--dtype", "bfloat16"), "--dtype bfloat16: net.stablehlo is a program, which computes in float32"),
    ],
)
def test_flags_without_a_meaning_are_refused(flags, says, weights, refused):
    assert says in refused(weights, "net.stablehlo", *flags)


def test_what_no_program_is_made_of_is_named(weights, refused, inside, tmp_path):
    c = TransformerConfig(width=8, heads=2, hidden=8, encoder_depth=1, decoder_depth=1, max_length=6)
    c = replace(c, source_vocabulary=9, target_vocabulary=9, outputs=9)
    vit_jax.export(network(c), tmp_path / "text.safetensors")
    told = refused(tmp_path / "text.safetensors", tmp_path / "text.stablehlo")
    assert "holds a Transformer, which takes source and target" in told and "ViT, ResNet" in told
    assert inside("convert", weights, tmp_path / "double.safetensors", "--dtype", "float64").returncode == 0
    assert "add --dtype float32" in refused(tmp_path / "double.safetensors", tmp_path / "net.stablehlo")
    vit_jax.export(network(PLAIN), tmp_path / "net.stablehlo")
    assert "is a program, from which no weights are read" in refused(tmp_path / "net.stablehlo", "x.safetensors")


def test_what_is_there_stays(weights, refused, inside, tmp_path):
    path, beside = tmp_path / "net.stablehlo", tmp_path / "net.stablehlo.json"
    path.write_text("precious")
    assert "exists; choose another target, or replace it with --force" in refused(weights, path)
    beside.write_text("precious")
    assert "no conversion wrote it" in refused(weights, path, "--force")
    beside.unlink()
    assert inside("convert", weights, path, "--force").returncode == 0
    assert inside("convert", weights, path, "--force").returncode == 0
    with pytest.raises(UserError, match="exists"):
        vit_jax.export(str(weights), path)
    with pytest.raises(UserError, match="is a program, which has no layout"):
        vit_jax.export(str(weights), tmp_path / "other.onnx", to="timm")


@pytest.mark.parametrize(("suffix", "extra"), [(".onnx", "onnx"), (".stablehlo", "stablehlo")])
def test_a_library_that_is_missing_is_named_before_anything_is_read(suffix, extra, refused, monkeypatch, tmp_path):
    honest, libraries = importlib.util.find_spec, program.KINDS[suffix].libraries
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in libraries else honest(name))
    told = refused("nowhere.safetensors", tmp_path / f"net{suffix}")
    assert ", ".join(libraries) in told and "pip install" in told and f"[{extra}]" in told
