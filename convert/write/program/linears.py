"""Products with weights in an ONNX graph, each a MatMul or a Conv whose weights are an initializer.

Tools that make networks smaller look for these. A trace has others: a Gemm whose bias is zero, an Einsum that is a
linear map, and weights that nodes compute from initializers (kernels cut into parts, or turned from HWIO to OIHW).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

PRODUCTS = ("MatMul", "Conv")


def name_products(model: ir.Model) -> None:
    """Let a model have its products with weights as such nodes, in place; it computes the same."""
    from onnx_ir.passes import common

    _fold_constants(model)
    for node in list(model.graph):
        if node.op_type == "Gemm":
            _replace_gemm(node)
        elif node.op_type == "Einsum":
            _replace_einsum(node)
    _fold_constants(model)  # transposed weights
    common.RemoveUnusedNodesPass()(model)


def products(model: ir.Model) -> list[ir.Node]:
    """The products with weights, in the order of the graph."""
    return [node for node in model.graph if node.op_type in PRODUCTS and _constant(node.inputs[1]) is not None]


def inner_products(model: ir.Model) -> list[ir.Node]:
    """The products with weights that have others both before and after them: without first and last layers."""
    found = products(model)
    after = {node: set(_following(node)) for node in found}
    return [node for node in found if not after[node].isdisjoint(found) and any(node in after[each] for each in found)]


def _following(node: ir.Node) -> Iterator[ir.Node]:
    """All nodes that depend on one."""
    seen: set[ir.Node] = set()
    waiting = [node]
    while waiting:
        for value in waiting.pop().outputs:
            new = [user for user, _ in value.uses() if user not in seen]
            seen.update(new)
            waiting += new
            yield from new


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer; None of any other value."""
    return value.const_value.numpy() if value is not None and value.const_value is not None else None


def _fold_constants(model: ir.Model) -> None:
    """Replace nodes that compute from initializers alone by their results, unless these are larger."""
    from onnx.reference import ReferenceEvaluator
    from onnx_ir import serde

    for node in list(model.graph):
        arrays = [_constant(value) for value in node.inputs if value is not None]
        if not arrays or any(array is None for array in arrays) or len(node.outputs) != 1 or _has_graphs(node):
            continue
        proto = serde.serialize_node(node)
        names = [value.name or "" for value in node.inputs if value is not None]
        opsets = dict(model.graph.opset_imports)
        results = ReferenceEvaluator(proto, opsets=opsets).run(None, dict(zip(names, arrays, strict=True)))
        made = np.asarray(next(iter(results)))
        if made.nbytes <= sum(array.nbytes for array in arrays if array is not None):
            _replace_by_constant(node, made)


def _has_graphs(node: ir.Node) -> bool:
    return any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values())


def _replace_by_constant(node: ir.Node, array: np.ndarray) -> None:
    import onnx_ir as ir

    (old,), graph = node.outputs, node.graph
    if old.is_graph_output():
        return
    new = ir.Value(name=f"{old.name}_folded", shape=ir.Shape(array.shape), type=old.type, const_value=ir.tensor(array))
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(new)
    old.replace_all_uses_with(new)
    graph.remove(node, safe=True)


def _replace_gemm(node: ir.Node) -> None:
    """Replace a Gemm, y = a b + c, by a MatMul and, unless c is zero, an Add."""
    a, b, c = [*node.inputs, None][:3]
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    bias = _constant(c)
    if alpha != 1 or node.attributes.get_int("transA"):
        return
    has_bias = c is not None and beta != 0 and (bias is None or bias.any())
    if has_bias and beta != 1:
        return
    made: list[ir.Node] = []
    if node.attributes.get_int("transB"):
        b = _add(made, "Transpose", [b], {"perm": [1, 0]})
    y = _add(made, "MatMul", [a, b])
    _replace(node, made, _add(made, "Add", [y, c]) if has_bias else y)


def _replace_einsum(node: ir.Node) -> None:
    """Replace an Einsum that multiplies by a matrix of weights, as ...d,dv->...v and bd,vd->bv do, by a MatMul."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    match = re.fullmatch(r"([a-z]*)([a-z]),([a-z])([a-z])->\1([a-z])", equation)
    if not match or (weights := _constant(node.inputs[1])) is None or weights.ndim != 2:
        return
    _, summed, first, second, kept = match.groups()
    if {first, second} != {summed, kept} or summed == kept:
        return
    made: list[ir.Node] = []
    b = node.inputs[1] if first == summed else _add(made, "Transpose", [node.inputs[1]], {"perm": [1, 0]})
    _replace(node, made, _add(made, "MatMul", [node.inputs[0], b]))


def _add(made: list[ir.Node], kind: str, inputs: list[ir.Value | None], attributes: dict | None = None) -> ir.Value:
    """The output of a new node, which `made` gets."""
    import onnx_ir as ir

    node = ir.node(kind, inputs, attributes or {})
    made.append(node)
    return node.outputs[0]


def _replace(node: ir.Node, made: list[ir.Node], result: ir.Value) -> None:
    """Put new nodes in the place of one, whose result has its name."""
    import onnx_ir as ir

    (old,), graph = node.outputs, node.graph
    assert isinstance(graph, ir.Graph)
    for number, each in enumerate(made):
        each.name = f"{node.name}_{each.op_type}"
        each.outputs[0].name = f"{old.name}_{number}"
        each.outputs[0].type, each.outputs[0].shape = old.type, None
    graph.insert_before(node, made)
    result.shape = old.shape
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    result.name = old.name
