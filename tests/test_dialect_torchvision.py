"""torchvision's files: what is in no tensor is asked for, its public names answer, and what it cannot hold is said."""

from dataclasses import replace

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS, refused
from convert.dialects.architectures import lookup, table
from convert.plan.plan import plan
from convert.recognise.config import resolve
from convert.recognise.reading import Options, read
from tests.installed import library
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig

OLD, NEW = LAYOUTS["torchvision@1"], LAYOUTS["torchvision@2"]
SMALL = ViTConfig(image=8, patch=4, classes=5, width=12, depth=2, heads=3, hidden=20)
NAMES = ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"]


@pytest.fixture
def torchvision():
    return library("torchvision")


@pytest.mark.parametrize("layout", [OLD, NEW])
def test_only_the_image_and_the_heads_have_to_be_said(layout):
    for config in (SMALL, replace(SMALL, head_hidden=7)):
        names = rules.file_shapes(layout.rows(config))
        with pytest.raises(UserError, match="cannot tell image, heads"):
            resolve(layout, names, [], "file")
        assert resolve(layout, names, [("--set", {"image": 8, "heads": 3})], "file") == config


def test_both_generations_differ_in_the_mlp_alone():
    old, new = (set(rules.file_shapes(layout.rows(SMALL))) for layout in (OLD, NEW))
    assert {name.replace("mlp.linear_1", "mlp.0").replace("mlp.linear_2", "mlp.3") for name in old} == new
    assert len(old - new) == 4 * SMALL.depth
    assert OLD.recognises(old) and NEW.recognises(new) and not OLD.recognises(new) and not NEW.recognises(old)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(image=(8, 12)), "image is 8x12, but the layout has only squares"),
        (dict(channels=1), "channels is 1"),
        (dict(eps=1e-5), "eps is 1e-05, but the layout has only 1e-06"),
        (dict(activation="gelu_tanh"), "activation is 'gelu_tanh'"),
        (dict(pool="mean"), "pool is 'mean'"),
        (dict(classes=0), "classes is 0"),
        (dict(registers=1), "registers is 1"),
        (dict(stem=(6,)), "stem is (6,), but the layout has none"),
    ],
)
def test_what_its_constructor_cannot_be_told_is_said(change, said):
    assert any(said in reason for reason in NEW.cannot(replace(SMALL, **change)))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_answers_for_its_file(torchvision, name):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = torchvision.models.get_model(name, image_size=lookup(name)[0]["image"], num_classes=7)
    names = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    config = resolve(NEW, names, [(f"--model {name}", lookup(name)[0])], "file")
    assert (config.classes, config.heads) == (7, model.encoder.layers[0].num_heads)
    assert rules.file_shapes(NEW.rows(config)) == names


def test_its_names_are_in_the_table_as_it_has_them(torchvision):
    from tests.architectures import torchvision_entries

    for name, (fields, tags) in torchvision_entries():
        assert table()["architectures"][name]["fields"] == fields
        assert {tag: lookup(f"{name}.{tag}")[1] for tag in tags} == tags


def test_a_convolutional_stem_is_refused_by_name(torchvision):
    torch = pytest.importorskip("torch")
    vit = torchvision.models.vision_transformer
    with torch.device("meta"):
        stem = vit.VisionTransformer(16, 16, 1, 2, 8, 12, conv_stem_configs=[vit.ConvStemConfig(4, 3, 2)] * 4)
    assert "behind convolutions" in refused.why(stem.state_dict())


def test_a_stem_of_other_channels_is_read_and_its_class_does_not_build_it():
    config = ViTConfig(image=8, patch=4, channels=1, classes=5, width=8, depth=1, heads=2, hidden=12)
    names = rules.file_shapes(NEW.rows(config))
    for said in ({}, {"channels": 1}):
        assert resolve(NEW, names, [("--set", {"image": 8, "heads": 2, **said})], "file") == config
    assert NEW.cannot(config) == ["channels is 1, but its constructor makes 3"]
    assert not NEW.cannot(config, weights_only=True)


def test_a_look_alike_of_other_numbers_is_read_as_what_the_user_states(torchvision, tmp_path):
    """torchvision's own modules with another epsilon and with ReLU: its names and shapes, another function."""
    import torch

    from convert.verify.libraries import build
    from convert.verify.libraries.torch_nn import vision
    from convert.verify.sides import Ours
    from convert.verify.weights import Weights

    stated = {"image": 8, "heads": 3, "eps": 1e-2, "activation": "relu"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = vision(replace(SMALL, eps=1e-2)).double().eval()
    for block in module.encoder.layers:
        block.mlp[1] = torch.nn.ReLU()
    torch.nn.init.normal_(module.heads.head.weight)
    torch.save(module.state_dict(), tmp_path / "x.pt")
    images = np.random.default_rng(0).standard_normal((2, 8, 8, 3))
    with torch.no_grad():
        expected = module(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()
    with (reading := read(str(tmp_path / "x.pt"), Options(sets=stated))).source:
        weights = Weights.of(reading, "A")
    ours = Ours.network(weights.config, weights.parameters).forward({"images": images})
    np.testing.assert_allclose(ours, expected, rtol=1e-10)
    assert "eps is 0.01 instead of 1e-06, activation is 'relu' instead of 'gelu'" in reading.facts.notes[0]
    assert "another function than that of torchvision's VisionTransformer" in reading.facts.notes[0]
    built, why = build(weights)
    assert built is None and why.startswith("it is not torchvision's own function, as eps is 0.01 instead of 1e-06")
    with pytest.raises(UserError, match=r"cannot become torchvision@2: eps is 0\.01, but"):
        plan(reading, "torchvision")
    assert plan(reading, "timm", weights_only=True).config.activation == "relu"
