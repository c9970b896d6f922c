"""The names that a pickle of PyTorch may mention, and those for which it is refused.

What a name in KNOWN stands for is read. Any other one is of a foreign class, for which a Marker stands: nothing is ever
looked up or called. REFUSED are those that stand for tensors which cannot be read, or that only an attack would name.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

REMEDY = "re-save it with torch.save(model.state_dict(), PATH)"

DTYPES: dict[str, Any] = {
    "Float": np.float32, "Double": np.float64, "Half": np.float16, "BFloat16": ml_dtypes.bfloat16, "Long": np.int64,
    "Int": np.int32, "Short": np.int16, "Char": np.int8, "Byte": np.uint8, "Bool": np.bool_,
}  # fmt: skip
STORAGES = {f"torch.{name}Storage": np.dtype(d) for name, d in DTYPES.items()} | {
    "torch.storage.UntypedStorage": np.dtype(np.uint8)
}
TORCH_DTYPES = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "int64": np.int64, "int32": np.int32, "int16": np.int16, "int8": np.int8, "bool": np.bool_,
    "uint64": np.uint64, "uint32": np.uint32, "uint16": np.uint16, "uint8": np.uint8,
}  # fmt: skip
REBUILD = {
    f"torch._utils._rebuild_{kind}"
    for kind in ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state")
}
NUMPY = {
    f"{module}.{name}": name
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
    for name in ("scalar", "_reconstruct", "ndarray", "dtype")
}
# What training checkpoints also hold; a Marker stands for each.
INERT = {
    "argparse.Namespace", "collections.Counter", "collections.defaultdict", "builtins.set", "__builtin__.set",
    "__builtin__.bytes", "torch.device", "pathlib.PosixPath", "pathlib.WindowsPath",
}  # fmt: skip
TORCH_MARKS = {
    f"torch.{name}"
    for name in (
        *TORCH_DTYPES,
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("complex32", "complex64", "complex128"),
    )
}
KNOWN = {*STORAGES, *REBUILD, *NUMPY, *INERT, *TORCH_MARKS, "collections.OrderedDict", "torch.Size", "_codecs.encode"}
ATTACK = ("which would run code if Python read the file", "get the weights from a source that you trust")
# Names that are refused: a pattern, what they are, and the remedy.
REFUSED = (
    (
        r"(os|posix|nt|subprocess|pty|sys|ctypes|importlib|runpy|shutil|socket|pickle|_pickle|cPickle|marshal"
        r"|webbrowser|code|codeop|pdb|timeit|platform|commands|popen2)(\..*)?",
        ATTACK,
    ),
    (
        r"(__builtin__|builtins)\.(eval|exec|execfile|compile|open|input|breakpoint|__import__|setattr|delattr|globals"
        r"|locals|vars|bytearray|memoryview|map|filter|apply)",
        ATTACK,
    ),
    (r"torch\.(load|storage\._load_from_bytes|hub\..*|jit\..*|ops\..*|classes\..*|utils\.cpp_extension\..*)", ATTACK),
    (r"torch\._utils\._rebuild_qtensor|torch\.Q\w+Storage", ("a quantized tensor", "dequantize the model first")),
    (r"torch\._utils\._rebuild_sparse.*", ("a sparse tensor", "call to_dense() on it first")),
    (
        r"torch\._utils\._rebuild_meta_tensor.*",
        ("a tensor on the meta device, which has no values", "save the model with its weights"),
    ),
    (r"torch\._utils\._rebuild_nested.*", ("a nested tensor", "save dense ones")),
    (r"torchao\..*", ("a tensor that torchao has quantised", "give the weights before that")),
    (r"torch\.Complex.*Storage", ("a complex tensor, which no network here has", "save its real and imaginary parts")),
    (
        r"(__builtin__|builtins)\.getattr",
        ("which would call code (older OneCycleLR schedulers save it)", "save model.state_dict() alone"),
    ),
    (r"torch\.\w+Storage", ("a storage of numbers that no network here has", "save it in float32")),
)
DOTTED = ("which is no name of a module's own", "save model.state_dict() alone")
