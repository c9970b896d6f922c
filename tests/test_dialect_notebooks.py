"""The notebooks' state dicts: names, sizes and orders as the notebooks have them, and what has to be said of a file."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from convert import rules
from convert.dialects import LAYOUTS, notebook_48, notebook_256, notebook_768
from convert.recognise.config import MissingFields, resolve
from tests.random_weights import weights
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import preset

SMALL = ViTConfig(
    image=(8, 12), patch=(4, 2), channels=3, classes=5, width=8, depth=2, heads=2, hidden=12, eps=1e-5, final_norm=False
)
WIDE = replace(SMALL, norm_first=False, activation="relu", stem_bias=False, cls_token=False, pool="mean")
HEADS = replace(SMALL, activation="gelu_tanh", head_width=3)
RELU = replace(SMALL, stem_activation="relu", head_hidden=6, head_activation="relu")
SAID = {
    "notebook-768": dict(image=(8, 12), heads=2),
    "notebook-48": dict(image=(8, 12)),
    "notebook-256": dict(image=(8, 12), heads=2, patch=(4, 2)),
}
CONFIGS = {"notebook-768": WIDE, "notebook-48": HEADS, "notebook-256": RELU}


@pytest.mark.parametrize(
    ("module", "network", "count", "some"),
    [
        (
            notebook_768,
            "cifar100-768x3",
            16_778_596,
            {
                "positional_encoding": (1, 16, 768),
                "conv1.weight": (768, 3, 8, 8),
                "transformer_encoder.layers.2.self_attn.in_proj_weight": (2304, 768),
                "transformer_encoder.layers.0.linear1.weight": (2048, 768),
                "fc.weight": (100, 768),
            },
        ),
        (
            notebook_48,
            "cifar10-48x4",
            119_098,
            {
                "embedding.position_embeddings": (1, 65, 48),
                "embedding.patch_embeddings.projection.weight": (48, 3, 4, 4),
                "encoder.blocks.3.attention.heads.3.value.weight": (12, 48),
                "encoder.blocks.0.mlp.dense_1.bias": (192,),
                "classifier.weight": (10, 48),
            },
        ),
        (
            notebook_256,
            "cifar100-256x24",
            12_862_820,
            {
                "class_embed": (1, 1, 256),
                "pos_embed": (1, 65, 256),
                "input.weight": (256, 48),
                "transformer.23.attn.in_proj_bias": (768,),
                "fc1.weight": (512, 256),
                "fc2.weight": (100, 512),
            },
        ),
    ],
)
def test_the_notebooks_networks_have_their_tensors_and_as_many_weights(module, network, count, some):
    config = replace(preset(network).run.model, final_norm=False)  # which the presets have and the notebooks lack
    assert not module.LAYOUTS[0].cannot(config)
    shapes = rules.file_shapes(module.rows(config))
    assert sum(map(prod, shapes.values())) == count
    assert {name: shapes[name] for name in some} == some


@pytest.mark.parametrize("layout", CONFIGS)
def test_a_file_is_recognised_asked_about_and_read_back(layout):
    config, table = CONFIGS[layout], LAYOUTS[layout]
    theirs = rules.write(table.rows(config), weights(config))
    names = {name: array.shape for name, array in theirs.items()}
    assert [each.name for each in LAYOUTS.values() if each.recognises(names)] == [layout]
    with pytest.raises(MissingFields) as caught:
        resolve(table, names, [], "model.pt")
    assert sorted(caught.value.fields) == sorted(SAID[layout])
    found = resolve(table, names, [("--set", SAID[layout])], "model.pt")
    assert found.normal() == config.normal()
    back = rules.read(table.rows(found), theirs)
    assert all(np.array_equal(array, back[name]) for name, array in weights(config).items())


def test_heads_of_their_own_lie_side_by_side_in_ours():
    ours = weights(HEADS)
    theirs = rules.write(notebook_48.rows(HEADS), ours)
    for head in range(2):
        for part in ("query", "key", "value"):
            name, mine = f"encoder.blocks.1.attention.heads.{head}.{part}", f"blocks.1.attention.{part}"
            assert np.array_equal(theirs[f"{name}.weight"], ours[f"{mine}.kernel"][:, head * 3 : head * 3 + 3].T)
            assert np.array_equal(theirs[f"{name}.bias"], ours[f"{mine}.bias"][head * 3 : head * 3 + 3])


def test_patches_of_the_256_wide_one_are_channel_row_column():
    ours = weights(RELU)
    theirs = rules.write(notebook_256.rows(RELU), ours)["input.weight"]
    for channel, row, column, out in np.ndindex(3, 4, 2, 8):
        assert (
            theirs[out, (channel * 4 + row) * 2 + column] == ours["patch.kernel"][(row * 2 + column) * 3 + channel, out]
        )


def test_the_one_that_attends_across_the_batch_wants_a_flag():
    (flag,), told = LAYOUTS["notebook-768"].flags, LAYOUTS["notebook-768"].refuses("function")[0]
    assert flag == "batch-attention" and "across the images of a batch" in told
    assert not any(LAYOUTS[name].flags for name in ("notebook-48", "notebook-256"))


@pytest.mark.parametrize(
    ("layout", "change", "reason"),
    [
        ("notebook-768", dict(final_norm=True), "final_norm is True"),
        ("notebook-768", dict(activation="gelu"), "activation is 'gelu'"),
        ("notebook-768", dict(classes=0), "classes is 0"),
        ("notebook-768", dict(head_width=3), "head_width is 3"),
        ("notebook-48", dict(activation="gelu"), "activation is 'gelu'"),
        ("notebook-256", dict(head_hidden=0), "head_hidden is 0"),
        ("notebook-256", dict(stem_activation="none"), "stem_activation is 'none'"),
    ],
)
def test_a_network_that_a_notebook_cannot_hold_is_refused_with_the_reason(layout, change, reason):
    assert reason in "; ".join(LAYOUTS[layout].cannot(replace(CONFIGS[layout], **change)))
