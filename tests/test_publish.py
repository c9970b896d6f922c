"""`python -m convert SRC hf://owner/name` against a hub on this machine: what arrives there, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vit_jax
from convert import verify
from convert.containers import answers
from convert.containers.hub import fetch
from convert.verify import compare_plan
from convert.verify.libraries.built import load as installed
from convert.write.origin import file_hash
from convert.write.upload import Repository, repository, upload
from tests.loopback_hub import ATTRIBUTES, TOKEN, serving
from vit_jax.errors import Interrupted, UserError
from vit_jax.runs import Run
from vit_jax.runs.values import to_dict

huggingface_hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra: hub)")
pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning"),  # of a line of huggingface_hub
]
slow = pytest.mark.slow


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that this process uses, with a token that it accepts."""
    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils import _http

    with serving() as found:
        for name, value in {
            "ENDPOINT": found.endpoint,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_TOKEN_PATH": str(tmp_path / "no token"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        template = found.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(hf_api.api, "endpoint", found.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)  # between its attempts
        yield found


@pytest.fixture
def refused(inside, hub, tmp_path):
    """A command that ends with 2 and one sentence, and writes no file here and no commit there; the sentence."""

    def check(*arguments):
        before = sorted(tmp_path.rglob("*"))
        done = inside("convert", *arguments)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("vit-jax: error: ") and done.stderr.count("\n") == 1, done.stderr
        assert sorted(tmp_path.rglob("*")) == before
        assert not any(each.commits for each in hub.repositories.values())
        return done.stderr

    return check


def parsed(hub, name):
    """The model card in a repository, as huggingface_hub reads it."""
    return huggingface_hub.ModelCard(hub.content(name, "README.md").decode())


@slow
def test_a_run_becomes_one_private_commit_with_a_card_and_a_certificate(digits_run, inside, tmp_path):
    """As a user does it, in a process of its own, to which HF_ENDPOINT alone names this machine's hub."""
    assert inside("convert", digits_run, tmp_path / "model.safetensors", "--to", "vit-jax").returncode == 0
    (tmp_path / "temporary").mkdir()
    with serving() as hub:
        settings = {
            "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1", "TMPDIR": str(tmp_path / "temporary"),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "convert", str(digits_run), "hf://me/digits.v1", "--license", "apache-2.0"],
            cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert f"uploaded  {hub.endpoint}/me/digits.v1: vit-jax" in done.stdout and "private" in done.stdout
    assert not list((tmp_path / "temporary").iterdir())
    found = hub.repositories["me/digits.v1"]
    assert found.private and len(found.commits) == 1
    assert found.files.keys() == {ATTRIBUTES, "README.md", "certificate.json", "model.safetensors"}
    assert found.files["model.safetensors"] == file_hash(tmp_path / "model.safetensors")
    certificate = json.loads(hub.content("me/digits.v1", "certificate.json"))
    assert certificate["target"]["sha256"] == found.files["model.safetensors"]
    card = parsed(hub, "me/digits.v1")
    assert card.data.license == "apache-2.0" and f"Verdict: {certificate['verdict']}" in card.text
    assert card.data.base_model is None and card.data.datasets is None  # not known, and not on the hub
    assert card.data.metrics == ["accuracy", "f1"]
    accuracy = Run(digits_run).summary()["test"]["best"]["accuracy"]
    assert f"| test | {accuracy:.4f} |" in card.text and "on `digits`" in card.text


@pytest.mark.parametrize("library, to", [("timm", "timm"), pytest.param("transformers", "huggingface", marks=slow)])
def test_the_python_in_a_card_opens_the_repository_in_its_library(library, to, digits_run, inside, hub, tmp_path):
    try:
        torch = (installed(library), installed("torch"))[1]
    except ImportError as error:
        pytest.skip(f"{library} cannot open what is uploaded: {error}")
    assert inside("convert", digits_run, tmp_path / "folder", "--to", to).returncode == 0
    done = inside("convert", digits_run, "hf://me/x", "--to", to)
    assert done.returncode == 0 and "verdict   the same function" in done.stdout, done.stderr
    found, here = hub.repositories["me/x"], {path.name: file_hash(path) for path in (tmp_path / "folder").iterdir()}
    assert {path: found.files[path] for path in here} == here
    assert found.files.keys() - here.keys() == {ATTRIBUTES, "README.md", "certificate.json"}
    card, names = parsed(hub, "me/x"), dict[str, Any]()
    assert card.data.library_name == library and card.data.pipeline_tag == "image-classification"
    assert {"vit-jax", "vit", to} == {*card.data.tags} and f"{library} " in card.text.partition("Versions:")[2]
    exec(re.search(r"```python\n(.*?)\n```", card.text, re.S)[1], names)
    ours, pixels = vit_jax.load(digits_run), np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)
    mean, std = (np.float32(getattr(ours.preprocess, name)) for name in ("mean", "std"))
    inputs = torch.from_numpy(((pixels / np.float32(255) - mean) / std).transpose(0, 3, 1, 2))
    with torch.no_grad():
        theirs = names["model"].eval()(inputs)
    assert getattr(theirs, "logits", theirs).numpy() == pytest.approx(
        ours.logits(pixels) / ours.outputs.temperature, abs=1e-5
    )


def test_our_own_layout_is_read_back_from_the_hub_and_the_card_says_what_the_run_says(
    digits_run, inside, hub, tmp_path, rewrite_record
):
    run = Run(shutil.copytree(digits_run, tmp_path / "run"))
    config = to_dict(run.config())
    config |= {"init": "hf://ann/base@main/x.npz", "data": {**config["data"], "source": "cifar10"}}
    rewrite_record(run, config=config)
    done = inside("convert", run, "hf://me/own", "--public")
    assert done.returncode == 0, done.stderr
    assert "note      no licence is given" in done.stdout and "public" in done.stdout
    found = hub.repositories["me/own"]
    assert not found.private and len(found.commits) == 1
    assert found.files.keys() == {ATTRIBUTES, "model.safetensors", "README.md", "certificate.json"}
    card = parsed(hub, "me/own")
    assert card.data.base_model == ["ann/base"] and card.data.datasets == ["uoft-cs/cifar10"]
    assert card.data.library_name == "vit-jax" and "license" not in card.data.to_dict()
    assert str(tmp_path) not in card.content, "the paths of this machine are nobody's business"
    there, here = vit_jax.load("hf://me/own"), vit_jax.load(digits_run)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1), np.uint8)
    assert np.array_equal(there.logits(pixels), here.logits(pixels)) and there.class_names == here.class_names
    assert inside("convert", "hf://me/own", "hf://me/again").returncode == 0  # from one repository to another
    card = parsed(hub, "me/again")
    assert card.data.base_model == ["me/own"] and "Converted from [me/own]" in card.text and card.data.metrics is None


@slow
def test_a_translator_is_read_back_from_the_hub_with_its_tokenizer(inside, hub, tmp_path):
    words = "numbers --name b --data.tokenizer bpe --data.vocabulary 600 --max-steps 1"
    assert inside("train", *words.split()).returncode == 0
    assert inside("convert", tmp_path / "runs" / "b", "hf://me/text").returncode == 0
    assert "tokenizer/tokenizer.json" in hub.repositories["me/text"].files
    assert parsed(hub, "me/text").data.pipeline_tag == "translation"
    assert isinstance(vit_jax.load("hf://me/text").predict("twenty one"), str)


def test_what_a_repository_holds_is_replaced_by_force_alone(digits_run, inside, hub, refused):
    old = hub.make("me/old", config__json=b"{}", pytorch_model__bin=b"old")
    assert "exists and holds config.json, pytorch_model.bin; choose" in refused(digits_run, "hf://me/old")
    assert inside("convert", digits_run, "hf://me/old", "--force", "--key", "model").returncode == 0
    assert old.files.keys() == {ATTRIBUTES, "model.safetensors", "README.md", "certificate.json"}
    assert len(old.commits) == 1
    accuracy = Run(digits_run).summary()["test"]["last"]["accuracy"]  # of the weights that were asked for
    assert f"| test | {accuracy:.4f} |" in parsed(hub, "me/old").text
    hub.make("me/empty")  # holds nothing that could be lost
    assert inside("convert", digits_run, "hf://me/empty", "--dtype", "bfloat16").returncode == 0
    assert "Rounded to bfloat16" in parsed(hub, "me/empty").text and parsed(hub, "me/empty").data.metrics is None
    assert sum(each.startswith("POST /api/repos/create") for each in hub.requests) == 0


BEFOREHAND = {
    "hf://me": "is not the address of a repository; write hf://owner/name",
    "hf:me/x": "is not the address of a repository",
    "hf://me/x@main": "is no name for a repository",
    "hf://me/a--b": "is no name for a repository",
    "hf://me/../x": "is not the address of a repository",
    "https://huggingface.co/me/x": "is not the address of a repository",
    "hf://me/public": "exists and is public; add --public",
    "hf://me/private --public": "exists and is private; leave --public out",
    "hf://me/x --license Apache": "--license Apache: give the hub's name of a licence",
    "folder --license mit": "--license mit: is for a repository on the hub, and folder is a path here",
    "folder --public": "--public: is for a repository on the hub, and folder is a path here",
    "hf://me/x --to tim": "to tim: there is no such layout",
}


@pytest.mark.parametrize("words", BEFOREHAND)
def test_what_cannot_be_uploaded_is_refused_before_anything_is_read(words, hub, refused):
    hub.make("me/public", private=False)
    hub.make("me/private")
    assert BEFOREHAND[words] in refused("nowhere", *words.split())
    assert all(each.startswith("GET ") for each in hub.requests)


def test_without_a_token_a_network_or_the_library_nothing_is_read(hub, refused, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "the hub does not accept the token" in refused("nowhere", "hf://me/x")
    monkeypatch.delenv("HF_TOKEN")
    assert "there is no token to write with; log in with `hf auth login`" in refused("nowhere", "hf://me/x")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.faults["info"] = "cut"
    assert "the hub is out of reach" in refused("nowhere", "hf://me/x")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the hub is out of reach" in refused("nowhere", "hf://me/x")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs huggingface_hub; run `pip install" in refused("nowhere", "hf://me/x")
    with pytest.raises(UserError, match="is uploaded by `python -m convert PATH hf://me/x`"):
        vit_jax.export("nowhere", "hf://me/x")


FAULTS = {  # {(step, what the hub does there): what is said, and whether a repository was made for it}
    ("create", 401): ("does not accept the token", False),
    ("create", 403): ("the token has no right to write there", False),
    ("create", 409): ("exists by now", False),
    ("create", "cut"): ("the hub is out of reach", False),
    ("validate", 400): ("the hub does not accept the model card", False),
    ("preupload", 403): ("the token has no right to write there", True),
    ("put", "cut"): ("the hub is out of reach", True),
    ("put", 500): ("the hub answers 500", True),
    ("commit", "cut"): ("the hub is out of reach", True),
    ("commit", 412): ("it was changed meanwhile", True),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("---\ntags: [x]\n---\n")
    (tmp_path / "out" / "model.safetensors").write_bytes(os.urandom(1 << 20))
    return tmp_path / "out"


@pytest.mark.parametrize("step, fault", FAULTS)
def test_an_upload_that_fails_is_one_sentence_that_names_a_repository_that_was_made(step, fault, hub, folder, capfd):
    says, made = FAULTS[step, fault]
    hub.faults[step] = fault
    with pytest.raises(UserError, match=says) as told:
        upload(Repository("me/x", True), folder, [*folder.iterdir()], "message")
    text = str(told.value)
    assert text.startswith("hf://me/x: ") and len(text.splitlines()) == 1 and not capfd.readouterr().err
    assert ("me/x was made before that" in text) == (f"{hub.endpoint}/me/x/settings" in text) == made, text
    assert [bool(each.commits) for each in hub.repositories.values()] == [False] * made


@pytest.mark.parametrize("step, fault", [("create", 403), ("create", 409), ("put", "cut")])
def test_a_command_whose_upload_fails_ends_with_2(step, fault, digits_run, hub, refused):
    hub.faults[step] = fault
    assert FAULTS[step, fault][0] in refused(digits_run, "hf://me/x")


def test_what_differs_from_its_source_is_not_uploaded(digits_run, inside, hub, monkeypatch):
    def differing(plan, written):
        report = compare_plan(plan, written)
        report.checks[-1] = replace(report.checks[-1], difference=1.0)
        return report

    monkeypatch.setattr(verify, "compare_plan", differing)
    done = inside("convert", digits_run, "hf://me/x")
    assert done.returncode == 3 and "hf://me/x: different" in done.stderr and "nothing was uploaded" in done.stderr
    assert not hub.repositories and all(each.startswith("GET ") for each in hub.requests)


def test_an_upload_that_is_interrupted_names_the_repository_that_was_made(hub, folder, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", stop)
    with pytest.raises(Interrupted, match=r"me/x was made, and the upload into it broke off") as told:
        upload(Repository("me/x", True), folder, [*folder.iterdir()], "message")
    assert told.value.exit_code == 130


def test_a_repository_that_changes_meanwhile_is_not_written_over(hub, folder):
    known = hub.make("me/x", model__bin=b"1")
    known.commits.append([])
    with pytest.raises(UserError, match="it was changed meanwhile"):
        upload(Repository("me/x", True, True, ("model.bin",), "1".zfill(40)), folder, [*folder.iterdir()], "message")
    assert "model.bin" in known.files


SHAPES = [b'"x"', b"3", b"not JSON", b"[" * 100_000, b'{"siblings": 3}']
SHAPES += [b'{"id": "me/x", "siblings": [{"rfilename": 3}]}']
ANSWERS = [*((shape, "the hub's answer is not as") for shape in SHAPES), ("drip", "is not whole after 0.3 seconds")]
ANSWERS += [("flood", "has more than 1 MB"), (gzip.compress(b" " * (1 << 24), mtime=0), "is compressed, by gzip")]


@pytest.mark.parametrize(("answer", "says"), ANSWERS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("way", ["from", "tree", "to"])
def test_answers_of_no_end_and_of_other_shapes_are_refused(way, answer, says, hub, monkeypatch):
    monkeypatch.setattr(answers, "SECONDS", 0.3)
    monkeypatch.setattr(answers, "BYTES", 1 << 20)
    hub.make("me/x", **{"config.json": b"{}", "a.safetensors": b"x"})
    hub.faults["tree" if way == "tree" else "info"] = answer
    hooks = huggingface_hub.utils.get_session().event_hooks
    with pytest.raises(UserError, match=says) as caught:
        repository("hf://me/x", public=False, force=True) if way == "to" else fetch("hf://me/x")
    assert str(caught.value).startswith("hf://me/x: ") and "\n" not in str(caught.value)
    assert huggingface_hub.utils.get_session().event_hooks == hooks
