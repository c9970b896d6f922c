"""Texts that are corrupted for pretraining: as T5 counts, nothing lost, each step as its seed says, refusals."""

import gzip
from dataclasses import replace

import numpy as np
import pytest

from tests.test_tokenizer_classes import spiece, write
from vit_jax.data.order import TokenOrder
from vit_jax.data.texts.config import SentenceData
from vit_jax.data.texts.open import open_sentences
from vit_jax.errors import UserError
from vit_jax.extras.denoise import Corruption, segments

SENTINELS = 31_999 - np.arange(100)  # as published T5 has them: the first is the last id
LINES = [f"the small dog number {i} sees {i * 7} cats {'and runs ' * (i % 9)}" for i in range(60)]


def restored(source, target, sentinels=SENTINELS):
    """The text that a pair was made of, by the sentinels alone."""
    spans, out = {}, []
    for i in target:
        if i in sentinels:
            spans[last := i] = []
        else:
            spans[last].append(i)
    for i in source:
        out += spans[i] if i in sentinels else [i]
    return out


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("mean", [1, 3, 32])
def test_a_text_is_what_source_and_target_say_together_and_has_the_counts_of_t5(rate, mean):
    corruption = Corruption(rate, mean, SENTINELS, 3)
    for number, length in enumerate((2, 3, 7, 40, 100)):
        text = np.arange(length) + 5
        source, target = corruption.pair(text, 1, number)
        assert restored(source, target) == text.tolist()
        noise = min(max(round(length * rate), 1), length - 1)
        spans = min(max(round(noise / mean), 1), length - noise)
        assert [i for i in source if i in SENTINELS] == SENTINELS[:spans].tolist(), (
            "one for each span, <extra_id_0> first"
        )
        assert [i for i in target if i in SENTINELS] == SENTINELS[: spans + 1].tolist(), "and a last one"
        assert len(target) == noise + spans + 1 and (len(source), len(target)) == corruption.sizes(length)


def test_568_tokens_give_512_and_114_as_in_t5():
    corruption = Corruption(0.15, 3, SENTINELS, 0)
    assert corruption.longest(512, ends=1) == 568
    source, target = corruption.pair(np.arange(568), 0, 0)
    assert (len(source) + 1, len(target)) == (512, 114)


def test_lengths_of_spans_are_every_partition_equally_often():
    drawn = [tuple(segments(6, 3, 99, i).tolist()) for i in range(4000)]
    kinds = {each: drawn.count(each) for each in {*drawn}}
    assert len(kinds) == 10 and all(sum(each) == 6 and min(each) > 0 for each in kinds)
    assert all(abs(count - 400) < 100 for count in kinds.values()), "each with 1/10, five deviations"


def folder(tmp_path, **config):
    path = tmp_path / "tokenizer"
    path.mkdir(exist_ok=True)
    return write(path, spiece(), "t5", config)


def opened(tmp_path, lines=LINES, seed=0, **changes):
    (tmp_path / "lines.txt").write_text("\n\n".join(lines), encoding="utf-8")
    base = SentenceData(source=f"texts:{tmp_path}/lines.txt", tokenizer=folder(tmp_path), tokens=640, lengths=(80, 160))
    base = replace(base, **{"corrupt": "spans", "validation": 0.1, "test": 0.0, **changes})
    return open_sentences(base, one_vocabulary=True, seed=seed)


def test_batches_are_a_function_of_seed_step_and_text_and_differ_between_epochs(tmp_path):
    pytest.importorskip("sentencepiece")
    pytest.importorskip("sacrebleu")
    data = opened(tmp_path)
    train, order = data.splits["train"], data.order(8, 0)
    assert isinstance(order.order, TokenOrder) and len(train) == 54
    epoch = order.steps_per_epoch
    seen = {step: train.batch(order.indices(step)) for step in (3, 3 + epoch)}
    sentinels = [data.source.number(f"<extra_id_{i}>") for i in range(100)]
    by_text = {}
    for step in range(2 * epoch):
        batch, numbers = train.batch(order.indices(step)), order.indices(step)
        for number, source, target in zip(numbers, batch["source"], batch["target"], strict=False):
            ids = source[source != 0].tolist()
            assert ids.pop() == 1 and 1 not in target, "sources have an end, that of targets is the loss's"
            by_text.setdefault(number % len(train), []).append((ids, target[target != 0].tolist()))
    texts = [data.target.encode(line).tolist() for line in LINES]
    for pairs in by_text.values():
        one, other = (restored(*pair, sentinels) for pair in pairs)
        assert one == other and one in texts
    assert sum(pairs[0] != pairs[1] for pairs in by_text.values()) > 40
    again = opened(tmp_path)
    for step, batch in seen.items():
        theirs = again.splits["train"].batch(again.order(8, 0).indices(step))
        assert all((batch[name] == theirs[name]).all() for name in batch)
    for split in data.splits.values():  # a corpus may be larger than memory
        assert isinstance(split.flat.ids, np.memmap)
    other = opened(tmp_path, seed=1)
    assert any((other.splits["train"].source != train.source).ravel()[:100])
    assert (again.splits["validation"].source == data.splits["validation"].source).all()


def test_long_texts_are_cut_into_several_and_a_folder_is_read_by_its_lines(tmp_path):
    (tmp_path / "corpus").mkdir()
    words = " ".join(["dog"] * 400)
    (tmp_path / "corpus" / "b.txt").write_text(f"{LINES[0]}\r\n \n{words}\n", encoding="utf-8")
    (tmp_path / "corpus" / "a.txt.gz").write_bytes(gzip.compress("\n".join(LINES).encode()))
    (tmp_path / "corpus" / "other.md").write_text("not a text")
    data = opened(tmp_path, source=f"texts:{tmp_path}/corpus", validation=0.0)
    train, tokens = data.splits["train"], len(data.target.encode(words))
    assert len(train) > 62 and train.longest.max() <= 160
    every = [train.flat.ids[s : s + n].tolist() for s, n in zip(train.flat.starts, train.flat.lengths, strict=True)]
    assert every[60] == data.target.encode(LINES[0]).tolist() and sum(map(len, every[61:])) == tokens, (
        "nothing of it is left out"
    )


def test_a_vocabulary_with_too_few_sentinels_or_a_corpus_without_texts_is_refused(tmp_path):
    for count, says in (
        (0, "has no sentinels .<extra_id_0>.+ need"),
        (3, "has 3 sentinels, <extra_id_0> and so on, and"),
    ):
        with pytest.raises(UserError, match=says):
            opened(tmp_path, tokenizer=folder(tmp_path, extra_ids=count, tokenizer_class="T5Tokenizer"))
    with pytest.raises(UserError, match=r"texts:.*lines\.txt: holds no texts; put some there, one in a line"):
        opened(tmp_path, [" "])
    with pytest.raises(UserError, match=r"data\.lengths is 2, in which no text of two tokens has room: give greater"):
        opened(tmp_path, lengths=(2,), tokens=40)
