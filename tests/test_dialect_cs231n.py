"""CS231n's captioner: both generations against a module with their names, what is asked and refused, the commands."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

import vit_jax
from convert import rules
from convert.dialects import LAYOUTS, cs231n
from convert.recognise.config import resolve
from convert.verify.checks import failures
from tests.parity import layouts_captions
from tests.random_weights import weights
from vit_jax.errors import UserError
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.presets.table import preset

COURSE, GENERATIONS = layouts_captions.COURSE, layouts_captions.GENERATIONS


@pytest.mark.parametrize("name", GENERATIONS)
def test_what_the_courses_module_saves_is_read_computed_and_written_to_the_bit(name):
    checks = list(layouts_captions.course_saved(name, GENERATIONS[name][0]))
    assert len(checks) == 4 and not failures(checks), "\n".join(map(str, failures(checks)))


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_heads_are_asked_for_and_nothing_else(name):
    layout, config = LAYOUTS[name], GENERATIONS[name][0]
    names = rules.file_shapes(layout.rows(config))
    with pytest.raises(UserError, match=r"course.pt: its tensors cannot tell text.heads; .*`fields text.heads=\.\.\."):
        resolve(layout, names, [], "course.pt")
    assert resolve(layout, names, [("--set", {"text.heads": 2})], "course.pt").normal() == config.normal()


@pytest.mark.parametrize("name", GENERATIONS)
def test_names_of_two_generations_in_one_file_are_no_layout(name):
    """norm1 beside ffn.fc1, or norm_self beside linear1: whose activation it has cannot be known."""
    names = rules.file_shapes(LAYOUTS[name].rows(GENERATIONS[name][0]))
    for ours in ("norm1", "norm3", "mlp.fc1", "cross_attention"):
        mine, other = (cs231n.FIRST, cs231n.SECOND) if name == "cs231n@2021" else (cs231n.SECOND, cs231n.FIRST)
        mixed = {key.replace(f".{mine[ours]}.", f".{other[ours]}."): shape for key, shape in names.items()}
        if ours != "norm1":
            assert not any(layout.recognises(mixed) for layout in LAYOUTS.values()), ours
        else:
            with pytest.raises(UserError, match=r"text\.decoder_depth"):
                resolve(LAYOUTS[name], mixed, [("--set", {"text.heads": 2})], "course.pt")


def test_the_preset_is_the_notebooks_network_but_for_its_words():
    """`coco-caption` goes into the first generation, whose activation it has, as soon as its words are known."""
    model = preset("coco-caption").run.model
    known = replace(model, text=replace(model.text, target_vocabulary=1004, outputs=1004))
    assert isinstance(model, CaptionerConfig) and not LAYOUTS["cs231n@2021"].cannot(known)
    found = rules.file_shapes(LAYOUTS["cs231n@2021"].rows(known))
    some = {"visual_projection.weight": (256, 512), "embedding.weight": (1004, 256), "output.bias": (1004,)}
    some |= {"positional_encoding.pe": (1, 30, 256), "transformer.layers.1.linear1.weight": (2048, 256)}
    assert {name: found[name] for name in some} == some
    assert "text.activation is 'relu'" in LAYOUTS["cs231n@2025"].cannot(known)[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(target_vocabulary=0), "text.target_vocabulary is 0"),
        (dict(outputs=5), "text.outputs is 5, but the layout has one for each of the 9 words"),
        (dict(max_length=0, position="interleaved"), "text.max_length is 0"),
        (dict(norm_first=True), "text.norm_first is True"),
        (dict(position="concatenated"), "text.position is 'concatenated'"),
    ],
)
def test_a_captioner_that_the_course_cannot_hold_is_refused_with_the_reason(change, reason):
    (first, *_) = LAYOUTS["cs231n@2021"].cannot(replace(COURSE, text=replace(COURSE.text, **change)))
    assert reason in first


def test_a_captioner_of_images_is_refused_with_the_reason():
    assert LAYOUTS["cs231n@2021"].cannot(replace(COURSE, memory="tokens"))[0].startswith("memory is 'tokens'")


def test_computed_positions_are_those_of_the_file_or_the_file_is_refused():
    """A student's sinusoids differ from ours in their last bits: they are kept, as learned positions."""
    layout, config = LAYOUTS["cs231n@2021"], layouts_captions.with_position(COURSE, "interleaved")
    p = weights(config)
    file = rules.write(layout.rows(config), p)
    assert rules.read(layout.rows(config), file).keys() == p.keys()
    other = file | {cs231n.POSITIONS: np.nextafter(file[cs231n.POSITIONS], np.float32(2))}
    with pytest.raises(UserError, match=r"positional_encoding\.pe: a tensor that should hold a computed constant"):
        rules.read(layout.rows(config), other)
    learned = rules.read(layout.rows(COURSE), other)["target.position"]
    assert (learned == other[cs231n.POSITIONS][0]).all()


def test_of_a_file_of_the_course_that_lacks_something_the_vectors_are_read_and_what_lacks_is_named(tmp_path):
    """The number of heads is in no tensor, and its words are in none: neither is taken for a file without an image."""
    np.save(tmp_path / "six.npy", np.zeros((2, 6), np.float32))
    torch.save(layouts_captions.Course("cs231n@2021").state_dict(), tmp_path / "course.pt")
    for inputs, message in (
        ("six.npy:1", r"its tensors cannot tell text\.heads; .*`fields text\.heads=\.\.\."),
        ("six.npy:2", "there is no row 2; count rows from 0"),
    ):
        with pytest.raises(UserError, match=message):
            vit_jax.predict(str(tmp_path / "course.pt"), f"{tmp_path}/{inputs}")
    vit_jax.export(str(tmp_path / "course.pt"), tmp_path / "x.safetensors", fields={"text.heads": 2})
    with pytest.raises(UserError, match="holds a Captioner without its words; give a run that was trained here"):
        vit_jax.predict(str(tmp_path / "x.safetensors"), f"{tmp_path}/six.npy:1")
