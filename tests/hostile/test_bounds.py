"""The worst input of a stranger at the door: one sentence and exit code 2, in seconds of CPU and bounded memory."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert import adapt
from convert.__main__ import main
from convert.containers import folder, limits, open_source, positional
from convert.containers.source import Tensor
from convert.recognise import weights_in
from convert.recognise.layouts import Recognition, closest
from tests.hostile.child import MEMORY, refuses, run
from tests.hostile.converting import convert, refusal, with_few_files
from tests.hostile.flat import ENTRY, A, npy, npz, st
from tests.hostile.test_shards import shards
from tests.hostile.test_target import CONFIG, SAID, model
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

slow = pytest.mark.slow
SECONDS = 5  # of CPU, for a whole command


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return model(tmp_path / "in" / "vit.safetensors")


# ------------------------------------------------------------------------------------------------ names


def word(rng: random.Random, letters: int) -> str:
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=letters))


NAMES: dict[str, Callable[[random.Random, int], str]] = {
    "unlike each other": lambda rng, i: f"{word(rng, 4)}.{word(rng, 5)}{i}.{word(rng, 4)}",
    "of 230 parts": lambda rng, i: ".".join(["layers", *["0"] * 228, f"{word(rng, 4)}{i}"]),
    "behind wrappers": lambda rng, i: f"module.model.net.backbone.student.ema.{word(rng, 4)}{i}",
    "under prefixes": lambda rng, i: f"p.q.r.s.t.blocks.{i}.norm1.weight",
}


@functools.cache
def names_of(kind: str) -> list[str]:
    rng = random.Random(0)
    return [NAMES[kind](rng, i) for i in range(20_000)]


@pytest.mark.parametrize(
    "kind",
    [kind if kind in ("of 230 parts", "behind wrappers") else pytest.param(kind, marks=slow) for kind in NAMES],
)
def test_hints_about_twenty_thousand_names_take_a_second(kind: str) -> None:
    names = dict.fromkeys(names_of(kind), (1,))
    began = time.process_time()
    closest(names)
    assert time.process_time() - began < 2  # half a second on a quiet machine
    tensors = {name: Tensor(name, A.dtype, (1,), A.copy) for name in names}
    compared = []

    def recognised(some: dict[str, Tensor]) -> Recognition:
        compared.append(len(some))
        return Recognition.of(dict.fromkeys(some, (1,)))

    began = time.process_time()
    weights_in.hint(weights_in.Source("a.safetensors", "safetensors", dict(tensors)), recognised)
    assert time.process_time() - began < 3  # a second on a quiet machine
    assert sum(compared) <= weights_in.LOOKED


@slow
@pytest.mark.parametrize("kind", NAMES)
def test_a_file_of_twenty_thousand_names_is_refused_in_seconds(kind: str, tmp_path: Path) -> None:
    names = names_of(kind)[:11_000]  # more have too many letters in all
    entries = {name: {**ENTRY, "data_offsets": [8 * i, 8 * i + 8]} for i, name in enumerate(names)}
    (tmp_path / "a.safetensors").write_bytes(st(entries, A.tobytes() * len(names)))
    refused(tmp_path / "a.safetensors", str(tmp_path / "b.safetensors"))


def refused(source: Path | str, *words: str) -> str:
    """Assert that a command ends with 2 and a sentence within bounds; that sentence."""
    began = time.process_time()
    code, said = convert(str(source), *words)
    assert time.process_time() - began < SECONDS
    assert code == 2 and said.count("\n") == 1 and len(said) < 2000 and said.rstrip("\n").isprintable(), said
    return said


# ------------------------------------------------------------------------------------------ adaptations


@pytest.mark.parametrize(
    "text",
    [
        "patch=4000:flexi", "patch=513:timm", "channels=100000000", "channels=" + "9" * 4000, "resize=99996x99996:timm",
        "resize=80000x8000:hf", "head=new:9999999", "head=new:9999999:normal",
    ],
)  # fmt: skip
def test_what_adaptations_would_make_is_bounded_before_it_is_made(text: str) -> None:
    began = time.process_time()
    with pytest.raises(UserError):
        adapt.adaptations(CONFIG, [text])
    assert time.process_time() - began < 1


def test_computed_positions_are_bounded_as_well() -> None:
    config = ViTConfig(
        image=8, patch=4, width=16, depth=1, heads=2, hidden=20, position="sincos2d", position_trained=False
    )
    assert adapt.adaptations(config, ["resize=4000x4000:timm"])
    with pytest.raises(UserError, match="computed positions are too many"):
        adapt.adaptations(config, ["resize=80000x80000:timm"])


def test_a_large_network_may_have_a_large_head() -> None:
    config = ViTConfig(width=6144, depth=48, heads=48, hidden=24576)
    assert adapt.adaptations(config, ["head=new:30000"])[0].config.classes == 30000


# ------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("target", ["/", "//", "", "/..", "/dev/null", "/dev/full", "/proc/x.safetensors"])
def test_places_that_are_none(target: str, source: Path) -> None:
    refused(source, target, "--to", "timm", *SAID, "--force")


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "eps=" + "1" * 100_000), ("--set", "eps=" + "(" * 100_000), ("--set", "image=" + "9" * 30 + "x4"),
        ("--set", "classes=" + "-" * 50_000 + "1"), ("--set", "a=1\x1b[31m\u202e"), ("--set", "depth=1000000000"),
        ("--set", "width=1e400"), ("--key", "(.*)*x"), ("--key", "["), ("--key", "\x1b[2J"), ("--file", "../in"),
        ("--key", "a" * 100_000), ("--from", "timm@\n\n"), ("--step", "9" * 100), ("--adapt", "=" * 100_000),
    ],
    ids=lambda words: words[1][:12].encode("unicode_escape").decode(),
)  # fmt: skip
def test_words_of_any_kind(words: tuple[str, str], source: Path, tmp_path: Path) -> None:
    refused(source, str(tmp_path / "out.safetensors"), "--to", "timm", *words)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("eps=nan", "give a finite number"), ("eps=3,4", "give a finite number"), ("eps=3x4", "give a finite number"),
        ("heads=true", "give a whole number"), ("heads=two", "give a whole number"),
        ("norm_first=1", "give true or false"),
        ("activation=glu", "give one of gelu, "), ("image=3x4x5", "give a whole number or 2 whole numbers"),
    ],
)  # fmt: skip
def test_a_set_of_another_type_is_told_what_to_give(word: str, remedy: str, source: Path, tmp_path: Path) -> None:
    assert f"fields {word}: {remedy}" in refused(source, str(tmp_path / "b.safetensors"), "--set", word)


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="Linux alone has such files")
@pytest.mark.parametrize("path", ["/proc/self/mem", "/dev/zero", "/dev/full"])
def test_files_of_the_system_are_named_in_the_sentence(path: str, tmp_path: Path) -> None:
    assert path in refused(path, str(tmp_path / "out.safetensors"))


# ------------------------------------------------------------------------------------------ what is printed


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "cp1252"])
def test_any_name_is_printed_in_any_encoding(
    encoding: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No UTF-8, beyond the encoding, and what would steer a terminal or forge a line of ours."""
    place = tmp_path / os.fsdecode(b"\xff")
    place.mkdir()
    target = place / "né\u4e00\x1b[31m\u202e\nwritten.safetensors"
    for words in (
        [str(source), str(target), "--to", "timm", *SAID],
        ["inspect", str(target)],
        ["inspect", str(place)],
    ):
        if words[-1] == str(place):
            (place / "second\x07.safetensors").write_bytes(target.read_bytes())
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
        monkeypatch.setattr(sys, "argv", ["convert", *words])
        assert main() == 0
        shown = out.getvalue().decode(encoding)
        assert "\\x1b[31m\\u202e\\nwritten" in shown and not set("\x1b\x07\u202e") & set(shown)
        assert not any(line.startswith("written.safetensors") for line in shown.splitlines())


# ------------------------------------------------------------------------------------------- JSON files


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "provenance.json"])
def test_json_may_have_a_mark_of_its_encoding(name: str, source: Path, tmp_path: Path) -> None:
    said = [*SAID, "--force"]
    assert convert(str(source), str(tmp_path / "hf"), "--to", "huggingface", *said) == (0, "")
    text = (tmp_path / "hf" / name).read_text()
    for encoding, told in (("utf-8-sig", ""), ("utf-16", "UTF-16"), ("utf-32", "UTF-16 or UTF-32")):
        (tmp_path / "hf" / name).write_text(text, encoding=encoding)
        words = (str(tmp_path / "hf"), str(tmp_path / "back.safetensors"), "--to", "timm", "--force")
        if told:
            assert f"{name}: is text in {told}" in refused(*words) or told in refused(*words)
        else:
            assert convert(*words) == (0, "")


# --------------------------------------------------------------------------------- many files and folders


def test_shards_are_read_with_few_files_open(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(300)]
    files = {f"model-{i + 1:05}-of-00300.safetensors": [name] for i, name in enumerate(names)}
    index = shards(tmp_path, {name: file for file, (name,) in files.items()}, files)
    outcome = run(with_few_files, 120, str(index))
    assert not outcome.failed and not outcome.refused, outcome
    assert outcome.value == names


@pytest.mark.parametrize("change", ["removed", "has changed"])
def test_a_shard_that_is_opened_again_must_be_the_same(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positional, "OPEN", 1)
    files = {f"model-0000{i}-of-00002.safetensors": [f"n{i}"] for i in (1, 2)}
    index = shards(tmp_path, {name: file for file, (name,) in files.items()}, files)
    first, second = (tmp_path / file for file in files)
    with open_source(str(index)) as opened:
        assert opened.tree["n2"].read().tobytes() == A.tobytes()
        os.utime(second, ns=(first.stat().st_atime_ns, first.stat().st_mtime_ns))
        first.unlink() if change == "removed" else os.replace(second, first)
        with pytest.raises(UserError, match=change):
            opened.tree["n1"].read()


def test_folders_of_thousands_of_folders_or_files(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FOLDERS", 3)
    for i in range(4):
        (tmp_path / "many" / str(i)).mkdir(parents=True)
    assert "has 4 folders in it" in refused(tmp_path / "many", str(tmp_path / "b.safetensors"))
    for i in range(30):
        (source.parent / f"{i}.safetensors").write_bytes(b"")
    assert "and 11 more; name one of them" in refused(source.parent, str(tmp_path / "b.safetensors"))
    assert len(folder.candidates(str(source.parent))) == 31


def test_a_zip_bomb_of_many_small_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RATIO_FROM", 1 << 17)  # half a gigabyte would be unpacked as well
    zeros = npy(np.zeros(1 << 14, np.float32))
    (tmp_path / "a.npz").write_bytes(npz({f"a{i}.npy": zeros for i in range(8)}, zipfile.ZIP_DEFLATED))
    assert "like a zip bomb" in refused(tmp_path / "a.npz", str(tmp_path / "b.safetensors"))


def test_gigabytes_that_are_not_there_are_not_read(tmp_path: Path) -> None:
    """A sparse file takes no disk."""
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 31], "data_offsets": [0, 1 << 33]}}).encode()
    with open(tmp_path / "a.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + (1 << 33))
    assert MEMORY < 1 << 33
    refuses(tmp_path / "a.safetensors", "have no known layout", function=refusal, grown=1 << 28)
