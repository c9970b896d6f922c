"""`python -m convert`: what it prints, writes, refuses; nothing lost, nothing half written."""

import errno
import itertools
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert import __main__ as door
from convert.adapt import OPERATIONS
from convert.adapt.kernels import PATCHES, POSITIONS
from convert.commands import formats
from convert.dialects import LAYOUTS
from convert.plan import target as target_module
from convert.write import weights
from convert.write.origin import file_hash
from tests import random_weights
from tests.test_processes import python
from vit_jax.errors import CHECK
from vit_jax.models.vit_config import ViTConfig

CONFIG = ViTConfig(image=8, patch=4, classes=5, width=12, depth=2, heads=2, hidden=20)
SAID = ("--set", "heads=2", "--set", "eps=1e-6", "--set", "activation=gelu", "--set", "pool=cls", "--set", "image=8")
STATISTICS = ("--set", "mean=0.5", "--set", "std=0.25")
TIMM = ("--to", "timm", *SAID, *STATISTICS)


def tensors(config=CONFIG, layout="timm", **how):
    return random_weights.tensors(LAYOUTS[layout], config, **how)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "vit.safetensors"
    save_file(tensors(), path)
    return path


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """The command in this process, inside tmp_path: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["convert", *map(str, arguments)])
        try:
            code = door.main()
        except SystemExit as stop:
            code = stop.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def command(*arguments):
    return [sys.executable, "-m", "convert", *map(str, arguments)]


def with_code(code, *arguments):
    """`python -m convert` in a process of its own, after some code."""
    program = f"import os, signal, sys; from convert import __main__; {code}; sys.exit(__main__.main())"
    return python(program, *arguments)


@pytest.fixture
def refused(run, tmp_path):
    """A command that ends with 2 and one sentence, and changes no file; the sentence."""

    def check(*arguments):
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        code, _, error = run(*arguments)
        assert code == 2, error
        assert error.startswith("vit-jax: error: ") and error.count("\n") == 1 and "Traceback" not in error
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        return error

    return check


def same(one, other):
    """Whether two files hold the same tensors, to the bit."""
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


def provenance(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["provenance"])


# ------------------------------------------------------------------------------------- what it does


def test_what_is_written_says_where_it_comes_from_and_what_it_is(run, source):
    run(source, "out.safetensors", "--to", "huggingface", *SAID, *STATISTICS, "--adapt", "eps=1e-5")
    said = provenance("out.safetensors")
    assert said["source"] == {"name": "vit.safetensors", "sha256": file_hash(source), "layout": "timm"}
    assert said["layout"].startswith("huggingface") and said["config"]["fields"]["eps"] == 1e-5
    assert said["preprocess"]["mean"] == [0.5] * 3 and said["preprocess"]["std"] == [0.25] * 3
    assert [a["text"] for a in said["adaptations"]] == ["eps=1e-5"]


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth", "bin", "npz", "msgpack"])
def test_every_container_holds_the_same(run, source, tmp_path, suffix):
    there, back = tmp_path / f"out.{suffix}", tmp_path / "back.safetensors"
    code, out, _ = run(source, there, *TIMM)
    assert code == 0 and "written" in out and "timm" in out
    assert (tmp_path / f"out.{suffix}.json").exists() == (
        suffix != "safetensors"
    )  # provenance is beside where it cannot be inside
    assert run(there, back, "--to", "timm")[0] == 0  # it says itself what it is
    assert same(source, back)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_dtypes_are_kept_unless_another_is_asked_for(run, tmp_path, name):
    import ml_dtypes

    path, out = tmp_path / "x.safetensors", tmp_path / "y.safetensors"
    save_file(tensors(dtype=np.float16), path)
    assert run(path, out, *TIMM)[0] == 0
    assert {a.dtype for a in load_file(out).values()} == {np.dtype(np.float16)}
    assert run(path, out, *TIMM, "--dtype", name, "--force")[0] == 0
    assert {a.dtype for a in load_file(out).values()} == {np.dtype(getattr(ml_dtypes, name, name))}
    expected = {n: a.astype(getattr(ml_dtypes, name, name)) for n, a in load_file(path).items()}
    assert all(a.tobytes() == expected[n].tobytes() for n, a in load_file(out).items())


def test_a_folder_has_what_its_library_wants_and_is_read_back_without_a_flag(run, source, tmp_path):
    code, told, _ = run(source, "hf", "--to", "huggingface", *SAID, *STATISTICS)
    assert code == 0 and "no preprocessing is written" not in told
    assert {"model.safetensors", "config.json", "preprocessor_config.json", "provenance.json"} <= {
        p.name for p in (tmp_path / "hf").iterdir()
    }
    (tmp_path / "hf" / "provenance.json").unlink()  # its library's own files are enough
    assert run("hf", "back.safetensors", "--to", "timm")[0] == 0
    assert same(source, "back.safetensors")


@pytest.mark.parametrize(("ours", "beside"), [("y.safetensors", "y.safetensors"), ("a-run", "a-run/checkpoints")])
def test_a_tensor_without_a_place_is_kept_beside_and_comes_back(run, tmp_path, ours, beside):
    path = with_mask(tmp_path)
    assert run(path, tmp_path / ours, "--to", "vit-jax", *SAID, *STATISTICS)[0] == 0
    assert (tmp_path / f"{beside}.carried.safetensors").exists()
    assert run(tmp_path / ours, "z.safetensors", "--to", "huggingface@v4")[0] == 0
    assert same(path, "z.safetensors")


def test_formats_lists_every_layout_and_adaptation_and_nothing_is_cut_on_a_narrow_terminal(run, source, monkeypatch):
    def words(*arguments):
        return " ".join(run(*arguments)[1].split())

    monkeypatch.setattr(formats, "pairs", lambda: dict.fromkeys(itertools.product(LAYOUTS, repeat=2), ""))
    monkeypatch.setenv("COLUMNS", "400")
    code, out, _ = run("formats")
    assert code == 0 and all(name in out for name in (*LAYOUTS, *POSITIONS, *PATCHES))
    assert all(re.search(rf"^  {operation}=", out, re.MULTILINE) for operation in OPERATIONS)
    wide = " ".join(out.split()), words("inspect", source, *SAID, *STATISTICS)
    monkeypatch.setenv("COLUMNS", "60")
    assert "timm" in wide[1] and "blocks.0.attn.qkv.weight" in wide[1] and "width 12" in wide[1]
    assert (words("formats"), words("inspect", source, *SAID, *STATISTICS)) == wide
    assert all(f"{', '.join(layout.containers)} {layout.title}" in wide[0] for layout in LAYOUTS.values())
    for command in (("formats",), ("--help",), ("inspect", "--help"), ("verify", "--help")):
        assert max(map(len, run(*command)[1].splitlines())) <= 60
    config = run("inspect", source, *SAID, *STATISTICS)[1].partition("config ")[2].partition("  cls_token")[0]
    assert "activation gelu" in " ".join(config.split()) and max(map(len, config.splitlines())) <= 60


# ---------------------------------------------------------------------------------------- bad input


def asked(told):
    """The names that a message asks for as `fields NAME=... NAME=...`, in order."""
    return [name for given in re.findall(r"`fields ([^`]*)`", told) for name in re.findall(r"(\w+)=\.\.\.", given)]


def test_nothing_is_guessed(refused, run, source):
    told = refused(source, "out.safetensors", "--to", "huggingface")
    assert {"heads", "eps", "activation", "image"} <= set(asked(told))
    code, told, _ = run(source, "out.safetensors", "--to", "huggingface", *SAID)
    assert code == 0 and "no preprocessing is written: the source does not state the mean and std" in told


def test_all_that_is_open_is_asked_for_and_taken_at_once(refused, run, source, tmp_path):
    """Several values behind one --set, with spaces or commas between them, and a target behind those."""
    told = refused(source, "out")
    flags = asked(told)
    assert flags[-2:] == ["mean", "std"] and "(usual: pool=cls, eps=1e-06, activation=gelu)" in told
    values = {"heads": 2, "pool": "cls", "image": 8, "eps": 1e-6, "activation": "gelu", "mean": "0.5,0.4,0.3"}
    given = [f"{name}={values.get(name, '1,1,1')}" for name in flags]
    for words in ([*given, "--to", "timm"], [",".join(given), "--to=timm"], [*given[:2], ",".join(given[2:])]):
        code, told, _ = run(source, f"{len(words)}{len(words[0])}.pt", "--set", *words)
        assert code == 0 and "no preprocessing" not in told
    code, _, _ = run(source, f"--set={given[0]}", *given[1:], "last.pt")
    assert code == 0 and (tmp_path / "last.pt").is_file()


def test_what_the_user_says_must_fit_the_shapes(refused, source):
    assert "width is 16 by `fields` but 12" in refused(source, "o.safetensors", *SAID, "--set", "width=16")
    assert "there is no such field" in refused(source, "o.safetensors", *SAID, "--set", "heights=16")
    assert "give it once" in refused(source, "o.safetensors", *SAID, "--set", "heads=2")
    assert "KEY=VALUE" in refused(source, "o.safetensors", "--set", "heads")


def test_a_target_that_cannot_state_the_config_names_the_ways(refused, run, source):
    said = [s.replace("eps=1e-6", "eps=1e-12") for s in SAID]
    told = refused(source, "t", "--to", "augreg", *said, *STATISTICS)
    assert "`adapt eps=1e-06" in told and "`weights_only" in told and "activation" in told
    assert run(source, "t.npz", "--to", "augreg", *said, *STATISTICS, "--weights-only")[0] == 0


def test_the_size_of_a_change_is_said(run, source):
    _, out, _ = run(source, "o.safetensors", *TIMM, "--adapt", "eps=1e-5")
    assert "the function changes" in out and float(out.split("moves outputs by ")[1].split()[0]) > 1e-8
    _, out, _ = run(source, "p.safetensors", *TIMM, "--adapt", "fold=cls_position")
    assert "the function stays" in out and "moves" not in out


def test_what_helps_against_one_reason_is_not_offered_where_another_stands(refused, source):
    said = [s.replace("eps=1e-6", "eps=1e-12") for s in SAID]
    told = refused(source, "t", "--to", "simple-vit", *said, *STATISTICS)
    assert "cls_token is True" in told and "eps" not in told and "`weights_only" not in told
    assert "change it with" not in told
    assert "choose a layout that holds it (`to huggingface`," in told


@pytest.mark.parametrize(
    "fields, target, function",
    [
        ({"layer_scale": 1.0, "cls_position": False}, "huggingface", "stays"),
        ({"query_bias": False, "key_bias": False, "value_bias": False, "eps": 1e-5}, "torchvision", "changes"),
        ({"eps": 1e-5}, "torchvision", "changes"),
    ],
)
def test_the_adaptations_that_a_refusal_names_are_enough(refused, run, tmp_path, fields, target, function):
    path = tmp_path / "x.safetensors"
    save_file(tensors(replace(CONFIG, **fields)), path)
    said = [*(word.replace("eps=1e-6", f"eps={fields.get('eps', 1e-6)}") for word in SAID), *STATISTICS]
    told = refused(path, "out.safetensors", "--to", target, *said)
    named = told.partition("change it with ")[2].partition(" (the function ")
    assert named[2].startswith(function)
    flags = [word for text in re.findall("`adapt ([^`]+)`", named[0]) for word in ("--adapt", text)]
    assert run(path, "out.safetensors", "--to", target, *said, *flags)[0] == 0


def test_the_name_of_a_run_and_of_a_library_point_to_what_is_meant(refused, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert "mine: no such file or folder; give runs/mine, the run of this name" in refused("mine", "out")
    assert "nearest: torch-transformer" in refused(source, "out", "--to", "transformer")


def test_a_file_of_no_layout_is_told_the_nearest(refused):
    some = tensors()
    save_file({name.replace("attn.qkv", "attn.all"): array for name, array in some.items()}, "x.safetensors")
    assert "nearest is timm;" in refused("x.safetensors", "y.safetensors")


def test_no_key_is_advised_whose_weights_would_be_refused(refused, run):
    language = {"embed_tokens.weight": (5, 4), "layers.0.self_attn.q_proj.weight": (4, 4)}
    beside = {f"lm.net.{name}": np.ones(shape, np.float32) for name, shape in language.items()}
    save_file({f"my.net.{name}": array for name, array in tensors().items()} | beside, "x.safetensors")
    told = refused("x.safetensors", "y.safetensors", *SAID, *STATISTICS)
    assert told.endswith("its weights lie under my.net; add `key my.net`\n")
    assert "decoder-only" in refused("x.safetensors", "y.safetensors", "--key", "lm.net")
    assert run("x.safetensors", "y.safetensors", "--key", "my.net", *SAID, *STATISTICS)[0] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_and_infinity_are_refused_unless_allowed(refused, run, tmp_path, value, dtype):
    import ml_dtypes

    some = tensors(dtype=getattr(ml_dtypes, dtype, dtype))
    some["norm.weight"][3] = value
    save_file(some, "x.safetensors")
    words = (tmp_path / "x.safetensors", tmp_path / "y.safetensors", *TIMM)
    assert "norm.weight holds NaN or infinity" in refused(*words)
    assert run(*words, "--allow-nonfinite")[0] == 0
    assert load_file("y.safetensors")["norm.weight"].tobytes() == some["norm.weight"].tobytes()


def test_integers_are_no_weights(refused):
    some = tensors()
    some["norm.weight"] = some["norm.weight"].astype(np.int32)
    save_file(some, "x.safetensors")
    assert "norm.weight is int32" in refused("x.safetensors", "y.safetensors", *SAID, *STATISTICS)


def test_a_narrower_dtype_that_overflows_is_refused(refused, tmp_path):
    some = tensors()
    some["norm.weight"][0] = 1e6
    save_file(some, "x.safetensors")
    assert "bfloat16" in refused(
        tmp_path / "x.safetensors", tmp_path / "y.safetensors", *SAID, *STATISTICS, "--dtype", "float16"
    )


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "npz", "msgpack"])
def test_a_flipped_bit_is_caught_in_every_container_that_was_written_here(refused, run, source, tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    assert run(source, path, *TIMM)[0] == 0
    needle = load_file(source)["blocks.1.mlp.fc1.weight"].tobytes()
    whole = bytearray(path.read_bytes())
    whole[whole.index(needle) + 77] ^= 4
    path.write_bytes(whole)
    assert "blocks.1.mlp.fc1.weight" in refused(path, "y.safetensors", "--to", "timm")


def test_provenance_beside_another_file_is_not_believed(refused, run, source, tmp_path):
    assert run(source, "x.msgpack", *TIMM)[0] == 0
    save_file(tensors(seed=1), "other.safetensors")
    assert run("other.safetensors", "z.msgpack", *TIMM)[0] == 0
    (tmp_path / "z.msgpack").rename(tmp_path / "x.msgpack")
    assert "remove x.msgpack.json" in refused("x.msgpack", "y.safetensors", "--to", "timm")


# --------------------------------------------------------------------------------- the target, items 92 to 95


@pytest.mark.parametrize("way", ["path", "symlink", "hard link"])
def test_the_source_is_never_the_target(refused, source, tmp_path, way):
    target = source if way == "path" else tmp_path / "link.safetensors"
    if way == "symlink":
        target.symlink_to(source)
    if way == "hard link":
        os.link(source, target)
    assert "is the source itself" in refused(source, target, *TIMM, "--force")


def test_what_is_there_stays_without_force(refused, run, source, tmp_path):
    (tmp_path / "out.safetensors").write_text("precious")
    assert "`force" in refused(source, "out.safetensors", *TIMM)
    assert run(source, "out.safetensors", *TIMM, "--force")[0] == 0
    assert len(load_file("out.safetensors")) == len(tensors())


def test_force_replaces_in_a_folder_only_what_a_conversion_wrote(refused, run, source, tmp_path):
    assert run(source, "hf", "--to", "huggingface", *SAID, *STATISTICS)[0] == 0
    assert run(source, "hf", "--to", "huggingface", *SAID, *STATISTICS, "--force")[0] == 0
    (tmp_path / "hf" / "thesis.tex").write_text("precious")
    assert "thesis.tex" in refused(source, "hf", "--to", "huggingface", *SAID, *STATISTICS, "--force")


def test_a_folder_that_may_not_be_written_is_named(refused, source, monkeypatch):
    """The superuser may write everywhere, so the system's answer is put in."""
    honest = Path.mkdir

    def mkdir(self, *arguments, **options):
        if self.name.endswith(".tmp"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        honest(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    told = refused(source, "out.safetensors", *TIMM)
    assert "out.safetensors: permission denied" in told and ".tmp" not in told


def test_a_full_disk_leaves_nothing_behind(source, tmp_path):
    """The largest file that a process may write stands for the disk's end."""
    big = replace(CONFIG, width=96, hidden=384, depth=2)
    save_file(tensors(big), source)
    code = "import resource; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))"
    before = sorted(tmp_path.iterdir())
    done = with_code(code, source, tmp_path / "out.safetensors", *TIMM)
    assert done.returncode == 2 and "disk is full" in done.stderr and done.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("target", "to", "replaced"),
    [("out.npz", "timm", True), ("hf", "huggingface", False), ("hf", "huggingface", True), ("run", "vit-jax", False)],
)
def test_a_file_gets_its_name_once_the_disk_holds_it(run, source, tmp_path, monkeypatch, target, to, replaced):
    """A file that is renamed before may be empty after a power cut, and the one that it replaced is lost."""
    said = (source, tmp_path / target, "--to", to, *SAID, *STATISTICS)
    if replaced:
        assert run(*said)[0] == 0
    held, named, sync = set(), set(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (held.add(os.fstat(file).st_ino), sync(file)))

    def listening(move):
        def listen(old, new):
            if Path(new).parent.name == "replaced":  # an old file, that is on the disk already
                return move(old, new)
            paths = [Path(old), *Path(old).rglob("*")]
            assert held >= {p.stat().st_ino for p in paths}, f"{old} becomes {new} before it is on the disk"
            named.update(p.stat().st_ino for p in paths)
            return move(old, new)

        return listen

    for place, name in ((os, "rename"), (os, "replace"), (target_module, "exchange")):
        monkeypatch.setattr(place, name, listening(getattr(place, name)))
    assert run(*said, *["--force"] * replaced)[0] == 0
    written = {p.stat().st_ino for p in tmp_path.rglob("*") if p.is_file() and p != source}
    assert written <= named and len(written) > 1


def flip_the_last_bit(path):
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def add_a_tensor(path):
    save_file({**load_file(path), "extra": np.zeros(2, np.float32)}, path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (flip_the_last_bit, "was not read back from the disk as it was written"),
        (add_a_tensor, f"holds {len(tensors()) + 1} tensors instead of {len(tensors())}"),
    ],
)
def test_what_comes_back_otherwise_than_it_was_written_never_arrives(run, source, tmp_path, monkeypatch, change, says):
    honest = weights.open_source
    monkeypatch.setattr(weights, "open_source", lambda path, *rest: (change(path), honest(path, *rest))[1])
    code, _, error = run(source, "out.safetensors", *TIMM)
    assert code == 3 and "Traceback" not in error and says in error, error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vit.safetensors"]


# ------------------------------------------------------------------------------- what lies beside a target


HF = ("--to", "huggingface@v4")


def with_mask(tmp_path, name="masked.safetensors"):
    """A file with a tensor that no network of ours has."""
    more = {"vit.embeddings.mask_token": np.ones((1, 1, 12), np.float32)}
    save_file(tensors(layout="huggingface@v4") | more, tmp_path / name)
    return tmp_path / name


def test_a_source_under_the_name_of_what_is_kept_beside_is_never_written_over(refused, tmp_path):
    path = with_mask(tmp_path, "p.safetensors.carried.safetensors")
    assert "is the source itself" in refused(path, "p.safetensors", *TIMM)


@pytest.mark.parametrize("suffix", [".json", ".carried.safetensors", ".certificate.json"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_lies_beside_a_target_stays(refused, source, tmp_path, suffix, kind):
    place = tmp_path / f"y.pt{suffix}"
    place.write_text("precious") if kind == "file" else place.mkdir()
    told = refused(source, "y.pt", *TIMM)
    assert "exists" in told or "is a folder" in told
    if kind == "file":
        assert "no conversion wrote it" in refused(source, "y.pt", *TIMM, "--force")


def test_force_leaves_nothing_of_the_conversion_before(run, source, tmp_path):
    place = tmp_path / "k.safetensors"
    assert run(with_mask(tmp_path), place, *TIMM)[0] == 0
    assert (tmp_path / "k.safetensors.carried.safetensors").exists()
    assert run(source, place, *TIMM, "--force")[0] == 0
    assert not (tmp_path / "k.safetensors.carried.safetensors").exists()
    assert run(source, "f", *HF, *SAID, *STATISTICS)[0] == 0
    assert run(source, "f", *HF, *SAID, "--weights-only", "--force")[0] == 0
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["model.safetensors", "provenance.json"]


def test_a_failed_conversion_takes_the_folders_that_it_made_with_it(refused, source, tmp_path):
    some = tensors()
    some["norm.weight"][0] = np.nan
    save_file(some, source)
    refused(source, tmp_path / "a" / "b" / "out.safetensors", *TIMM)
    assert not (tmp_path / "a").exists()


def test_the_folder_that_one_stands_in_is_no_target(refused, source, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "`force" in refused(source, ".", *TIMM)
    (tmp_path / "here" / "thesis.tex").write_text("precious")
    assert "thesis.tex" in refused(source, ".", *TIMM, "--force")


def test_a_report_is_never_written_over_a_file(refused, source):
    for flag in ("--json", "--markdown"):
        assert "exists; choose another name" in refused("verify", source, source, *SAID, flag, source)


def test_a_reader_who_goes_away_neither_ends_the_work_nor_changes_its_result(source, tmp_path):
    for unbuffered in ("", "1"):
        target = tmp_path / f"c{unbuffered}.pt"
        first = subprocess.Popen(
            command(source, target, *TIMM),
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        first.stdout.close()
        assert first.wait() == 0 and target.exists()
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command(source, tmp_path / "d.pt", *TIMM)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize("suffix", ["npz", "pt", "msgpack"])
def test_other_values_than_were_handed_over_to_be_written_are_noticed(run, source, tmp_path, monkeypatch, suffix):
    """As of bad memory: the container's own sums are those of the wrong values."""
    container, write = weights.writer(f"x.{suffix}")

    def negated(path, specs, arrays, metadata):
        write(path, specs, ((name, -array) for name, array in arrays), metadata)

    monkeypatch.setattr(weights, "writer", lambda _: (container, negated))
    code, _, error = run(source, f"out.{suffix}", *TIMM)
    assert code == CHECK and "was not read back from the disk as it was written" in error
    assert [*tmp_path.iterdir()] == [source]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", pytest.param("SIGHUP", marks=pytest.mark.slow)])
def test_a_signal_in_the_middle_of_writing_leaves_nothing_behind(source, tmp_path, name):
    code = "from convert.write import weights; "
    code += f"weights._read_back = lambda *_: os.kill(os.getpid(), signal.{name})"
    before = sorted(tmp_path.iterdir())
    done = with_code(code, source, tmp_path / "n" / "o.safetensors", *TIMM)
    assert done.returncode == {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}[name] and "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


# ------------------------------------------------------------------------------------ the door itself


def test_help_comes_at_once_and_loads_no_tables():
    times = []
    for _ in range(3):
        began = time.perf_counter()
        done = subprocess.run(command("--help"), capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - began)
    assert "SRC" in done.stdout and "formats" in done.stdout
    assert min(times) < 1.0  # 0.3 s on a quiet machine: benchmarks/startup.py


def test_it_works_from_any_folder_and_under_vit_jax(source, tmp_path):
    (tmp_path / "convert").mkdir()  # a folder of this name shadows nothing
    words = [sys.executable, "-c", "import sys; from vit_jax.commands.cli import main; sys.exit(main())", "convert"]
    done = subprocess.run([*words, source, "out.safetensors", *TIMM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.safetensors").exists()


def test_memory_that_runs_out_is_said_without_flags_that_the_command_has_not(run, source, monkeypatch):
    def full(arguments):
        raise MemoryError

    monkeypatch.setitem(door.COMMANDS, "inspect", full)
    code, _, error = run("inspect", source)
    assert code == 2 and error.startswith("vit-jax: error: out of memory: ")
    assert "--" not in error and error.count("\n") == 1
