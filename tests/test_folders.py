"""Folders of weights, their side files, and the hub's cache: one set of weights is found, or all are listed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from convert.containers import folder, kinds, open_source, orbax, writer
from convert.containers.source import Spec
from tests.test_processes import python
from vit_jax.config.trees import unflatten
from vit_jax.errors import UserError

SQUARE = np.arange(36, dtype=np.float32).reshape(6, 6)


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Write arrays by the path's suffix."""
    specs = unflatten({name.replace("/", "."): Spec(array.dtype, array.shape) for name, array in arrays.items()})
    writer(str(path))[1](str(path), specs, ((tuple(name.split("/")), array) for name, array in arrays.items()), {})
    return path


def assert_read(path: Path, arrays: Mapping[str, np.ndarray], file: str = "") -> None:
    """Assert that a path is opened as these arrays."""
    with open_source(str(path), file) as source:
        assert {name: tensor.read().tolist() for name, tensor in source.tree.items()} == {
            name: array.tolist() for name, array in arrays.items()
        }


# -------------------------------------------------------------------------------------------- folders


def test_a_folder_with_one_set_of_weights_is_that(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": SQUARE})
    for name in (
        "config.json",
        "provenance.json",
        "README.md",
        "training_args.bin",
        "model.safetensors.carried.safetensors",
        "model.safetensors.certificate.json",
    ):
        (tmp_path / name).write_text("{}")
    assert [(Path(c.path).name, c.container, c.what) for c in folder.candidates(str(tmp_path))] == [
        ("model.safetensors", "safetensors", "safetensors file")
    ]
    assert_read(tmp_path, {"a": SQUARE})


def test_of_several_sets_one_has_to_be_named(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": SQUARE})
    write(tmp_path / "old.npz", {"a": SQUARE + 1})
    (tmp_path / "pytorch_model.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(
        UserError,
        match=r"several sets .*model\.safetensors .*old\.npz .*pytorch_model\.bin \(is a Git LFS pointer.*`file",
    ):
        open_source(str(tmp_path))
    assert_read(tmp_path, {"a": SQUARE + 1}, "old.npz")
    with pytest.raises(UserError, match=r": file new\.npz is not there: .*old\.npz .*; name one of them with `file`$"):
        open_source(str(tmp_path), "new.npz")
    with pytest.raises(UserError, match=": step 3 is not there: "):
        open_source(str(tmp_path), step=3)


def test_steps_of_a_checkpoint_are_candidates(tmp_path: Path) -> None:
    for step in (100, 200):
        orbax.write(
            str(tmp_path / str(step) / "default"),
            {"a": Spec(SQUARE.dtype, SQUARE.shape)},
            iter([(("a",), SQUARE + step)]),
            {},
        )
    assert [(c.what, c.container, c.step) for c in folder.candidates(str(tmp_path))] == [
        (f"Orbax checkpoint, step {step}", "orbax", step) for step in (200, 100)
    ]
    with pytest.raises(UserError, match=r"several sets .*step 200.*step 100"):
        open_source(str(tmp_path))
    with pytest.raises(UserError, match="step 3 is not there"):
        open_source(str(tmp_path), step=3)
    with open_source(str(tmp_path), step=100) as source:
        assert (source.tree["a"].read() == SQUARE + 100).all()
    with open_source(str(tmp_path), step="last") as source:
        assert (source.tree["a"].read() == SQUARE + 200).all()
    with pytest.raises(UserError, match="step best: only a run of vit-jax notes its best step; give `step last"):
        open_source(str(tmp_path), step="best")
    assert_read(tmp_path, {"a": SQUARE + 200}, "200")


def test_runs_in_a_folder_are_candidates(tmp_path: Path) -> None:
    for name in ("seed-1", "seed-2"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text('{"format": 4, "preset": "digits", "config": {}}')
    assert [(Path(c.path).name, c.what) for c in folder.candidates(str(tmp_path))] == [
        ("seed-1", "run of vit-jax"),
        ("seed-2", "run of vit-jax"),
    ]
    assert [c.path for c in folder.candidates(str(tmp_path / "seed-1"))] == [str(tmp_path / "seed-1")]
    with pytest.raises(UserError, match="several sets"):
        open_source(str(tmp_path))


def test_a_folder_without_weights_has_those_of_its_folders(tmp_path: Path) -> None:
    """As a trainer leaves them, each with its own side files."""
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        write(tmp_path / f"checkpoint-{step}" / "model.safetensors", {"a": SQUARE + step})
    (tmp_path / "elsewhere").symlink_to(tmp_path / "checkpoint-9")
    assert sorted((Path(c.path).parent.name, c.step) for c in folder.candidates(str(tmp_path))) == [
        ("checkpoint-10", 10),
        ("checkpoint-9", 9),
    ]
    with pytest.raises(
        UserError, match=r"several sets .*checkpoint-10/model\.safetensors .*checkpoint-9/model\.safetensors .*`file"
    ):
        open_source(str(tmp_path))
    for name in ("checkpoint-9", "checkpoint-9/", "checkpoint-9/model.safetensors"):
        assert_read(tmp_path, {"a": SQUARE + 9}, name)
    with open_source(str(tmp_path), step=10) as source:
        assert (source.tree["a"].read() == SQUARE + 10).all()
    write(tmp_path / "model.safetensors", {"a": SQUARE})
    assert_read(tmp_path, {"a": SQUARE})  # what it has itself goes first
    assert_read(tmp_path, {"a": SQUARE + 9}, "checkpoint-9")


@pytest.mark.parametrize("place", ["", "pytorch_model_fsdp_0"])
@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([".metadata", "__0_0.distcp"], r"torch.distributed.*dcp_to_torch_save\('{}', 'X.pt'\)"),
        (["zero_to_fp32.py", "latest"], r"DeepSpeed.*python {}/zero_to_fp32.py {} OUT"),
        (["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], "DeepSpeed"),
        (["checkpoint", "model.ckpt.index", "model.ckpt.data-00000-of-00001"], "checkpoint of TensorFlow"),
        (["model-q4.gguf"], "GGUF file, whose weights are quantised"),
        (["tf_model.h5"], "HDF5"),
        (["model.onnx"], "a program"),
    ],
)
def test_a_folder_of_another_program_is_named_with_what_to_do(names, says, place, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    for name in names:
        (tmp_path / place / name).write_bytes(b"x")
    with pytest.raises(UserError, match=says.replace("{}", str(tmp_path / place))):
        open_source(str(tmp_path))
    write(tmp_path / "model.safetensors", {"a": SQUARE})
    assert_read(tmp_path, {"a": SQUARE})  # what is there to be read goes first


def test_a_checkpoint_may_be_called_a_tar(tmp_path: Path) -> None:
    for name in ("last", "model_best"):
        write(tmp_path / f"{name}.pth", {"a": SQUARE}).rename(tmp_path / f"{name}.pth.tar")
    with pytest.raises(
        UserError, match=r"several sets .*last\.pth\.tar \(torch file\), model_best\.pth\.tar \(torch file\)"
    ):
        open_source(str(tmp_path))
    assert_read(tmp_path, {"a": SQUARE}, "last.pth.tar")


def test_file_names_anything_in_the_folder_and_nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "out.npz", {"a": SQUARE})
    write(tmp_path / "in" / "x.npz", {"a": SQUARE}).rename(tmp_path / "in" / "weights")
    assert_read(tmp_path / "in", {"a": SQUARE}, "weights")
    monkeypatch.chdir(tmp_path / "in")
    for place in (str(tmp_path / "in"), "."):
        with pytest.raises(UserError, match=r"file \.\./out\.npz: is not in"):
            open_source(place, "../out.npz")


def test_a_link_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "a.npz", {"a": SQUARE})
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "in" / "a.npz").symlink_to("../a.npz")
    (tmp_path / "in" / "config.json").symlink_to("../config.json")
    for call in (lambda: open_source(str(tmp_path / "in")), lambda: folder.side_files(str(tmp_path / "in"))):
        with pytest.raises(UserError, match="link out of its folder"):
            call()
    assert_read(tmp_path / "in" / "a.npz", {"a": SQUARE})  # named by the user, it may lead anywhere
    (tmp_path / "b.npz").symlink_to("b.npz")
    with pytest.raises(UserError, match="no such file"):
        open_source(str(tmp_path), "b.npz")


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".msgpack"])
def test_shards_are_one_set(suffix: str, tmp_path: Path) -> None:
    a, b = ("h/0/w/", "h/1/w/") if suffix == ".msgpack" else ("w", "v")  # which Flax nests
    parts = {f"model-0000{i}-of-00002{suffix}": {f"{a}{i}": SQUARE + i, f"{b}{i}": SQUARE - i} for i in (1, 2)}
    for file, arrays in parts.items():
        write(tmp_path / file, arrays)
    listed = {name: file for file, arrays in parts.items() for name in arrays}
    (tmp_path / f"model{suffix}.index.json").write_text(
        json.dumps({"metadata": {"total_size": 576}, "weight_map": listed})
    )
    (found,) = folder.candidates(str(tmp_path))
    container = kinds.SUFFIXES[suffix]
    assert (found.what, found.container, found.size) == (
        "2 shards",
        container,
        sum((tmp_path / file).stat().st_size for file in parts),
    )
    for path in (tmp_path, tmp_path / f"model{suffix}.index.json"):
        assert_read(path, {name: array for arrays in parts.values() for name, array in arrays.items()})
    with open_source(str(tmp_path)) as source:
        assert source.files == [str(tmp_path / f"model{suffix}.index.json"), *(str(tmp_path / f) for f in parts)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "model-00002-of-00005.safetensors",
            "is shard 2 of 5; give m/model.safetensors.index.json, which is not there: get it and all shards",
        ),
        (
            "pytorch_model-00010-of-00010.bin",
            "is shard 10 of 10; give m/pytorch_model.bin.index.json, which is not there: get it and all shards",
        ),
        ("model-00001-of-00001.safetensors", ""),
        ("model.safetensors", ""),
        ("model.safetensors.index.json", ""),
    ],
)
def test_a_shard_alone_is_told_its_index(name: str, says: str, tmp_path: Path) -> None:
    assert folder.shard(f"m/{name}") == says
    (tmp_path / "model.safetensors.index.json").touch()
    assert (
        folder.shard(str(tmp_path / "model-1-of-2.safetensors"))
        == f"is shard 1 of 2; give {tmp_path}/model.safetensors.index.json"
    )


def test_side_files_are_those_beside_a_file_or_in_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "m.npz", {"a": SQUARE})
    for name in ("config.json", "m.npz.json", "other.json"):
        (tmp_path / name).write_text(json.dumps({"is": name}))
    assert folder.side_files(str(path)) == {name: {"is": name} for name in ("config.json", "m.npz.json")}
    assert folder.side_files(str(tmp_path)) == {"config.json": {"is": "config.json"}}
    assert folder.side_files("m.npz") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b"[1]", "no JSON object"),
        (b'{"a": ', "no valid JSON"),
        (b"\xff", "no valid JSON"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested"),
        (b'{"a":' * 100_000, "no valid JSON"),
        (b"", "no valid JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "no valid JSON"),
    ],
)
def test_damaged_side_files_are_refused(text: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(UserError, match=f"config.json: .*{words}"):
        folder.side_files(str(tmp_path))


def test_a_side_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    os.truncate(tmp_path / "config.json", 1 << 33)
    with pytest.raises(UserError, match="has more than 16 MB"):
        folder.side_files(str(tmp_path))


# ------------------------------------------------------------------------------------------------ hub


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A hub's cache made by hand: one repository with a config and weights, both links to blobs."""
    pytest.importorskip("huggingface_hub")
    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--o--n"
    for name in ("refs", "blobs", f"snapshots/{revision}"):
        (repository / name).mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    write(tmp_path / "model.safetensors", {"a": SQUARE}).rename(repository / "blobs" / "0001")
    (repository / "blobs" / "0002").write_text('{"model_type": "vit"}')
    for name, blob in (("model.safetensors", "0001"), ("config.json", "0002")):
        (repository / "snapshots" / revision / name).symlink_to(f"../../blobs/{blob}")
    return tmp_path / "hub"


PROGRAM = """
from convert.containers import open_source
from convert.containers.folder import side_files
from vit_jax.errors import UserError
for address in (
    "hf://o/n",
    "hf://o/n@main",
    "hf://o/n@0123456789abcdef0123456789abcdef01234567/model.safetensors",
    "hf://o/other",
    "hf://o/n/x.npz",
    "hf://o",
    "hf://o/n/../x",
):
    try:
        with open_source(address) as source:
            print(float(source.tree["a"].read().sum()), side_files(source.path))
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize(
    "offline", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=["said", "found out"]
)
def test_a_repository_of_the_hub_is_opened_from_its_cache(cache: Path, offline: dict[str, str]) -> None:
    process = python(PROGRAM, HF_HUB_CACHE=str(cache), **offline)
    assert "Retry" not in process.stderr
    said = process.stdout.splitlines()
    assert said[:3] == [f"{float(SQUARE.sum())} {{'config.json': {{'model_type': 'vit'}}}}"] * 3
    assert (
        "cannot be downloaded" in said[3]
        and "no such file" in said[4]
        and "not an address" in said[5]
        and "not an address" in said[6]
    )


def test_without_its_library_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install .*\[hub\]"):
        open_source("hf://o/n")


def test_a_repository_with_several_sets_is_refused_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    names = [
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "training_args.bin",
        "onnx/model.bin",
        "model.safetensors.carried.safetensors",
        "pytorch_model-00001-of-00002.bin",
    ]
    monkeypatch.setattr(
        hub,
        "model_info",
        lambda repository, revision, timeout: SimpleNamespace(
            siblings=[SimpleNamespace(rfilename=name) for name in names]
        ),
    )
    asked: list[Any] = []
    monkeypatch.setattr(
        hub,
        "snapshot_download",
        lambda repository, revision, allow_patterns, local_files_only: asked.append(allow_patterns) or "/nowhere",
    )
    with pytest.raises(UserError, match=r"several sets of weights, model\.safetensors, pytorch_model\.bin; name one"):
        open_source("hf://o/n")
    assert asked == []
    with pytest.raises(UserError, match="no such file"):
        open_source("hf://o/n", "pytorch_model.bin")
    with pytest.raises(UserError, match="no such file"):
        open_source("hf://o/n/pytorch_model.bin.index.json")
    kinds = ["*.json", "*.spm", "merges.txt", "vocab.txt", "*.bpe.model", "spiece.model"]
    file = ["pytorch_model.bin", "pytorch_model.bin.carried.safetensors"]
    shards = ["pytorch_model.bin.index.json", "pytorch_model-*.bin"]
    assert asked == [[*kinds, *file], [*kinds, *shards]]
