"""The task translate: its loss by hand and against torch's, however a batch is cut; resumed runs; the commands."""

import csv
import functools
import io
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import vit_jax
from tests.test_processes import python
from vit_jax.commands import evaluate, predict, share
from vit_jax.config.run import LossConfig, OptimConfig, RunConfig
from vit_jax.config.trees import flatten
from vit_jax.data.texts.config import SentenceData
from vit_jax.errors import UserError
from vit_jax.models.build import definition, start
from vit_jax.models.state import merge
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.tasks.base import Evaluation
from vit_jax.tasks.can import Counts
from vit_jax.tasks.generated import answer, said_exactly
from vit_jax.tasks.next_token import token_losses
from vit_jax.tasks.translate.learn import Translate
from vit_jax.text.tokenizer import Ids
from vit_jax.text.vocabulary import closed_vocabulary, count_words
from vit_jax.training.engine.optim import Optimizer, learning_rate
from vit_jax.training.job import make_engine, open_data, open_job, plan
from vit_jax.training.train import train

pytestmark = pytest.mark.usefixtures("quick_compilation")
V = 65
WORDS = closed_vocabulary(f"w{i}" for i in range(V - 3))
TINY = RunConfig(
    task="translate",
    model=TransformerConfig(
        width=8,
        heads=2,
        hidden=8,
        encoder_depth=1,
        decoder_depth=1,
        tie="all",
        embedding_std=0.5,
        dropout=0.1,
        embedding_dropout=0.1,
    ),
    data=SentenceData(source="numbers", tokens=16 * 250, lengths=(16,)),
    optim=OptimConfig(name="adam", lr=1e-2, schedule="inverse_sqrt", warmup=0.5),
    loss=LossConfig(label_smoothing=0.1),
    epochs=2,
    batch=500,
    accumulate=2,
    ema=0.8,
    log_every=4,
)
STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """What `numbers` is read and encoded to, once for all runs of this file; TINY has the first pairs of each split."""
    task = sys.modules[Translate.__module__]
    opened, open_sentences = {}, task.open_sentences

    def once(*given, **fields):
        key = repr((given, fields))
        if key not in opened:
            texts = opened[key] = open_sentences(*given, **fields)
            if texts.splits["train"].tokens == TINY.data.tokens:
                few = {name: split.subset(np.arange(min(1500, len(split)))) for name, split in texts.splits.items()}
                opened[key] = replace(texts, splits=few)
        return opened[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "open_sentences", once)
        yield


@pytest.fixture
def stdin(monkeypatch):
    """`stdin(content)`: what a command finds there."""
    return lambda content: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


# -------------------------------------------------------------------------------------------- loss

SOURCE = np.array([[3, 4, 5], [6, 0, 0], [0, 0, 0]], np.int32)
TARGET = np.array([[7, 8], [9, 0], [0, 0]], np.int32)


C = replace(TINY.model, source_vocabulary=V, target_vocabulary=V, outputs=V, dropout=0.0, embedding_dropout=0.0)


def network():
    return merge(definition(C), start(C, jax.random.key(0)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_torchs_over_real_tokens(smoothing):
    torch = pytest.importorskip("torch")
    its, model, batch = Translate(smoothing, 4, WORDS, WORDS), network(), {"source": SOURCE, "target": TARGET}
    loss, metrics = its.loss(model, batch, None, its.able(Counts).denominator(batch))
    read = [[1, 7, 8], [1, 9, 0]]
    logits = np.array(model(jnp.asarray(SOURCE[:2]), jnp.asarray(read), source_padding=jnp.asarray(SOURCE[:2] != 0)))
    labels = torch.tensor([[7, 8, 2], [9, 2, 0]])
    expected = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=0)(
        torch.tensor(logits).reshape(-1, V), labels.reshape(-1)
    )
    assert float(its.able(Counts).denominator(batch)) == 5
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    right = (logits.argmax(-1) == labels.numpy()) & (labels.numpy() != 0)
    assert float(metrics["accuracy"]) == pytest.approx(right.sum() / 5)


def test_ids_mean_nothing_but_what_the_tokenizer_says():
    """With Marian's ids (the end is 0, the last both pads and begins), renamed in the tables, nothing else changes."""
    rows = np.array([V - 2, V - 1, 0, *range(1, V - 2)])  # where the rows of our ids go
    names = np.where(np.arange(V) == WORDS.ids.pad, V - 1, rows)
    tree = start(C, jax.random.key(3))
    order = np.argsort(rows)
    moved = jax.tree.map(lambda x: x[order] if x.shape[:1] == (V,) else x, tree)
    marian = SimpleNamespace(ids=Ids(pad=V - 1, begin=V - 1, end=0, banned=(V - 2, V - 1)))
    said = []
    for task, parameters, name in (
        (Translate(0.1, 4, WORDS, WORDS), tree, np.arange(V)),
        (Translate(0.1, 4, marian, marian), moved, names),
    ):
        model, batch = merge(definition(C), parameters), {"source": name[SOURCE], "target": name[TARGET]}
        loss, metrics = task.loss(model, batch, None, task.able(Counts).denominator(batch))
        out = task.outputs(model, {k: v[:2] for k, v in batch.items()})
        said.append((float(loss), float(metrics["accuracy"]), np.asarray(out["predicted"]), out["tokens"].tolist()))
    (loss, right, words, tokens), (its_loss, its_right, its_words, its_tokens) = said
    assert its_loss == pytest.approx(loss, rel=1e-6) and (its_right, its_tokens) == (right, tokens)
    assert np.array_equal(its_words, names[words]) and len({*words.ravel()}) > 2


@pytest.mark.parametrize("zero", [True, False], ids=["marian", "t5"])
def test_the_row_of_padding_stays_where_it_is_zero_and_a_target_begins_with_it(zero):
    """No gradient reaches that of Marian, here and in torch_ref; all others are as they were, as that of T5 is."""
    torch = pytest.importorskip("torch")
    import torch_ref
    from torch_ref.tasks import Translate as Twin

    tree, ids = start(C, jax.random.key(4)), Ids(pad=V - 1, begin=V - 1, end=0)
    if zero:
        tree["target"]["embedding"] = tree["target"]["embedding"].at[V - 1].set(0.0)
    batch = {"source": np.where(SOURCE, SOURCE, V - 1), "target": np.where(TARGET, TARGET, V - 1)}
    slopes = {}
    for name, its in (("padding", ids), ("other", replace(ids, begin=V - 2))):
        task = Translate(0.1, 4, SimpleNamespace(ids=its), SimpleNamespace(ids=its))

        def loss(tree, task=task):
            return task.loss(merge(definition(C), tree), batch, None, task.able(Counts).denominator(batch))[0]

        slopes[name] = flatten(jax.jit(jax.grad(loss))(tree))
    table = np.asarray(slopes["padding"]["target.embedding"])
    assert table[V - 1].any() == (not zero)
    assert np.abs(table[:-1]).max(1).min() > 0 < np.abs(slopes["other"]["target.embedding"][-1]).max()
    twin = Twin.__new__(Twin)
    twin.run, twin.ids, twin.source_pad, twin.hook = replace(TINY, model=C), ids, V - 1, None
    model = torch_ref.load(torch_ref.build(C), {name: np.asarray(x) for name, x in flatten(tree).items()})
    for _ in range(2):  # a second pass has the same hook
        model.zero_grad()
        twin.loss(model, {name: torch.from_numpy(x) for name, x in batch.items()}, torch.float32).backward()
        np.testing.assert_allclose(table, model.table.weight.grad.numpy(), atol=1e-6)


def test_scores_counted_by_hand():
    its, split = Translate(0.0, 3, WORDS, WORDS), type("Two", (), {"target": TARGET[:2]})()
    out = {"loss": np.array([3.0, 1.0]), "tokens": np.array([3, 2]), "right": np.array([2, 2])}
    half = its.score(TINY.model, split, out | {"predicted": np.array([[7, 8, 0], [9, 9, 0]])})
    assert isinstance(half, Evaluation) and half.metrics == {"loss": 0.8, "accuracy": 0.8, "exact_match": 0.5}
    for wrong in ([7, 8, 8], [7, 0, 0], [8, 7, 0]):  # one word too many, one too few, another order
        assert (
            its.score(TINY.model, split, out | {"predicted": np.array([wrong, [9, 0, 0]])}).metrics["exact_match"]
            == 0.5
        )


def test_an_answer_is_one_line_whatever_it_says():
    assert answer("a\u2028b", "c\nd\te").line == "a\\u2028b: c\\nd\\te"
    assert answer("a", [("b\n", 0.5), ("\x85", 0.25)]).line.split("\n") == ["a: b\\n (0.5000)", "a: \\x85 (0.2500)"]


def test_what_a_vocabulary_cannot_say_is_never_right():
    """An unknown word, a mark apart from its letter, the end of a sentence that was cut."""
    texts = ["a dog.", "A dog .", "a cat.", "नमस्ते", "a a a"]
    for words, right in ((count_words(texts * 2), [1, 1, 1, 1, 0]), (count_words(texts, apart=True), [1, 1, 0, 0, 0])):
        truth = np.zeros((5, 4), np.int32)
        for row, text in zip(truth, texts, strict=True):
            ids = words.encode(text)[: 2 if text == "a a a" else 4]
            row[: len(ids)] = ids
        found = said_exactly(words, np.pad(truth, ((0, 0), (0, 1))), truth, texts)
        assert found.astype(int).tolist() == right
    assert not said_exactly(words, np.array([[3, 0]]), np.array([[3]]), ()).any(), "<unk> is no word"


def one_step(**how):
    """{name: value} of a step with dropout on rows of very different length, the last ones of padding alone."""
    model = replace(C, source_vocabulary=9, target_vocabulary=9, outputs=9, dropout=0.3)
    run = replace(TINY, model=model, optim=OptimConfig(name="sgd", lr=1.0), **{"accumulate": 1, **how})
    lengths = np.array([[3], [3], [3], [1], [1], [1], [0], [0]])  # means of means would show
    source = np.where(np.arange(4) < lengths, np.arange(32).reshape(8, 4) % 6 + 3, 0).astype(np.int32)
    task = Translate(0.0, 4, closed_vocabulary([]), closed_vocabulary([]))
    optimizer = Optimizer(run.optim, 10, 10, model.parameters())
    engine = make_engine(run, functools.partial(definition, model), task, optimizer)
    state = engine.start(start(model, jax.random.key(0)))
    state, metrics = engine.train(state, {"source": source, "target": source[:, :3]})
    return flatten(engine.gather(state).parameters) | {k: metrics[k] for k in ("loss", "accuracy", "grad_norm")}


def assert_cut_alike():
    """A mean over the real tokens of the whole batch."""
    whole, cut = one_step(), one_step(parallel="pmap", accumulate=2)
    assert len(whole) > 20
    for name, x in whole.items():
        assert np.abs(np.asarray(cut[name]) - np.asarray(x)).max() < 2e-6, name


def test_however_a_batch_is_cut_the_step_is_the_same():
    assert_cut_alike()


@pytest.mark.slow
def test_two_devices_take_the_step_of_one():
    program = "import jax; from tests import test_translate as cut; assert jax.device_count() == 2"
    two = "--xla_force_host_platform_device_count=2"
    done = python(f"{program}; cut.assert_cut_alike()", XLA_FLAGS=two, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    assert done.returncode == 0, done.stderr


# -------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """TINY, trained."""
    folder = Run(tmp_path_factory.mktemp("trained") / "run")
    train(TINY, preset="numbers", folder=folder)
    return folder


def test_what_a_run_leaves(trained):
    folder = trained
    summary = folder.summary()
    assert summary["status"] == "finished" and summary["best"].keys() == {"step", "exact_match", "loss", "weights"}
    assert summary["test"].keys() == summary["longer"].keys() == {"last", "last_ema", "best"}
    assert summary["test"]["last"].keys() == {"loss", "accuracy", "exact_match"}
    rows = [row for row in folder.metrics() if row["kind"] == "train"]
    train, steps = Translate.open_data(TINY).splits["train"], TINY.epochs * 6
    real = (train.source != 0).sum() + (train.target != 0).sum()
    assert [row["step"] for row in rows[-1:]] == [steps] and all(row["tokens_per_second"] > 0 for row in rows)
    # An epoch has rows after 4, 6, 8 and 12 steps, of 250 places of 16 + 15 ids each.
    counts = np.diff([0, *(row["step"] for row in rows)])
    padding = sum(row["padding"] * count for row, count in zip(rows, counts, strict=True)) / counts.sum()
    assert padding == pytest.approx(1 - TINY.epochs * real / (steps * 250 * 31), rel=1e-9)
    assert summary["padding"] == pytest.approx(np.mean([row["padding"] for row in rows]))
    assert summary["tokens_per_second"] == np.median([row["tokens_per_second"] for row in rows])
    losses = [row["loss"] for row in rows]
    assert losses[-1] < losses[0], "it learns"
    assert sorted(p.name for p in folder.plots.iterdir()) == [
        *("attention.json", "cross-attention.png", "curves.png", "explained.png", "explanations.json"),
        *("texts.json", "worst.txt"),
    ]
    with open(folder.samples / "sentences.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    data = Translate.open_data(TINY)
    assert rows[0] == ["source", "truth", "translation"]
    assert [row[:2] for row in rows[1:]] == [
        [
            v.decode(ids[i])
            for v, ids in ((data.source, data.splits["test"].source), (data.target, data.splits["test"].target))
        ]
        for i in range(4)
    ]


def test_the_evaluate_door_says_what_training_said(trained, tmp_path, capsys):
    """And so do its shares, whose batches are those of sentences of like length."""
    folder = trained
    for split, weights, ema, known in (("test", "last", [], "last_ema"), ("longer", "last", ["--no-ema"], "last")):
        job = [str(folder.path), "--split", split, "--batch", "20", "--weights", weights, *ema]
        assert evaluate.command(job) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.endswith(f"at step {STEPS}, {split}: {len(Translate.open_data(TINY).splits[split]):,} examples")
        values = {name: float(value) for name, value in map(str.split, lines)}
        assert values == pytest.approx(folder.summary()[split][known], abs=6e-5)
    files, joined = [str(tmp_path / f"{i}.npz") for i in (1, 2)], str(tmp_path / "joined.npz")
    for i, file in enumerate(files, 1):
        assert evaluate.command([*job, "--share", f"{i}/2", "--outputs", file]) == 0
    assert share.command([*files, "--to", joined]) == 0
    assert evaluate.command([*job, "--joined", joined]) == 0
    assert capsys.readouterr().out.splitlines()[-len(lines) :] == lines


def test_a_report_has_metrics_hypotheses_and_the_worst_sentences(trained, capsys, tmp_path):
    folder = trained
    assert evaluate.command([str(folder.path), "--report", str(tmp_path / "r")]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = json.loads((tmp_path / "r/metrics.json").read_text())
    assert told["metrics"] == pytest.approx(folder.summary()["test"]["best"], abs=1e-5)
    with open(tmp_path / "r/predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = [row for row in rows if row["predicted"] != row["true"]]
    assert len(rows) == told["examples"] and len(wrong) > 3
    assert lines[-2] == f"  {len(wrong):,} of {len(rows):,} are not as in the data; worst.txt has the worst"
    assert lines[-1] == f"  {tmp_path / 'r'} has metrics.json, predictions.csv, texts.json, worst.txt"
    _, *worst = (tmp_path / "r/worst.txt").read_text(encoding="utf-8").split("\n\n")
    listed = [tuple(line[13:] for line in each.splitlines()[1:]) for each in worst]
    assert len(listed) == min(len(wrong), 50)
    assert {*listed} <= {(row["source"], row["true"], row["predicted"]) for row in wrong}
    scores = [float(each.splitlines()[0].split()[-1]) for each in worst]
    assert scores == sorted(scores)
    assert (folder.plots / "worst.txt").read_text(encoding="utf-8").startswith("The 50 worst translations")
    with pytest.raises(UserError, match=r"report \S+: holds files already; add `force"):
        evaluate.command([str(folder.path), "--report", str(tmp_path / "r")])


# --------------------------------------------------------------------------------------- translator


def test_the_translator_and_its_door(trained, capsys, stdin, tmp_path):
    folder = trained
    translator = vit_jax.load(str(folder.path))
    texts = ["twenty one", "Seven hundred", "ninety nine thousand nine hundred ninety nine"]
    expected = translator.translate(texts)
    assert [translator.translate([text])[0] for text in texts] == expected, "a batch of one is a batch of three"
    stdin(f"{texts[1]}\r\n{texts[2]}\n".encode())
    out = tmp_path / "out.csv"
    assert (
        predict.command([str(folder.path), texts[0], "-", "--csv", str(out), "--attention", str(tmp_path / "maps.png")])
        == 0
    )
    assert capsys.readouterr().out.splitlines() == expected
    with out.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["source", "translation"],
            *([a, b] for a, b in zip(texts, expected, strict=True)),
        ]
    assert (tmp_path / "maps.png").stat().st_size > 1000
    assert list(vit_jax.predict(str(folder.path), texts)) == list(zip(texts, expected, strict=True))
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    assert predict.command([str(folder.path), str(tmp_path / "texts.txt")]) == 0
    assert capsys.readouterr().out.splitlines() == expected


def test_a_pipe_has_a_line_for_each_line_blank_for_blank(trained, capsys, stdin, tmp_path):
    """80 lines, every seventh blank, with LF and CRLF ends and none at the last; likewise of a file, and ranked."""
    path, out = str(trained.path), tmp_path / "out.csv"
    words = ["one", "two hundred", "seventy three thousand four"]
    texts = ["  " if i % 7 == 3 else words[i % 3] for i in range(80)]
    content = "".join(text + ("\r\n" if i % 2 else "\n") for i, text in enumerate(texts)).rstrip("\r\n").encode()
    known = dict(vit_jax.predict(path, words, beam=2, nbest=2)) | {"  ": [("", None)] * 2}
    (tmp_path / "texts.txt").write_bytes(content)

    def lines(*arguments):
        stdin(content)
        assert predict.command([path, "--beam", "2", *arguments]) == 0
        return capsys.readouterr().out.removesuffix("\n").split("\n")

    best = [known[text][0][0] for text in texts]
    assert lines("-", "--batch", "30") == lines(str(tmp_path / "texts.txt")) == best
    assert lines("--nbest", "2") == [said for text in texts for said, _ in known[text]]
    for text, line in zip(texts, lines("--nbest", "2", "--json", "--csv", str(out)), strict=True):
        ranked = known[text] if text.strip() else []
        said = [{"translation": said, "score": pytest.approx(score, abs=1e-5)} for said, score in ranked]
        assert json.loads(line) == {"input": text, "answers": said}
    rows = list(csv.reader(out.open(encoding="utf-8", newline="")))[1:]
    assert [row[0] for row in rows] == [text for text in texts for _ in range(2 if text.strip() else 1)]


def test_sentences_that_cannot_be_read_are_named_by_file_and_line(trained, stdin, tmp_path):
    path, file = str(trained.path), tmp_path / "texts.txt"
    for content, message in (
        (b"one\n\xff\n", r"line 2: is no UTF-8 \(it has the byte 0xff\)"),
        (b"\n\r\n" + b"one " * (2**18 + 1), r"line 3: has more than 1,048,576 bytes; break it"),
    ):
        file.write_bytes(content)
        stdin(content)
        for text, where in ((str(file), "texts.txt "), ("-", "^stdin ")):
            with pytest.raises(UserError, match=where + message):
                predict.command([path, text])


def test_the_doors_search_as_they_are_told(trained, capsys, terminal, tmp_path):
    """The best of a beam, ranked by scores that the network, reading a translation at once, gives it."""
    path, texts, out = str(trained.path), ["twenty one", "seven"], tmp_path / "out.csv"
    assert predict.command([path, *texts, "--beam", "3", "--nbest", "2", "--csv", str(out)]) == 0
    (text, ranked), _ = vit_jax.predict(path, texts, beam=3, nbest=2)
    net = vit_jax.load(path)
    assert net.predict(texts, beam=3, nbest=2)[0] == net.translate(texts[0], beam=3, nbest=2) == ranked
    assert net.predict(texts[0], beam=3) == ranked[0][0] and net.task.decoding.beam == 1, "settings are of one call"
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{text}: {said} ({score:.4f})" for said, score in ranked] and len(lines) == 4
    rows = list(csv.reader(out.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["source", "rank", "translation", "score"] and [row[1] for row in rows[1:]] == ["1", "2"] * 2
    assert [row[:3] for row in rows[1:3]] == [[text, str(i), said] for i, (said, _) in enumerate(ranked, 1)]

    ids, source = net.target.ids, net.inputs([text])
    for said, score in ranked:
        tokens = np.array([*net.target.encode(said), ids.end] if said else [ids.end])[: net.task.length]
        read = np.array([[ids.begin, *tokens[:-1]]])
        logits = net.model(source, read, source_padding=source != net.source.ids.pad)[0]
        gains = jax.nn.log_softmax(logits)[np.arange(len(tokens)), tokens]
        assert score == pytest.approx(float(gains.mean()), abs=1e-4)
    assert ranked[0][1] >= ranked[1][1] and ranked[0][0] != ranked[1][0]

    draws = [net.predict(texts, sample=True, nbest=2, seed=seed) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    _, measured = vit_jax.evaluate(path, "longer", beam=3)
    asked = [net.source.decode(row) for row in Translate.open_data(TINY).splits["longer"].source[:2]]
    found = [net.target.decode(row) for row in measured.predicted[:2]]
    assert found == [said[0][0] for said in net.predict(asked, beam=3, nbest=2)]


def test_shares_of_a_search_are_joined_and_those_of_another_refused(trained, tmp_path):
    path, out, joined = str(trained.path), tmp_path / "out.csv", str(tmp_path / "joined.csv")
    lines = ["", "twenty one", "seven", "", "one", "", "two", "three", "", "\n"]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    job = [path, str(tmp_path / "texts.txt"), "--batch", "3"]
    search = ["--sample", "--nbest", "2", "--seed", "3"]
    files = [str(tmp_path / f"{i}.csv") for i in (1, 2)]
    for i, file in enumerate(files, 1):
        assert predict.command([*job, *search, "--share", f"{i}/2", "--csv", file]) == 0
    assert predict.command([*job, *search, "--csv", str(out)]) == 0
    assert share.command([*files, "--to", joined]) == 0
    assert (tmp_path / "joined.csv").read_bytes() == out.read_bytes(), "blank lines are in no batch"
    assert predict.command([*job, "--beam", "2", "--share", "1/2", "--csv", str(tmp_path / "other.csv")]) == 0
    with pytest.raises(UserError, match=r"other\.csv: is of search .*, but .*1\.csv of search "):
        share.command([files[0], str(tmp_path / "other.csv"), "--to", joined, "--force"])


def test_a_file_of_its_weights_is_refused_in_one_sentence_whatever_it_is_given(trained, tmp_path):
    """It carries the words, but not how long a text may be: a run says that."""
    folder = trained
    vit_jax.export(str(folder.path), tmp_path / "weights.safetensors")
    (tmp_path / "a.png").write_bytes(b"")
    for given in ("twenty one", str(tmp_path / "a.png")):
        with pytest.raises(
            UserError,
            match="holds a Transformer without its vocabulary; give a run that was trained here, or put",
        ):
            list(vit_jax.predict(str(tmp_path / "weights.safetensors"), [given]))
    assert vit_jax.load(tmp_path / "weights.safetensors").lacks == ("vocabulary",)


def test_one_text_gets_one_answer_and_the_inside_is_that_of_its_translation(trained):
    folder = trained
    net = vit_jax.load(str(folder.path))
    text = "twenty one"
    says, ids = net.predict(text), net.inputs(text)
    assert vit_jax.predict(folder.path, text) == says and vit_jax.predict(folder.path, [text]) == [(text, says)]
    assert [says] == net.predict([text]) == net.translate((text,)) and (net.inputs([text]) == ids[None]).all()
    names = ["memory", "decoder.cross_attention", "logits"]
    one, several = net.capture(text, names), net.capture([text], names)
    assert list(one) == names and all(np.array_equal(one[name][None], several[name]) for name in names)
    chosen = one["logits"][: len(says.split())].argmax(-1)
    assert net.target.decode(chosen) == says, "the words that it chose one by one are those of one pass"
    line = repr(net)
    assert len(line.splitlines()) == 1 and len(line) < 200 and "parameters" in line and "source" in line


REFUSED = [  # a command, what it is given, what it says
    (evaluate, "--flip", r"^flip: is for images, and \S+ is of the task translate"),
    (evaluate, "--probe knn", "^probe knn: is for images with classes"),
    (evaluate, "--nbest 5", "there is no field --nbest"),
    (predict, "one --features x.npz --blocks all", "^features: this network translates sentences"),
    (predict, "./", r"^\./: is a folder; give a sentence"),
    (predict, "one texts.tsv", r"^texts\.tsv: there is no such file"),
    (predict, "one --top 5", "give `beam 5` and `nbest 5`$"),
    (predict, "one --seed 5", "nothing is drawn: set sample"),
    (predict, "one --attention a.jpg", "--attention a.jpg: the figure is a PNG"),
    (predict, "one --beam x", "--beam x: give a whole number"),
    (predict, "one --max-length 99", "max_length is 99, .* at most 16 .*: lower it"),
]


@pytest.mark.parametrize(("door", "words", "says"), REFUSED)
def test_what_a_translating_network_does_not_take_is_refused(trained, door, words, says, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says) as caught:
        door.command([str(trained.path), *words.split()])
    assert len(str(caught.value).splitlines()) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "how", "says"),
    [
        (["one", ""], {}, "the text '' has no words"),
        (["one " * 17], {}, "has 17 words, more than the 16 that this run was trained for"),
        ("twenty tree", {}, "the word 'tree'"),
        (None, {}, "NoneType is no text"),
        ("one", {"beams": 4}, "beams: there is no such setting of a search; here it is beam"),
        ("one", {"batch": 0}, "batch is 0: give a positive number"),
        ("one", {"banned": [5]}, r"banned is \[5\]: give lists of ids, as \[\[5\], \[6, 7\]\]"),
    ],
)
def test_calls_that_are_refused(trained, given, how, says):
    with pytest.raises(UserError, match=says):
        vit_jax.load(trained.path).predict(given, **how)


def test_banned_ids_are_not_said(trained):
    said, net = vit_jax.predict(trained.path, "one"), vit_jax.load(trained.path)
    banned = [[i] for i in net.target.encode(said).tolist()]
    assert not {*said.split()} & {*net.predict("one", banned=banned).split()}


def test_the_door_refuses_before_it_translates(trained, inside, stdin):
    done = inside("predict", trained.path, "one", "elephant")
    assert done.returncode == 2 and not done.stdout
    assert "'elephant'" in done.stderr and len(done.stderr.splitlines()) == 1
    stdin(b"one\n\n" + b"one " * 17)
    done = inside("predict", trained.path, "--batch", "2")
    assert done.returncode == 2 and done.stdout.count("\n") == 2, "the lines before it have their answers"
    assert "(stdin line 3) has 17 words, more than the 16" in done.stderr


# ------------------------------------------------------------------------------------------ presets


def test_the_notebooks_transformer_has_its_number_of_parameters():
    model = replace(preset("transformer-512x6").run.model, outputs=512)
    assert sum(int(np.prod(shape)) for shape in model.shapes().values()) == 44_327_316


def test_a_batch_that_devices_and_parts_cannot_share_is_refused():
    with pytest.raises(UserError, match=r"data.tokens 4000 .* accumulate 7"):
        run = replace(TINY, accumulate=7, batch=490)
        open_job(run, open_data(run), Run("nowhere"))


def test_overfitting_takes_the_pairs_of_a_few_batches():
    run, order, epochs = plan(replace(TINY, overfit_batches=2), Translate.open_data(TINY))
    assert (order.n, order.steps_per_epoch, epochs) == (500, 2, 50)
    assert (run.model.dropout, run.model.embedding_dropout, run.optim.schedule) == (0.0, 0.0, "constant")


@pytest.mark.slow
def test_numbers_reaches_what_it_promises_and_its_control_falls_to_chance(tmp_path):
    run = preset("numbers").run
    summary = train(run, preset="numbers", folder=Run(tmp_path / "run"))
    assert summary["test"]["last"]["exact_match"] >= 0.995
    control = train(
        replace(run, data=replace(run.data, shuffle_sources=True), epochs=3),
        preset="numbers",
        folder=Run(tmp_path / "control"),
    )
    assert control["test"]["last"]["exact_match"] <= 0.005


def test_warm_up_is_in_steps_where_that_is_asked_for():
    rate = learning_rate(replace(TINY.optim, warmup_steps=4, warmup=9.0), 100, 10)
    assert [float(rate(t)) for t in (0, 1, 3)] == pytest.approx([0.0025, 0.005, 0.01])
    assert float(rate(15)) == pytest.approx(0.01 * (4 / 16) ** 0.5)
    epochs = learning_rate(replace(TINY.optim, warmup=0.4), 100, 10)
    assert [float(rate(t)) for t in range(20)] == [float(epochs(t)) for t in range(20)]


OPTIMIZED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("platform", ["default", "cuda"])
def test_losses_are_those_of_one_hot_targets_and_hold_no_such_array(smoothing, platform, monkeypatch):
    """Values and gradients; and on a CPU the loss of a head holds two arrays as large as the logits, not more."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, **form: form[platform](*x))
    logits = jax.random.normal(jax.random.key(0), (4, 64, 1000)) * 3
    labels = jax.random.randint(jax.random.key(1), (4, 64), 0, 1000)

    def with_targets(logits):
        targets = optax.smooth_labels(jax.nn.one_hot(labels, 1000), smoothing)
        return optax.softmax_cross_entropy(logits, targets).sum()

    ours = jax.jit(jax.value_and_grad(lambda logits: token_losses(logits, labels, smoothing).sum()))
    theirs = jax.jit(jax.value_and_grad(with_targets))
    (loss, slope), (expected, expected_slope) = ours(logits), theirs(logits)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(slope, expected_slope, atol=2e-6)
    if platform == "cuda":
        return
    memory, (x, head) = [], (jnp.ones((4, 64, 8)), jnp.ones((8, 1000)))
    for loss in (lambda logits: token_losses(logits, labels, smoothing).sum(), with_targets):
        step = jax.jit(jax.grad(lambda x, head, loss=loss: loss(x @ head), (0, 1)))
        memory.append(step.lower(x, head).compile(OPTIMIZED).memory_analysis().temp_size_in_bytes)
    assert memory[0] <= 2.01 * logits.nbytes < memory[1]
