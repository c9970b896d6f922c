"""PyTorch's files are read as torch.load reads them, and written so that it reads them, without PyTorch."""

from __future__ import annotations

import argparse
import datetime
import enum
import functools
import random
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convert.containers import torch_file
from convert.containers.source import Marker, Spec, Tensor
from tests.hostile.pickled import ORDERED, call, dictionary, legacy, plain, storage, word
from vit_jax.errors import UserError

torch = pytest.importorskip("torch")
FORMS = {"zip": {}, "older": {"_use_new_zipfile_serialization": False}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests work inside their own folder."""
    monkeypatch.chdir(tmp_path)


def equal(theirs: Any, ours: Any) -> bool:
    """Whether a tree of ours is what torch.load gave, to the bit."""
    if isinstance(theirs, torch.Tensor):
        array = ours.read()
        bits = theirs.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        name = str(theirs.dtype).removeprefix("torch.")
        return (str(array.dtype), array.shape, array.tobytes()) == (
            name,
            tuple(theirs.shape),
            bits.tobytes(),
        ) and array.flags.c_contiguous
    if isinstance(theirs, dict):
        return (
            list(theirs) == list(ours)
            and [type(key) for key in theirs] == [type(key) for key in ours]
            and all(equal(theirs[key], ours[key]) for key in theirs)
        )
    if isinstance(theirs, list | tuple):
        return len(theirs) == len(ours) and all(map(equal, theirs, ours))
    return type(theirs) is type(ours) and theirs == ours


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2, bias=False))


def stepped(kind: str) -> tuple[Any, Any, Any]:
    """A network, its optimizer and its schedule after two steps."""
    model = network()
    if kind == "AdamW":
        groups = [
            {"params": [p for p in model.parameters() if p.ndim > 1]},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule


def specs(value: Any) -> Any:
    """What a writer is told of a source's tree."""
    if isinstance(value, Tensor):
        return Spec(value.dtype, value.shape)
    if isinstance(value, dict):
        return {key: specs(each) for key, each in value.items()}
    return type(value)(map(specs, value)) if isinstance(value, list | tuple) else value


def arrays(value: Any, path: tuple = ()) -> list[tuple[tuple, np.ndarray]]:
    """All values of a source's tree, with their paths."""
    if isinstance(value, Tensor):
        return [(path, value.read())]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [pair for key, each in items for pair in arrays(each, (*path, key))]


@pytest.mark.parametrize("form", FORMS)
def test_tensors_of_all_kinds_are_those_of_torch(form):
    torch.manual_seed(0)
    base = torch.randn(10, 12)
    saved = {
        **{
            str(d): torch.randint(0, 2, (3, 2)).to(d)
            for d in (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
        },
        **{str(d): torch.randn(2, 3).to(d) for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)},
        **{str(d): torch.tensor([0, 1, 65535]).to(d) for d in (torch.uint16, torch.uint32, torch.uint64)},
        "base": base,
        "tied": base,
        "view": base[2:5, 3:7],
        "transposed": base.T,
        "strided": base[::3, ::5],
        "expanded": base[:1].expand(4, 12),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
    }
    torch.save(saved, "x.pt", **FORMS[form])
    with torch_file.open_file("x.pt") as source:
        assert equal(saved, source.tree)
        assert source.tied == [("base", "tied", "view", "transposed", "strided", "expanded")] and not source.skipped


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_training_checkpoint_is_that_of_torch(form, kind):
    model, optimizer, schedule = stepped(kind)
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "epoch": 3,
        "best": np.float64(0.5),
    }
    torch.save(
        {**saved, "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.99)), "dtype": torch.float32},
        "x.pt",
        **FORMS[form],
    )
    with torch_file.open_file("x.pt") as source:
        marks = {name: source.tree.pop(name) for name in ("args", "dtype")}
        assert marks == {"args": Marker("argparse.Namespace"), "dtype": Marker("torch.float32")}
        assert source.skipped == ["args (argparse.Namespace)", "dtype (torch.float32)"]
        assert equal({**saved, "best": 0.5}, source.tree)
        assert source.tree["optimizer"]["state"][0].keys() == optimizer.state_dict()["state"][0].keys()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle(protocol):
    plain = {
        "text": "ü" * 300,
        "numbers": [0, -1, 255, 65536, -(1 << 40), 1 << 62, 0.1],
        "tuple": (1, (2, (3,), None), True),
        "none": None,
    }
    saved = {"model": network().state_dict(), **plain}
    torch.save(saved, "x.pt", pickle_protocol=protocol)
    assert equal(saved, torch_file.open_file("x.pt").tree)


@pytest.mark.parametrize(("shape", "strides", "offset"), [((4,), (1,), 0), ((2, 2), (1, 2), 0), ((2,), (1,), 2)])
def test_a_file_of_before_torch_0_4_is_read(shape, strides, offset):
    stored = plain(("storage", word("torch", "FloatStorage"), "0", "cpu", 4, b"N")) + b"Q"  # N: no view of another
    arguments = plain((stored, offset, shape, strides))
    body = dictionary({"w": call("torch._utils", "_rebuild_tensor", arguments)})
    file = legacy(Path("x.pt"), ORDERED + body[1:])
    theirs = torch.load(file, weights_only=False)
    with torch_file.open_file(str(file)) as source:
        assert equal(dict(theirs), source.tree) and theirs["w"].shape == shape


@pytest.mark.parametrize("arguments", [(0, (4,), (1,), False), (0, (4,)), (9, (4,), (1,)), (0, (4,), (1, 1))])
def test_a_tensor_of_before_torch_0_4_that_is_none_is_refused(arguments):
    body = dictionary({"w": call("torch._utils", "_rebuild_tensor", plain((storage(), *arguments)))})
    with pytest.raises(UserError, match=r"describes a tensor|lies outside its storage"):
        torch_file.open_file(str(legacy(Path("x.pt"), body)))


def test_arrays_of_numpy_beside_tensors():
    theirs = {
        "c": np.arange(6.0).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "big": np.arange(3, dtype=">f4"),
        "0d": np.array(3),
    }
    torch.save(theirs, "x.pt")
    for name, tensor in torch_file.open_file("x.pt").tree.items():
        array = tensor.read()
        assert (
            array.dtype == tensor.dtype
            and array.dtype.isnative
            and array.flags.c_contiguous
            and np.array_equal(array, theirs[name])
        )


class Colour(enum.Enum):
    RED = 1


class Settings(dict):
    """As Lightning's and OmegaConf's: a dictionary with attributes."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_values_of_foreign_classes_are_named_and_their_code_is_not_run(form, protocol, monkeypatch):
    settings = Settings(lr=0.1)
    settings.when, settings.colour = datetime.datetime(2026, 1, 1), Colour.RED
    weights = network().state_dict()
    saved = {
        "state_dict": weights,
        "hyper_parameters": settings,
        "ema": network(),
        "norm": functools.partial(torch.nn.LayerNorm, eps=1e-6),
        "classes": np.array(["cat", "dog"]),
        "rows": np.array([{}, None], dtype=object),
        "random": np.random.RandomState(0),
        "of": {Colour.RED: 1, torch.nn.GELU: 2},
    }
    torch.save(saved, "x.pt", pickle_protocol=protocol, **FORMS[form])
    monkeypatch.setattr(Settings, "__setstate__", pytest.fail, raising=False)
    monkeypatch.setattr(Colour, "_missing_", pytest.fail)
    source = torch_file.open_file("x.pt")
    assert equal(dict(weights), source.tree["state_dict"])
    kinds = {text.partition(" ")[0]: text.partition(" ")[2] for text in source.skipped}
    names = {"hyper_parameters": "Settings", "ema": "Sequential", "norm": "partial", "classes": "ndarray"}
    names |= {"rows": "ndarray", "random": "randomstate_ctor"}
    assert kinds.keys() == names.keys() and all(name in kinds[key] for key, name in names.items())
    assert list(source.tree["of"].values()) == [1, 2]


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_torch_goes_on_with_a_checkpoint_that_was_written(kind):
    model, optimizer, schedule = stepped(kind)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save(saved, "x.pt")
    tree = torch_file.open_file("x.pt").tree
    values = arrays(tree)
    random.Random(0).shuffle(values)
    torch_file.write("y.pt", specs(tree), iter(values), {})
    loaded = torch.load("y.pt", weights_only=True)
    assert equal(loaded, tree)
    fresh, again, rates = stepped(kind)
    fresh.load_state_dict(loaded["model"], strict=True)
    again.load_state_dict(loaded["optimizer"])
    rates.load_state_dict(loaded["schedule"])
    inputs = torch.randn(4, 3)
    for m, o in ((model, optimizer), (fresh, again)):
        o.zero_grad()
        m(inputs).square().sum().backward()
        o.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))


def test_every_dtype_and_plain_value_is_written_as_torch_reads_it():
    dtypes = [
        np.bool_,
        np.int8,
        np.uint8,
        np.int16,
        np.int32,
        np.int64,
        np.float16,
        ml_dtypes.bfloat16,
        np.float32,
        np.float64,
        np.uint16,
        np.uint32,
        np.uint64,
    ]
    given = {str(np.dtype(d)): np.array([[0, 1, 1]]).astype(d) for d in dtypes}
    given |= {
        "0d": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "turned": np.arange(6.0).reshape(3, 2).T,
    }
    plain = {
        "none": None,
        "yes": True,
        "int": -3,
        "large": 1 << 62,
        "float": 0.1,
        "text": "ü",
        "list": [1, [2.5]],
        "tuple": (1, "a"),
        "by int": {0: "a", 7: {}},
    }
    tree = {"tensors": {name: Spec(a.dtype, a.shape) for name, a in given.items()}, **plain}
    torch_file.write("x.pt", tree, iter([(("tensors", name), a) for name, a in given.items()]), {})
    loaded = torch.load("x.pt", weights_only=True)
    read = torch_file.open_file("x.pt").tree
    assert equal(loaded, read) and {name: value for name, value in loaded.items() if name != "tensors"} == plain
    assert all(read["tensors"][name].read().tobytes() == a.tobytes() for name, a in given.items())


def test_written_storages_are_aligned_and_have_checksums(tmp_path):
    given = {str(i): np.full(i, i, np.float32) for i in range(1, 20)}
    for name in ("x.pt", "y.pt"):
        torch_file.write(
            str(tmp_path / name),
            {n: Spec(a.dtype, a.shape) for n, a in given.items()},
            (((n,), a) for n, a in given.items()),
            {},
        )
    assert Path("x.pt").read_bytes() == Path("y.pt").read_bytes()
    with zipfile.ZipFile("x.pt") as file:
        assert file.testzip() is None
    data = Path("x.pt").read_bytes()
    assert all(data.index(array.tobytes()) % 64 == 0 for array in given.values())
    assert torch.load("x.pt", weights_only=True, mmap=True)["7"].tolist() == [7] * 7


def test_a_storage_beyond_4_gb_has_its_sizes_in_64_bits(monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # where zipfile changes over
    values = np.arange(3000, dtype=np.float32)
    torch_file.write(
        "x.pt",
        {"w": Spec(values.dtype, values.shape), "v": Spec(values.dtype, (2,))},
        iter([(("w",), values), (("v",), values[:2])]),
        {},
    )
    data = Path("x.pt").read_bytes()
    assert b"\xff" * 8 in data[data.index(b"PK\x01\x02") :] and data.index(values.tobytes()) % 64 == 0
    loaded, read = torch.load("x.pt", weights_only=True), torch_file.open_file("x.pt").tree
    assert equal(loaded, read) and loaded["w"].tolist() == values.tolist() and loaded["v"].tolist() == [0, 1]


def test_what_does_not_come_or_has_no_place_is_an_error():
    with pytest.raises(ValueError, match="no values came"):
        torch_file.write("x.pt", {"w": Spec(np.dtype(np.float32), (2,))}, iter([]), {})
    with pytest.raises(UserError, match="complex64"):
        torch_file.write("x.pt", {"w": Spec(np.dtype(np.complex64), (2,))}, iter([]), {})
    with pytest.raises(ValueError, match="was announced"):
        torch_file.write(
            "x.pt",
            {"w": Spec(np.dtype(np.float32), (2,))},
            iter([(("w",), np.zeros(3, np.float32))]),
            {},
        )


OTHERS = {
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "metadata 'neg'": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta device": lambda: torch.empty(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "float8_e4m3fn": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "whose code is not run here: w .*Sequential": network,
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_no_dense_tensor_is_refused_by_name(what):
    torch.save({"w": OTHERS[what]()}, "x.pt")
    with pytest.raises(UserError, match=what):
        torch_file.open_file("x.pt")


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused_by_name():
    torch.jit.save(torch.jit.script(network()), "x.pt")
    with pytest.raises(UserError, match="TorchScript"):
        torch_file.open_file("x.pt")


def test_a_checksum_that_torch_was_told_not_to_compute():
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, "x.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with pytest.raises(UserError, match=r"set_crc32_options\(False\)"):
        torch_file.open_file("x.pt").tree["w"].read()
