"""Which examples, in which order, in which batches: permutations and shares counted by brute force."""

import threading

import numpy as np
import pytest

from vit_jax.data.batches import batches, evaluation_batches
from vit_jax.data.order import Order, SampledOrder, hold_out
from vit_jax.errors import UserError
from vit_jax.presets.table import preset
from vit_jax.runs.values import with_fields
from vit_jax.tasks.computed import task_class


def test_hold_out_takes_its_share_of_every_class_and_never_the_last_example():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 4], [100, 33, 1, 7]))
    stay, held = hold_out(labels, 0.25, 1, 2)
    assert sorted([*stay, *held]) == list(range(141)) and len(held) == round(0.25 * 141)
    np.testing.assert_array_equal(np.bincount(labels[held], minlength=5), [25, 8, 0, 0, 2])
    assert set(labels[hold_out(labels, 0.99, 1, 2)[0]]) == {0, 1, 2, 4}


def test_order_is_a_permutation_each_epoch_and_a_function_of_seed_and_step():
    order = Order(23, 5, seed=7)
    assert order.steps_per_epoch == 4
    steps = {s: order.indices(s).copy() for s in range(40)}
    for epoch in range(10):
        assert len(set(np.concatenate([steps[epoch * 4 + k] for k in range(4)]))) == 20
    assert set(np.concatenate(list(steps.values()))) == set(range(23))  # what an epoch leaves out, another has
    again = Order(23, 5, seed=7)
    for s in np.random.default_rng(0).permutation(40):
        np.testing.assert_array_equal(again.indices(int(s)), steps[s])
    assert any((Order(23, 5, seed=8).indices(s) != steps[s]).any() for s in range(4))
    assert sorted(np.concatenate([Order(20, 5, 0).indices(s) for s in range(4)])) == list(range(20))
    np.testing.assert_array_equal(Order(23, 5, 0, shuffle=False).indices(5), [5, 6, 7, 8, 9])
    with pytest.raises(UserError, match="batch is 24 but there are 23"):
        Order(23, 24, 0)


@pytest.mark.parametrize(("batch", "repeats"), [(12, 3), (10, 4), (7, 2)])
def test_repeats_put_copies_of_each_example_into_its_batch_but_never_side_by_side(batch, repeats):
    order, once = Order(50, batch, 3, repeats=repeats), Order(50, batch, 3)
    assert order.steps_per_epoch == once.steps_per_epoch
    seen = []
    for step in range(order.steps_per_epoch):
        taken = order.indices(step)
        values, counts = np.unique(taken, return_counts=True)
        assert len(taken) == batch and counts.max() == repeats and len(values) == -(-batch // repeats)
        assert (taken[1:] != taken[:-1]).all()  # neighbours may be mixed with each other
        seen += [*values]
    assert len(seen) == len(set(seen))  # an epoch has each example in one batch at most
    np.testing.assert_array_equal(Order(50, batch, 3, repeats=repeats).indices(2), order.indices(2))


def counted(labels, order, epochs):
    """(images of each class in each batch, how often each image is drawn), over some epochs."""
    steps = [order.indices(step) for step in range(epochs * order.steps_per_epoch)]
    classes = [np.bincount(labels[taken], minlength=labels.max() + 1) for taken in steps]
    return np.array(classes), np.bincount(np.concatenate(steps), minlength=len(labels))


def test_balanced_sampling_has_every_class_in_every_batch_and_draws_equal_images_equally_often():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), [142] * 5 + [7] * 5))
    order = SampledOrder(labels, 32, 3, "balanced")
    classes, draws = counted(labels, order, 10)
    assert order.steps_per_epoch == 23 and classes.min() >= 1
    assert classes.std(0).mean() < 0.62  # 1.70 with replacement
    assert set(draws[labels < 5]) <= {4, 5, 6} and set(draws[labels >= 5]) <= set(range(102, 108))
    per_epoch = classes.reshape(10, 23, 10).sum(1)
    assert set(per_epoch.ravel()) == {73, 74} and len({*map(tuple, per_epoch)}) > 1  # ties are another's in each epoch

    again = SampledOrder(labels, 32, 3, "balanced")
    for step in (229, 0, 100, 23, 22):  # any step alone, in any order
        np.testing.assert_array_equal(again.indices(step), order.indices(step))
    assert (SampledOrder(labels, 32, 4, "balanced").indices(0) != order.indices(0)).any()


@pytest.mark.parametrize("sampling", ["balanced", "sqrt"])
@pytest.mark.parametrize("sizes", [[1, 1], [1, 30, 400], [64, 16, 4, 0, 1], [3] * 40, [1000, 1, 1, 7]])
def test_sampling_gives_each_class_its_share_of_an_epoch_and_each_image_its_share_of_the_class(sizes, sampling):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    weights = np.sqrt(sizes) if sampling == "sqrt" else np.sign(sizes)
    order = SampledOrder(labels, 2, 0, sampling)
    classes, draws = counted(labels, order, 6)
    share = weights / weights.sum() * (len(labels) // 2 * 2)
    for epoch in classes.reshape(6, -1, len(sizes)).sum(1):
        assert (np.abs(epoch - share) < 1).all() and epoch.sum() == len(labels) // 2 * 2
    for k in np.flatnonzero(sizes):  # an epoch may leave out one of the row, and the last may end inside a permutation
        assert np.ptp(draws[labels == k]) <= 1 + 6


def test_a_run_repeats_its_images_or_samples_its_classes_and_overfit_batches_does_not():
    run = preset("digits").run
    repeated = with_fields(run, {"augment.repeats": 2})
    sampled = with_fields(run, {"data.sampling": "sqrt"})
    of_repeated, of_sampled = (task_class(run.task).open_data(each) for each in (repeated, sampled))
    assert len(set(of_repeated.order(32, 0).indices(0))) == 16
    assert len(set(of_repeated.order(32, 0, 2).indices(0))) == 32
    assert isinstance(of_sampled.order(32, 0), SampledOrder) and isinstance(of_sampled.order(32, 0, 2), Order)


def digits(split):
    run = preset("digits").run
    return task_class(run.task).open_data(run).splits[split]


def our_threads():
    return [t for t in threading.enumerate() if t.name.startswith("vit-jax")]


def test_batches_are_what_the_order_says_from_any_step_on():
    split = digits("train")
    order = Order(len(split), 100, seed=1)
    made = list(batches(split, order, 5, 30))
    assert len(made) == 25 and not our_threads()
    for step, batch in zip(range(5, 30), made, strict=True):
        np.testing.assert_array_equal(batch["image"], split.take(order.indices(step)))
        np.testing.assert_array_equal(batch["label"], split.labels[order.indices(step)])
    assert made[0]["image"].dtype == np.uint8
    assert made[0]["image"].shape == (100, 8, 8, 1)
    assert made[0]["label"].dtype == np.int32
    assert list(batches(split, order, 5, 5)) == []


class Failing:
    """A split whose fourth batch cannot be made."""

    labels = np.arange(40)

    def __len__(self):
        return 40

    def batch(self, indices):
        if 12 in indices:
            raise UserError("12.png: cannot be decoded")
        return {"image": np.zeros((len(indices), 1, 1, 1), np.uint8)}


def test_the_prefetch_thread_ends_on_early_close_and_hands_its_errors_on():
    order = Order(40, 4, 0, shuffle=False)
    stream = batches(Failing(), order, 0, 10)
    next(stream)
    assert our_threads()
    stream.close()
    assert not our_threads()
    got = []
    with pytest.raises(UserError, match="12"):
        for batch in batches(Failing(), order, 0, 10):
            got.append(batch)
    assert len(got) == 3 and not our_threads()
    with pytest.raises(RuntimeError, match="the consumer's"):
        for _ in batches(Failing(), order, 0, 10):
            raise RuntimeError("the consumer's")
    assert not our_threads()


@pytest.mark.parametrize("batch", [7, 144, 1000])
def test_whole_counts_every_example_once(batch):
    split = digits("validation")
    assert len(split) == 144
    made = list(evaluation_batches(split, batch))
    assert all(b["image"].shape == (batch, 8, 8, 1) and b["label"].shape == (batch,) for b, _ in made)
    np.testing.assert_array_equal(np.concatenate([b["image"][: len(i)] for b, i in made]), split.take(np.arange(144)))
    np.testing.assert_array_equal(np.concatenate([b["label"][: len(i)] for b, i in made]), split.labels)
    assert np.concatenate([i for _, i in made]).tolist() == list(range(144))
    last, real = made[-1][0], len(made[-1][1])
    assert (last["image"][real:] == last["image"][real - 1]).all() and not our_threads()


def test_a_host_reads_only_its_own_rows():
    """Of each batch, for training and for evaluation; the numbers of the examples are those of the whole batch."""
    read = []

    class Split:
        def __len__(self):
            return 21

        def batch(self, indices):
            read.extend(indices)
            return {"x": indices}

        examples = batch

    def rows(size):
        return np.arange(size // 2, size)

    split, order = Split(), Order(21, 8, seed=3)
    whole = [x["x"] for x in batches(split, order, 0, 2)]
    read.clear()
    for part, every in zip(batches(split, order, 0, 2, rows), whole, strict=True):
        assert part["x"].tolist() == every[4:].tolist()
    assert read == [*whole[0][4:], *whole[1][4:]]
    read.clear()
    found = [(part["x"].tolist(), indices.tolist()) for part, indices in evaluation_batches(split, 8, rows)]
    assert found == [
        ([4, 5, 6, 7], [*range(8)]), ([12, 13, 14, 15], [*range(8, 16)]), ([20] * 4, [*range(16, 21)])
    ]  # fmt: skip
    assert set(read) == {4, 5, 6, 7, 12, 13, 14, 15, 20}
