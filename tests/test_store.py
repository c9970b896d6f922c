"""Stores: a folder and an S3 that lies behave alike, or end in one sentence."""

import pytest

from tests import loopback_gs, loopback_s3
from vit_jax.errors import UserError
from vit_jax.extras.stores import objects
from vit_jax.extras.stores.mirror import check_conditional
from vit_jax.files.places import store_of


@pytest.fixture
def bucket():
    with loopback_s3.serving() as found:
        yield found


@pytest.fixture(params=["folder", "s3", "gs"])
def store(request, tmp_path):
    if request.param == "folder":
        yield store_of(str(tmp_path / "place"))
        return
    if request.param == "gs":
        with loopback_gs.serving():
            yield store_of("gs://bucket/some/place/")
        return
    with loopback_s3.serving() as bucket:
        bucket.page = 3
        yield store_of("s3://bucket/some/place/")


def test_a_store_does_what_a_folder_does(store):
    content = bytes(range(256)) * 40
    names = [f"part/{i}.bin" for i in range(7)]
    for name in reversed(names):
        store.put(name, content)
    store.put("other", b"")
    assert store.list("part/") == names and store.list() == ["other", *names] and store.list("nothing") == []
    found = store.stat(names[0])
    assert found.size == len(content) and store.tag("absent") is None
    for size in (0, 1, 65_535, 65_536, 65_537, 1_000_000):
        store.put("sized", bytes(size))
        assert [store.stat("sized", guess).size for guess in (0, size, size + 1, 5_000_000, 70_000)] == [size] * 5
    store.delete("sized")
    assert store.read(names[0], 255, 258, found.tag) == b"\xff\x00\x01" and store.read(names[0], 3, 3) == b""
    assert store.load(names[0]) == content and store.load("absent") is None
    for name, stop in (("absent", 1), (names[0], len(content) + 1)):
        with pytest.raises(UserError, match=f"{name}.*(not there|No such file|ends after 10,240 bytes)"):
            store.read(name, 0, stop)
    store.put(names[0], content + b"!")
    with pytest.raises(UserError, match="replaced"):
        store.read(names[0], 0, 1, found.tag)
    assert [store.create("claim", who) for who in (b"a", b"b", b"a")] == [True, False, True]
    store.delete("claim"), store.delete("claim")
    assert store.create("claim", b"b")
    check_conditional(store)
    assert store.list() == ["claim", "other", *names]
    with pytest.raises(UserError, match="below its folder"):
        store.read("../other", 0, 1)


@pytest.mark.parametrize("fault", [[503, 503], ["cut"], ["short"], ["short", 500, "cut"]])
def test_what_passes_is_tried_again(bucket, fault):
    bucket.objects["x"], store = b"0123456789", store_of("s3://bucket")
    store.tag("x")
    bucket.faults["x"] = fault
    assert store.read("x", 2, 6) == b"2345" and not fault


def test_what_gets_no_answer_is_asked_for_again(bucket, monkeypatch):
    monkeypatch.setattr(objects, "LATER", 0.5)
    bucket.objects["x"], store = b"0123456789", store_of("s3://bucket")
    store.tag("x")
    bucket.faults["x"] = fault = ["slow"]
    assert store.read("x", 2, 6) == b"2345" and not fault


@pytest.mark.parametrize(
    "fault, call, said",
    [
        (403, lambda store: store.read("x", 0, 1), "s3:GetObject is wanted"),
        (403, lambda store: store.put("x", b""), "s3:PutObject is wanted"),
        (403, lambda store: store.list(), "s3:ListBucket is wanted"),
        (403, lambda store: store.delete("x"), "s3:DeleteObject is wanted"),
        ("RequestTimeTooSkewed", lambda store: store.tag("x"), "set the clock here"),
        ("ExpiredToken", lambda store: store.put("x", b""), "the credentials have expired"),
        ("InvalidAccessKeyId", lambda store: store.list(), "check AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", lambda store: store.read("x", 0, 1), "check AWS_SECRET_ACCESS_KEY"),
        ("short", lambda store: store.read("x", 0, 5), "gave fewer than the 5 bytes"),
        ("slow", lambda store: store.read("x", 0, 5), r"127.0.0.1:\d+ gave no answer"),
        ("unconditional", check_conditional, "does not honour conditional writes"),
        (None, lambda store: store_of("s3://nowhere").list(), "no bucket nowhere"),
        (None, lambda store: store_of("ftp://host/x"), "ftp:// is not known; give a folder, s3://"),
        (None, lambda store: store_of("https://127.0.0.1/x").list(), "lists nothing"),
    ],
)
def test_what_does_not_pass_is_one_sentence(bucket, monkeypatch, fault, call, said):
    monkeypatch.setattr(objects, "FIRST", 0.3)
    bucket.objects["x"], bucket.faults["*"] = b"0123456789", fault
    with pytest.raises(UserError, match=said):
        call(store_of("s3://bucket"))


def test_a_cut_upload_leaves_nothing(bucket):
    store = store_of("s3://bucket")
    bucket.faults["x"] = ["cut"]
    store.put("x", b"0123456789")
    assert bucket.objects == {"x": b"0123456789"}
    bucket.faults["y"] = "cut"
    with pytest.raises(UserError, match="failed"):
        store_of("s3://bucket").put("y", b"0123456789")
    assert "y" not in bucket.objects


def test_a_host_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"http://127.0.0.1:9 cannot be reached"):
        store_of("s3://bucket").read("x", 0, 1)
