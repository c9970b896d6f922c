"""Every plain ViT that timm and torchvision name converts both ways to the bit, and computes the same function.

The config comes from the table of public names and from shapes. At full size shapes are compared, without memory;
values at two blocks, three by three patches and heads of eight, with random weights in float64: all else (heads,
tokens, norms, pooling, activation, eps, layer scale, gates) is as published.
"""

import importlib

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS
from convert.dialects.architectures import lookup, names
from convert.recognise.config import resolve
from convert.recognise.layouts import Recognition, which_layout
from convert.recognise.sizes import cover_given
from tests.installed import library
from vit_jax.config.groups import rate_scales
from vit_jax.config.run import OptimConfig
from vit_jax.models.vit_config import ViTConfig

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
INDICES = dict(rotary="axial", rotary_pairs="neighbours", rotary_places="indices")
TORCHVISION = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
TIMM = [name for name in names() if name not in TORCHVISION and not name.startswith(("ViT-", "dino_", "dinov2_"))]


@pytest.fixture(scope="module")
def timm():
    return library("timm")


@pytest.fixture(scope="module")
def torchvision():
    return library("torchvision")


def shapes(module):
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def at_full_size(name, module):
    """The config that the name and the shapes of its tensors give has rows for exactly these."""
    said = lookup(name)[0]
    layout = which_layout(name, Recognition.of(shapes(module)), "", "", said=lambda layout: said)
    stated = cover_given(layout, shapes(module), [(f"--model {name}", said)])
    config = resolve(layout, shapes(module), stated, name)
    assert rules.file_shapes(rules.narrow(layout.rows(config), shapes(module))) == shapes(module)


def small(timm, name, **sizes):
    """timm's network by its name, with these sizes; one that turns, with angles in float64."""
    from convert.verify.libraries.timm_eva import wide_angles, widen

    if lookup(name)[0]["rotary"] == "none":
        return timm.create_model(name, **sizes)
    with wide_angles():
        module = timm.create_model(name, **sizes, dynamic_img_size=False, dtype=torch.float64)
    if lookup(name)[0]["rotary"] == "mixed":
        widen(module.rope)
    return module


def in_small(name, module, image):
    """Ours of its file gives its logits; the file comes back to the bit and loads."""
    from convert.verify.checks import FORWARD, relative
    from tests.parity.layouts_timm import randomise, run
    from tests.parity.sides import ours

    module = randomise(module, "A", "float64")
    file = {k: v.detach().numpy().copy() for k, v in module.state_dict().items()}
    small = ("image", "width", "depth", "hidden", "pool_hidden")
    said = {k: v for k, v in lookup(name)[0].items() if k not in small} | {"image": image}
    layout = which_layout(name, Recognition.of(shapes(module)), "", "", said=lambda layout: said)
    stated = cover_given(layout, shapes(module), [(f"--model {name}", said)])  # 384 are 27 patches of 14, and 6 more
    config = resolve(layout, shapes(module), stated, name)
    parameters = rules.read(layout.rows(config), file)
    back = rules.write(layout.rows(config), parameters, names=file)
    assert back.keys() == file.keys()
    assert all(back[k].tobytes() == v.tobytes() and back[k].shape == v.shape for k, v in file.items())
    module.load_state_dict({k: torch.from_numpy(v) for k, v in back.items()}, strict=True)
    images = np.random.default_rng(0).standard_normal((2, image, image, 3))
    assert (
        relative(ours(config, parameters).forward({"images": images}), run(module, images)["logits"])
        <= FORWARD["float64"]
    )


@pytest.mark.parametrize("name", TIMM)
def test_a_network_of_timm_converts(timm, name):
    at_full_size(name, timm.create_model(name, device="meta"))
    heads, patch = lookup(name)[0]["heads"], lookup(name)[0]["patch"]
    in_small(name, small(timm, name, img_size=3 * patch, embed_dim=8 * heads, depth=2), 3 * patch)


@pytest.mark.parametrize("name", TORCHVISION)
def test_a_network_of_torchvision_converts(torchvision, name):
    fields = lookup(name)[0]
    with torch.device("meta"):
        at_full_size(name, torchvision.models.get_model(name, image_size=fields["image"]))
    image, width = 3 * fields["patch"], 8 * fields["heads"]
    in_small(
        name,
        torchvision.models.VisionTransformer(
            image, fields["patch"], 2, fields["heads"], width, 4 * width, num_classes=7
        ),
        image,
    )


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("timm", dict(registers=1, pre_norm=True, layer_scale=0.1, qk_norm=True, stem_norm=True)),
        ("timm", dict(pool="map")),
        ("timm", dict(cls_token=False, pool="mean", final_norm=False, head_norm=True)),
        ("timm", dict(distill_token=True, distill_head=True, pool="cls_distill")),
        # DINOv3, EVA-02 and Perception Encoder.
        ("timm-eva", dict(position="none", rotary="axial", registers=2, layer_scale=0.1, key_bias=False)),
        ("timm-eva", dict(INDICES, gated=True, activation="silu", pool="mean", final_norm=False, head_norm=True)),
        ("timm-eva", dict(INDICES, pool="map_all", pre_norm=True, stem_bias=False, attention_norm=True)),
    ],
    ids=str,
)
def test_layer_decay_scales_the_rate_of_each_parameter_as_timm_does(timm, layout, options):
    from timm.optim import param_groups_layer_decay

    from convert.verify import libraries

    c = ViTConfig(image=8, patch=4, classes=3, width=8, depth=3, heads=2, hidden=12, **options)
    model = importlib.import_module(f"{libraries.__name__}.{layout.replace('-', '_')}").network(c)
    names = {parameter: name for name, parameter in model.named_parameters()}
    theirs = {
        names[parameter]: group["lr_scale"]
        for group in param_groups_layer_decay(model, layer_decay=0.7)
        for parameter in group["params"]
    }
    scales = rate_scales(OptimConfig(layer_decay=0.7), c.parameters())
    ours = {
        name: scales[each]
        for r in rules.narrow(LAYOUTS[layout].rows(c), names.values())
        for name in r.theirs
        for each in r.ours
    }
    assert {name: ours[name] for name in theirs} == theirs and len(theirs) == len(names)
