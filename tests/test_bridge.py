"""A run trained here, as files of other libraries, which load it themselves and compute the same; and read again."""

import contextlib
import io
import re
import shlex
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import vit_jax
from convert import __main__ as convert
from tests.installed import library
from vit_jax.commands import train as train_command
from vit_jax.training import finish
from vit_jax.weights.start import start

TINY = shlex.split(
    "digits --model.width 16 --model.depth 2 --model.heads 2 --model.hidden 32 --optim.schedule constant "
    "--optim.lr 0.01 --optim.weight-decay 0 --batch 64 --epochs 1 --max-steps 8"
)


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """A folder with two runs in it: digits (erf GELU) and tanh."""
    folder = tmp_path_factory.mktemp("bridge")
    jax.config.update("jax_disable_most_optimizations", True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.MonkeyPatch.context() as plain, contextlib.redirect_stdout(io.StringIO()):
            plain.setattr(finish, "draw", lambda *a: None)
            assert train_command.command(TINY) == 0
            assert run("runs/digits", "runs/tanh", "--adapt", "activation=gelu_tanh", "--weights-only") == 0
        yield folder
    jax.config.update("jax_disable_most_optimizations", False)


def run(*arguments):
    """`python -m convert` in this process: its exit code."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(sys, "argv", ["convert", *map(str, arguments)])
        return convert.main()


@pytest.fixture
def images():
    return np.random.default_rng(0).standard_normal((5, 8, 8, 1)).astype(np.float32)


def ours(loaded, images):
    return np.asarray(loaded.model(jax.numpy.asarray(images)))


def close(a, b):
    return np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


# ---------------------------------------------------------------------------------------- outwards


def test_transformers_itself_opens_a_run_and_computes_its_logits(images):
    transformers, torch = library("transformers"), pytest.importorskip("torch")
    assert run("runs/digits", "as-hf", "--to", "huggingface") == 0
    model, told = transformers.AutoModelForImageClassification.from_pretrained("as-hf", output_loading_info=True)
    assert not (told["missing_keys"] or told["unexpected_keys"] or told["mismatched_keys"])
    with torch.no_grad():
        theirs = model.eval()(pixel_values=torch.from_numpy(images).permute(0, 3, 1, 2)).logits.numpy()
    assert close(theirs, ours(vit_jax.load("digits"), images))
    assert [model.config.id2label[k] for k in range(10)] == list(vit_jax.load("digits").class_names)


def test_google_s_layout_refuses_an_erf_network_and_takes_a_tanh_one_there_and_back(capsys):
    assert run("runs/digits", "erf.npz", "--to", "augreg") == 2
    told = capsys.readouterr().err
    assert "activation" in told and "`adapt activation=gelu_tanh" in told
    assert run("runs/tanh", "tanh.npz", "--to", "augreg") == 0
    assert run("tanh.npz", "back", "--to", "vit-jax") == 0
    assert run("runs/tanh", "a.safetensors") == run("back", "b.safetensors") == 0
    a, b = load_file("a.safetensors"), load_file("b.safetensors")
    assert a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


# ----------------------------------------------------------------------------------------- inwards


@pytest.mark.parametrize(
    "target",
    [
        "x.safetensors --to timm",
        "x.pt --to torch-ref",
        "x.msgpack --to huggingface-flax",
        "x --to huggingface",
        "y --to vit-jax",
    ],
)
def test_load_opens_any_layout_as_the_network_that_it_was(target, images, place):
    name, *rest = target.split()
    assert run("runs/digits", name, *rest, "--force") == 0
    loaded, digits = vit_jax.load(place / name), vit_jax.load("digits")
    assert np.array_equal(ours(loaded, images), ours(digits, images))
    assert (loaded.class_names, loaded.preprocess) == (digits.class_names, digits.preprocess)
    pixels = np.random.default_rng(1).integers(0, 256, (3, 8, 8, 1), np.uint8)
    assert loaded.predict(list(pixels)) == digits.predict(list(pixels))


def test_load_takes_words_about_a_file_that_says_nothing(images):
    run("runs/digits", "bare.safetensors", "--to", "timm", "--force")
    save_file(load_file("bare.safetensors"), "bare.safetensors")
    stated = dict(heads=2, eps=1e-6, activation="gelu", pool="cls", image=8)
    for options, says in (
        ({}, r"cannot tell .*heads; give `model NAME`, .*, or `fields pool=\.\.\. .*heads=\.\.\.` .usual: pool=cls"),
        ({"layout": "tmi"}, "^layout tmi: there is no such layout; nearest: timm"),
        ({"key": "ema", "fields": stated}, "key ema names no set of weights; it holds one set, leave `key` out$"),
        ({"fields": {"heads": (3, 4)}}, r"^fields heads=\(3, 4\): give a whole number$"),
        ({"which": "last"}, "is not a run, so there are no `which` and `ema` to choose; leave them out$"),
    ):
        with pytest.raises(vit_jax.UserError, match=says):
            vit_jax.load("bare.safetensors", **options)
    with pytest.raises(vit_jax.UserError, match="is not a run, so there are no"):
        vit_jax.export("bare.safetensors", "raw.safetensors", ema=True)
    arrays = load_file("bare.safetensors")
    save_file({**arrays, "norm.bias": arrays["norm.bias"] * np.nan}, "nan.safetensors")
    with pytest.raises(vit_jax.UserError, match=r"NaN or inf.*; take other weights$"):
        vit_jax.load("nan.safetensors", fields=stated)
    loaded = vit_jax.load("bare.safetensors", fields=stated)
    assert isinstance(loaded.model, vit_jax.ViT) and not hasattr(loaded, "preprocess")
    assert np.array_equal(ours(loaded, images), ours(vit_jax.load("digits"), images))


def test_one_of_several_files_is_named_by_its_path_and_not_by_a_flag(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("convert.containers.hub._names", lambda *_: ["a.npz", "b.npz"])
    for name in ("a.npz", "b.npz"):
        np.savez(tmp_path / name, x=np.ones(2, np.float32))
    for path in (str(tmp_path), "hf://o/n"):
        remedy = f"give {path}/NAME with one of these names"
        for call in (vit_jax.load, lambda path: vit_jax.export(path, tmp_path / "x")):
            with pytest.raises(vit_jax.UserError, match=rf"several sets of weights.* [ab]\.npz.*; {remedy}$"):
                call(path)


def refused(config, init):
    """What training says of a file that it cannot start from."""
    with pytest.raises(vit_jax.UserError) as told:
        start(replace(config, init=init, new_head=True), {})
    return str(told.value)


def test_training_is_told_of_flags_that_it_has():
    """Those that a message names, given as they stand, make the config that the file is of."""
    run("runs/digits", "flags.safetensors", "--to", "vit-jax", "--force")
    digits = vit_jax.load("digits").run
    other = replace(digits, model=replace(digits.model, query_bias=False, norm_bias=False, width=32, classes=3))
    told = refused(other, "flags.safetensors")
    given = [word for span in re.findall("`([^`]*)`", told) for word in f"--{span}".split()]
    assert "--model.query_bias" in given and "--new_head" not in given
    arguments = shlex.split("--model.no-query-bias --model.no-norm-bias --model.width 32")
    run_ = train_command.parse([*TINY, *arguments, *given, "--init", "flags.safetensors", "--new-head"])[1].run()
    assert start(run_, {}).parameters["blocks.0.attention.query.bias"].any()
    told = refused(
        replace(digits, model=replace(digits.model, distill_token=True, pool="cls_distill")), "flags.safetensors"
    )
    assert told.endswith("give `model.distill_token False` and `model.pool cls`")


def test_what_only_convert_can_be_told_is_said_to_convert():
    run("runs/digits", "one.safetensors", "--to", "timm", "--force")
    some = load_file("one.safetensors")
    save_file({f"{key}.{name}": x for key in ("student", "teacher") for name, x in some.items()}, "two.safetensors")
    digits = vit_jax.load("digits").run
    told = refused(digits, "two.safetensors")
    (command,) = (shlex.split(each) for each in re.findall("`python -m convert ([^`]*)`", told))
    assert "`key LABEL`" in told and command == ["two.safetensors", "X.safetensors"]
    said = shlex.split(
        "--key teacher --set heads=2 --set eps=1e-6 --set activation=gelu --set pool=cls --set image=8 "
        "--set mean=0.5 --set std=0.5 --force"
    )
    assert run(*command, *said) == 0
    given = start(replace(digits, init="X.safetensors"), {}).parameters
    assert all(x.any() for name, x in given.items() if name.endswith("kernel"))
