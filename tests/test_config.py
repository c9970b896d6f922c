"""Configs: what is refused and how, what is on disk, what makes a run another run, and sizes against published ones."""

import ast
import dataclasses
import inspect
import json
import math
import re
import textwrap
import typing

import pytest

from vit_jax.augmentation import config as augmentation
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.dotted import replace_fields, value_at
from vit_jax.config.network import NetworkConfig
from vit_jax.config.run import AugmentConfig, DataConfig, LossConfig, OptimConfig, RunConfig
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.images.config import ImageData
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import UserError
from vit_jax.extras.vectors.spec import FeatureData
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import SIZES, ViTConfig, sized_config
from vit_jax.presets.table import PRESETS, preset
from vit_jax.presets.variants import PURPOSES, VARIANTS
from vit_jax.runs import check as checks
from vit_jax.runs.check import check_run
from vit_jax.runs.values import differences, flat, from_dict, to_dict
from vit_jax.tasks import image_spec
from vit_jax.tasks.classify.distil_spec import DistilLoss
from vit_jax.tasks.table import TASKS

# ----------------------------------------------------------------------------------------- sizes


def count(c):
    return sum(math.prod(shape) for shape in c.shapes().values())


# The notebooks' own counts; + is what the presets mend: the final LayerNorm that the net lacks.
NOTEBOOKS = {
    "cifar100-768x3": (100, 16_778_596),
    "vit-1024x6": (1000, 54_622_184),
    "distil-1024x6": (
        1000,
        42_039_272 + 1024 + (2 * 1024 + 1024 * 1000 + 1000),
    ),  # with DistillWrapper's token and head
    "cifar10-48x4": (10, 119_098 + 2 * 48),
    "cifar10-128x6": (10, 823_434),
    "cifar100-256x24": (100, 12_862_820 + 2 * 256),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_presets_have_the_notebooks_number_of_parameters(name):
    classes, expected = NOTEBOOKS[name]
    assert count(dataclasses.replace(preset(name).run.model, classes=classes)) == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_train_the_network_of_their_preset_on_its_data(name):
    base, _, kind = name.rpartition("-")
    usual, run = preset(base).run, preset(name).run
    check_run(run)
    assert run.model.shapes() == usual.model.shapes() and run.data == usual.data and run.task == usual.task
    assert differences(run, usual) and from_dict(RunConfig, to_dict(run)) == run
    assert kind in PURPOSES


# 224 pixels, 1000 classes, class token: as timm and torchvision count them.
PUBLISHED = {
    "vit-ti16": 5_717_416,
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
    "vit-b32": 88_224_232,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_have_the_published_number_of_parameters(name):
    assert count(sized_config(name)) == PUBLISHED[name]


def test_a_field_of_a_published_size_may_be_given_as_a_list():
    assert sized_config("vit-s16", image=[64, 32], stem=[8, 16]) == sized_config(
        "vit-s16", image=(64, 32), stem=(8, 16)
    )


def test_every_size_has_a_name_and_unknown_names_are_answered_with_the_nearest():
    for size, shape in SIZES.items():
        c = sized_config(f"vit-{size}16", classes=7, pool="mean")
        c.check()
        assert (c.width, c.depth, c.hidden, c.heads) == shape and (c.patch, c.classes, c.pool) == (16, 7, "mean")
    for name in ("vit-x16", "vit-16", "vits16", "vit-s", "vit-s0", "s16"):
        with pytest.raises(UserError, match=f"there is no network '{name}'; nearest: .*vit-[a-z]+1[46]"):
            sized_config(name)
    with pytest.raises(UserError, match=r"there is no preset 'cifar10-128'; nearest: .*cifar10-128x6"):
        preset("cifar10-128")


# ------------------------------------------------------------------------------------------ refusals

BAD_NETWORKS = [
    (dict(width=0), "width", "0", "1 or more"),
    (dict(image=(32, 0)), "image", "0", "1 or more"),
    (dict(drop_path=1.0), "drop_path", "1.0", "below 1"),
    (dict(image=(32, 30)), "image", "32x30", "patch", "16x16"),
    (dict(image=32, patch=(16, 12)), "image", "32x32", "patch", "16x12"),
    (dict(patch=(16, 2), stem=(32, 64)), "patch", "16x2", "divisible by 4", "stem 32 64"),
    (dict(width=100), "width", "100", "heads", "12"),
    (dict(cls_token=False), "pool", "cls", "cls_token", "False"),
    (dict(pool="map_all", pool_heads=7), "width", "768", "7", "map_all", "pool_heads"),
    (dict(pool="cls_distill"), "pool", "cls_distill", "distill_token"),
    (dict(distill_head=True), "distill_head", "True", "distill_token", "False"),
    (dict(distill_token=True, distill_norm=True), "distill_norm", "True", "distill_head", "False"),
    (dict(position_trained=False), "position", "learned", "position_trained", "False"),
    (dict(position="sincos2d", width=66, heads=2), "width", "66", "position", "sincos2d"),
    (dict(rotary="axial", width=12, heads=2), "rotary", "axial", "head_width", "6"),
    (dict(rotary_grid=(0, 3)), "rotary_grid", "0x3"),
]

BAD_TRANSFORMERS = [
    (dict(encoder_depth=0, decoder_depth=0), "encoder_depth", "decoder_depth", "0"),
    (dict(encoder_depth=0, source_vocabulary=7), "source_vocabulary", "7", "encoder_depth", "0"),
    (dict(heads=3), "width", "512", "heads", "3"),
    (dict(width=15, heads=5, position="interleaved"), "width", "15", "position", "interleaved"),
    (dict(width=2, heads=1, position="fairseq"), "width", "2", "position", "fairseq"),
    (dict(position="learned", max_length=0), "max_length", "0", "position", "learned"),
    (dict(position_offset=2), "position_offset", "2", "position", "interleaved"),
    (dict(decoder_depth=0, outputs=7), "outputs", "7", "decoder_depth", "0"),
    (dict(tie="embeddings", source_vocabulary=7, target_vocabulary=8), "tie", "embeddings", "7", "8"),
    (dict(tie="all", source_vocabulary=7, target_vocabulary=7, outputs=9), "tie", "all", "9", "7"),
    (dict(relative="shared", relative_buckets=7), "relative_buckets", "7", "odd"),
    (dict(relative="shared", relative_distance=16), "relative_distance", "16", "32"),
]

TWO_HEADS = dict(distill_token=True, distill_head=True)
BAD_STUDENTS = [
    (dict(model=dict(distill_token=True)), "model.distill_head", "False", "distil"),
    (dict(model=dict(**TWO_HEADS, pool="mean")), "model.pool", "mean", "cls", "cls_distill"),
    (dict(loss=dict(hard=True, divide_by_classes=True)), "loss.divide_by_classes", "True", "loss.hard"),
    (dict(loss=LossConfig()), "loss", "LossConfig", "distil", "DistilLoss"),
]

BAD_TEXTS = [
    (dict(loss=LossConfig(focal=2.0)), "loss.focal", "2.0", "translate", "leave it out"),
    (dict(model=TransformerConfig(causal=False)), "model.causal", "False"),
    (dict(model=TransformerConfig(encoder_depth=0)), "model.encoder_depth", "0"),
    *((dict(data=dict(lengths=lengths)), "data.lengths", str(list(lengths))) for lengths in ((), (4, 4))),
    (dict(data=dict(tokens=15)), "data.tokens", "15", "data.lengths", "16"),
    (dict(data=dict(target_language="fra_Latn")), "data.target_language", "fra_Latn", "words", "leave it out"),
    (dict(data=dict(source="texts:x")), "data.corrupt", "none", "spans"),
    (dict(data=dict(corrupt="spans", source="tsv:x")), "data.corrupt", "spans", "data.source", "tsv:x", "texts:FILE"),
    (dict(data=dict(corrupt="spans", source="texts:x", tokenizer="bpe")), "data.tokenizer", "bpe", "<extra_id_0>"),
    (
        dict(data=dict(corrupt="spans", source="texts:x", tokenizer="folder", shuffle_sources=True)),
        *("data.shuffle_sources", "data.corrupt", "spans"),
    ),
    (dict(data=dict(corrupt="spans", source="texts:x", tokenizer="folder", task="t")), "data.task", "data.corrupt"),
    (dict(data=dict(task="summarization", tokenizer="bpe")), "data.task", "summarization", "data.tokenizer", "bpe"),
    (dict(data=dict(tokenizer="")), "data.tokenizer", "empty", "bpe"),
    (dict(data=dict(tokenizer="bpe", vocabulary=300)), "data.vocabulary", "300", "512"),
]

DECODER = TransformerConfig(encoder_depth=0)
BAD_CAPTIONERS = [
    (dict(vit=ViTConfig(classes=0, head_hidden=5)), "vit.head_hidden", "5"),
    (dict(vit=ViTConfig(classes=0, pool="map")), "vit.pool", "map"),
    (dict(vit=ViTConfig(classes=0, width=100)), "vit.width", "100", "heads", "12"),
    (dict(text=TransformerConfig()), "text.encoder_depth", "6", "text.decoder_depth"),
    (dict(text=dataclasses.replace(DECODER, heads=3)), "text.width", "512", "heads", "3"),
]

BAD_CAPTIONS = [
    (dict(model=CaptionerConfig(vit=ViTConfig(classes=9))), "model.vit.classes", "9"),
    (dict(model=CaptionerConfig(memory="vectors")), "model.memory", "vectors", "tokens"),
    (dict(model=CaptionerConfig(text=dataclasses.replace(DECODER, max_length=9))), "model.text.max_length", "9", "12"),
    (dict(augment=dict(mixup=0.8)), "augment.mixup", "0.8"),
    (dict(augment=dict(repeats=2)), "augment.repeats", "2"),
    (dict(augment=dict(flip=True)), "augment.flip", "True", "shapes"),
    (dict(init_encoder="x.pt", init="y.pt"), "init_encoder", "x.pt", "init", "y.pt"),
]
VECTORS = CaptionerConfig(memory="vectors", text=DECODER)
BAD_FEATURES = [
    (dict(model=CaptionerConfig()), "model.memory", "tokens", "vectors"),
    (
        dict(model=dataclasses.replace(VECTORS, text=dataclasses.replace(DECODER, max_length=9))),
        *("model.text.max_length", "9", "17"),
    ),
]

BAD_RUNS = [
    (dict(model=ViTConfig(width=100)), "model.width", "100"),
    (dict(epochs=0), "epochs", "0", "1 or more"),
    (dict(data=dict(validation=math.nan)), "data.validation", "nan", "below 1"),
    (dict(batch=10, accumulate=4), "batch", "10", "accumulate", "4"),
    (dict(fsdp=2, parallel="pmap"), "fsdp", "2", "parallel", "pmap"),
    (dict(steps_per_dispatch=2, parallel="pmap"), "steps_per_dispatch", "2", "parallel", "pmap"),
    *((dict(profile_steps=steps), "profile_steps", repr(steps)) for steps in ("5:4", "0:3", "a:b", "1:2:3")),
    *(
        (dict(stages=(text,)), "stages", *words)
        for text, *words in (
            ("0.5", "SHARE:FIELD=RATE"),
            ("0:model.dropout=0.1", "above 0"),
            ("0.5:model.dropout=1", "below 1"),
            ("0.5:model.patch_dropuot=0.1", "model.patch_dropout"),
            ("0.5:optim.lr=0.1", "optim.lr", "no dropout rate"),
            ("0.5:model.dropout=0.1,model.dropout=0.2", "twice"),
        )
    ),
    (dict(stages=("0.5:model.dropout=0.1", "0.6:model.dropout=0")), "stages", "1.1", "at most 1"),
    (dict(ema_warmup=True), "ema_warmup", "True", "ema", "0"),
    (dict(patience=3, data=dict(validation=0.0)), "patience", "3", "data.validation", "0"),
    (dict(new_head=True), "new_head", "True", "init"),
    (dict(init_encoder="x.pt"), "init_encoder", "x.pt", "ViT", "init"),
    (dict(data=dict(range=(3.0, 1.0))), "data.range", "3.0", "two numbers"),
    (dict(augment=dict(mean=(0.5,))), "augment.mean", "0.5", "augment.normalize", "set", "given"),
    (dict(augment=dict(normalize="given", mean=(0.5,) * 3, std=(0.0,) * 3)), "augment.std", "0.0 0.0 0.0", "above 0"),
    (dict(task="translate", optim=dict(layer_decay=0.5)), "optim.layer_decay", "0.5", "no order"),
    (dict(task="translate", loss=dict(name="binary")), "loss.name", "binary", "translate", "cross_entropy"),
    (dict(optim=dict(freeze=("bloks.*",))), "optim.freeze", "'bloks.*'", "no parameter", "blocks.*", "position"),
    (dict(optim=dict(freeze=("blocks.*", "*"))), "optim.freeze", "blocks.* *", "all"),
    (dict(optim=dict(freeze_epochs=2.0)), "optim.freeze_epochs", "2", "optim.freeze"),
    (dict(optim=dict(name="muon", freeze=("norm.*", "b*"))), "optim.name", "hidden kernels", "optim.freeze norm.* b*"),
    (dict(teacher="x.pt"), "teacher", "x.pt", "classify", "distil"),
    *(({"task": "caption", **fields}, *words) for fields, *words in BAD_CAPTIONS),
    *(({"task": "caption-features", **fields}, *words) for fields, *words in BAD_FEATURES),
    *(({"task": "distil", "model": TWO_HEADS, **fields}, *words) for fields, *words in BAD_STUDENTS),
    (dict(augment=dict(scale=(0.9, 0.8))), "augment.scale", "0.9 0.8", "ascending"),
    (dict(augment=dict(scale=(0.5, 1.0), crop_padding=4)), "augment.crop_padding", "4", "augment.scale", "0.5 1.0"),
    (dict(augment=dict(layers=3)), "augment.layers", "3", "set augment.policy"),
    (dict(augment=dict(ratio=(0.5, 2.0))), "augment.ratio", "0.5 2.0", "set augment.scale"),
    (
        dict(model=ViTConfig(channels=4), augment=dict(policy="randaugment")),
        "augment.policy",
        "randaugment",
        "4",
        "none",
    ),
    (dict(batch=33, augment=dict(mixup=0.8)), "batch", "33", "augment.mixup", "even"),
    (dict(batch=8, augment=dict(repeats=5)), "augment.repeats", "5", "batch", "8"),
    (
        dict(batch=8, data=dict(sampling="sqrt"), augment=dict(repeats=2)),
        "data.sampling",
        "sqrt",
        "augment.repeats",
        "2",
    ),
    (dict(data=dict(folds=1)), "data.folds", "1", "2 or more"),
    (dict(data=dict(folds=5, fold=5)), "data.fold", "5", "data.folds"),
    (dict(task="clasify"), "task", "'clasify'", "classify"),
    (dict(model=TransformerConfig()), "model", "TransformerConfig", "classify", "ViTConfig"),
    (dict(data=DataConfig()), "data", "DataConfig", "classify", "ImageData"),
    *(({"task": "translate", **fields}, *words) for fields, *words in BAD_TEXTS),
]


PARTS = {
    "classify": {"model": ViTConfig, "data": ImageData, "augment": ImageAugment},
    "distil": {"model": ViTConfig, "data": ImageData, "augment": ImageAugment, "loss": DistilLoss},
    "translate": {"model": TransformerConfig, "data": SentenceData, "augment": AugmentConfig},
    "caption": {"model": CaptionerConfig, "data": CaptionData, "augment": ImageAugment},
    "caption-features": {"model": CaptionerConfig, "data": FeatureData, "augment": AugmentConfig},
}


def run_with(fields):
    """A run of the task that `fields` name, or on images; what is no dict is taken as it is."""
    task = fields.get("task", "classify")
    parts = {"optim": OptimConfig, "loss": LossConfig, **PARTS.get(task, PARTS["classify"])}
    made = {
        name: cls(**value) if isinstance(value := fields.get(name, {}), dict) else value for name, cls in parts.items()
    }
    return RunConfig(**{"task": task, **fields, **made})


IMAGES, TEXTS = run_with({}), run_with({"task": "translate"})
CAPTIONS = run_with({"task": "caption"})
TAUGHT = run_with({"task": "distil", "model": TWO_HEADS})


@pytest.mark.parametrize("member", ["computes", "parameters", "inputs"])
def test_a_network_that_lacks_a_member_is_an_error_that_names_it_and_says_what_it_is_for(member):
    members = {"computes": "module:class", "parameters": lambda self: {}, "inputs": lambda self: ()}
    del members[member]
    with pytest.raises(TypeError, match=rf"^TinyConfig lacks {member}: .{{20,}}; define it in the class"):
        type("TinyConfig", (NetworkConfig,), members)


def test_a_network_of_others_has_the_marks_of_their_fields_but_of_those_that_it_fixes():
    marks = {mark: CaptionerConfig.marked(mark) for mark in ("from_data", "counts_blocks", "of_head")}
    assert marks == {
        "from_data": ("text.target_vocabulary", "text.outputs"),
        "counts_blocks": ("vit.depth", "text.encoder_depth", "text.decoder_depth"),
        "of_head": ("text.outputs", "text.output_bias"),
    }
    assert "vit.pool" not in CaptionerConfig.function_fields() and "vit.eps" in CaptionerConfig.function_fields()


def refusal(check, bad):
    """The error, and the line that raised it."""
    with pytest.raises(UserError) as caught:
        check(bad)
    frame = caught.traceback[-1]
    return caught.value, (str(frame.path), frame.lineno + 1)


def is_one_sentence(message):
    return "\n" not in message and ". " not in message and not message.endswith(".")


def check_refusal(check, bad, words):
    """The first word is the field; the others are what the message says of it."""
    error, _ = refusal(check, bad)
    assert is_one_sentence(str(error)) and error.subject == words[0] and error.what, error
    for word in words[1:]:
        assert re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", str(error)), (word, error)


@pytest.mark.parametrize(
    ("cls", "case"),
    [
        *((ViTConfig, case) for case in BAD_NETWORKS),
        *((TransformerConfig, case) for case in BAD_TRANSFORMERS),
        *((CaptionerConfig, case) for case in BAD_CAPTIONERS),
    ],
    ids=lambda case: " ".join(f"{k}={v}" for k, v in case[0].items()) if isinstance(case, tuple) else "",
)
def test_impossible_networks_are_refused_in_a_sentence_that_names_field_and_value(cls, case):
    fields, *words = case
    check_refusal(cls.check, cls(**fields), words)


@pytest.mark.parametrize("case", BAD_RUNS, ids=lambda case: " ".join(case[1:3]))
def test_impossible_runs_are_refused_in_a_sentence_that_names_field_and_value(case):
    fields, *words = case
    check_refusal(check_run, run_with(fields), words)


def raises_of(*functions):
    """The lines, (file, number), on which functions raise."""
    written = set()
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        written |= {
            (inspect.getfile(function), node.lineno + first - 1)
            for node in ast.walk(ast.parse(textwrap.dedent("".join(lines))))
            if isinstance(node, ast.Raise)
        }
    return written


def functions_of(module):
    """The functions that a module defines."""
    return [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]


def checks_of(module):
    """Those of them that check."""
    return [f for f in functions_of(module) if f.__name__.lstrip("_").startswith("check_")]


def refusals_of(network):
    """The check of a network and all checks in its file."""
    return [network.check, *checks_of(inspect.getmodule(network))]


# Everything that check_run calls: the functions of its module but those of what training needs besides a config, and
# all checks in the files of tasks but a teacher's.
BESIDES = {checks.check_complete, checks.check_trained, checks.check_name}
OF_LOSSES = {"check_loss", "_check_augment"}  # which tests/test_losses.py tries
OF_A_RUN = [*({*functions_of(checks)} - BESIDES), *functions_of(augmentation), image_spec.check_images]
for spec in TASKS.values():
    also = [f for f in checks_of(inspect.getmodule(spec)) if "teacher" not in inspect.signature(f).parameters]
    OF_A_RUN += [spec.check, *(f for f in also if f.__name__ not in OF_LOSSES)]


@pytest.mark.parametrize(
    ("check", "functions", "cases", "build"),
    [
        (ViTConfig.check, refusals_of(ViTConfig), BAD_NETWORKS, lambda fields: ViTConfig(**fields)),
        (TransformerConfig.check, refusals_of(TransformerConfig), BAD_TRANSFORMERS, lambda f: TransformerConfig(**f)),
        (CaptionerConfig.check, refusals_of(CaptionerConfig), BAD_CAPTIONERS, lambda f: CaptionerConfig(**f)),
        (check_run, OF_A_RUN, BAD_RUNS, run_with),
    ],
)
def test_no_refusal_is_left_untested(check, functions, cases, build):
    written = raises_of(*functions)
    assert len(written) >= len(functions)
    assert written - {refusal(check, build(fields))[1] for fields, *_ in cases} == set()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_pass_their_own_checks(name):
    assert check_run(preset(name).run) == preset(name).run


# ------------------------------------------------------------------------------------ as plain values


@pytest.mark.parametrize("run", [IMAGES, TEXTS, CAPTIONS, TAUGHT], ids=lambda run: run.task)
def test_every_field_of_a_run_is_written_and_comes_back(run):
    """Each field, moved away from its default, survives; so none is left out on either way."""
    for name, (value, _) in flat(run).items():
        if name == "task":  # it says what the others are
            continue
        part, _, leaf = name.rpartition(".")
        hint = typing.get_type_hints(type(value_at(run, part)) if part else RunConfig)[leaf]
        options = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
        other = next((o for o in options if o != value), None)
        if options == (value,):  # the only choice
            continue
        if not options:
            first = {tuple[str, ...]: "x", tuple[int, ...]: 7}.get(hint, 0.5)
            moves = {
                bool: lambda v: not v,
                int: lambda v: v + 1,
                float: lambda v: v + 0.5,
                str: lambda v: v + "x",
                tuple: lambda v, first=first, hint=hint: (
                    tuple(x / 2 for x in v) if hint == tuple[float, float] else (*v, v[0] if v else first)
                ),
            }
            other = moves[type(value)](value)
        changed = replace_fields(run, {name: other})
        again = from_dict(RunConfig, json.loads(json.dumps(to_dict(changed))))
        assert again == changed != run, name


def test_absent_fields_keep_their_defaults_and_whole_numbers_may_stand_for_floats():
    run = from_dict(RunConfig, {"task": "classify", "epochs": 3, "optim": {"lr": 1}})
    assert run == dataclasses.replace(IMAGES, epochs=3, optim=OptimConfig(lr=1.0)) and type(run.optim.lr) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bacth": 3}, "bacth is no field; nearest: batch"),
        ({"model": {"depht": 3}}, "model.depht is no field; nearest: depth"),
        ({"model": {"computes": "os:system"}}, "model.computes is no field"),
        ({"optim": {"zzz": 3}}, "optim.zzz is no field; known: beta1, beta2, .* warmup_steps"),
        ({"batch": "64"}, "batch is '64': give a whole number"),
        ({"batch": True}, "batch is True: give a whole number"),
        ({"optim": {"lr": "1e-3"}}, "optim.lr is '1e-3': give a finite number"),
        ({"optim": {"nesterov": 1}}, "optim.nesterov is 1: give true or false"),
        ({"model": {"pool": "clss"}}, "model.pool is 'clss': give one of cls, mean, mean_all, map"),
        ({"model": {"image": [32]}}, r"model.image is \(32,\): give a whole number or 2 whole numbers"),
        ({"optim": {"decay": ["kernels"]}}, "optim.decay is .*: give any of kernel, bias, norm"),
        ({"optim": {"freeze": "a"}}, "optim.freeze is 'a': give texts"),
        ({"model": 3}, "model is 3: give a group of fields"),
    ],
)
def test_unknown_fields_and_wrong_types_are_refused_by_name(values, message):
    with pytest.raises(UserError, match=f"^{message}") as caught:
        from_dict(RunConfig, {"task": "classify", **values})
    assert is_one_sentence(str(caught.value))


# ---------------------------------------------------------------------------------- which run is which


def test_differences_tell_identity_from_execution():
    old = IMAGES
    new = dataclasses.replace(
        old,
        batch=64,
        parallel="pmap",
        optim=OptimConfig(lr=0.5),
        data=ImageData(dir="elsewhere", source="mnist"),
    )
    assert differences(old, new) == {"batch": (128, 64), "optim.lr": (1e-3, 0.5), "data.source": ("digits", "mnist")}
    assert differences(old, new, execution=True) == {"parallel": ("jit", "pmap"), "data.dir": ("", "elsewhere")}
    assert differences(old, old) == differences(old, old, execution=True) == {}


def test_a_run_that_names_no_loss_has_that_of_its_labels():
    names_none = preset("digits").run
    binary, usual = (
        replace_fields(names_none, {"data.target": "class", "loss.name": name}) for name in ("binary", "cross_entropy")
    )
    assert differences(binary, names_none) == {"loss.name": ("binary", "cross_entropy")}
    assert differences(usual, names_none) == differences(names_none, names_none) == {}


def test_only_what_leaves_the_result_alone_may_change_on_resume():
    of_any = {
        *("accumulate", "parallel", "fsdp", "scan", "remat", "attention_kernel", "steps_per_dispatch"),
        *("max_steps", "max_minutes", "name", "dir", "keep", "save_minutes", "async_save", "log_every"),
        *("profile_steps", "histograms", "stall_minutes", "tensorboard", "wandb", "hooks"),
    }
    for run, more in (
        (
            IMAGES,
            {f"data.{name}" for name in ("dir", "download", "memory", "read_ahead", "threads", "verify")},
        ),
        (TEXTS, set()),
    ):
        assert {name for name, (_, execution) in flat(run).items() if execution} == of_any | more, run.task
