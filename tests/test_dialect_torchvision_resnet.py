"""torchvision's ResNets: their function in float64, there and back to the bit, and what is refused."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

import vit_jax
from convert import rules
from convert.dialects import LAYOUTS
from convert.recognise.config import resolve
from convert.recognise.reading import Options, read
from convert.verify.sides import Ours
from convert.verify.weights import Weights
from tests.installed import library
from tests.test_distil import lines
from vit_jax.errors import UserError
from vit_jax.models.resnet import ResNet
from vit_jax.models.resnet_config import ResNetConfig

LAYOUT = LAYOUTS["torchvision-resnet"]
SMALL = ResNetConfig(image=(33, 24), classes=5, stages=(2, 1, 2, 1), width=4, hidden=6, groups=2)
PLAIN = replace(SMALL, bottleneck=False, hidden=4, groups=1, channels=1)
STATED = ("--set", "image=33,24", "--set", "mean=0.5,0.4,0.3", "--set", "std=0.25")

FEATURES = ("--features", "a.npz")

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def torch():
    library("torchvision")
    return pytest.importorskip("torch")


def of_torchvision(torch, c, seed=0):
    """Its own network in evaluation mode, float64; parameters, statistics and counters are random."""
    from convert.verify.libraries.torch_nn import resnet

    module, rng = resnet(c).double().eval(), np.random.default_rng(seed)
    for name, tensor in module.state_dict().items():
        shape = tuple(tensor.shape)
        value = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        if len(shape) == 1:
            value = rng.uniform(0.2, 3, shape) if name.endswith("var") else value * 0.3 + name.endswith("weight")
        tensor.copy_(torch.as_tensor(rng.integers(1, 2**40) if name.endswith("tracked") else value))
    return module


@pytest.fixture(scope="module")
def files(torch, tmp_path_factory):
    """A folder with small.pth, float32."""
    folder = tmp_path_factory.mktemp("resnet")
    torch.save(of_torchvision(torch, SMALL).float().state_dict(), folder / "small.pth")
    return folder


def opened(torch, path):
    return torch.load(path, weights_only=True)


def same(torch, a, b):
    return list(a) == list(b) and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("c", [SMALL, PLAIN], ids=["bottlenecks", "two convolutions a block"])
def test_logits_are_torchvisions_in_float64(torch, tmp_path, c):
    module = of_torchvision(torch, c)
    torch.save(module.state_dict(), tmp_path / "x.pt")
    with (reading := read(str(tmp_path / "x.pt"), Options(sets={"image": c.image}))).source:
        found = Weights.of(reading, "x")
    images = np.random.default_rng(1).standard_normal((3, *c.image, c.channels))
    with torch.no_grad():
        expected = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    assert found.config == c and np.ptp(expected, axis=0).min() > 0.01  # the network is alive
    ours = Ours.network(c, found.parameters, compiled=True).forward({"images": images})
    assert np.abs(ours - expected).max() <= 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "stages", "others"),
    [
        ("resnet18", (2, 2, 2, 2), {"bottleneck": False}),
        ("resnet50", (3, 4, 6, 3), {}),
        ("resnet152", (3, 8, 36, 3), {}),
        ("resnext50_32x4d", (3, 4, 6, 3), {"hidden": 128, "groups": 32}),
    ],
)
def test_its_shapes_tell_which_one_it_is(torch, name, stages, others):
    import torchvision

    with torch.device("meta"):
        module = getattr(torchvision.models, name)(num_classes=7)
    names = {n: tuple(x.shape) for n, x in module.state_dict().items()}
    config = resolve(LAYOUT, names, [], "file")
    assert config == ResNetConfig(classes=7, stages=stages, **others) and LAYOUT.recognises(names)
    assert rules.file_shapes(LAYOUT.rows(config)) == names
    trained = sum(p.numel() for p in module.parameters())
    statistics = sum(np.prod(shape, dtype=int) for n, shape in names.items() if "running" in n)
    assert config.parameter_count() == trained + statistics


def test_every_tensor_comes_back_to_the_bit_from_our_layouts(torch, files, tmp_path, inside):
    """Counters are carried as they are, also where weights are rounded."""
    source = opened(torch, files / "small.pth")
    for ours in ("own.safetensors", "run"):
        assert not inside("convert", files / "small.pth", ours, *STATED).returncode
        assert not inside("convert", ours, f"{ours}.pth", "--to", "torchvision-resnet").returncode
        assert same(torch, opened(torch, tmp_path / f"{ours}.pth"), source)
    assert not inside("convert", "run", "half.pth", "--to", "torchvision-resnet", "--dtype", "bfloat16").returncode
    rounded = {n: x.bfloat16() if x.is_floating_point() else x for n, x in source.items()}
    assert same(torch, opened(torch, tmp_path / "half.pth"), rounded)
    torch.save({n: x for n, x in source.items() if "tracked" not in n}, tmp_path / "old.pt")  # before PyTorch 0.4.1
    assert vit_jax.load(tmp_path / "old.pt", fields={"image": (33, 24)}).model.config == SMALL


def test_its_preprocessing_is_torchvisions_or_the_one_that_timm_states():
    cfg = {"input_size": [3, 96, 64], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 1.0}
    assert LAYOUT.read_side({}).preprocess["mean"] == [0.485, 0.456, 0.406]
    assert "torchvision's files state no preprocessing" in LAYOUT.read_side({}).notes[0]
    for name in ("resnet50", "resnet18.a1_in1k", "tv_resnet34", "wide_resnet50_2", "resnext101_32x8d"):
        found = LAYOUT.read_side({"config.json": {"architecture": name, "pretrained_cfg": cfg}})
        assert (found.config, found.preprocess["mean"], found.notes) == ({"image": [96, 64]}, [0.1, 0.2, 0.3], ())
    for config, said in (
        ({"architecture": "resnetblur50"}, "architecture resnetblur50 is not torchvision's ResNet"),
        ({"architecture": "resnet50", "pretrained_cfg": 3}, "is not as timm writes it"),
    ):
        with pytest.raises(UserError, match=said):
            LAYOUT.read_side({"config.json": config})


def test_training_it_is_refused_in_one_sentence_and_using_it_is_not(files, tmp_path, inside):
    small = files / "small.pth"
    assert not inside("convert", small, "run", *STATED).returncode
    never = "task is classify-resnet, but a ResNet is only used, never trained: its batch norm uses stored statistics"
    for words, said in (
        (("--resume", "run"), never),
        (("--config", "run/config.json"), never),
        (("cifar10-48x4", "--init", small), "holds a ResNet, which is only used, never trained: its batch norm"),
        (("cifar10-48x4-distil", "--model.classes", 7, "--teacher", "run"), "has 5 classes and this run has 7"),
    ):
        assert said in lines(inside("train", *words)), words
    image = tmp_path / "x.png"
    Image.new("RGB", (40, 40), (9, 200, 90)).save(image)
    assert inside("predict", "run", image).stdout in {f"{k}\n" for k in range(5)}
    assert "attention: a ResNet has none" in lines(inside("predict", "run", image, "--attention", "a.png"))
    assert "blocks: this network has none" in lines(inside("predict", "run", image, *FEATURES, "--blocks", "all"))
    assert not inside("predict", "run", image, *FEATURES).returncode
    net = vit_jax.load(tmp_path / "run")
    np.testing.assert_allclose(np.load(tmp_path / "a.npz")["pooled"], net.capture([image], ["pooled"])["pooled"], 1e-5)


def test_damaged_files_are_refused_in_one_sentence(torch, files, tmp_path, inside):
    whole = opened(torch, files / "small.pth")
    torch.save({**whole, "bn1.running_var": whole["bn1.running_var"] - 9}, tmp_path / "negative.pt")
    torch.save({n: x for n, x in whole.items() if n != "layer3.0.bn2.running_mean"}, tmp_path / "lacks.pt")
    torch.save({n: x for n, x in whole.items() if not n.startswith("fc.")}, tmp_path / "headless.pt")
    torch.save({**whole, "bn1.num_batches_tracked": torch.tensor([1, 2])}, tmp_path / "counter.pt")
    torch.save({**whole, "conv1.weight": torch.zeros(4, 3, 3, 3)}, tmp_path / "stem.pt")
    (tmp_path / "cut.pt").write_bytes((files / "small.pth").read_bytes()[:5000])
    for name, said in (
        ("negative", "bn1.running_var: holds -8."),
        ("lacks", "missing (1): layer3.0.bn2.running_mean"),
        ("headless", "is a ResNet without its head: the one here has its head; give the whole file"),
        ("counter", "bn1.num_batches_tracked [2] instead of []"),
        ("stem", "its first convolution is 3x3, and only ResNets that begin with 7x7 can be read"),
        ("cut", "cut.pt: "),
    ):
        assert said in lines(inside("convert", f"{name}.pt", "x.safetensors")), name
        assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": (1, 2, 3)}, "stages is 1 2 3: give 4 numbers of blocks"),
        ({"groups": 4}, "hidden 6 is not divisible by groups 4"),
        ({"bottleneck": False}, "hidden is 6 and groups 2, but without bottlenecks no block has them"),
    ],
)
def test_a_config_that_is_no_resnet_is_refused(change, said):
    with pytest.raises(UserError, match=said):
        replace(SMALL, **change).check()


def test_a_network_of_random_weights_takes_images_of_its_shape_alone():
    network = ResNet(replace(PLAIN, stages=(1, 1, 1, 1)), rngs=nnx.Rngs(0), dtype=jax.numpy.bfloat16)
    images = jax.random.normal(jax.random.key(0), (2, 33, 24, 1))
    logits = nnx.jit(lambda network, images: network(images))(network, images)
    assert logits.dtype == np.float32 and np.isfinite(logits).all() and np.ptp(logits, axis=0).min() > 0
    assert np.std(network.stages[3][0].convs[1].kernel) == pytest.approx((2 / 32) ** 0.5 / 3, rel=0.05)
    for shape, kind, said in (((1, 8, 8, 1), float, "are not"), ((1, 33, 24, 1), np.uint8, "are uint8")):
        with pytest.raises(ValueError, match=said):
            network(np.zeros(shape, kind))
    with pytest.raises(ValueError, match="cannot capture 'tokens'; there are pooled, logits"):
        network.capture(images, ["tokens"])
