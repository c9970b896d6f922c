"""An S3 store on this machine, as far as tensorstore asks of it, which can lie: see `Bucket.faults`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests import loopback

NAME = "bucket"


@dataclass
class Bucket:
    """The objects of s3://bucket, and what went to and fro.

    `faults` {name of an object, "" for the listing, or "*": a fault, or a list of faults for one request each}: a
    status, the code of a 403 (ExpiredToken), {method: a fault}, "late" (the listing lacks the object), "cut" (an upload
    is cut, or a body), "short" (fewer bytes than asked for, as if that were all), "slow" (an answer after `delay`
    seconds) and "unconditional" (conditions are ignored).
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, object] = field(default_factory=dict)
    asked: Callable[[], None] = lambda: None  # called before each request is answered
    requests: list[tuple[str, str, int]] = field(default_factory=list)  # (method, name, bytes of the answer)
    delay: float = 0.0
    page: int = 1000  # names in an answer to a listing
    backwards: bool = False  # answers to listings have their names in the other order
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, name: str) -> object:
        for key in (name, "*"):
            found = self.faults.get(key)
            if isinstance(found, list):
                if found:
                    return found.pop(0)
            elif found is not None:
                return found
        return None

    def bytes_read(self) -> int:
        return sum(size for method, _, size in self.requests if method == "GET")


def tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


class Handler(loopback.Handler):
    bucket: Bucket

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, name = unquote(parts.path).lstrip("/").partition("/")
        length, fault = int(self.headers.get("Content-Length", 0)), self.bucket.fault(name)
        fault = fault.get(self.command) if isinstance(fault, dict) else fault
        self.bucket.asked()
        if self.command == "PUT" and fault == "cut":
            self.rfile.read(length // 2)
            return self.hang_up()
        body = self.rfile.read(length)
        if fault == "slow" or self.bucket.delay:
            time.sleep(self.bucket.delay or 1)
        if isinstance(fault, int):
            return self.answer(f"<Error><Code>Fault{fault}</Code></Error>".encode(), fault, name)
        if isinstance(fault, str) and fault[:1].isupper():
            return self.answer(f"<Error><Code>{fault}</Code></Error>".encode(), 403, name)
        if bucket != NAME:
            return self.answer(b"<Error><Code>NoSuchBucket</Code></Error>", 404, name)
        if self.command == "GET" and not name:
            return self.list(parse_qs(parts.query, keep_blank_values=True))
        with self.bucket.lock:
            getattr(self, self.command.lower())(name, body, fault)

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_any

    def answer(self, body: bytes, status: int = 200, name: str = "", cut: bool = False, **headers: str) -> None:
        self.bucket.requests.append((self.command, name, len(body)))
        self.send(status, body, len(body) // 2 if cut else None, **headers)
        if cut:
            self.hang_up()

    def list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        after = after or query.get("start-after", [""])[0]
        names = [n for n in sorted(self.bucket.objects) if n.startswith(prefix) and n > after]
        names = [n for n in names if self.bucket.faults.get(n) != "late"]
        shown, more = names[: self.bucket.page], len(names) > self.bucket.page
        order = shown[::-1] if self.bucket.backwards else shown
        entries = "".join(f"<Contents><Key>{escape(n)}</Key><Size>1</Size></Contents>" for n in order)
        token = f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>" if more else ""
        head = f"<IsTruncated>{str(more).lower()}</IsTruncated><KeyCount>{len(shown)}</KeyCount>{token}"
        self.answer(f"<ListBucketResult>{head}{entries}</ListBucketResult>".encode())

    def get(self, name: str, body: bytes, fault: object) -> None:
        content = self.bucket.objects.get(name)
        if content is None:
            return self.answer(b"<Error><Code>NoSuchKey</Code></Error>", 404, name)
        asked = self.asked_range(len(content))
        if not asked:
            return self.answer(content, 200, name, fault == "cut", ETag=tag(content))
        start, stop = asked
        if start >= len(content):
            return self.answer(b"", 416, name, Content_Range=f"bytes */{len(content)}")
        part = content[start : max(stop - 1, start) if fault == "short" else stop]
        shown = f"bytes {start}-{stop - 1}/{len(content)}"
        self.answer(part, 206, name, fault == "cut", ETag=tag(content), Content_Range=shown)

    def head(self, name: str, body: bytes, fault: object) -> None:
        content = self.bucket.objects.get(name)
        if content is None:
            return self.answer(b"", 404, name)
        self.answer(content, 200, name, ETag=tag(content))

    def put(self, name: str, body: bytes, fault: object) -> None:
        there = self.bucket.objects.get(name)
        if there is not None and self.headers.get("If-None-Match") == "*" and fault != "unconditional":
            return self.answer(b"<Error><Code>PreconditionFailed</Code></Error>", 412, name)
        self.bucket.objects[name] = body
        self.answer(b"", 200, name, ETag=tag(body))

    def delete(self, name: str, body: bytes, fault: object) -> None:
        self.bucket.objects.pop(name, None)
        self.answer(b"", 204, name)


@contextlib.contextmanager
def serving(**variables: str) -> Iterator[Bucket]:
    """The bucket s3://bucket, which the usual variables lead to."""
    bucket = Bucket()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", **variables}
    with (
        loopback.listening(Handler, bucket=bucket) as endpoint,
        mock.patch.dict(os.environ, {"AWS_ENDPOINT_URL": endpoint, **keys}),
    ):
        yield bucket
