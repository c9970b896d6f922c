"""A captioner whose encoder starts from weights of its own, and what is frozen only for the first epochs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vit_jax
from vit_jax import ViT
from vit_jax.config.network import ZEROS, Parameter
from vit_jax.config.run import OptimConfig
from vit_jax.config.trees import flatten, unflatten
from vit_jax.data.captions import open as captions
from vit_jax.errors import UserError
from vit_jax.models.state import split_model
from vit_jax.models.vit_config import ViTConfig
from vit_jax.runs import Run
from vit_jax.training.engine.optim import Optimizer

# ------------------------------------------------------------------------------- frozen, then released

TABLE = {name: Parameter((3, 2), "kernel", ZEROS) for name in ("vit.a", "text.b")}
STEPS, EPOCH = 6, 2  # three epochs


@pytest.mark.parametrize("name", ["adam", "adamw", "momentum"])
def test_what_is_released_trains_on_as_in_torch(name):
    """There a parameter without a gradient is left alone, and counts its steps from the first one that it has."""
    torch = pytest.importorskip("torch")
    c = OptimConfig(
        name=name, lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.1, clip=0.5, schedule="constant",
        freeze=("vit.*",), freeze_epochs=1.5,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    ours = {each: draw.standard_normal((3, 2)).astype(np.float32) for each in TABLE}
    theirs = {each: torch.nn.Parameter(torch.tensor(x)) for each, x in ours.items()}
    settings = dict(lr=0.1, weight_decay=0.1)
    if name == "momentum":
        there = torch.optim.SGD(theirs.values(), momentum=0.9, **settings)
    else:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        there = kind(theirs.values(), betas=(0.8, 0.9), **settings)
    optimizer = Optimizer(c, STEPS, EPOCH, TABLE)
    tree, state = unflatten(ours), optimizer.init(unflatten(ours))
    first = dict(ours)
    for step in range(STEPS):
        gradients = {each: draw.standard_normal((3, 2)).astype(np.float32) for each in TABLE}
        for each, x in gradients.items():
            theirs[each].grad = None if each == "vit.a" and step < 3 else torch.tensor(x)
        torch.nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        there.step()
        updates, state = optimizer.update(unflatten(gradients), state, tree)
        tree = jax.tree.map(jnp.add, tree, updates)
        found = flatten(tree)
        assert (found["vit.a"] == first["vit.a"]).all() == (step < 3) and (found["text.b"] != first["text.b"]).all()
        for each, x in found.items():
            np.testing.assert_allclose(x, theirs[each].detach().numpy(), rtol=2e-5, atol=1e-6)


# -------------------------------------------------------------------------------------------- a run

VIT = ViTConfig(image=32, patch=16, width=16, depth=1, heads=2, hidden=16, classes=5, pool="mean", eps=1e-5)
WORDS = (
    "shapes --model.text.width 12 --model.text.decoder-depth 1 --model.text.heads 2 --model.text.hidden 16 "
    "--data.drawn 48 --batch 16 --epochs 2 --log-every 1 --init-encoder eyes.safetensors "
    "--optim.freeze vit.* --optim.freeze-epochs 1"
)


@pytest.fixture(scope="module")
def eyes(working_folder):
    """A ViT with a head, as a file."""
    model = ViT(VIT, rngs=nnx.Rngs(0))
    fields = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3]}
    vit_jax.export(model, working_folder / "eyes.safetensors", fields=fields)
    return {f"vit.{name}": np.asarray(x) for name, x in flatten(split_model(model)[1]).items()}


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(captions, "SPLITS", {"validation": 8, "test": 8, "unseen": 8})


def weights(name):
    return {path: np.asarray(x) for path, x in flatten(split_model(vit_jax.load(name, "last").model)[1]).items()}


@pytest.mark.slow
def test_an_encoder_starts_from_a_file_and_trains_when_it_is_released(eyes, few, inside, working_folder):
    """Of its head nothing is left; the text half is that of the same run without the file."""
    done = inside("train", *WORDS.split(), "--name", "parts", "--max-steps", 3, cwd=working_folder)
    assert done.returncode == 0, done.stderr
    assert "train from step 4 on" in done.stdout and "the encoder from eyes.safetensors: vit-jax" in done.stdout
    run = Run(working_folder / "runs/parts").config()
    assert (run.model.vit.width, run.model.vit.eps, run.model.vit.classes) == (16, 1e-5, 0)
    assert run.augment.mean == (0.4, 0.5, 0.6) and run.model.text.width == 12
    half = weights("runs/parts")
    there = [name for name in half if name.startswith("vit.")]
    assert len(there) > 15 and all((half[name] == eyes[name]).all() for name in there)
    done = inside("train", *WORDS.split(), "--name", "parts", cwd=working_folder)
    assert done.returncode == 0, done.stderr
    end = weights("runs/parts")
    assert all((end[name] != half[name]).any() for name in there if not name.endswith("key.bias"))


@pytest.mark.slow
def test_a_run_that_was_stopped_at_its_release_goes_on_to_the_same_bits(eyes, few, inside, working_folder):
    for name, budgets in (("whole", ([],)), ("cut", (["--max-steps", 2], ["--max-steps", 4], []))):
        for budget in budgets:
            done = inside("train", *WORDS.split(), "--name", name, *budget, cwd=working_folder)
            assert done.returncode == 0, done.stderr
    whole, cut = weights("runs/whole"), weights("runs/cut")
    assert all((whole[name] == cut[name]).all() for name in whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model.vit.depth", "2"],
            "init_encoder eyes.safetensors: its model.depth is 1, here it is 2; leave these",
        ),
        (["--init-encoder", "no.npz"], "init_encoder no.npz: no such file, folder or run"),
        (["--init", "eyes.safetensors"], "init eyes.safetensors: holds a ViT, and the run trains a Captioner"),
    ],
)
def test_bad_input_is_one_sentence(eyes, few, inside, working_folder, words, message):
    failed = inside("train", *WORDS.split(), *words, "--name", "bad", cwd=working_folder)
    assert failed.returncode == 2 and message in failed.stderr and failed.stderr.count("\n") == 1, failed.stderr
    assert not (working_folder / "runs/bad").exists()


def test_what_has_no_encoder_and_what_is_none(eyes, inside, working_folder):
    failed = inside("train", "digits", "--init-encoder", "eyes.safetensors", cwd=working_folder)
    assert failed.returncode == 2 and "a ViT has no encoder of its own: give the weights as init" in failed.stderr
    failed = inside("train", "digits", "--optim.freeze-epochs", "1", cwd=working_folder)
    assert failed.returncode == 2 and "but optim.freeze is empty, so nothing is frozen" in failed.stderr
    with pytest.raises(UserError, match="init_encoder nowhere: no such file"):
        vit_jax.preset("shapes", fields={"init_encoder": "nowhere"})
