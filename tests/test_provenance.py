"""What is said beside weights is believed of the very file and network that it was said of."""

import json
import shutil

import pytest
from safetensors.numpy import save_file

from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.plan.groups import stream
from convert.plan.plan import plan
from convert.recognise.preprocessing import fitting, preprocessing
from convert.recognise.reading import Options, read
from convert.write.write import write
from tests.random_weights import tensors
from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

CONFIG = ViTConfig(image=8, patch=4, classes=3, width=8, depth=1, heads=2, hidden=12)
SAID = {name: getattr(CONFIG, name) for name in ("image", "heads", "eps", "activation", "pool")} | {
    "mean": 0.5,
    "std": 0.25,
}
HOW = {
    "image": [8, 8],
    "channels": 3,
    "fit": "crop",
    "size": 9,
    "interpolation": "bicubic",
    "background": 0,
    "mean": [0.5] * 3,
    "std": [0.25] * 3,
}


def saved(path, seed=0):
    save_file(tensors(LAYOUTS["timm"], CONFIG, seed), path)
    return path


def converted(source, target, to="timm", said=SAID):
    with (reading := read(str(source), Options(sets=said))).source:
        return write(plan(reading, to), str(target))


def config_of(path, **said):
    with (reading := read(str(path), Options(**said))).source:
        list(stream(plan(reading, "vit-jax")))
        return reading.config


# ----------------------------------------------------------------------------------- of which file


@pytest.mark.parametrize("container", ["npz", "pt"])
@pytest.mark.parametrize("same", [True, False], ids=["of the same layout", "of another"])
def test_words_beside_a_file_are_not_those_of_one_put_in_its_place(same, container, tmp_path):
    first, other = (
        converted(saved(tmp_path / f"{seed}.safetensors", seed), tmp_path / f"{seed}.{container}").path
        for seed in (0, 1)
    )
    assert config_of(first) == CONFIG
    shutil.copy(
        other if same else converted(saved(tmp_path / "a.safetensors"), tmp_path / f"a.{container}", "torch-ref").path,
        first,
    )
    with pytest.raises(UserError, match=rf"remove 0\.{container}\.json"):
        config_of(first)
    (tmp_path / f"0.{container}.json").unlink()
    with pytest.raises(UserError, match="cannot tell"):
        config_of(first)


def test_a_folders_words_are_those_of_the_files_that_it_lists(tmp_path):
    folder = converted(saved(tmp_path / "a.safetensors"), tmp_path / "out", "torch-ref").path.parent
    (weights,) = (p for p in folder.iterdir() if p.suffix != ".json")
    assert config_of(folder).heads == CONFIG.heads
    shutil.copy(weights, folder / f"other{weights.suffix}")
    with pytest.raises(UserError, match="cannot tell"):
        config_of(folder / f"other{weights.suffix}")


def test_a_folders_words_are_not_those_of_weights_put_in_their_place(tmp_path):
    folder = converted(saved(tmp_path / "a.safetensors"), tmp_path / "out").path.parent
    (folder / "config.json").unlink()
    assert config_of(folder) == CONFIG
    saved(folder / "model.safetensors", seed=1)
    with pytest.raises(UserError, match="cannot tell"):
        config_of(folder)


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("layout", []),
        ("config", 1),
        ("extra", 1),
        ("optional", {"a": 1}),
        ("adaptations", [1]),
        ("class_names", ["a"]),
        ("outputs", {"kind": ["set"]}),
        ("outputs", {"kind": "set", "names": ["a"]}),
        ("preprocess", {"a": 1}),
    ],
)
def test_damaged_words_are_refused_with_a_remedy_that_helps(key, bad, tmp_path):
    path = converted(saved(tmp_path / "a.safetensors"), tmp_path / "a.npz").path
    beside = tmp_path / "a.npz.json"
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {key: bad}))
    with pytest.raises(UserError, match=r"its provenance is damaged .*; remove a\.npz\.json"):
        config_of(path)
    beside.unlink()
    assert config_of(path, layout="timm", sets=SAID) == CONFIG


def test_a_network_that_this_version_has_not_is_said_with_the_nearest(tmp_path):
    path = converted(saved(tmp_path / "a.safetensors"), tmp_path / "a.npz").path
    beside = tmp_path / "a.npz.json"
    said = json.loads(beside.read_text())
    assert said["config"]["network"] == "ViT"
    beside.write_text(json.dumps(said | {"config": said["config"] | {"network": "VitX"}}))
    with pytest.raises(
        UserError,
        match=r"the network 'VitX' is not known to this version of vit-jax; nearest: ViT\b.*; remove a\.npz\.json",
    ):
        config_of(path)


def test_a_list_of_files_removes_none_outside_its_folder(tmp_path):
    source, other, folder = saved(tmp_path / "a.safetensors"), tmp_path / "other.txt", tmp_path / "out"
    converted(source, folder)
    other.write_text("kept")
    (folder / "provenance.json").write_text(
        json.dumps({"files": ["../other.txt", str(other), "model.safetensors", "config.json"]})
    )
    with (reading := read(str(source), Options(sets=SAID))).source:
        write(plan(reading, "timm"), str(folder), force=True)
    assert other.read_text() == "kept"


# -------------------------------------------------------------------------------- of which network


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("std", 0),
        ("std", -1),
        ("std", 1e-300),
        ("mean", float("inf")),
        ("mean", 10**400),
        ("mean", True),
        ("mean", "a"),
        ("mean", [0.5, 0.5]),
        ("fit", "foo"),
        ("size", "foo"),
        ("size", -3),
        ("size", 10**6),
        ("interpolation", "foo"),
        ("background", "foo"),
        ("background", 300),
    ],
)
def test_a_preprocessing_that_cannot_be_is_refused_by_its_flag(name, value):
    with pytest.raises(UserError, match=rf"^fields {name}=.*: give "):
        preprocessing(CONFIG, {"mean": 0.5, "std": 0.5, name: value}, None)
    stated = HOW | {name: value}
    facts = fitting(Facts(preprocess=stated), CONFIG)
    assert facts.preprocess is None and name in facts.notes[0]


@pytest.mark.parametrize(
    "change", [{"image": [16, 16]}, {"channels": 1, "mean": [0.5], "std": [0.5]}, {"image": [8.0, 8.0]}, {"more": 1}]
)
def test_a_preprocessing_of_another_network_is_left_out_with_a_note(change):
    facts = fitting(Facts(preprocess=HOW | change), CONFIG)
    assert facts.preprocess is None and "left out" in facts.notes[0]
    assert fitting(Facts(preprocess=HOW), CONFIG) == Facts(preprocess=HOW)


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c", "d"], ["a", 1, None], "abc", {"0": "a"}])
def test_class_names_that_are_not_one_a_class_are_left_out_with_a_note(names):
    facts = fitting(Facts(outputs=Outputs("", names)), CONFIG)
    assert facts.outputs.names == () and "class names" in facts.notes[0]
    assert fitting(Facts(outputs=Outputs("", ["a", "b", "c"])), CONFIG).outputs.names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (1 << 30, r"a\.safetensors: its config makes position .* more than any file holds"),
        (1 << 40, r"a\.safetensors: image is 1099511627776; give a number below 2\^31"),
    ],
)
def test_a_config_of_more_than_files_can_hold_is_refused(value, why, tmp_path):
    with pytest.raises(UserError, match=why):
        config_of(saved(tmp_path / "a.safetensors"), sets=SAID | {"image": value})
