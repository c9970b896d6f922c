"""Folds and shares that are held out: alike in all labels, with groups whole, the same for every seed of a run."""

import numpy as np
import pytest
from PIL import Image

from tests.image_sources import a_run, names, open_dataset
from vit_jax.data.order import assign_folds, hold_out_groups, permutation
from vit_jax.errors import UserError
from vit_jax.kinds.labels import Positives


def by_hand(labels, groups, folds, *seed):
    """The algorithm with dense vectors, group by group."""
    members = np.unique(groups)
    have = np.array([[*labels[groups == g].sum(0), (groups == g).sum()] for g in members], float)
    vectors = have / have.sum(0)
    order = sorted(permutation(len(members), *seed), key=lambda g: -vectors[g].max())
    totals, fold = np.zeros((folds, vectors.shape[1])), {}
    for g in order:
        added = ((totals + vectors[g]) ** 2 - totals**2).sum(1).round(12)
        fold[members[g]] = int(added.argmin())
        totals[fold[members[g]]] += vectors[g]
    return np.array([fold[g] for g in groups])


@pytest.mark.parametrize("kind", ["class", "set"])
@pytest.mark.parametrize("grouped", [True, False])
def test_folds_are_those_of_the_plain_algorithm_and_alike(kind, grouped):
    rng = np.random.default_rng(0)
    n = 600
    labels = rng.random((n, 4)) < [0.5, 0.3, 0.2, 0.05]
    if kind == "class":
        labels = np.eye(4, dtype=bool)[rng.choice(4, n, p=[0.5, 0.25, 0.15, 0.1])]
    groups = rng.integers(0, 120, n) if grouped else np.arange(n)
    fold = assign_folds(n, Positives(*np.nonzero(labels)), groups if grouped else None, 5, 7)
    assert (fold == by_hand(labels, groups, 5, 7)).all()
    shares = np.array([[np.mean(fold == k), *(labels[fold == k].sum(0) / labels.sum(0))] for k in range(5)])
    assert np.abs(shares - 0.2).max() < 0.04
    assert all(len(np.unique(fold[groups == g])) == 1 for g in groups)
    assert (assign_folds(n, Positives(*np.nonzero(labels)), groups, 5, 8) != fold).any()


def test_shares_of_groups_are_near_those_asked_for_and_every_label_stays():
    rng = np.random.default_rng(1)
    n, groups = 2000, rng.integers(0, 200, 2000)
    labels = rng.random((n, 3)) < [0.5, 0.2, 0.0]
    labels[groups == 3, 2] = True  # of one group alone
    positives = Positives(*np.nonzero(labels))
    for share in (0.02, 0.1, 0.15, 0.2, 0.33):
        for seed in range(10):
            stay, held = hold_out_groups(n, positives, groups, share, seed)
            assert sorted([*stay, *held]) == list(range(n)) and not {*groups[stay]} & {*groups[held]}
            assert abs(len(held) / n - share) < 0.02 and labels[stay].any(0).all()
            assert abs(labels[held, 0].sum() / labels[:, 0].sum() - share) < 0.04
    assert len(hold_out_groups(6, Positives(np.arange(6), np.zeros(6, int)), np.zeros(6), 0.2, 0)[1]) == 0
    few = hold_out_groups(6, Positives(np.arange(6), np.zeros(6, int)), np.arange(6) // 2, 0.01, 0)[1]
    assert len(few) == 2


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A table of 40 patients with four images each, whose labels are of every kind."""
    root, rng = tmp_path_factory.mktemp("copies"), np.random.default_rng(0)
    lines = ["image,patient,label,a,b,depth"]
    for i in range(160):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(root / f"{i}.png")
        patient = i % 40
        lines.append(f"{i}.png,p{patient},{'xyz'[patient % 3]},{i % 2},{int(i % 3 == 0)},{patient + 0.5}")
    (root / "t.csv").write_text("\n".join(lines))
    return root


SPLITS = ("train", "val", "test")
KINDS = {"class": ("label",), "set": ("a", "b"), "number": ("depth",)}


def opened(copies, kind, seed=0, **data):
    return open_dataset(a_run(f"csv:{copies}/t.csv", seed=seed, labels=KINDS[kind], target=kind, **data))


def patients(split):
    return {int(name.rpartition("/")[2].removesuffix(".png")) % 40 for name in names(split)}


@pytest.mark.parametrize("kind", KINDS)
def test_no_patient_is_in_two_splits_of_any_kind(copies, kind):
    for more in ({}, {"folds": 5, "fold": 3}):
        data = opened(copies, kind, group="patient", **more)
        parts = [patients(split) for split in data.splits.values()]
        assert sum(map(len, parts)) == len(set().union(*parts)) == 40 and [*data.splits] == [
            "train",
            "validation",
            "test",
        ]
        assert len(data.splits["test"]) == 32
    plain = opened(copies, kind)
    assert patients(plain.splits["train"]) & patients(plain.splits["test"])


def test_folds_cover_all_once_and_do_not_depend_on_the_seed(copies):
    tests = [names(opened(copies, "set", seed=k, group="patient", folds=4, fold=k).splits["test"]) for k in range(4)]
    assert sorted(name for test in tests for name in test) == sorted(str(copies / f"{i}.png") for i in range(160))
    assert tests[1] == names(opened(copies, "set", seed=9, group="patient", folds=4, fold=1).splits["test"])


def test_the_identity_of_data_knows_its_groups_labels_and_names_and_no_other_column(copies):
    text = (copies / "t.csv").read_text()

    def content(old="", new="", **data):
        (copies / "other.csv").write_text(text.replace(old, new))
        run = a_run(f"csv:{copies}/other.csv", labels=("label",), target="class", group="patient", **data)
        return {key: each for key, each in open_dataset(run).identity.items() if key != "name"}

    assert content() == content(",depth", ",height") == content("p3,", "p333,") == content("39.5", "7")
    assert content() != content("\n7.png,p7,", "\n7.png,p2,") and content() != content("159.png,p39,x", "159.png,p39,y")
    assert content() != content(",x,", ",w,")


@pytest.mark.parametrize(
    ("text", "data", "said"),
    [
        ("", {"folds": 5, "fold": 5}, "data.fold is 5"),
        ("", {"folds": 1}, "data.folds is 1"),
        ("", {"fold": 1}, "data.fold is 1"),
        ("", {"folds": 41, "group": "patient"}, "data.folds is 41, and there are 40 groups (patient)"),
        ("\n".join(["image,label,g", *(f"{i}.png,{'ab'[i // 8]},{i // 4}" for i in range(16))]),
         {"folds": 4, "group": "g"}, "and fold 0 has only"),
        ("\n".join(["image,label,g", *(f"{i}.png,{'aabc'[i // 4]},{i // 4}" for i in range(16))]),
         {"folds": 2, "group": "g"}, "and only fold"),
        ("\n".join(["image,label,g", *(f"{i}.png,{'ab'[i % 2]},1" for i in range(16))]),
         {"group": "g"}, "leaves test empty"),
        ("image,label,split\n" + "".join(f"{i}.png,{'aab'[i % 3]},{s}\n" for i in range(9) for s in [SPLITS[i // 3]]),
         {"folds": 2}, "the data has validation and test"),
    ],
)  # fmt: skip
def test_folds_that_cannot_be_are_refused(copies, text, data, said):
    (copies / "bad.csv").write_text(text or (copies / "t.csv").read_text())
    run = a_run(f"csv:{copies}/bad.csv", labels=("label",), **data)
    with pytest.raises(UserError) as caught:
        from vit_jax.runs.check import check_run

        open_dataset(check_run(run))
    assert said in str(caught.value)


def test_a_class_that_a_held_out_part_lacks_is_said_and_left_out_of_its_averages(copies):
    lines = ["image,label,g", *(f"{i}.png,{'abc'[i // 4 % 2 + (i >= 76)]},{i // 4}" for i in range(80))]
    (copies / "rare.csv").write_text("\n".join(lines))
    data = open_dataset(a_run(f"csv:{copies}/rare.csv", group="g", validation=0.0))
    assert data.splits["test"].classes.tolist() == [0, 1]
    assert "test has no example of 1 of the 3 classes (c); its macro averages are over the others" in data.remarks
