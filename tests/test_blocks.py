"""Training in blocks: each image once, the same batches for any hosts, read nearly in sequence."""

from dataclasses import replace

import numpy as np
import pytest

from tests import loopback_s3
from tests.image_sources import a_run, open_dataset
from tests.test_shards import png, samples, tar
from vit_jax import runs
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import RunConfig
from vit_jax.data.batches import batches, evaluation_batches
from vit_jax.data.captions.config import CaptionData
from vit_jax.data.captions.open import open_captions
from vit_jax.data.images.blocks import BlockOrder, Blocks
from vit_jax.data.images.blocks import blocks_of as make_blocks
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.extras.shards import ahead
from vit_jax.files.digests import array_digest
from vit_jax.models.vit_config import ViTConfig
from vit_jax.training.train import train


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def blocks_of(n, size):
    return np.minimum(np.arange(0, n + size, size), n)


def an_order(n=5_121, batch=64, seed=3, block=16, window=4):
    return BlockOrder(Blocks(blocks_of(n, block), window), batch, seed)


@pytest.mark.parametrize("n, batch, window, block", [
    (5_121, 64, 4, 16), (5_121, 64, 1, 16), (100, 100, 3, 7), (33, 32, 4, 16), (640, 10, 2, 1),
])  # fmt: skip
def test_an_epoch_takes_each_example_once_and_another_one_in_another_order(n, batch, window, block):
    order = an_order(n, batch, 3, block, window)
    epochs = [
        np.concatenate([order.indices(epoch * order.steps_per_epoch + i) for i in range(order.steps_per_epoch)])
        for epoch in range(3)
    ]
    for taken in epochs:
        assert len(np.unique(taken)) == len(taken) == n // batch * batch and taken.min() >= 0 and taken.max() < n
    assert not np.array_equal(epochs[0], epochs[1]) and (n % batch == 0 or len({*map(frozenset, epochs)}) > 1)


def test_any_step_may_come_first(tmp_path):
    order = an_order()
    steps = [order.read(step) for step in range(2 * order.steps_per_epoch)]
    for step in np.random.default_rng(0).permutation(len(steps))[:40].tolist():
        assert np.array_equal(an_order().read(step), steps[step])
        assert np.array_equal(order.read(step), steps[step])
    assert not np.array_equal(an_order(seed=4).indices(0), steps[0][:, 0])


def test_a_window_mixes_sorted_classes_as_a_buffer_of_so_many_images_does():
    labels = np.arange(64_000) // 640  # 100 classes, as class-sorted shards have them

    def pairs(take):  # of one class in a batch
        counts = [np.bincount(labels[take(step)], minlength=100) for step in range(100)]
        return np.mean([(c * (c - 1)).sum() for c in counts])

    rng = np.random.default_rng(0)
    chance = pairs(lambda _: rng.choice(len(labels), 256, replace=False))
    assert pairs(an_order(64_000, 256, window=1_000).indices) / chance < 1.1
    assert pairs(an_order(64_000, 256).indices) / chance > 2  # which the figure can see
    # By default a window has 4,096 images; of large row groups at least four.
    for size, window in ((16, 256), (2_000, 4)):
        assert make_blocks(ImageData(source="wds:x"), np.arange(64_000) // size, np.arange(64_000)).window == window


def test_the_order_of_a_seed_stays_what_it_is():
    """As earlier versions took it with one lane, so that their runs go on."""
    order = an_order()
    steps = np.concatenate([order.read(step) for step in range(3 * order.steps_per_epoch)])
    assert array_digest(steps) == "a61a34de1885c74b7504ce641bf4a401"


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_hosts_read_the_blocks_of_what_they_take(hosts):
    order = an_order(20_000)
    whole = [order.indices(step) for step in range(order.steps_per_epoch)]
    parts = []
    for rows in np.array_split(np.arange(64), hosts):
        own = an_order(20_000)
        spans, mine = set(), []
        for step in range(own.steps_per_epoch):
            found = own.read(step)[rows]
            mine.append(found[:, 0])
            spans |= {(start, stop) for _, start, stop, _ in found.tolist()}
            assert ((found[:, 1] <= found[:, 0]) & (found[:, 0] < found[:, 2]) & (step < found[:, 3])).all()
        parts.append(mine)
        read = sorted(x for start, stop in spans for x in range(start, stop))
        assert len({*read}) == len(read) and {*np.concatenate(mine).tolist()} <= {*read}
    assert all(np.array_equal(np.concatenate([part[i] for part in parts]), each) for i, each in enumerate(whole))


def write(bucket, count=3, each=61):
    for i in range(count):
        bucket.objects[f"{i}.tar"] = tar(*samples("abcdef" * 20, 1000 * i)[: 2 * each])


def a_blocks_run(memory=0, **more):
    more = {"order": "blocks", "validation": 0, "test": 0, "normalize": "half", "block": 8, **more}
    return open_dataset(a_run("wds:s3://bucket/*.tar", memory=memory, **more))


def watch(monkeypatch):
    """A list of all that reads ahead from now on."""
    opened = []
    monkeypatch.setattr(
        "vit_jax.extras.shards.samples.Ahead", lambda *args: opened.append(ahead.Ahead(*args)) or opened[-1]
    )
    return opened


def lefts(reader):
    return [reading.left for some in reader._ends.values() for reading in some]


@pytest.mark.parametrize("room", [1.0, 4e-6, pytest.param(0, marks=pytest.mark.slow)])
def test_a_pass_transfers_each_image_once_and_holds_what_it_may(monkeypatch, room):
    with loopback_s3.serving() as bucket:
        write(bucket)
        whole = a_blocks_run(memory=4)
        found = a_blocks_run(read_ahead=room)
        order = found.order(8, 0)
        assert type(order) is BlockOrder and found.identity == whole.identity
        bucket.requests.clear()
        opened = watch(monkeypatch)
        taken = [*batches(found.splits["train"], order, 0, order.steps_per_epoch)]
        again = [whole.splits["train"].batch(order.indices(step)) for step in range(order.steps_per_epoch)]
        assert all(np.array_equal(a[key], b[key]) for a, b in zip(taken, again, strict=True) for key in a)
        samples_ = found.splits["train"].images.examples.items
        gets = [size for method, name, size in bucket.requests if method == "GET"]
        needed = samples_.sizes[np.concatenate([order.indices(step) for step in range(order.steps_per_epoch)])].sum()
        # The labels between the images of a run, with their headers, come along.
        assert needed <= sum(gets) <= needed + 183 * 2_048
        assert opened[0].most <= room * 1e9 and opened[0].held == 0
        assert len(gets) < 60 if room == 1 else len(gets) > 60


def test_a_resumed_run_and_one_on_several_hosts_take_the_same_batches(monkeypatch):
    opened = watch(monkeypatch)
    with loopback_s3.serving() as bucket:
        write(bucket)
        found = a_blocks_run()
        order = found.order(8, 0)
        steps = order.steps_per_epoch + 9
        whole = [*batches(found.splits["train"], order, 0, steps)]
        monkeypatch.setattr(ahead, "BEHIND", 4)
        rest = [*batches(a_blocks_run().splits["train"], a_blocks_run().order(8, 0), 5, steps)]
        parts = [
            [*batches(a_blocks_run().splits["train"], order, 0, steps, lambda size, own=own: np.arange(size)[own])]
            for own in (slice(0, 3), slice(3, 8))
        ]
        for key in whole[0]:
            assert all(np.array_equal(a[key], b[key]) for a, b in zip(whole[5:], rest, strict=True))
            joined = [np.concatenate([part[i][key] for part in parts]) for i in range(steps)]
            assert all(np.array_equal(a[key], b) for a, b in zip(whole, joined, strict=True))
    # What the first part of a window or another host has taken is not held for ever.
    assert len(opened) == 4 and all(end > steps - 5 for each in opened[1:] for end in each._ends)
    assert all(each.held == sum(each._sizes[[*left]].sum() for left in lefts(each)) for each in opened)


def test_batches_follow_neither_the_listing_nor_threads_nor_caches(tmp_path, monkeypatch):
    found = []
    with loopback_s3.serving() as bucket:
        write(bucket)
        for bucket.backwards, threads, cache in ((False, 1, "a"), (True, 3, "a"), (True, 1, "b"), (False, 2, "b")):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
            opened = a_blocks_run(threads=threads)
            taken = batches(opened.splits["train"], opened.order(8, 0), 0, 50)
            found.append([array_digest(batch[key]) for batch in taken for key in ("image", "label")])
        assert all(each == found[0] for each in found)
        bucket.faults["1.tar"] = "late"  # in the listing: a run that goes on is told by its identity
        assert not a_blocks_run().same_as(opened.identity)


def test_held_out_are_whole_blocks_and_evaluation_reads_them_together():
    with loopback_s3.serving() as bucket:
        write(bucket)
        found = a_blocks_run(validation=0.2, test=0.1)
        rows = {
            name: {*(split.rows // 61 * 100 + split.rows % 61 // 8).tolist()} for name, split in found.splits.items()
        }
        assert not rows["train"] & rows["validation"] and not rows["train"] & rows["test"] and len(rows["test"]) > 1
        split, whole = found.splits["validation"], a_blocks_run(4, validation=0.2, test=0.1).splits["validation"]
        bucket.requests.clear()
        taken = [*evaluation_batches(split, 16)]
        assert len([1 for method, _, size in bucket.requests if method == "GET"]) < len(split) / 3
        assert np.concatenate([indices for _, indices in taken]).tolist() == [*range(len(split))]
        assert np.array_equal(taken[0][0]["image"], whole.take(np.arange(16)))


def test_what_blocks_cannot_do_is_refused():
    with loopback_s3.serving() as bucket:
        write(bucket)
        with pytest.raises(UserError, match=r"data\.sampling is balanced, and data\.order is blocks"):
            a_blocks_run(sampling="balanced").order(8, 0)
        with pytest.raises(UserError, match=r"data\.order is blocks, and data\.source digits has no shards"):
            open_dataset(a_run("digits", order="blocks"))


def said_in(store, **more):
    data = CaptionData(source="wds:*.tar", dir=store, order="blocks", block=4, length=6, validation=0.2, test=0, **more)
    return open_captions(data, 8, 1, (4, 4), normalize="half")


def test_captions_of_shards_come_in_blocks_each_image_once_and_follow_one_that_stands_in(monkeypatch):
    """With one to three captions an image, which all batches of its window take."""
    words, opened = ["red", "green", "blue", "one", "two"], watch(monkeypatch)

    def members(first):
        for i in range(first, first + 30):
            said = "\n".join(f"{words[i % 5]} {word}" for word in words[: 1 + i % 3])
            yield from ((f"{i:03}.png", b"broken" if i == 34 else png(i)), (f"{i:03}.txt", said.encode()))

    with loopback_s3.serving() as bucket:
        bucket.objects |= {f"{i}.tar": tar(*members(30 * i)) for i in range(3)}
        with pytest.raises(UserError, match="1 unreadable image"):
            said_in("s3://bucket")
        whole = said_in("s3://bucket", skip_unreadable=True)
        found = said_in("s3://bucket", skip_unreadable=True, memory=0)
        order, train = found.order(8, 0), found.splits["train"]
        assert type(order) is BlockOrder and found.identity == whole.identity
        held = [{*split.rows // 30 * 8 + split.rows % 30 // 4} for split in found.splits.values()]
        assert len(held) == 2 and not held[0] & held[1]  # blocks of four
        bucket.requests.clear()
        n = order.steps_per_epoch
        taken = [*batches(train, order, 0, 2 * n)]
        again = [whole.splits["train"].batch(order.indices(step)) for step in range(2 * n)]
        assert all(np.array_equal(a[key], b[key]) for a, b in zip(taken, again, strict=True) for key in a)
        gets = sum(size for method, _, size in bucket.requests if method == "GET")
        sizes = train.images.examples.items.sizes
        each = [np.unique(train.rows[np.concatenate([order.indices(e * n + i) for i in range(n)])]) for e in (0, 1)]
        assert gets <= sum(sizes[rows].sum() for rows in each) + 2 * 90 * 2_048 and opened[0].held == 0
        (own,) = np.flatnonzero(train.rows == 34)[:1]
        other = train.images.stand_ins[34]
        words_of = [found.vocabulary.decode(row) for row in (train.target[own], train._said(other)[1])]
        assert words_of[0] == words_of[1] != ""


def test_a_run_that_read_blocks_by_several_readers_does_not_go_on(working_folder, tmp_path, rewrite_record):
    (tmp_path / "0.tar").write_bytes(tar(*samples("ab" * 20)))
    data = ImageData(source="wds:*.tar", dir=str(tmp_path), order="blocks", block=4, memory=0, validation=0, test=0)
    model = ViTConfig(image=8, channels=1, patch=4, classes=0, width=8, depth=1, heads=1, hidden=8)
    run = RunConfig("classify", model, data, ImageAugment(), batch=4, epochs=1, dir=str(tmp_path / "runs"), name="x")
    train(replace(run, max_steps=2))
    config = (folder := runs.Run(tmp_path / "runs/x")).record()["config"]
    rewrite_record(folder, config={**config, "data": {**config["data"], "lanes": 0}})  # as before there was but one
    with pytest.raises(UserError, match=r"blocks by several readers, .*start a new run with `init"):
        train(run)
