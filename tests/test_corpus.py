"""Encoded corpora on disk: the batches of arrays in memory, found again, and made again where they are damaged."""

import threading
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.base import GivenData
from vit_jax.data.batches import batches
from vit_jax.data.order import TEST, VALIDATION, hold_out
from vit_jax.data.texts import corpus
from vit_jax.data.texts import open as open_module
from vit_jax.data.texts.config import SentenceData
from vit_jax.data.texts.open import open_sentences
from vit_jax.data.texts.sentences import gather_sentences
from vit_jax.files.digests import array_digest, parts_digest
from vit_jax.machine import backend

PAIRS = [(" ".join(["a", "dog"] * (i % 4 + 1)) + f" {i % 9}", f"ein {i % 9} Hund " * (i % 3 + 1)) for i in range(90)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The data of 90 pairs in two files, with a cache of its own."""
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in PAIRS), encoding="utf-8")
    monkeypatch.setattr(corpus, "cache_folder", lambda name: tmp_path / "cache" / name)
    source = f"pairs:{tmp_path}/a.en,{tmp_path}/a.de"
    return SentenceData(source=source, tokens=64, lengths=(6, 10, 12), validation=0.1, test=0.1)


def corpora(data: SentenceData) -> list[Path]:
    """The folders in the cache, unfinished ones too."""
    return sorted((Path(data.source.partition(":")[2].partition(",")[0]).parent / "cache" / "corpora").iterdir())


def content(dataset, steps: int = 12) -> list[bytes]:
    """All bytes of the first batches, after the identity."""
    train, order = dataset.splits["train"], dataset.order(1, 3)
    made = batches(train, order, 0, steps)
    return [repr(dataset.identity["content"]).encode()] + [x.tobytes() for b in made for x in b.values()]


def test_batches_from_a_file_are_to_the_bit_those_of_arrays_in_memory(files):
    mapped, memory = open_sentences(files), open_sentences(files, given=GivenData(PAIRS))
    train = mapped.splits["train"]
    assert isinstance(train.flat_source.ids, np.memmap) and not isinstance(
        memory.splits["train"].flat_source.ids, np.memmap
    )
    assert content(mapped) == content(memory) and mapped.metadata() == memory.metadata()
    # Written out: each sentence by the tokenizer, and padding to the right of it.
    for side, ids, tokenizer, room in ((0, train.source, mapped.source, 12), (1, train.target, mapped.target, 11)):
        expected = np.zeros_like(ids)
        assert ids.shape == (len(train), room)
        for row, text in zip(expected, (pair[side] for pair in train_pairs(mapped)), strict=True):
            row[: len(tokenizer.encode(text))] = tokenizer.encode(text)
        assert np.array_equal(ids, expected)
    digests = [array_digest(train.source), array_digest(train.target)]
    assert digests == [train.flat_source.digest(12, 0), train.flat_target.digest(11, 0)]


def train_pairs(dataset):
    """The pairs of train as texts: all that validation and test do not hold, in order."""
    _, held = hold_out(np.zeros(90, np.int64), 0.1, TEST)
    rest = [PAIRS[i] for i in range(90) if i not in {*held.tolist()}]
    _, held = hold_out(np.zeros(len(rest), np.int64), 0.1, VALIDATION, 0)
    assert [pair[1].strip() for pair in (rest[i] for i in held)] == dataset.splits["validation"].references
    return [pair for i, pair in enumerate(rest) if i not in {*held.tolist()}]


def test_a_second_start_encodes_nothing_of_train_and_holds_no_text_of_it(files, monkeypatch):
    first = open_sentences(files)

    class Refusing(open_module.Encoder):
        def __iter__(self):
            assert len(self.pairs) < len(first.splits["train"]), "it is encoded again"
            return super().__iter__()

    monkeypatch.setattr(open_module, "Encoder", Refusing)
    second = open_sentences(files)
    assert content(second) == content(first) and "references" not in vars(second.splits["train"])
    assert second.remarks == first.remarks and second.metadata() == first.metadata()


@pytest.mark.parametrize("name", ["source.ids", "target.lengths", corpus.RECORD])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_corpus_is_made_again(files, name, how):
    before = content(open_sentences(files))
    (folder,) = corpora(files)
    file = folder / name
    good = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        middle = len(good) // 2
        file.write_bytes(good[:middle] + (b"" if how == "cut" else bytes([good[middle] ^ 1]) + good[middle + 1 :]))
    assert corpus.find_corpus(folder) is None
    assert content(open_sentences(files)) == before and file.read_bytes() == good and corpora(files) == [folder]


def test_what_a_killed_process_left_is_not_taken_and_no_name_is_half_written(files, monkeypatch):
    """A build that fails on its way leaves nothing under the corpus's name."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(corpus, "_rename", killed)
        open_sentences(files)
    assert corpora(files) == []
    open_sentences(files)
    (folder,) = corpora(files)
    (left := folder.with_name(f".{folder.name}-killed")).mkdir()
    (left / "source.ids").write_bytes(b"half")
    assert content(open_sentences(files)) and corpus.find_corpus(folder) is not None


def test_several_at_once_make_one_corpus(files):
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(content(open_sentences(files)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(each == found[0] for each in found) and len(corpora(files)) == 1


def test_what_a_trained_tokenizer_has_encoded_is_found_by_the_tokenizer_that_a_run_keeps(files, tmp_path):
    trained = open_sentences(SentenceData(**{**vars(files), "tokenizer": "bpe", "vocabulary": 520, "cut": True}))
    for name, text in trained.metadata()["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text)
    before = corpora(files)
    again = SentenceData(**{**vars(files), "tokenizer": str(tmp_path / "tokenizer"), "cut": True})
    assert content(open_sentences(again)) == content(trained) and corpora(files) == before
    assert [folder.is_symlink() for folder in before].count(False) == 1


def test_other_texts_seeds_lengths_and_sides_are_other_corpora(files, tmp_path):
    open_sentences(files)
    for changed in ({"lengths": (6, 10, 13)}, {"cut": True}, {"validation": 0.2}):
        open_sentences(SentenceData(**{**vars(files), **changed}))
    open_sentences(files, seed=1)
    open_sentences(files, one_vocabulary=True)
    (tmp_path / "a.de").write_text((tmp_path / "a.de").read_text().replace("ein 3", "ein 4"))
    open_sentences(files)
    assert len(corpora(files)) == 7


def test_without_a_cache_that_can_be_written_ids_are_in_memory(files, tmp_path):
    (tmp_path / "cache").write_text("a file, where a folder is needed")
    assert content(open_sentences(files)) == content(open_sentences(files, given=GivenData(PAIRS)))


def test_the_cache_of_corpora_is_beside_that_of_programs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert backend.cache_folder("corpora") == tmp_path / "vit-jax" / "corpora"
    assert backend.cache_folder().parent == backend.cache_folder("corpora").parent


def test_flat_sentences_are_taken_and_padded_as_rows_are():
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, 70_000, n).astype(np.int32) for n in (3, 1, 5, 2)]
    for size, dtype in ((70_000, np.int32), (1 << 16, np.uint16)):
        few = [row % size for row in rows]
        flat = gather_sentences(few, size)
        assert flat.ids.dtype == dtype
        for numbers in ([2], [3, 0, 0], [0, 1, 2, 3]):
            expected = np.full((len(numbers), 6), 7, np.int32)
            for line, i in zip(expected, numbers, strict=True):
                line[: len(few[i])] = few[i]
            assert np.array_equal(flat.padded(np.array(numbers), 6, 7), expected)
            assert np.array_equal(flat.take(np.array(numbers)).padded(np.arange(len(numbers)), 6, 7), expected)
    array = np.arange(12, dtype=np.int64).reshape(4, 3)
    assert parts_digest(array.dtype, array.shape, [array[:1], array[1:]]) == array_digest(array)
