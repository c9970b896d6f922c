"""What a hub answers, within bounds: a deadline and a size for the whole of an answer in JSON."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from vit_jax.errors import UserError

SECONDS = 30.0  # for an answer
BYTES = 64 << 20  # of an answer; a repository of 100,000 files has one of 30 MB


@contextlib.contextmanager
def bounded_answers(hub: Any, address: str) -> Iterator[None]:
    """A context in which `hub` reads no answer in JSON that is endless, too large or compressed."""
    session = hub.utils.get_session()
    hooks = getattr(session, "event_hooks", None)
    if hooks is None:  # a library before 1.0, which sends its requests by another
        yield
        return

    kind_of_stream = _bounded_stream(sys.modules[type(session).__module__].SyncByteStream)

    def ask(request: Any) -> None:
        if "/api/" in str(request.url):
            request.headers["accept-encoding"] = "identity"

    def bound(response: Any) -> None:
        written, packing = (response.headers.get(name, "") for name in ("content-type", "content-encoding"))
        if "json" in written or "/api/" in str(response.request.url):
            if packing not in ("", "identity"):
                raise _too_much(address, f"is compressed, by {packing[:20]}")
            response.stream = kind_of_stream(response.stream, address)

    session.event_hooks = {
        "request": [*hooks.get("request", ()), ask],
        "response": [*hooks.get("response", ()), bound],
    }
    try:
        yield
    finally:
        session.event_hooks = hooks


def _bounded_stream(base: Any) -> Any:
    """A class of streams of the library that sends the requests, whose streams these are."""

    class Bounded(base):
        def __init__(self, stream: Any, address: str):
            self.stream, self.address = stream, address

        def __iter__(self) -> Iterator[bytes]:
            began, size = time.monotonic(), 0
            for chunk in self.stream:
                size += len(chunk)
                if size > BYTES:
                    raise _too_much(self.address, f"has more than {BYTES >> 20} MB")
                if time.monotonic() - began > SECONDS:
                    raise _too_much(self.address, f"is not whole after {SECONDS:g} seconds")
                yield chunk

        def close(self) -> None:
            self.stream.close()

    return Bounded


def _too_much(address: str, what: str) -> UserError:
    return UserError(address, f"the hub's answer {what}", "try later, or download the files and give their folder")
