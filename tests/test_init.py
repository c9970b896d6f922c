"""`--init`: weights whose outputs or inputs mean something else are not taken without a word."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from vit_jax import export, train, weights
from vit_jax.config import normal, shapes
from vit_jax.errors import UserError
from vit_jax.presets import preset
from vit_jax.runs import Run
from vit_jax.train.session import set_up, starting_state


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys.modules["vit_jax.train.finish"], "draw", lambda *_: None
    )  # the package has a function of this name


def run_of(name, **fields):
    """A run of one step, and of a network as small as can be."""
    run = preset("digits").run if "pairs" not in str(fields["source"]) else preset("numbers").run
    depths = dict(depth=1) if run.task == "classify" else dict(encoder_depth=1, decoder_depth=1)
    lengths = {} if run.task == "classify" else dict(lengths=(4,), tokens=64)
    data = replace(run.data, source=str(fields.pop("source")), **lengths)
    model = replace(run.model, width=8, heads=2, hidden=8, **depths)
    return replace(run, data=data, model=model, max_steps=1, name=name, **fields)


def trained(name, **fields):
    return train.train(run_of(name, **fields))["status"]


def begins(name, **fields):
    """Whether a run gets to its first step."""
    state, _, _ = starting_state(set_up(run_of(name, **fields)), Run("nowhere"), None)
    return int(state.step) == 0


def archive(prefix):
    """An .npz set of ten classes whose names begin so."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (200, 8, 8), np.uint8), np.arange(200) % 10
    np.savez(f"{prefix}.npz", images=images, labels=labels, class_names=np.array([f"{prefix}{i}" for i in range(10)]))
    return f"{prefix}.npz"


def pairs(folder, words, path):
    """Sentences of these words, in a folder."""
    (path / folder).mkdir()
    for language in ("x", "y"):
        lines = [f"{a} {b}" for a in words.split() for b in words.split() for _ in range(8)]
        (path / folder / f"train.{language}").write_text("\n".join(lines))
    return f"pairs:x-y:{folder}"


def test_other_class_names_of_equal_number_need_a_new_head(tmp_path, rewrite_record):
    first, second = archive("a"), archive("b")
    trained("first", source=first)
    with pytest.raises(
        UserError,
        match=r"^init first: its class 0 is 'a0' and here it is 'b0'; add --new-head to start with a new head$",
    ):
        trained("second", source=second, init="first")
    assert not (tmp_path / "runs" / "second").exists()
    assert begins("second", source=second, init="first", new_head=True)
    assert begins("third", source=first, init="first", seed=1)
    export("runs/first", "first.safetensors")
    with pytest.raises(
        UserError, match=r"^init first.safetensors: its class 0 is 'a0' and here it is 'b0'; add --new-head"
    ):
        trained("second again", source=second, init="first.safetensors")
    assert begins("third again", source=first, init="first.safetensors")
    # Classes that are only numbered (as of a file that names none) say nothing against it.
    numbered = Run("runs/first")
    rewrite_record(numbered, class_names=[str(k) for k in range(10)])
    assert begins("fourth", source=second, init="first")


def test_a_network_is_read_from_a_run_and_from_a_file_alike():
    """What a task's teacher comes by: the config and the weights that `load` takes."""
    trained("first", source="digits")
    export("runs/first", "first.safetensors")
    config, arrays = weights.read("first")
    assert config == Run("runs/first").config().model
    again, same = weights.read("first.safetensors")
    assert normal(again) == normal(config) and arrays.keys() == same.keys() == shapes(config).keys()
    assert all((arrays[name] == same[name]).all() for name in arrays)
    with pytest.raises(UserError, match="nowhere: no run here"):
        weights.read("nowhere")


def test_another_vocabulary_of_equal_size_is_refused(tmp_path):
    one, two = pairs("one", "red green blue black", tmp_path), pairs("two", "rot schwarz blau weiss", tmp_path)
    trained("first", source=one)
    for new_head in (False, True):
        with pytest.raises(
            UserError,
            match=r"^init first: its source id 4 is '.*' and here it is '.*'; start from weights .* the same ones$",
        ):
            trained("second", source=two, init="first", new_head=new_head)
    export("runs/first", "first.safetensors")
    with pytest.raises(UserError, match=r"^init first.safetensors: its source id 4 is "):
        trained("second", source=two, init="first.safetensors")
    assert begins("second", source=one, init="first", epochs=2)
