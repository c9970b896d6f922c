"""Remarks of a conversion: why preprocessing is missing, what was assumed, and what is not in the target."""

import json
from dataclasses import replace

import numpy as np
from safetensors.numpy import save_file

from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.recognise.reading import read
from tests.random_weights import tensors
from tests.test_dialect_seq2seq import BART
from vit_jax.config.outputs import Outputs
from vit_jax.models.vit_config import ViTConfig

OBLONG = ViTConfig(image=(8, 12), patch=4, classes=5, width=12, depth=1, heads=2, hidden=20)


def library(folder, layout, config, facts, **pretrained):
    """A folder as a library leaves it."""
    folder.mkdir()
    save_file(tensors(layout, config), folder / "model.safetensors")
    for name, content in layout.write_side(config, facts).items():
        content.get("pretrained_cfg", {}).update(pretrained)
        (folder / name).write_text(json.dumps(content))
    return folder


def test_an_oblong_crop_is_refused_for_what_it_is_and_each_remedy_works(tmp_path, convert):
    statistics = {
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 0.9,
        "crop_mode": "center",
        "interpolation": "bicubic",
    }
    source = library(tmp_path / "timm", LAYOUTS["timm"], OBLONG, Facts(), **statistics)
    assert "note       config.json: its preprocessing has no counterpart here" in convert("inspect", source)[1]
    code, _, error = convert(source, tmp_path / "run")  # which has to state it
    assert code == 2 and "crop_pct 0.9 of an oblong image" in error and "or write FILE.safetensors" in error
    assert convert(source, tmp_path / "f.safetensors")[0] == 0
    for target, way in (("to-timm", ["--to", "timm"]), ("run", [])):
        code, told, _ = convert(source, tmp_path / target, *way, "--set", "mean=0.5", "--set", "std=0.5")
        assert (
            code == 0
            and "so fit stretch, interpolation bicubic is written; change it with `fields fit=... interpolation=...`"
            in told
        )


def test_a_folder_without_a_preprocessor_is_converted_with_its_config(tmp_path, convert):
    source = library(
        tmp_path / "hf", LAYOUTS["huggingface@v4"], OBLONG, Facts(outputs=Outputs("class", tuple("abcde")))
    )
    assert sorted(p.name for p in source.iterdir()) == ["config.json", "model.safetensors"]
    for layout in ("huggingface", "timm"):
        code, told, _ = convert(source, tmp_path / layout, "--to", layout)
        assert code == 0 and "no preprocessing is written: the source does not state the mean and std" in told
        with (reading := read(str(tmp_path / layout))).source:
            assert replace(reading.config, patch=4) == OBLONG and reading.facts.outputs.names == tuple("abcde")
    assert convert(source, tmp_path / "stated", "--to", "huggingface", "--set", "mean=0.5", "--set", "std=0.5")[0] == 0
    assert (tmp_path / "stated/preprocessor_config.json").exists()
    code, _, error = convert(source, tmp_path / "run")
    assert code == 2 and "does not state the mean and std of its images, and a run has to state" in error


def test_what_is_said_is_not_assumed(tmp_path, convert):
    save_file(tensors(LAYOUTS["torchvision@2"], replace(OBLONG, image=8)), tmp_path / "a.safetensors")
    said = [
        x
        for pair in ("image=8", "heads=2", "mean=0.5", "std=0.5", "fit=crop", "interpolation=bilinear")
        for x in ("--set", pair)
    ]
    code, told, _ = convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--to", "timm", *said)
    assert code == 0 and "note" not in told


def test_what_the_user_states_goes_before_what_a_file_states(tmp_path, convert):
    ids = {"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1}
    source = library(tmp_path / "bart", LAYOUTS["bart"], BART, Facts(extra=ids))
    assert convert(source, tmp_path / "a", "--to", "bart", "--set", "decoder_start_token_id=2")[0] == 0
    assert convert(tmp_path / "a", tmp_path / "b", "--to", "bart", "--set", "pad_token_id=3")[0] == 0  # over ours, too
    for name, expected in (
        ("a", ids | {"decoder_start_token_id": 2}),
        ("b", {**ids, "decoder_start_token_id": 2, "pad_token_id": 3}),
    ):
        assert json.loads((tmp_path / name / "config.json").read_text()).items() >= expected.items()


def test_a_tokenizer_goes_along_into_a_folder(tmp_path, convert):
    ids = Facts(extra={"pad_token_id": 1, "eos_token_id": 0, "decoder_start_token_id": 1})
    source = library(tmp_path / "bart", LAYOUTS["bart"], BART, ids)
    (source / "vocab.json").write_text("{}")
    (source / "tokenizer.json").write_bytes(b"\xff as it is")
    for _ in range(2):
        assert convert(source, tmp_path / "b", "--to", "bart", "--force")[0] == 0  # the second over the first
        assert (tmp_path / "b" / "tokenizer.json").read_bytes() == b"\xff as it is"
        assert (tmp_path / "b" / "vocab.json").read_text() == "{}"
    assert (
        convert(source, tmp_path / "c.safetensors", "--to", "torch-ref")[0] == 0
        and not (tmp_path / "vocab.json").exists()
    )


def test_a_container_that_a_layout_does_not_come_in_and_a_teacher_that_is_lost_are_named(tmp_path, convert):
    config = replace(
        OBLONG,
        image=8,
        head_width=3,
        query_bias=False,
        key_bias=False,
        value_bias=False,
        stem_pre_norm=True,
        stem_norm=True,
        eps=1e-5,
        distill_token=True,
        distill_head=True,
        distill_position=False,
        distill_norm=True,
    )
    layout = LAYOUTS["vit-pytorch-distill@1.16.5"]
    save_file(tensors(layout, config), tmp_path / "a.safetensors")
    said = [x for pair in ("image=8", "patch=4", "heads=2") for x in ("--set", pair)]
    code, told, _ = convert(
        tmp_path / "a.safetensors", tmp_path / "b.npz", "--to", layout.dialect, "--weights-only", *said
    )
    assert (
        code == 0
        and "come as torch or safetensors: its own library may not open a .npz" in told
        and "the file has no teacher" in told
    )


def test_the_class_of_a_folder_without_a_known_layout_is_named(tmp_path, convert):
    save_file({"dinov2.embeddings.cls_token": np.zeros((1, 1, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "dinov2"}))
    code, _, error = convert(tmp_path, tmp_path / "out")
    assert code == 2 and "have no known layout (config.json: model_type 'dinov2')" in error and "nearest" not in error
