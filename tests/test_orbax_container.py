"""Orbax folders without Orbax: its folders are read, ours it restores, and damage is reported in one sentence."""

import errno
import json
import shutil
import subprocess
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore
from flax import nnx

from convert.containers import orbax
from convert.containers.source import Spec, leaves
from vit_jax.config.trees import flatten, unflatten
from vit_jax.errors import UserError

rng = np.random.default_rng(0)
TREE = {
    "blocks": {
        "0": {"kernel": rng.normal(size=(3, 5)).astype(np.float32)},
        "10": {"kernel": rng.normal(size=(2, 1, 3))},
    },
    "half": rng.normal(size=4).astype(ml_dtypes.bfloat16),
    "step": np.asarray(7, np.int32),
    "zeros": np.zeros((40, 50), np.float16),
}


def save(path, tree, handler=None):
    ocp.Checkpointer(handler or ocp.StandardCheckpointHandler()).save(path, tree)
    return path


def values(source):
    return {name: tensor.read() for name, tensor in leaves(source.tree).items()}


def assert_same(found, tree):
    expected = flatten(tree)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == np.asarray(array).tobytes()


def written(path, tree):
    arrays = {tuple(name.split(".")): array for name, array in flatten(tree).items()}
    specs = unflatten({".".join(place): Spec(a.dtype, a.shape) for place, a in arrays.items()})
    orbax.write(str(path), specs, iter(reversed(arrays.items())), {})
    return path


@pytest.mark.parametrize("options", [{}, {"use_ocdbt": False}, {"use_zarr3": True}], ids=["ocdbt", "folders", "zarr3"])
def test_an_item_that_orbax_wrote_is_read_to_the_bit(tmp_path, options):
    with orbax.open_folder(save(tmp_path / "item", TREE, ocp.PyTreeCheckpointHandler(**options))) as source:
        tensors = leaves(source.tree)
        assert list(source.tree) == list(tensors) and set(tensors) == set(flatten(TREE))
        assert_same(values(source), TREE)
        assert all((t.shape, t.dtype, t.name) == (t.read().shape, t.read().dtype, name) for name, t in tensors.items())
        assert source.container == "orbax" and source.size == sum(
            p.stat().st_size for p in (tmp_path / "item").rglob("*") if p.is_file()
        )


def test_what_is_read_is_memory_of_its_own(tmp_path):
    with orbax.open_folder(save(tmp_path / "item", TREE)) as source:
        first = source.tree["half"].read()
        first[:] = 0
        assert source.tree["half"].read().tobytes() == TREE["half"].tobytes()


def test_a_state_of_nnx_loses_its_level_of_values(tmp_path):
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    with orbax.open_folder(save(tmp_path / "item", nnx.state(model))) as source:
        assert_same(values(source), {"kernel": np.asarray(model.kernel[...]), "bias": np.asarray(model.bias[...])})


def test_a_checkpoint_managers_steps_have_items(tmp_path):
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in (3, 10):
            one = {"a": jnp.full((2,), step, jnp.float32)}
            manager.save(
                step,
                args=ocp.args.Composite(
                    model=ocp.args.StandardSave(one),
                    other=ocp.args.StandardSave(one),
                    meta=ocp.args.JsonSave({"step": step}),
                ),
            )
        manager.wait_until_finished()
    with orbax.open_folder(tmp_path / "run", 3) as source:
        assert_same(values(source), {"model": {"a": np.float32([3, 3])}, "other": {"a": np.float32([3, 3])}})
        assert source.skipped == ["meta (no arrays)"]
    with orbax.open_folder(tmp_path / "run/10/model") as source:
        assert_same(values(source), {"a": np.float32([10, 10])})
    for step, told in (
        (None, "holds the steps 10, 3; name one with `step"),
        (4, "there is no step 4; it holds 10, 3"),
    ):
        with pytest.raises(UserError, match=told):
            orbax.open_folder(tmp_path / "run", step)


def test_a_path_may_lead_up_and_through_links(tmp_path):
    save(tmp_path / "item", {"a": jnp.ones(2)})
    (tmp_path / "far" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "folder")
    for path in (tmp_path / "far" / ".." / "item", tmp_path / "link" / ".." / ".." / "item"):
        with orbax.open_folder(path) as source:
            assert_same(values(source), {"a": np.ones(2, np.float32)})


def test_the_one_item_of_a_step_needs_no_name(tmp_path):
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave({"params": {"a": jnp.ones(2)}}))
        manager.wait_until_finished()
    with orbax.open_folder(tmp_path / "run") as source:
        assert_same(values(source), {"params": {"a": np.ones(2, np.float32)}})


def test_texts_and_empty_places_are_passed_over(tmp_path):
    tree = {"a": jnp.ones(2), "title": "a text", "nothing": None, "empty": {}, "list": [np.float32(1), 2]}
    with orbax.open_folder(save(tmp_path / "item", tree, ocp.PyTreeCheckpointHandler())) as source:
        assert set(leaves(source.tree)) == {"a", "list.0", "list.1"}
        assert source.skipped == ["title (a string)"]


@pytest.mark.parametrize("handler", [ocp.StandardCheckpointHandler, ocp.PyTreeCheckpointHandler])
def test_orbax_restores_what_is_written(tmp_path, handler):
    written(tmp_path / "item", TREE)
    assert_same(flatten(ocp.Checkpointer(handler()).restore(tmp_path / "item")), TREE)
    with orbax.open_folder(tmp_path / "item") as source:
        assert_same(values(source), TREE)


def test_many_commits_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(orbax, "BATCH", 1000)
    tree = {f"w{i}": rng.normal(size=(20, i + 1)).astype(np.float32) for i in range(30)}
    written(tmp_path / "item", tree)
    assert_same(flatten(ocp.Checkpointer(ocp.StandardCheckpointHandler()).restore(tmp_path / "item")), tree)


def test_names_with_dots_are_refused_in_both_directions(tmp_path):
    save(tmp_path / "item", {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}})
    with pytest.raises(UserError, match=r"two arrays are called a\.b"):
        orbax.open_folder(tmp_path / "item")
    with pytest.raises(ValueError, match="without dots"):
        orbax.write(str(tmp_path / "out"), {"a.b": Spec(np.dtype("f4"), (2,))}, iter([]), {})


def mutate(folder, change):
    metadata = json.loads((folder / "_METADATA").read_text())
    change(metadata["tree_metadata"])
    (folder / "_METADATA").write_text(json.dumps(metadata))


def key(name, value):
    return lambda tree: tree["('step',)"]["key_metadata"][0].update({name: value})


DAMAGES = {
    "metadata cut": (
        lambda p: (p / "_METADATA").write_text((p / "_METADATA").read_text()[:90]),
        "damaged or not written by Orbax",
    ),
    "metadata empty": (lambda p: (p / "_METADATA").write_text(""), "damaged or not written by Orbax"),
    "metadata deep": (lambda p: (p / "_METADATA").write_text("[" * 100_000), "damaged or not written by Orbax"),
    "metadata a list": (lambda p: (p / "_METADATA").write_text("[]"), "damaged or not written by Orbax"),
    "metadata gone": (lambda p: (p / "_METADATA").unlink(), "no finished Orbax checkpoint"),
    "key a number": (lambda p: mutate(p, key("key", 3)), "damaged or not written by Orbax"),
    "key a strange letter": (lambda p: mutate(p, key("key", "st\u0435p")), "holds U\\+0435"),
    "key unknown": (lambda p: mutate(p, key("key", "stop")), "stop cannot be read; the checkpoint is damaged"),
    "key of parents": (lambda p: mutate(p, key("key", "../other")), r"\.\./other cannot be read"),
    "group and tensor": (
        lambda p: mutate(p, lambda t: t["('step',)"].update(key_metadata=[{"key": "half"}, {"key": "b"}])),
        r"half\.b cannot be read",
    ),
    "manifest gone": (lambda p: (p / "manifest.ocdbt").unlink(), "cannot be read; the checkpoint is damaged"),
    "manifest flipped": (lambda p: flip(p / "manifest.ocdbt"), "cannot be read; the checkpoint is damaged"),
    "manifest empty": (lambda p: (p / "manifest.ocdbt").write_text(""), "cannot be read; the checkpoint is damaged"),
    "link out": (lambda p: (p / "extra").symlink_to(p.parent), "is a link out of the checkpoint"),
}


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    return save(tmp_path_factory.mktemp("orbax") / "item", TREE)


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_folder_is_one_sentence(tmp_path, intact, case):
    damage, told = DAMAGES[case]
    shutil.copytree(intact, tmp_path / "item")
    damage(tmp_path / "item")
    with pytest.raises(UserError, match=told) as error:
        orbax.open_folder(tmp_path / "item")
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_lost_arrays_are_told_when_they_are_read(tmp_path, intact):
    shutil.copytree(intact, tmp_path / "item")
    for file in (*(tmp_path / "item").glob("d/*"), *(tmp_path / "item").glob("ocdbt.process_0/d/*")):
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match="cannot be read; the checkpoint is damaged"):
        values(orbax.open_folder(tmp_path / "item"))


def test_a_save_that_was_cut_off_is_no_checkpoint(tmp_path, intact):
    shutil.copytree(intact, tmp_path / "7.orbax-checkpoint-tmp")
    with pytest.raises(UserError, match="never finished"):
        orbax.open_folder(tmp_path / "7.orbax-checkpoint-tmp")
    with pytest.raises(UserError, match="no finished Orbax checkpoint"):
        orbax.open_folder(tmp_path)


def test_folders_of_arrays_lead_nowhere_else(tmp_path):
    """Without a database an array is a folder of its name."""
    save(tmp_path / "item", {"step": jnp.ones(3)}, ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    shutil.move(tmp_path / "item/step", tmp_path / "step")
    for name in ("../step", ".."):
        mutate(tmp_path / "item", key("key", name))
        with pytest.raises(UserError, match="leads to another folder"):
            orbax.open_folder(tmp_path / "item")


def test_a_header_that_lies_allocates_nothing(tmp_path):
    save(tmp_path / "item", {"a": jnp.ones(3)}, ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    header = tmp_path / "item/a/.zarray"
    for shape, chunks, told in (
        ([1 << 40], [3], "would take 4398046511104 bytes"),
        ([1 << 27], [3], "more than 20 times the checkpoint"),
        ([1] * 9, [3] * 9, "has 9 axes"),
        ([4], [1 << 30], "in chunks of"),  # each would be allocated whole
        ([2, 2], [1 << 15, 1 << 15], "in chunks of"),
        ([1 << 24], [1], "in chunks of"),  # each would be looked for
    ):
        header.write_text(json.dumps({**json.loads(header.read_text()), "shape": shape, "chunks": chunks}))
        with pytest.raises(UserError, match=told):
            orbax.open_folder(tmp_path / "item")


def test_arrays_that_are_stored_as_nothing_add_up(tmp_path):
    """A chunk that is not there is zeros: a few bytes of headers would be gigabytes of values."""
    names = [f"a{i}" for i in range(9)]
    save(tmp_path / "item", {name: jnp.ones(3) for name in names}, ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    for name in names:
        header = tmp_path / "item" / name / ".zarray"
        header.write_text(json.dumps({**json.loads(header.read_text()), "shape": [1 << 23], "chunks": [1 << 23]}))
        (tmp_path / "item" / name / "0").unlink()
    with pytest.raises(UserError, match="its arrays would take 301989888 bytes"):
        orbax.open_folder(tmp_path / "item")


def test_a_full_disk_is_an_error_of_the_system(tmp_path, monkeypatch):
    """TensorStore tells of it as of exhausted resources, which could be memory as well."""
    told = "RESOURCE_EXHAUSTED: Error writing \"a/0\": No space left on device [os_error_code='28']"

    class Full:
        def commit_sync(self):
            raise ValueError(told)

    monkeypatch.setattr(tensorstore, "Transaction", Full)
    with pytest.raises(OSError, match="No space left") as error:
        orbax.write(str(tmp_path / "item"), {}, iter(()), {})
    assert error.value.errno == errno.ENOSPC


def test_no_framework_is_loaded(intact):
    code = (
        f"import sys; from convert.containers import orbax; s = orbax.open_folder({str(intact)!r}); "
        "s.tree['step'].read(); print(*sys.modules)"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "tensorstore" in loaded and not {"jax", "orbax", "flax", "torch"} & loaded


MEASURED = """
import sys, threading
import numpy as np, tensorstore  # what is measured is above its own
from convert.containers import orbax
from convert.containers.source import Spec

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) << 10

def highest(work):
    before, most, done = anonymous(), [0], threading.Event()
    def watch():
        while not done.wait(0.005):
            most[0] = max(most[0], anonymous())
    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return most[0] - before

one = np.random.default_rng(0).standard_normal((1024, 3072)).astype(np.float32)
names = [f"w{i}" for i in range(48)]
write = lambda: orbax.write(
    sys.argv[1],
    {n: Spec(one.dtype, one.shape) for n in names},
    (((n,), one + i) for i, n in enumerate(names)),
    {},
)
read = lambda: [tensor.read() is None for tensor in orbax.open_folder(sys.argv[1]).tree.values()]
print(one.nbytes, highest(write), highest(read))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_that_of_a_tensor_whatever_the_folders_size(tmp_path):
    """604 MB in tensors of 12.6 MB: at most three of them and 256 + 64 MB above what imports take."""
    out = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "item")], capture_output=True, text=True, check=True
    ).stdout
    one, written, read = map(int, out.split())
    assert max(written, read) < 3 * one + (320 << 20)
