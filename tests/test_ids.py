"""Ids: those outside a table, and the one that stands for words outside a vocabulary."""

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models.build import definition
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.presets.table import preset
from vit_jax.tasks.computed import task_of
from vit_jax.tasks.predictor import Trained
from vit_jax.tasks.translate.learn import Translate
from vit_jax.text.vocabulary import Vocabulary, closed_vocabulary
from vit_jax.training.engine.evaluator import Evaluator, check_ids

SMALL = TransformerConfig(
    width=8, heads=2, hidden=8, encoder_depth=1, decoder_depth=1, source_vocabulary=9, target_vocabulary=7, outputs=7
)


SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]
OPEN, CLOSED = Vocabulary([*SPECIALS, "a", "b", "c"]), closed_vocabulary(["a"])
UNKNOWN = OPEN.ids.unknown


class Pairs:
    """A split of two sentences, by hand."""

    def __init__(self, target):
        self.target, self.references = np.array(target, np.int32), ()


def test_a_word_outside_the_vocabulary_is_never_translated_exactly():
    """`<unk>` for `<unk>` is no translation: of three sentences predicted as written, the two without it are right."""
    target = [[4, 5, 0], [4, UNKNOWN, 0], [6, 0, 0]]
    said = np.array([[4, 5, 0, 0], [4, UNKNOWN, 0, 0], [6, 0, 0, 0]], np.int32)
    out = {"predicted": said, "tokens": np.array([3, 3, 2]), "right": np.array([3, 3, 2]), "loss": np.zeros(3)}
    assert Translate(0.0, 4, OPEN, OPEN).score(SMALL, Pairs(target), out).metrics["exact_match"] == pytest.approx(2 / 3)
    assert (
        Translate(0.0, 4, CLOSED, CLOSED).score(SMALL, Pairs(target), out).metrics["exact_match"] == 1.0
    )  # a closed vocabulary has a word there


def test_whether_id_3_is_a_word_follows_from_the_runs_vocabulary():
    run = preset("numbers").run
    for entries, unknown in (([*SPECIALS, "a"], 3), ([*SPECIALS[:3], "ein", "a"], None)):
        its = task_of(run, {"vocabulary": {"source": [*SPECIALS[:3], "one"], "target": entries}})
        assert isinstance(its, Translate) and its.target.ids.unknown == unknown


@pytest.mark.parametrize(("side", "ids"), [("source", [[4, 9]]), ("source", [[-1, 4]]), ("target", [[7, 4]])])
def test_evaluation_refuses_ids_that_the_network_has_no_row_for(side, ids):
    batch = {"source": np.array([[4, 8]], np.int32), "target": np.array([[6, 5]], np.int32)}
    check_ids(SMALL, batch)
    evaluator = Evaluator(SMALL, definition(SMALL), Translate(0.0, 4, CLOSED, CLOSED))
    with pytest.raises(UserError, match=f"{side} has ids from .* but the network knows {9 if side == 'source' else 7}"):
        evaluator.outputs({}, {**batch, side: np.array(ids, np.int32)})


def test_prediction_refuses_a_vocabulary_that_is_larger_than_the_network():
    from flax import nnx

    from vit_jax.models.transformer import Transformer

    run = preset("numbers").run
    words = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(4, 12))]
    kept = {"vocabulary": {"source": words, "target": words[:7]}}
    task, network = task_of(run, kept), Transformer(SMALL, rngs=nnx.Rngs(0))
    ready = task.predictor(network, task, Trained(run, kept, 0))
    assert ready.inputs(["w8"])[0, 0] == 8
    with pytest.raises(UserError, match="the text 'w4 w9' has the id 9, but the network has only 9 ids"):
        ready.inputs(["w4 w9"])
