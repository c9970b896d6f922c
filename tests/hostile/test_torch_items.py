"""Broken and malicious files of PyTorch: each is refused in one sentence, or read as the right values."""

from __future__ import annotations

import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from convert.containers import open_source
from tests.hostile.child import accepts, opened, refuses, run
from tests.hostile.chosen import cut_while_open, weights
from tests.hostile.pickled import (
    EMPTY,
    ORDERED,
    VALUES,
    archive,
    call,
    dictionary,
    legacy,
    pickle,
    plain,
    storage,
    tensor,
    word,
)
from vit_jax.errors import UserError

NAMESPACE = word("argparse", "Namespace") + b")\x81" + dictionary({"lr": plain(1)}) + b"b"
NUMPY_DTYPE = call("numpy", "dtype", plain(("f8", False, True))) + plain((3, "<", b"N", b"N", b"N", -1, -1, 0)) + b"b"
NUMPY_BYTES = call("_codecs", "encode", plain((np.float64(2.5).tobytes().decode("latin1"), "latin1")))
NUMPY_SCALAR = call("numpy.core.multiarray", "scalar", plain((NUMPY_DTYPE, NUMPY_BYTES)))
NUMPY_ARRAY = (
    call(
        "numpy.core.multiarray",
        "_reconstruct",
        plain((word("numpy", "ndarray"), (0,), call("_codecs", "encode", plain(("b", "latin1"))))),
    )
    + plain((1, (1,), NUMPY_DTYPE, False, NUMPY_BYTES))
    + b"b"
)
SYSTEM, UNTYPED = plain(("true",)), storage("UntypedStorage", count=16, module="torch.storage")


def _levels(count: int, times: int) -> bytes:
    """A list that holds one list `times` over, which holds one list `times` over, ..."""
    return b"]q\x00" + b"".join(b"0](" + (b"h" + bytes([i])) * times + b"eq" + bytes([i + 1]) for i in range(count))


# Pickles that are refused whatever surrounds them: value under "w", words of the refusal.
PICKLES = {
    "global os.system, REDUCE": (call("os", "system", SYSTEM), "os.system"),
    "global posix.system, NEWOBJ": (word("posix", "system") + SYSTEM + b"\x81", "posix.system"),
    "builtins.eval": (call("builtins", "eval", SYSTEM), "builtins.eval"),
    "builtins.getattr": (call("builtins", "getattr", SYSTEM), "state_dict() alone"),
    "__builtin__.getattr": (call("__builtin__", "getattr", SYSTEM), "OneCycleLR"),
    "torch.load": (call("torch", "load", SYSTEM), "torch.load"),
    "torch.jit load": (call("torch.jit._serialization", "load", SYSTEM), "torch.jit._serialization.load"),
    "torch.storage._load_from_bytes": (call("torch.storage", "_load_from_bytes", SYSTEM), "_load_from_bytes"),
    "torch.nn Linear": (
        word("torch.nn.modules.linear", "Linear") + b")\x81" + EMPTY + b"b",
        "whose code is not run here: w (torch.nn.modules.linear.Linear)",
    ),
    "defaultdict(os.system)": (call("collections", "defaultdict", plain((word("os", "system"),))), "os.system"),
    "dotted OrderedDict.fromkeys": (
        plain("collections") + plain("OrderedDict.fromkeys") + b"\x93)R",
        "OrderedDict.fromkeys",
    ),
    "a listed name cut elsewhere": (
        plain("torch") + plain("storage.UntypedStorage") + b"\x93",
        "torch.storage.UntypedStorage",
    ),
    "INST opcode": (b"(ios\nsystem\n", "opcode b'i'"),
    "OBJ opcode": (b"(" + word("collections", "OrderedDict") + b"o", "opcode b'o'"),
    "EXT1 opcode": (b"\x82\x01", "opcode b'\\x82'"),
    "EXT4 opcode": (b"\x84\x01\0\0\0", "opcode b'\\x84'"),
    "bytearray(2^20)": (call("builtins", "bytearray", plain((1 << 20,))), "builtins.bytearray"),
    "BYTEARRAY8": (b"\x96" + struct.pack("<Q", 4) + b"abcd", "opcode"),
    "_codecs.encode of no latin1": (call("_codecs", "encode", plain(("true", "rot13"))), "encodes text"),
    "one text encoded a million times": (
        word("_codecs", "encode")
        + b"q\x00"
        + plain(("\xff" * 1_000_000, "latin1"))
        + b"q\x01R"
        + b"h\x00h\x01R" * 1000
        + b"](0",
        "copies one value too often",
    ),
    "attributes on a plain dict": (EMPTY + EMPTY + b"b", "sets attributes"),
    "persistent id with tag evil": (
        plain(("evil", word("torch", "FloatStorage"), "0", "cpu", 4)) + b"Q",
        "persistent id",
    ),
    "persistent id that is a text": (plain("0") + b"Q", "persistent id"),
    "PERSID": (b"P0\n", "opcode"),
    "storage class EvilStorage": (tensor(of=storage("EvilStorage")), "EvilStorage"),
    "storage key ../../x": (tensor(of=storage(key="../../x")), "'../../x' is missing"),
    "storage member missing": (tensor(of=storage(key="1")), "'1' is missing"),
    "storage shorter": (tensor(of=storage(count=5)), "16 bytes instead of 20"),
    "storage longer": (tensor(of=storage(count=3), shape=(3,)), "16 bytes instead of 12"),
    "numel 2^40": (tensor(of=storage(count=1 << 40)), "instead of"),
    "numel -4": (tensor(of=storage(count=-4)), "persistent id"),
    "one storage as two": (tensor() + b"0" + tensor(of=storage("IntStorage")), "in two ways"),
    "offset 2 + size 4 of 4": (tensor(offset=2), "outside its storage"),
    "offset -1": (tensor(offset=-1), "outside its storage"),
    "size -4": (tensor(shape=(-4,)), "[-4]"),
    "stride -1": (tensor(strides=(-1,)), "outside its storage"),
    "stride 2^62": (tensor(shape=(2,), strides=(1 << 62,)), "outside its storage"),
    "stride 2^70": (tensor(shape=(2,), strides=(1 << 70,)), "does not"),
    "size 2^33 x 2^33": (tensor(shape=(1 << 33, 1 << 33), strides=(0, 0)), "would take"),
    "size 10^9, stride 0 over 4 values": (tensor(shape=(10**9,), strides=(0,)), "would take 4000000000 bytes"),
    "size (2,3), stride (1,1)": (tensor(shape=(2, 3), strides=(1, 1)), "overlaps itself"),
    "size/stride ranks differ": (tensor(shape=(2, 2)), "with 1 strides"),
    "rank 9": (tensor(shape=(1,) * 9, strides=(1,) * 9), "does not"),
    "a size that is a text": (tensor(shape=("4",)), "does not"),
    "10^5 nested lists": (b"]" * 100_000 + b"a" * 99_999, "deeper than 8 levels"),
    "a tuple of 10^5 as a key": (b"}(" + b"K\x00" * 100_000 + b"tNs", "key of type tuple"),
    "10^5 nested tuples as a key": (b"}" + b")" + b"\x85" * 100_000 + b"Ns", "key of type tuple"),
    "20-level memo doubling": (_levels(20, 2), "deeper than 8 levels"),
    "6 levels of a hundred": (_levels(6, 100), "more than 1000000 values"),
    "dict holding itself": (EMPTY + b"q\x00" + plain("x") + b"h\x00s", "deeper than 8 levels"),
    "a list of pairs copied a million times": (
        b"]("
        + b"".join(plain((str(i), i)) for i in range(2000))
        + b"e\x85q\x00"
        + word("collections", "OrderedDict")
        + b"q\x01h\x00R"
        + b"h\x01h\x00R0" * 1000,
        "copies one value too often",
    ),
    "LONG4 claiming 100 MB": (b"\x8b" + struct.pack("<I", 100_000_000) + b"\1", "integer of 100000000 bytes"),
    "BINUNICODE8 claiming 2^62": (b"\x8d" + struct.pack("<Q", 1 << 62) + b"a", "cut off"),
    "conj view": (tensor(last=(dictionary({"conj": plain(True)}),)), "conj"),
    "quantized": (call("torch._utils", "_rebuild_qtensor"), "quantized"),
    "sparse": (call("torch._utils", "_rebuild_sparse_tensor"), "sparse"),
    "meta": (call("torch._utils", "_rebuild_meta_tensor_no_storage"), "meta device"),
    "complex": (tensor(of=storage("ComplexFloatStorage")), "complex"),
    "float8": (
        call(
            "torch._utils",
            "_rebuild_tensor_v3",
            plain((UNTYPED, 0, (4,), (1,), False, ORDERED, word("torch", "float8_e5m2"))),
        ),
        "float8_e5m2",
    ),
    "half a surrogate pair": (b"X\x03\0\0\0\xed\xa0\x80", "damaged"),
    "a key twice": (dictionary([("a", b"N"), ("a", b"N")]), "'a' twice"),
    "a million opcodes": (b"N0" * 500_000 + b"N", "opcodes"),
    "a stack that is empty": (b"R", "damaged"),
    "a memo that is empty": (b"h\x07", "damaged"),
}


@pytest.mark.parametrize("what", PICKLES)
def test_pickles_that_are_refused(what, tmp_path):
    body, words = PICKLES[what]
    refuses(archive(tmp_path / "x.pt", dictionary({"w": body})), words, grown=200 << 20)


@pytest.mark.parametrize(
    "what",
    ["global os.system, REDUCE", "dotted OrderedDict.fromkeys", "10^5 nested lists", "dict holding itself"],
)
def test_pickles_of_the_older_form_that_are_refused(what, tmp_path):
    body, words = PICKLES[what]
    refuses(legacy(tmp_path / "x.pt", dictionary({"w": body}), data=b"", keys=b"]"), words)


def test_a_pickle_of_protocol_4(tmp_path):
    path = archive(
        tmp_path / "x.pt", b"", {"data.pkl": pickle(b"\x95" + struct.pack("<Q", 9) + b"}\x94\x8c\x01w\x94K\x01s", 4)}
    )
    assert run(opened, str(path)).value == {"w": 1}
    refuses(archive(tmp_path / "6.pt", b"", {"data.pkl": pickle(b"N", 6)}), "protocol 2 to 5")


def test_a_namespace_beside_wrapped_weights(tmp_path):
    state = dictionary({"w": tensor()})
    body = dictionary({"model": dictionary({"module": dictionary({"state_dict": state})}), "args": NAMESPACE})
    label, found, passed = run(weights, str(archive(tmp_path / "x.pt", body))).value
    assert (label, passed) == ("model.module.state_dict", ["args (argparse.Namespace)"]) and np.array_equal(
        found["w"], VALUES
    )


def test_numpy_numbers_and_arrays(tmp_path):
    path = archive(tmp_path / "x.pt", dictionary({"w": tensor(), "epoch": NUMPY_SCALAR, "array": NUMPY_ARRAY}))
    found = run(opened, str(path)).value
    assert found["epoch"] == 2.5 and found["array"].tolist() == [2.5] and found["w"].tolist() == VALUES.tolist()


INERT = {
    "pathlib.PosixPath": (call("pathlib", "PosixPath", plain(("a",))), "pathlib.PosixPath"),
    "set": (call("__builtin__", "set", b"]\x85"), "set"),
    "EMPTY_SET": (b"\x8f(K\x01\x90", "set"),
    "defaultdict": (
        call("collections", "defaultdict", plain((word("collections", "OrderedDict"),))),
        "collections.defaultdict",
    ),
    "argparse.Namespace": (NAMESPACE, "argparse.Namespace"),
    "a dtype": (word("torch", "bfloat16"), "torch.bfloat16"),
    "a device": (call("torch", "device", plain(("cuda", 0))), "torch.device"),
    "a class of the user's": (
        word("mine", "Settings") + b")\x81" + dictionary({"a": plain(1)}) + b"b",
        "mine.Settings",
    ),
    "what a foreign function gave, called": (call("mine", "made") + plain((1,)) + b"R", "mine.made"),
    "a dictionary of a foreign class": (word("mine", "Tree") + b")\x81" + plain("a") + b"Ns", "mine.Tree"),
    "an array of objects": (
        NUMPY_ARRAY.replace(plain(("f8", False, True)), plain(("O8", False, True))).replace(NUMPY_BYTES, b"]N\x61"),
        "numpy.ndarray",
    ),
}


@pytest.mark.parametrize("what", INERT)
def test_known_values_beside_the_weights_are_named_and_among_them_refused(what, tmp_path):
    body, kind = INERT[what]
    label, _, passed = run(
        weights, str(archive(tmp_path / "x.pt", dictionary({"model": dictionary({"w": tensor()}), "x": body})))
    ).value
    assert label == "model" and passed == [f"x ({kind})"]
    refuses(
        archive(tmp_path / "y.pt", dictionary({"w": tensor(), "x": body})),
        f"'x' among the weights is a {kind}",
        function=weights,
    )


def test_attributes_of_an_ordered_dict_are_ignored(tmp_path):
    body = ORDERED + plain("w") + tensor() + b"s" + dictionary({"_metadata": ORDERED}) + b"b"
    accepts(archive(tmp_path / "x.pt", body), {"w": VALUES})


WEIGHTS = dictionary({"w": tensor()})
# Archives that are refused: what is other than in an honest one, words of the refusal.
ARCHIVES = {
    "storage member missing": (dict(members={"data/0": None}), "'0' is missing"),
    "17 bytes for 4 f32": (dict(members={"data/0": bytes(17)}), "17 bytes instead of 16"),
    "pickle cut by 20 bytes": (dict(members={"data.pkl": pickle(WEIGHTS)[:-20]}), "cut off"),
    "junk after STOP": (dict(members={"data.pkl": pickle(WEIGHTS) + b"junk"}), "4 bytes after its pickle"),
    "two values before STOP": (dict(members={"data.pkl": pickle(b"NN")}), "values on its stack"),
    "duplicate data/0": (dict(again={"archive/data/0": bytes(16)}), "'archive/data/0' twice"),
    "duplicate data.pkl": (dict(again={"archive/data.pkl": pickle(EMPTY)}), "'archive/data.pkl' twice"),
    "deflated storage": (dict(method=zipfile.ZIP_DEFLATED), "compressed"),
    "member ../evil": (dict(again={"../evil": b""}), "leads out"),
    "member /abs": (dict(again={"/abs": b""}), "leads out"),
    "a second top folder": (dict(again={"other/data/0": b""}), "the folders 'archive' and 'other'"),
    "no data.pkl": (dict(members={"data.pkl": None}), "without data.pkl"),
    "no version": (dict(members={"version": None}), "without version"),
    "byteorder middle": (dict(members={"byteorder": b"middle"}), "'middle'"),
    "TorchScript": (dict(members={"constants.pkl": b"", "code/__torch__.py": b""}), "TorchScript"),
    "torch.export": (
        dict(members={"data.pkl": None, "archive_format": b"pt2", "models/model.json": b"{}"}),
        "torch.export",
    ),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_archives_that_are_refused(what, tmp_path):
    how, words = ARCHIVES[what]
    refuses(archive(tmp_path / "x.pt", WEIGHTS, **how), words)


def test_a_plain_pickle_without_a_zip(tmp_path):
    (tmp_path / "x.pt").write_bytes(pickle(dictionary({"w": plain(1)})))
    refuses(tmp_path / "x.pt", "torch.save did not write")


def test_a_bomb_of_zeros(tmp_path):
    path = archive(
        tmp_path / "x.pt",
        dictionary({"w": tensor((1 << 24,), of=storage(count=1 << 24))}),
        {"data/0": bytes(1 << 26)},
        method=zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < 1 << 17
    refuses(path, "compressed", grown=16 << 20)


@pytest.mark.parametrize("what", [VALUES.tobytes(), b"FloatStorage"])
def test_a_bit_flipped(what, tmp_path):
    data = bytearray(archive(tmp_path / "x.pt", WEIGHTS).read_bytes())
    data[data.index(what) + 5] ^= 4
    (tmp_path / "x.pt").write_bytes(data)
    refuses(tmp_path / "x.pt", "do not have the checksum", "set_crc32_options(False)")


def test_byte_orders(tmp_path):
    accepts(
        archive(tmp_path / "big.pt", WEIGHTS, {"byteorder": b"big", "data/0": VALUES.astype(">f4").tobytes()}),
        {"w": VALUES},
    )
    accepts(archive(tmp_path / "absent.pt", WEIGHTS, {"byteorder": None}), {"w": VALUES})


def test_the_older_form(tmp_path):
    accepts(legacy(tmp_path / "x.pt", WEIGHTS), {"w": VALUES})
    view = plain(("storage", word("torch", "FloatStorage"), "0", "cpu", 4, ("view", 1, 2))) + b"Q"
    accepts(legacy(tmp_path / "view.pt", dictionary({"w": tensor((1,), offset=1, of=view)})), {"w": VALUES[2:3]})


def test_the_older_form_by_python_2(tmp_path):
    text = b"U\x01w"  # SHORT_BINSTRING
    pairs = b"](](" + text + tensor() + b"ee\x85"
    accepts(legacy(tmp_path / "x.pt", word("collections", "OrderedDict") + pairs + b"R"), {"w": VALUES})


OLDER = {
    "a storage of another length": (dict(data=struct.pack("<q", 5) + VALUES.tobytes()), "list of storages"),
    "cut": (dict(data=struct.pack("<q", 4) + VALUES.tobytes()[:-1]), "instead of"),
    "bytes behind": (dict(data=struct.pack("<q", 4) + VALUES.tobytes() + b"x"), "instead of"),
    "no storage": (dict(data=b"", keys=b"]"), "'0' is missing"),
    "a storage twice": (
        dict(data=(struct.pack("<q", 4) + VALUES.tobytes()) * 2, keys=b"](" + plain("0") * 2 + b"e"),
        "list of storages",
    ),
    "keys that are none": (dict(keys=b"](K\x00e"), "unknown variant"),
}


@pytest.mark.parametrize("what", OLDER)
def test_files_of_the_older_form_that_are_refused(what, tmp_path):
    how, words = OLDER[what]
    refuses(legacy(tmp_path / "x.pt", WEIGHTS, **how), words)


def test_tied_tensors_and_views_of_one_storage(tmp_path):
    pair = tensor((2,), offset=2)
    accepts(
        archive(tmp_path / "x.pt", dictionary({"a": tensor(), "b": tensor(), "c": pair})),
        {"a": VALUES, "b": VALUES, "c": VALUES[2:]},
    )


def test_four_values_of_a_large_storage(tmp_path):
    size = 128 << 20
    path = archive(
        tmp_path / "x.pt",
        dictionary({"w": tensor(offset=7, of=storage(count=size // 4))}),
        {"data/0": VALUES.tobytes().ljust(size, b"\0")},
    )
    accepts(path, {"w": np.zeros(4, np.float32)}, grown=32 << 20)


def test_values_far_apart(tmp_path):
    count = 24 << 20
    data = np.zeros(count, np.float32)
    data[5 :: count // 2] = VALUES[:2]
    data[6 :: count // 2] = VALUES[2:]
    body = dictionary({"w": tensor((2, 1, 2), (1, 1 << 61, count // 2), offset=5, of=storage(count=count))})
    accepts(
        archive(tmp_path / "x.pt", body, {"data/0": data.tobytes()}), {"w": VALUES.reshape(2, 1, 2)}, grown=32 << 20
    )


def test_transposed_and_expanded_tensors(tmp_path):
    body = dictionary({"t": tensor((2, 2), (1, 2)), "e": tensor((2, 3), (1, 0))})
    accepts(
        archive(tmp_path / "x.pt", body),
        {"t": VALUES.reshape(2, 2).T.copy(), "e": np.repeat(VALUES[:2], 3).reshape(2, 3)},
    )


def test_the_bits_of_odd_values_are_kept(tmp_path):
    odd = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    odd.view(np.uint32)[0] = 0x7FC12345
    accepts(archive(tmp_path / "x.pt", WEIGHTS, {"data/0": odd.tobytes()}), {"w": odd})


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("Bool", np.bool_),
        ("Char", np.int8),
        ("Byte", np.uint8),
        ("Short", np.int16),
        ("Long", np.int64),
        ("Half", np.float16),
    ],
)
def test_other_dtypes(kind, dtype, tmp_path):
    values = np.array([0, 1, 1, 0], dtype)
    body = dictionary({"w": tensor(of=storage(f"{kind}Storage"))})
    accepts(archive(tmp_path / "x.pt", body, {"data/0": values.tobytes()}), {"w": values})


def test_a_boolean_that_is_neither(tmp_path):
    refuses(
        archive(tmp_path / "x.pt", dictionary({"w": tensor(of=storage("BoolStorage"))}), {"data/0": b"\0\1\7\0"}),
        "the byte 7",
    )


PLACES = {  # shape, strides, offset; elements that a storage must have for the last one to lie in it
    "a row": ((4,), (1,), 0, 4),
    "a row further on": ((4,), (1,), 3, 7),
    "a matrix": ((2, 3), (3, 1), 2, 8),
    "a matrix transposed": ((3, 2), (1, 3), 1, 7),
    "every other of far rows": ((2, 2), (5, 2), 1, 9),
    "one column, expanded": ((2, 3), (1, 0), 4, 6),
    "one row, with any stride": ((1, 2), (1 << 40, 1), 2, 4),
    "one number": ((), (), 5, 6),
}
TYPED = {
    "Bool": np.bool_,
    "Byte": np.uint8,
    "Half": np.float16,
    "BFloat16": ml_dtypes.bfloat16,
    "Float": np.float32,
    "Long": np.int64,
    "Double": np.float64,
}
UNTYPED_OF = {
    "uint8": np.uint8,
    "uint16": np.uint16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "uint32": np.uint32,
    "float64": np.float64,
}


@pytest.mark.parametrize("form", ["zip", "older"])
@pytest.mark.parametrize("kind", [*TYPED, *UNTYPED_OF])
def test_a_tensor_may_end_with_its_storage_and_not_one_element_beyond(kind, form, tmp_path):
    """Of storages of the tensor's own dtype, and of bytes that a tensor of any dtype lies in."""
    dtype = np.dtype((TYPED | UNTYPED_OF)[kind])

    def saved(count, *place):
        """A file with one storage of that many bytes and one tensor in it."""
        if kind in TYPED:
            body = tensor(*place, of=storage(f"{kind}Storage", count=count // dtype.itemsize))
        else:
            of, (shape, strides, offset) = storage("UntypedStorage", count=count, module="torch.storage"), place
            body = call(
                "torch._utils",
                "_rebuild_tensor_v3",
                plain((of, offset, shape, strides, False, ORDERED, word("torch", kind))),
            )
        data = np.arange(count // dtype.itemsize).astype(dtype).tobytes().ljust(count, b"\0")
        if form == "zip":
            return str(archive(tmp_path / "x.pt", dictionary({"w": body}), {"data/0": data, "data/1": b"\1" * 99}))
        return str(
            legacy(
                tmp_path / "x.pt",
                dictionary({"w": body}),
                data=struct.pack("<q", count // (dtype.itemsize if kind in TYPED else 1)) + data,
            )
        )

    for what, (shape, strides, offset, needed) in PLACES.items():
        with open_source(saved(needed * dtype.itemsize, shape, strides, offset)) as source:
            found = source.tree["w"].read()
        at = [offset + int(np.dot(index, strides)) for index in np.ndindex(*shape)]
        assert (found.dtype, found.shape, found.ravel().tolist()) == (
            dtype,
            shape,
            np.array(at).astype(dtype).tolist(),
        ), what
        short = {(needed - 1) * dtype.itemsize} | ({needed * dtype.itemsize - 1} if kind in UNTYPED_OF else set())
        for count in short:
            with pytest.raises(UserError, match="outside its storage"):
                open_source(saved(count, shape, strides, offset))


def test_a_tensor_of_another_device(tmp_path):
    accepts(archive(tmp_path / "x.pt", dictionary({"w": tensor(of=storage(place="cuda:0"))})), {"w": VALUES})


KEYS = {
    "Cyrillic homoglyph": ("h\u0435ad", "U+0435"),
    "control character": ("a\nb", "U+000A"),
    "empty": ("", "not a name"),
    "int 3": (3, "key 3"),
    "tuple": (("a", 1), "('a', 1)"),
    "bytes": (b"C\x01a", "b'a'"),
    "600 characters": ("a" * 600, "600 characters"),
}


@pytest.mark.parametrize("what", KEYS)
def test_keys_that_no_weights_have(what, tmp_path):
    key, words = KEYS[what]
    body = dictionary({"model": dictionary([("w", tensor()), (key, tensor())])})
    refuses(archive(tmp_path / "x.pt", body), words, function=weights)
    beside = dictionary({"model": WEIGHTS, "optimizer": dictionary([(key, tensor())])})
    assert run(weights, str(archive(tmp_path / "y.pt", beside))).value[0] == "model"


def test_tensors_beyond_number(tmp_path):
    made = (
        word("torch._utils", "_rebuild_tensor_v2") + b"q\x00" + plain((storage(), 0, (), (), False, ORDERED)) + b"q\x01"
    )
    few = b"".join(plain(str(i)) + b"h\x00h\x01R" for i in range(60_000))
    refuses(
        archive(tmp_path / "x.pt", b"}(" + plain("w") + made + b"R" + few + b"u"),
        "more than 50000 tensors",
        grown=200 << 20,
    )


def test_cut_while_open(tmp_path):
    path = archive(tmp_path / "x.pt", WEIGHTS)
    refuses(path, "has changed while it was read", function=cut_while_open, size=path.stat().st_size - 1)
    path = archive(tmp_path / "x.pt", WEIGHTS)
    refuses(path, "has changed while it was read", function=cut_while_open, size=100)


def test_several_sets_of_weights(tmp_path):
    path = archive(tmp_path / "x.pt", dictionary({"student": WEIGHTS, "teacher": WEIGHTS, "epoch": plain(3)}))
    refuses(path, "student, teacher", "choose one with `key LABEL`", function=weights)
    refuses(path, "student, teacher", function=weights, key="third")
    label, found, passed = run(weights, str(path), key="teacher").value
    assert label == "teacher" and np.array_equal(found["w"], VALUES) and passed == ["student (1 tensor)"]
