"""FLOPs of the products in a compiled program: of matrices, convolutions, and in cuDNN's attention."""

from __future__ import annotations

import itertools
import math
import re

from .hlo import Array, Instruction


def product_flops(each: Instruction, there: dict[str, Instruction]) -> int:
    """The FLOPs of an instruction that is a product, 2 per multiply-add; 0 of any other."""
    arrays = [array for name in each.operands[:2] if name in there for array in there[name].results[:1]]
    if not each.results or not arrays:
        return 0
    target = each.attribute("custom_call_target")
    if "__cudnn$fmha" in target:
        return _attention(each, arrays[0], 5 if "Backward" in target else 2)
    if len(arrays) < 2:
        return 0
    if each.opcode == "dot" or "gemm" in target or "matmul" in target or target.startswith("__onednn$"):
        summed = each.numbers("lhs_contracting_dim(?:ension)?s") or [len(arrays[0].shape) - 1]
        return 2 * math.prod(each.results[0].shape) * math.prod(arrays[0].shape[axis] for axis in summed)
    if each.opcode == "convolution":
        return _convolution(each, *arrays)
    if "__cudnn$conv" in target:
        return _by_cudnn(each, target, *arrays)
    return 0


def _attention(each: Instruction, queries: Array, products: int) -> int:
    """So many products of queries and keys, of which a causal mask leaves half."""
    shape = re.search(r'"intermediate_tensor_shape":.*?"dimensions": ?\[([^\]]*)\]', each.attributes)
    if not shape:
        return 0
    scores = math.prod(int(n) for n in re.findall(r"\d+", shape[1]))  # [B, H, Nq, Nk]
    whole = 2 * products * scores * queries.shape[-1]
    return whole // 2 if "CAUSAL" in each.attributes else whole


def _convolution(each: Instruction, inputs: Array, kernel: Array) -> int:
    """Of a convolution, only where the kernel lies on numbers: not on padding, nor between those of a dilated input.

    (A TPU's compiler writes products of several matrices as convolutions, most of whose places are padding.)
    """
    of_inputs, of_kernel, of_outputs = re.split("_|->", each.attribute("dim_labels"))
    window = {name: value.split("x") for name, value in re.findall(r"(\w+)=([\w\-]+)", each.attribute("window"))}
    outputs, places = each.results[0], 1
    for number in range(len(of_inputs) - 2):
        axis = str(number)

        def read(name: str, default: str, number: int = number) -> str:
            return window[name][number] if name in window else default

        places *= _places(
            inputs.shape[of_inputs.index(axis)],
            kernel.shape[of_kernel.index(axis)],
            outputs.shape[of_outputs.index(axis)],
            int(read("stride", "1")),
            int(read("pad", "0_0").partition("_")[0] or 0),
            int(read("lhs_dilate", "1")),
            int(read("rhs_dilate", "1")),
        )
    rows = outputs.shape[of_outputs.index("b")] * outputs.shape[of_outputs.index("f")]
    groups = int(each.attribute("batch_group_count") or 1)
    return 2 * places * rows * kernel.shape[of_kernel.index("i")] // groups


def _places(inputs: int, kernel: int, outputs: int, stride: int, pad: int, dilate: int, kernel_dilate: int) -> int:
    """Along one axis, the pairs of a place of the output and one of the kernel that meet a number of the input."""
    if kernel == 1 and not pad and dilate == 1:
        return outputs
    last = (inputs - 1) * dilate
    met = (o * stride - pad + k * kernel_dilate for o, k in itertools.product(range(outputs), range(kernel)))
    return sum(0 <= place <= last and place % dilate == 0 for place in met)


def _by_cudnn(each: Instruction, target: str, first: Array, second: Array) -> int:
    """Of a convolution that cuDNN computes, or one of its two gradients, padding included."""
    result = each.results[0]
    kernel, outputs = second, result
    if "BackwardFilter" in target:
        kernel, outputs = result, second
    elif "BackwardInput" in target:
        outputs = first
    labels = re.split("_|->", each.attribute("dim_labels"))[1]
    return 2 * math.prod(outputs.shape) * math.prod(kernel.shape) // kernel.shape[labels.index("o")]
