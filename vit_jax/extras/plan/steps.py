"""The steps of a run, compiled for a target without the run's data, and what their programs ask of each device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from ...config.run import RunConfig
from ...data.texts.config import SentenceData
from ...errors import Field, UserError
from ...machine.division import check_shares, most_examples
from ...machine.numerics import fixed_settings
from ...machine.targets import HERE, Target, published
from ...tasks.can import HasFrozen
from ...tasks.spec import Shape, rows_of
from ...tasks.table import task_spec
from ...training.job import engine_of
from ...weights.opening import open_teacher
from .program import Program, read_program

What = Literal["train", "evaluate", "decode"]
STEPS = 1000  # of an epoch, for the schedule: what it is changes no shape


class Compiled:
    """A run's network and steps on a target."""

    def __init__(self, run: RunConfig, target: Target = HERE, length: int = 0):
        from ...models.lowering import of_evaluation
        from ...tasks.computed import task_of
        from ...training.engine.evaluator import Evaluator

        self.target, self.given = target, task_spec(run.task).stand_in(run, length)
        self.run, self.teacher = self.given.run, open_teacher(run)
        task = task_of(self.run, self.given.metadata).able(HasFrozen).load(self.teacher, target)
        self.engine = engine_of(self.run, task, STEPS * run.epochs, STEPS, target=target)
        rows = self.given.rows
        check_shares({f"batch {rows}": rows}, len(self.engine.devices), self.engine.parts, run.augment.together)
        evaluated = self.engine.define(lowering=of_evaluation(run.compute_dtype, target))
        self.evaluator = Evaluator(self.run.model, evaluated, task, self.engine.devices)

    def trace(self, what: What) -> Any:
        """A step, as jax.jit(...).trace gives it."""
        import jax

        from ...models.state import merge
        from ...tasks.generated import Generation

        if what == "train":
            return self.engine.trace(_shapes(self.given.batch))
        devices, task, definition = self.engine.devices, self.engine.task, self.evaluator.definition
        tree = self.engine.network_shapes()
        parameters, batch = devices.shapes(tree, devices.shardings_of(tree)), self._examples()
        if what == "evaluate":
            frozen_arrays = self.evaluator.frozen_arrays
            return self.evaluator.compiled.trace(
                parameters, batch, devices.shapes(frozen_arrays, devices.shardings_of(frozen_arrays))
            )
        if not isinstance(task, Generation):
            raise UserError(Field("decode"), "is for tasks that write texts, which this one does not", "leave it out")
        search = jax.jit(
            lambda parameters, batch: task.texts(merge(definition, devices.whole_on_each(parameters)), batch)
        )
        return search.trace(parameters, batch)

    def _examples(self) -> dict[str, Any]:
        """A batch of evaluation on the devices, which divide it: the last example is repeated."""
        devices, given = self.engine.devices, self.given.examples
        rows = rows_of(given) + -rows_of(given) % len(devices)
        whole = {name: ((rows, *sizes[1:]), dtype) for name, (sizes, dtype) in given.items()}
        return devices.shapes(_shapes(whole), devices.sharded)

    def described(self, what: What) -> dict[str, Any]:
        """What is known of a step before it is compiled, as JSON values."""
        devices, target = self.engine.devices, self.target
        return {
            "what": what,
            "unit": task_spec(self.run.task).unit,
            "platform": target.platform,
            "kind": target.kind,
            "published": {name: value for name, value in vars(published(target.kind)).items() if value},
            "devices": len(devices),
            "parts": self.engine.parts,
            "rows": self.given.rows if what == "train" else rows_of(self.given.examples),
            "length": self.given.length,
            "memory": {
                **self._state(what),
                "there": target.memory // (len(devices) if devices.share_a_cpu else 1),
            },
        }

    def figures(self, what: What) -> dict[str, Any]:
        """What the program of a step asks of each device, as JSON values. Compiles it."""
        with fixed_settings(self.run.compute_dtype):
            began = time.monotonic()
            program = read_program(self.target.compile(self.trace(what)))
        found, bounds, memory = self.described(what), bounds_of(program, self.target), program.memory
        rows, devices, own = found["rows"], found["devices"], sum(self._state(what).values())
        seconds = max(bounds.values()) if bounds["products"] and bounds["memory"] else 0.0  # 0: not known
        found |= {
            "memory": {
                **found["memory"],
                "batch": max(0, memory.arguments - own),  # and the padding of what is in tiles
                "temporaries": memory.temporaries + max(0, memory.outputs - memory.aliased),
                "code": memory.code,
                "total": memory.peak,
            },
            "flops": program.flops,
            "bytes": program.bytes,
            "on_chip": program.on_chip,
            "kernels": program.count,
            "attention_calls": program.attention,
            "remark": self.engine.attention[1] if what == "train" else "",
            "collectives": {
                kind: {"count": count, "bytes": size} for kind, (count, size) in program.exchanges().items()
            },
            "sent": program.sent,
            "bounds": {**bounds, "binds": max(bounds, key=lambda name: bounds[name]) if seconds else ""},
            "seconds_to_compile": time.monotonic() - began,
        }
        if seconds:
            found["rows_per_second"] = rows / seconds
            most = most_examples(self.run, self.teacher, self.target.kind, devices) if what == "train" else 0.0
            found |= {"mfu": rows / seconds / most} if most else {}
        return found

    def _state(self, what: What) -> dict[str, int]:
        """The bytes of a device's part of what a step is given besides its batch."""
        state, share = self.engine.state_shapes(), self.engine.devices.share_of
        if what != "train":
            return {"weights": share(state.parameters)}
        found = {"weights": share(state.parameters), "moments": share(state.moments)}
        found |= {"average": share(state.ema)} if state.ema is not None else {}
        found |= {"teacher": share(self.engine.frozen_arrays)} if self.engine.frozen_arrays else {}
        return found


def _shapes(batch: Mapping[str, Shape]) -> dict[str, Any]:
    """A batch as jax has shapes."""
    import jax
    import numpy as np

    return {name: jax.ShapeDtypeStruct(sizes, np.dtype(dtype)) for name, (sizes, dtype) in batch.items()}


def with_rows(run: RunConfig, rows: int, length: int = 0) -> RunConfig:
    """The run with so many examples in a training batch; of sentences in one of this length, 0: the longest."""
    if not isinstance(run.data, SentenceData):
        return replace(run, batch=rows)
    return replace(run, data=replace(run.data, tokens=rows * (length or run.data.lengths[-1])))


def bounds_of(program: Program, target: Target) -> dict[str, float]:
    """Lower bounds of the seconds of a step: what its products, its memory and its exchanges take at published figures.

    They are never predictions: no device reaches all its figures at once, or any of them for a whole step. 0: nothing
    is published of it, or there is none.
    """
    stated = published(target.kind)
    crossing = sum(each.times * each.crossing(target.a_host) for each in program.collectives)
    return {
        "products": program.flops / stated.peak if stated.peak else 0.0,
        "memory": program.bytes / stated.bandwidth if stated.bandwidth else 0.0,
        "network": max(
            program.sent / stated.link if stated.link else 0.0,
            crossing / stated.network if stated.network else 0.0,
        ),
    }
