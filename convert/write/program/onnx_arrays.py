"""Arrays that are values of an ONNX graph: an operation on them adds the node that computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

    from .preprocess import Axis


class Array:
    """A value of a graph, with operators; a number beside it is of its dtype."""

    def __init__(self, graph: OnnxArrays, value: ir.Value, dtype: str):
        self.graph, self.value, self.dtype = graph, value, dtype

    def __add__(self, other: Any) -> Array:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Any) -> Array:
        return self.graph.node("Sub", self, other)

    def __rsub__(self, other: Any) -> Array:
        return self.graph.node("Sub", other, self)

    def __mul__(self, other: Any) -> Array:
        return self.graph.node("Mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Array:
        return self.graph.node("Div", self, other)

    def __rtruediv__(self, other: Any) -> Array:
        return self.graph.node("Div", other, self)

    __floordiv__ = __truediv__  # of whole numbers of one sign

    def __lt__(self, other: Any) -> Array:
        return self.graph.node("Less", self, other, dtype="bool")

    def __gt__(self, other: Any) -> Array:
        return self.graph.node("Greater", self, other, dtype="bool")

    def __and__(self, other: Array) -> Array:
        return self.graph.node("And", self, other)


class OnnxArrays:
    """The functions that preprocess.py takes of a library of arrays; each adds to `nodes` those that compute it."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[ir.Node] = []
        self._prefix, self._count = prefix, 0

    def node(self, operator: str, *inputs: Any, dtype: str = "", **attributes: Any) -> Array:
        """The result of a new node; it has the dtype of the last input, where no other is given."""
        import onnx_ir as ir

        of = next((x.dtype for x in reversed(inputs) if isinstance(x, Array)), dtype)
        values = [x.value if isinstance(x, Array) else self.constant(x, of).value for x in inputs]
        self._count += 1
        kind = ir.DataType.from_numpy(np.dtype(dtype or of))
        out = ir.Value(name=f"{self._prefix}_{self._count}", type=ir.TensorType(kind))
        name = f"{self._prefix}_{operator}_{self._count}"
        self.nodes.append(ir.node(operator, values, attributes, outputs=[out], name=name))
        return Array(self, out, dtype or of)

    def constant(self, value: Any, dtype: str) -> Array:
        """An array of this value."""
        import onnx_ir as ir

        return self.node("Constant", dtype=dtype, value=ir.tensor(np.array(value, dtype)))

    def astype(self, x: Array, dtype: str) -> Array:
        """The same in another dtype."""
        import onnx_ir as ir

        return self.node("Cast", x, dtype=dtype, to=ir.DataType.from_numpy(np.dtype(dtype)).value)

    def length(self, x: Array, axis: int) -> Array:
        """The length of an axis, int64 []."""
        return self._squeezed(self.node("Shape", x, dtype="int64", start=axis, end=axis + 1))

    def _squeezed(self, x: Array) -> Array:
        return self.node("Squeeze", x, self.constant([0], "int64"), dtype=x.dtype)

    def indices(self, x: Array, axis: int) -> Array:
        """0, 1, ... along an axis, float64."""
        return self.arange(self.length(x, axis))

    def arange(self, count: Any) -> Array:
        """0, 1, ..., float64 [count]."""
        end = count if isinstance(count, Array) else self.constant(count, "int64")
        first, step = self.constant(0, "float64"), self.constant(1, "float64")
        return self.node("Range", first, self.astype(end, "float64"), step)

    def added_up(self, scale: Array, axis: Axis) -> Array:
        """scale / 2 + i scale, added up one by one, at the places i of an axis that are not before its image."""
        zero = self.constant(0, "int64")
        steps = self.arange(self.maximum(axis.start, zero) + axis.made)
        steps = self.where(steps > 0.0, scale, scale * 0.5)
        sums = self.node("CumSum", steps, self.constant(0, "int64"), dtype="float64")
        places = self.maximum(self.astype(self.arange(axis.made), "int64") + axis.start, zero)
        return self.node("Gather", sums, places, dtype="float64")

    def cond(self, test: Array, yes: Callable[[], Array], no: Callable[[], Array]) -> Array:
        """What one of two functions gives."""
        then, other = self._branch(yes), self._branch(no)
        return self.node("If", test, dtype="float64", then_branch=then, else_branch=other)

    def _branch(self, function: Callable[[], Array]) -> ir.Graph:
        """What a function adds, as a graph of its own."""
        import onnx_ir as ir

        outer, self.nodes = self.nodes, []
        result = function()
        inner, self.nodes = self.nodes, outer
        return ir.Graph([], [result.value], nodes=inner, name=f"{self._prefix}_branch_{self._count}")

    def where(self, test: Array, x: Array, y: Array) -> Array:
        """x where a test holds, else y."""
        return self.node("Where", test, x, y)

    def equal(self, x: Array, y: Any) -> Array:
        """Whether two are equal."""
        return self.node("Equal", x, y, dtype="bool")

    def minimum(self, x: Array, y: Array) -> Array:
        """The smaller of two."""
        return self.node("Min", x, y)

    def maximum(self, x: Array, y: Array) -> Array:
        """The greater of two."""
        return self.node("Max", x, y)

    def clip(self, x: Array, low: float, high: float) -> Array:
        """x within bounds."""
        return self.node("Clip", x, low, high)

    def floor(self, x: Array) -> Array:
        """Rounded down."""
        return self.node("Floor", x)

    def round(self, x: Array) -> Array:
        """Rounded to nearest, half to even."""
        return self.node("Round", x)

    def abs(self, x: Array) -> Array:
        """|x|."""
        return self.node("Abs", x)

    def sign(self, x: Array) -> Array:
        """-1, 0 or 1."""
        return self.node("Sign", x)

    def sum(self, x: Array, axis: int) -> Array:
        """The sum over an axis."""
        return self.node("ReduceSum", x, self.constant([axis], "int64"), dtype=x.dtype, keepdims=0)

    def matmul(self, x: Array, y: Array) -> Array:
        """The product of matrices."""
        return self.node("MatMul", x, y)

    def permute_dims(self, x: Array, axes: tuple[int, ...]) -> Array:
        """With its axes in another order."""
        return self.node("Transpose", x, perm=axes)

    def expand_dims(self, x: Array, axis: int) -> Array:
        """With a new axis of length 1."""
        return self.node("Unsqueeze", x, self.constant([axis], "int64"), dtype=x.dtype)
