"""The base classes of tasks: what a task has to define, what it need not, and what its trained networks do alike."""

import re
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.errors import UserError
from vit_jax.models.vit_config import ViTConfig
from vit_jax.tasks.base import Task
from vit_jax.tasks.can import MeasuresOthers, Tabulates
from vit_jax.tasks.predictor import Answer, Predictor, Trained
from vit_jax.tasks.spec import TaskSpec


class Counted(Predictor):
    """A network whose answers are the numbers of inputs."""

    def answers(self, inputs, top, first):
        return [Answer(each, first + i, "", [], ()) for i, each in enumerate(inputs)]


MEMBERS = {
    "predictor": Counted,
    "open_data": classmethod(lambda cls, run, given=None, fetch=True: None),
    "from_run": classmethod(lambda cls, run, metadata: cls()),
    "loss": lambda self, model, batch, keys, denominator: (model, {}),
    "outputs": lambda self, model, batch: {},
}
SPEC = {"network": ViTConfig, "data": ImageData, "computes": "tests.test_tasks:Plain"}


class Plain(Task):
    """A task with no more than it has to have."""

    locals().update(MEMBERS)


@pytest.mark.parametrize("lacking", MEMBERS)
def test_a_task_that_lacks_a_member_is_told_its_name_and_what_it_is_for(lacking):
    members = {name: member for name, member in MEMBERS.items() if name != lacking}
    with pytest.raises(TypeError, match=rf"^Mine lacks {lacking}: (a|the) (class|method) .*; define it in the class$"):
        type("Mine", (Task,), members)


@pytest.mark.parametrize("lacking", SPEC)
def test_a_spec_that_lacks_a_member_is_told_its_name_and_what_it_is_for(lacking):
    members = {name: member for name, member in SPEC.items() if name != lacking}
    with pytest.raises(TypeError, match=rf"^Mine lacks {lacking}: .*; define it in the class$"):
        type("Mine", (TaskSpec,), members)


def test_a_part_of_a_task_may_leave_members_to_its_subclasses():
    class Part(Task, abstract=True):
        selection_metric: ClassVar[tuple[str, int]] = ("parts", 1)

    with pytest.raises(TypeError, match=r"^Whole lacks predictor"):
        type("Whole", (Part,), {})
    assert type("Whole", (Part,), MEMBERS)().selection_metric == ("parts", 1)


def predictor():
    run = type("Spec", (TaskSpec,), SPEC).untrained("plain", ViTConfig())
    assert run == RunConfig("plain", ViTConfig(), ImageData(source="unknown"), optim=OptimConfig(name="sgd"))
    return Counted(None, Plain(), Trained(run, {"a": 1}, 7))


def test_inputs_are_answered_batch_by_batch_and_counted_from_the_first():
    found = predictor()
    assert [(answer.input, answer.value) for answer in found.answer("abcde", batch=2)] == [
        *zip("abcde", range(5), strict=True)
    ]
    assert (found.step, found.metadata, found.layers, found.header) == (7, {"a": 1}, 0, ("input", "answer"))
    with pytest.raises(UserError, match=r"^batch is 0: give a positive number$"):
        list(found.answer("abc", batch=0))


def test_of_one_input_there_is_one_answer():
    class OneOrSeveral(Counted):
        def as_list(self, inputs):
            return ([inputs], True) if isinstance(inputs, str) else (inputs, False)

    found = OneOrSeveral(None, Plain(), predictor().trained)
    assert found.predict("a") == 0 and found.predict(["a", "b"]) == [0, 1]


def test_what_a_network_lacks_is_refused_by_its_name(tmp_path):
    found = predictor()
    with pytest.raises(UserError, match=r"^attention: a ViT has none; leave the flag out$"):
        found.draw_attention(["a"], tmp_path / "a.png")
    with pytest.raises(UserError, match=r"^features: a ViT has none; leave the flag out$"):
        found.write_features(["a"], tmp_path / "a.npz")


def test_by_default_each_output_of_one_number_is_a_metric():
    outputs = {"predicted": np.arange(3), "loss": np.float32([1, 2, 6]), "map": np.zeros((3, 2))}
    result = Plain().score(None, None, outputs)
    assert result.metrics == {"loss": 3.0} and result.predicted is outputs["predicted"]
    columns, rows = Plain().able(Tabulates).predicted(SimpleNamespace(name="image {}".format), result, {})
    assert columns == ("example", "predicted") and list(rows)[1] == ("image 1", "1")


def test_other_data_is_refused_where_a_task_has_none():
    run = predictor().run
    with pytest.raises(UserError, match=re.escape("data.source is unknown, but a network of the task plain")):
        Plain().able(MeasuresOthers).open_data(run, {}, "")
