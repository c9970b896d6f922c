"""What a network's outputs mean: read from the files of its library, followed by predict, and written back.

Reference values are those of transformers' own pipeline.
"""

import csv
import json

import numpy as np
import pytest
from PIL import Image

import vit_jax
from convert.containers.folder import read_json
from convert.recognise.reading import Options, read
from tests.installed import library
from vit_jax.commands import predict as command
from vit_jax.config.outputs import Outputs
from vit_jax.errors import UserError
from vit_jax.weights.start import preset

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 16, "width": 16}}
MULTI, NUMBERS = "multi_label_classification", "regression"
CASES = {  # {case: (family of transformers, problem_type, names, the kind that it is)}
    "set": ("ViT", MULTI, "abc", "set"),
    "set of one": ("ViT", MULTI, "a", "set"),
    "set of DeiT": ("DeiT", MULTI, "abc", "set"),
    "set of DINOv2": ("Dinov2", MULTI, "abc", "set"),
    "numbers": ("ViT", NUMBERS, "hw", "number"),
    "number": ("ViT", NUMBERS, "h", "number"),
    "numbers of SigLIP": ("Siglip", NUMBERS, "hw", "number"),
    "classes": ("ViT", "single_label_classification", "abc", "class"),
    "unstated": ("ViT", None, "abc", "class"),
}


@pytest.fixture(scope="module")
def transformers():
    return library("transformers")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Files of images as large as the networks take, which no library has to resize."""
    folder = tmp_path_factory.mktemp("photos")
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), np.uint8)):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def save(transformers, path, family, problem, names, **more):
    """A folder of a classifier with random weights, as transformers saves it."""
    import torch

    sizes, labels = {**SMALL, "image_size": 16, "patch_size": 8}, dict(enumerate(names))
    more |= {"id2label": labels, "label2id": {name: k for k, name in labels.items()}, "problem_type": problem}
    if family in ("Siglip", "CLIP"):
        text = {**SMALL, "vocab_size": 8, "projection_dim": 16, "bos_token_id": 1, "eos_token_id": 2}
        config = getattr(transformers, f"{family}Config")(vision_config=sizes, text_config=text, **more)
    else:
        config = getattr(transformers, f"{family}Config")(**sizes, layer_norm_eps=1e-6, **more)
    torch.manual_seed(0)
    network = getattr(transformers, f"{family}ForImageClassification")(config).eval()
    with torch.no_grad():
        for each in network.parameters():
            each.normal_(0, 0.3)
        network.classifier.bias -= network(torch.rand(99, 3, 16, 16) * 2 - 1).logits.mean(0)  # so that signs differ
    network.save_pretrained(path)
    transformers.ViTImageProcessor(**HALF).save_pretrained(path)
    return path


def pipeline(transformers, path, files):
    """What transformers' pipeline says of image files: [(name, score)] of all outputs, each."""
    classify = transformers.pipeline(
        "image-classification", str(path), image_processor=transformers.ViTImageProcessor(**HALF), device="cpu"
    )
    return [[(each["label"], each["score"]) for each in classify(str(file), top_k=99)] for file in files]


@pytest.mark.parametrize("case", CASES)
def test_predict_says_what_the_pipeline_of_transformers_says(transformers, tmp_path, photos, case):
    family, problem, names, kind = CASES[case]
    path = save(transformers, tmp_path / "theirs", family, problem, names)
    network = vit_jax.load(path)
    assert network.outputs == Outputs(kind, tuple(names)) and repr(len(names)) in repr(network)
    found, expected = network.predict(photos, top=99), pipeline(transformers, path, photos)
    if kind == "set":
        expected = [[each for each in said if each[1] > 0.5] for said in expected]
        assert len({len(said) for said in expected}) > 1  # also of none
    if kind == "number":
        expected = [sorted(said) for said in expected]  # in the order of the outputs
    for ours, theirs in zip(found, expected, strict=True):
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        np.testing.assert_allclose([x for _, x in ours], [x for _, x in theirs], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("problem", "kind"), [(MULTI, "set"), pytest.param(NUMBERS, "number", marks=pytest.mark.slow)])
def test_every_way_through_files_keeps_the_kind_or_says_that_it_is_left_out(
    transformers, tmp_path, photos, convert, problem, kind
):
    path = save(transformers, tmp_path / "theirs", "ViT", problem, "hw")
    expected, stated = vit_jax.load(path).predict(photos), {}
    targets = {"huggingface": "hf", "huggingface-flax": "flax", "timm": "timm", "torchvision": "tv.pth"}
    for to, name in {**targets, "vit-jax": "run", "torch-ref": "ours.pt"}.items():
        code, told, error = convert(path, tmp_path / name, "--to", to)
        assert code == 0, error
        assert vit_jax.load(tmp_path / name).predict(photos) == expected
        stated[name] = "left out: outputs" not in told
    assert stated == {"hf": True, "flax": True, "timm": True, "tv.pth": False, "run": True, "ours.pt": True}
    assert "outputs" in read_json(str(tmp_path / "tv.pth.json"))["left_out"][0]
    for name in ("hf", "flax", "timm"):
        assert read_json(str(tmp_path / name / "config.json"))["problem_type"] == problem
        (tmp_path / name / "provenance.json").unlink()  # which states it, too
        with (reading := read(str(tmp_path / name))).source:
            assert reading.facts.outputs.kind == kind
    if transformers.utils.is_timm_available():  # its wrapper reads it there, and we what that writes
        wrapped = transformers.TimmWrapperForImageClassification.from_pretrained(tmp_path / "timm")
        assert wrapped.config.problem_type == problem
        wrapped.save_pretrained(tmp_path / "wrapped")
        assert vit_jax.load(tmp_path / "wrapped").outputs == Outputs(kind, ("h", "w"))
    vit_jax.export(vit_jax.load(path), tmp_path / "x.safetensors")
    vit_jax.export(tmp_path / "x.safetensors", tmp_path / "x.stablehlo")
    assert read_json(str(tmp_path / "x.stablehlo.json"))["outputs"] == {"kind": kind, "names": ["h", "w"]}
    assert f"outputs    {kind}: h, w" in convert("inspect", tmp_path / "x.safetensors")[1]


def test_one_output_of_which_nothing_is_stated_is_asked_for(transformers, tmp_path, photos, convert):
    path = save(transformers, tmp_path / "theirs", "ViT", None, "h")
    code, _, error = convert(path, tmp_path / "out", "--to", "huggingface")
    assert code == 2 and "say which with `fields target=number` or `fields target=set" in error
    assert "one class is no choice" in convert(path, tmp_path / "out", "--set", "target=class")[2]
    with pytest.raises(UserError, match="`fields target=number`"):
        vit_jax.load(path)
    with pytest.raises(UserError, match=r"theirs X.safetensors"):
        vit_jax.predict(path, photos)
    assert convert("inspect", path)[0] == 0 and convert(path, tmp_path / "new", "--adapt", "head=new:3")[0] == 0
    for target, problem in (("number", NUMBERS), ("set", MULTI)):
        network = vit_jax.load(path, fields={"target": target})
        assert network.outputs == Outputs(target, ("h",))
        assert convert(path, tmp_path / target, "--to", "huggingface", "--set", f"target={target}")[0] == 0
        assert read_json(str(tmp_path / target / "config.json"))["problem_type"] == problem
    assert "there is no such kind" in convert(path, tmp_path / "x", "--set", "target=sets")[2]


def test_classes_that_no_file_states_are_written_with_a_note(transformers, tmp_path, convert):
    path = save(transformers, tmp_path / "theirs", "ViT", None, "abc")
    told = convert(path, tmp_path / "out", "--to", "huggingface")[1]
    assert "so its 3 outputs are written as those of classes; change it with `fields target=set" in told
    assert read_json(str(tmp_path / "out/config.json"))["problem_type"] == "single_label_classification"
    stated = read_json(str(path / "config.json")) | {"problem_type": MULTI}
    (path / "config.json").write_text(json.dumps(stated))
    told = convert(path, tmp_path / "stated.safetensors", "--set", "target=class")[1]
    assert "of the kind set (a set of labels, any number an image), and they are read as class (classes, one an" in told
    assert "of the kind" not in convert(path, tmp_path / "as-stated", "--set", "target=set")[1]
    config = stated | {"problem_type": "multi_label"}
    (path / "config.json").write_text(json.dumps(config))
    code, _, error = convert(path, tmp_path / "other")
    assert code == 2 and "problem_type is 'multi_label', which is none of single_label_classification, multi" in error


def test_an_embedding_is_no_class_whether_a_projection_makes_it_or_no_head(transformers, tmp_path, photos, convert):
    config = transformers.CLIPVisionConfig(**SMALL, image_size=16, patch_size=8, projection_dim=4)
    for name, size in (("CLIPVisionModelWithProjection", 4), ("CLIPVisionModel", 16)):
        path = tmp_path / name
        getattr(transformers, name)(config).save_pretrained(path)
        transformers.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16).save_pretrained(path)
        network = vit_jax.load(path)
        assert network.outputs == Outputs("embedding") and network.logits(photos).shape == (8, size)
        with pytest.raises(UserError, match=r"no classes; .*`features FILE.npz"):
            network.predict(photos)
        assert convert(path, tmp_path / f"{name}.safetensors")[0] == 0
        assert vit_jax.load(tmp_path / f"{name}.safetensors").outputs == Outputs("embedding")
    assert convert(tmp_path / "CLIPVisionModelWithProjection", tmp_path / "clip.pt", "--to", "clip")[0] == 0
    (tmp_path / "clip.pt.json").unlink()
    unseen = {"heads": 2, "image": 16, "activation": "quick_gelu"}
    with (reading := read(str(tmp_path / "clip.pt"), Options(sets=unseen))).source:
        assert reading.facts.outputs.kind == "embedding"


def test_the_command_prints_labels_and_numbers_and_has_no_top_of_them(transformers, tmp_path, photos, capsys, terminal):
    files = [str(file) for file in photos[:3]]
    for problem, header in ((MULTI, "file,rank,label,probability"), (NUMBERS, "file,output,value")):
        path = save(transformers, tmp_path / problem, "ViT", problem, "hw")
        table, picture = tmp_path / f"{problem}.csv", tmp_path / f"{problem}.png"
        command.command([str(path), *files, "--csv", str(table), "--attention", str(picture)])
        lines, said = capsys.readouterr().out.splitlines(), vit_jax.load(path).predict(files)
        for file, line, each in zip(files, lines, said, strict=True):
            words = [f"{n} ({x:.1%})" if problem == MULTI else f"{n} {x:.6g}" for n, x in each]
            assert line == f"{file}: {', '.join(words) or 'none'}"
        rows = list(csv.reader(table.open()))
        assert ",".join(rows[0]) == header and picture.stat().st_size
        assert sum(row[-1] != "" for row in rows[1:]) == sum(map(len, said))
        assert {row[0] for row in rows[1:]} == set(files)  # also of an image without labels
        with pytest.raises(UserError, match="top is 2, but every"):
            command.command([str(path), *files, "--top", "2"])


def test_what_only_classes_have_is_refused_of_other_outputs(transformers, tmp_path):
    path = str(save(transformers, tmp_path / "theirs", "ViT", MULTI, "abc"))
    images, labels = np.zeros((30, 16, 16, 3), np.uint8), np.arange(30) % 3
    with pytest.raises(UserError, match=r"data: labels of train has 2 in row 2; give 1 where a label is there"):
        vit_jax.evaluate(path, data=(images, labels))
    run = preset("finetune", init=path, fields={"dir": str(tmp_path), "name": "run", "max_steps": 1, "batch": 4}).run
    with pytest.raises(UserError, match=r"a set of labels, any number an image, and here they are classes, .*new.head"):
        vit_jax.train(run, data=(images, labels))
