"""Ranges of fields: what each field takes and refuses, how a refusal and the help say so."""

import dataclasses
import math

import pytest

from vit_jax.augmentation.config import ImageAugment
from vit_jax.commands import train
from vit_jax.commands.evaluate import EvaluateFlags
from vit_jax.commands.prediction.arguments import Options as PredictOptions
from vit_jax.config.decoding import AnswerFlags, SearchFlags
from vit_jax.config.fields import Range, check_ranges
from vit_jax.config.run import DataConfig, LoraConfig, LossConfig, OptimConfig, RunConfig
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.images.config import FittedImages, ImageData
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import UserError
from vit_jax.extras import sheet
from vit_jax.extras.vectors.spec import FeatureData
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig
from vit_jax.presets.table import preset
from vit_jax.runs.check import check_run
from vit_jax.tasks.classify.distil_spec import DistilLoss

COUNT, AMOUNT, LENGTH = ((0,), (1,)), ((-1,), (0,)), ((1,), (2,))
RATE, CHANCE, SHARE = ((-0.01, 1.0), (0.0, 0.99)), ((-0.01, 1.01), (0.0, 1.0)), ((0.0, 1.01), (0.01, 1.0))
BLOCKS, POSITIVE = ((0, 1001), (1, 1000)), ((0.0, -1.0), (0.01, 1e9))

# The fields of each class that have a range, by the values that this refuses and takes: stated a second time, so that
# a range that is lost or moved shows.
FIELDS = {
    RunConfig: {
        "epochs batch log_every keep fsdp steps_per_dispatch": COUNT,
        "accumulate patience overfit_batches max_steps histograms max_minutes save_minutes stall_minutes": AMOUNT,
        "ema": RATE,
        "seed": ((-1, 2**32), (0, 2**32 - 1)),
    },
    OptimConfig: {
        "lr muon_lr div_factor": POSITIVE,
        "weight_decay clip warmup warmup_steps final eps freeze_epochs": AMOUNT,
        "momentum muon_momentum beta1 beta2 lion_beta2 pct_start": RATE,
        "layer_decay": SHARE,
    },
    LoraConfig: {"rank": AMOUNT, "alpha": POSITIVE},
    LossConfig: {"label_smoothing": RATE, "focal": ((-0.1, 21.0), (0.0, 20.0))},
    DistilLoss: {"alpha": CHANCE, "temperature": POSITIVE},
    DataConfig: {"validation test": RATE},
    ImageData: {"folds fold": AMOUNT},
    FittedImages: {
        "background": ((-1, 256), (0, 255)),
        "size trim threads memory read_ahead window": AMOUNT,
        "block": COUNT,
    },
    CaptionData: {"drawn": COUNT, "length": LENGTH},
    FeatureData: {"validation test": RATE, "length": LENGTH},
    SentenceData: {"lengths": LENGTH, "corrupt_length": ((0.9,), (1.0,))},
    SearchFlags: {
        "beam": ((0, 1001), (1, 1000)),
        "min_length max_length no_repeat_ngram": ((-1, 100_001), (0, 100_000)),
    },
    AnswerFlags: {
        "nbest": ((0, 1001), (1, 1000)),
        "temperature": POSITIVE,
        "top_k": AMOUNT,
        "top_p": SHARE,
        "seed": ((-1, 2**31), (0, 2**31 - 1)),
    },
    ViTConfig: {
        "image channels patch width heads hidden stem": COUNT,
        "depth": BLOCKS,
        "classes head_width registers head_hidden eps pool_heads pool_hidden rotary_grid": AMOUNT,
        "stem_kernel": ((2, 5), (3, 4)),
        "rotary_base": POSITIVE,
        "embedding_dropout patch_dropout attention_dropout dropout activation_dropout head_dropout drop_path": RATE,
    },
    TransformerConfig: {
        "width heads hidden": COUNT,
        "encoder_depth decoder_depth": ((-1, 1001), (0, 1000)),
        "head_width eps source_vocabulary target_vocabulary position_offset max_length outputs": AMOUNT,
        "dropout attention_dropout activation_dropout embedding_dropout final_dropout": RATE,
        "relative_buckets": ((3,), (4,)),
        "relative_distance": COUNT,
    },
    train.Options: {"seeds folds": AMOUNT},
    EvaluateFlags: {"batch": AMOUNT, "bootstrap": ((-1, 1_000_001), (0, 1_000_000))},
    PredictOptions: {"top batch": COUNT},
    sheet.Options: {"images": ((0, 65), (1, 64)), "views": ((0, 41), (1, 40))},
    ResNetConfig: {"image channels classes width hidden groups": COUNT, "stages": BLOCKS},
    CaptionerConfig: {"memory_width": COUNT},
    ImageAugment: {
        "crop_padding mixup cutmix": AMOUNT,
        "erase": CHANCE,
        "layers repeats": COUNT,
        "magnitude": ((-0.1, 10.1), (0.0, 10.0)),
        "scale": SHARE,
        "ratio": POSITIVE,
    },
}
CASES = [
    pytest.param(cls, name, *values, id=f"{cls.__name__}.{name}")
    for cls, fields in FIELDS.items()
    for names, values in fields.items()
    for name in names.split()
]


RUN = preset("digits").run
NEEDED = {  # the fields without a default
    RunConfig: vars(RUN),
    train.Options: vars(RUN),
    sheet.Options: {"data": RUN.data, "augment": RUN.augment},
    EvaluateFlags: {"run": "digits"},
    PredictOptions: {"run": "digits", "inputs": ()},
}


def made(cls, name, number):
    """A config with this number in a field, or in the first place of a tuple."""
    config = cls(**NEEDED.get(cls, {}))
    usual = getattr(config, name)
    return dataclasses.replace(config, **{name: (number, *usual[1:]) if isinstance(usual, tuple) else number})


@pytest.mark.parametrize(("cls", "name", "refused", "taken"), CASES)
def test_a_field_takes_its_range_and_no_more(cls, name, refused, taken):
    for number in taken:
        check_ranges(made(cls, name, number))
    for number in (*refused, math.nan, math.inf, -math.inf):
        with pytest.raises(UserError) as caught:
            check_ranges(made(cls, name, number))
        error = caught.value
        assert error.subject == name and error.what.endswith(f" {number}") and error.remedy.startswith("give "), error


def test_every_range_is_in_the_table_and_in_the_help():
    for cls, fields in FIELDS.items():
        inherited = {f.name for base in cls.__mro__[1:] if base in FIELDS for f in dataclasses.fields(base)}
        own = {f.name for f in dataclasses.fields(cls) if f.name in cls.__annotations__ or f.name not in inherited}
        ranged = {
            f.name: f.metadata for f in dataclasses.fields(cls) if f.name in own and str(f.metadata.get("range", ""))
        }
        assert ranged.keys() == {name for names in fields for name in names.split()}, cls
        for name, metadata in ranged.items():
            assert metadata["help"].endswith(f"; {metadata['range']}"), name


@pytest.mark.parametrize(
    ("bounds", "words", "inside", "outside"),
    [
        (dict(at_least=1), "1 or more", (1, 2**40), (0, math.nan)),
        (dict(above=0), "above 0", (1e-300, 5.0), (0, -1.0, math.nan)),
        (dict(at_least=0, below=1), "0 or more, below 1", (0, 0.999), (-1e-300, 1.0, math.nan)),
        (dict(at_least=0, below=2**32), "0 or more, below 2^32", (2**32 - 1,), (2**32,)),
        (dict(at_least=1, at_most=1000), "1 to 1000", (1, 1000), (0, 1001, math.nan)),
        (dict(above=0, at_most=1), "above 0, at most 1", (0.5, 1), (0, 1.001)),
        (dict(choices=(3, 4)), "3 or 4", (3, 4), (2, 3.5, 5)),
        ({}, "", (-1e300, 0), ()),
    ],
)
def test_a_range_in_words_and_in_numbers(bounds, words, inside, outside):
    allowed = Range(**bounds)
    assert str(allowed) == words
    assert all(number in allowed for number in inside) and not any(number in allowed for number in outside)


def test_numbers_without_a_range_are_finite_and_below_2_to_the_31():
    for name, number in (("rotary_offset", math.nan), ("rotary_offset", -math.inf), ("init_std", math.inf)):
        bad = dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, **{name: number}))
        with pytest.raises(UserError, match=rf"^model\.{name} is {number}: give a finite number$"):
            check_run(bad)
    for number, shown in ((2**31, "2147483648"), (10**400, "very large")):
        with pytest.raises(UserError, match=rf"^max_steps is {shown}: give a number below 2\^31$"):
            check_run(dataclasses.replace(RUN, max_steps=number))
