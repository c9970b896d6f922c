"""Google Cloud Storage on this machine, as far as tensorstore asks of its JSON interface."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from collections.abc import Iterator
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

from tests import loopback

OBJECTS = "/storage/v1/b/bucket/o"


class Handler(loopback.Handler):
    objects: dict[str, tuple[int, bytes]]  # {name: its generation, its content}
    lock: threading.Lock
    generations: itertools.count[int]

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = unquote(parts.path.removeprefix(OBJECTS).lstrip("/"))
        with self.lock:
            if parts.path == f"/upload{OBJECTS}":
                self.put(query["name"], body, query.get("ifGenerationMatch"))
            elif parts.path == OBJECTS:
                self.list(query)
            elif self.command == "DELETE":
                self.answer(204 if self.objects.pop(name, None) else 404)
            elif name not in self.objects:
                self.answer(404)
            elif query.get("alt") == "media":
                self.get(*self.objects[name])
            else:
                generation, content = self.objects[name]
                about = {"name": name, "size": str(len(content)), "generation": str(generation)}
                self.answer(200, json.dumps(about).encode())

    do_GET = do_POST = do_DELETE = handle_any

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send(status, body, **headers)

    def put(self, name: str, body: bytes, generation: str | None) -> None:
        if generation is not None and int(generation) != self.objects.get(name, (0, b""))[0]:
            return self.answer(412)
        self.objects[name] = next(self.generations), body
        self.answer(200, json.dumps({"name": name, "generation": str(self.objects[name][0])}).encode())

    def list(self, query: dict[str, str]) -> None:
        names = [name for name in sorted(self.objects) if name >= query.get("startOffset", "")]
        names = [name for name in names if "endOffset" not in query or name < query["endOffset"]]
        first = int(query.get("pageToken", 0))
        more = {"nextPageToken": str(first + 3)} if first + 3 < len(names) else {}
        self.answer(200, json.dumps({"items": [{"name": name} for name in names[first : first + 3]], **more}).encode())

    def get(self, generation: int, content: bytes) -> None:
        headers, asked = {"x_goog_generation": str(generation)}, self.asked_range(len(content))
        if not asked:
            return self.answer(200, content, **headers)
        start, stop = asked
        if start >= len(content):
            return self.answer(416, Content_Range=f"bytes */{len(content)}")
        shown = f"bytes {start}-{stop - 1}/{len(content)}"
        self.answer(206, content[start:stop], Content_Range=shown, **headers)


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """The bucket gs://bucket, which the usual variable leads to."""
    own = {"objects": {}, "lock": threading.Lock(), "generations": itertools.count(1)}
    with loopback.listening(Handler, **own) as address:
        variables = {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}
        with mock.patch.dict(os.environ, {**variables, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token"}):
            yield
