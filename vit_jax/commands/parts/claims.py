"""Which worker computes which part, settled by the store alone.

A claim is an object claims/PART-TURN, of which a store creates only one. Its owner writes it anew three times in a
lease. Where it stays as it is for a whole lease, by the stopwatch of a worker that watches it, its owner has died, and
the next turn may be claimed. So no two clocks are compared. A claim too many costs time and nothing else: a part is
written once, and all workers would write the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator

from ...errors import UserError
from ...files.stores.base import Store

LEASE = 60.0  # seconds
_NAME = re.compile(r"claims/(\d{8})-(\d+)")


class Claims:
    """The claims of a job, and those of this worker among them."""

    def __init__(self, store: Store):
        self._store = store
        self._worker = {"worker": f"{socket.gethostname()} process {os.getpid()}", "key": secrets.token_hex(8)}
        self._latest: dict[int, int] = {}  # {part: its latest turn, as far as is known}
        self._seen: dict[int, tuple[bytes | None, float]] = {}  # {part: its claim, and since when it is unchanged}

    def refresh(self) -> None:
        """Look at the claims that there are."""
        for found in filter(None, map(_NAME.fullmatch, self._store.list("claims/"))):
            part, turn = int(found[1]), int(found[2])
            self._latest[part] = max(turn, self._latest.get(part, 0))

    def has(self, part: int) -> bool:
        """Whether a part is known to be claimed."""
        return part in self._latest

    def take(self, part: int) -> bool:
        """Claim a part that nobody has claimed, or whose claim has lapsed; returns whether it is won."""
        turn = self._latest.get(part, -1) + 1
        self._latest[part] = turn
        return self._store.create(_name(part, turn), self._content(0))

    def lapsed(self, part: int) -> bool:
        """Whether the owner of a claimed part has died, as far as this worker has watched it."""
        content, now = self._store.load(_name(part, self._latest[part])), time.monotonic()
        before, since = self._seen.get(part, (b"", now))
        if content != before:
            self._seen[part] = content, now
            return content is None  # its owner has given it up
        return now - since > LEASE

    def owner(self, part: int) -> str:
        """Who has claimed a part, as messages say it."""
        content = self._store.load(_name(part, self._latest[part])) if part in self._latest else None
        try:
            return str(json.loads(content or b"")["worker"])
        except (ValueError, KeyError, TypeError):
            return "nobody"

    @contextlib.contextmanager
    def keep_claimed(self, part: int) -> Iterator[None]:
        """A context in which a part that was taken stays claimed; what raises in it gives it up."""
        ended, name = threading.Event(), _name(part, self._latest[part])

        def renew() -> None:
            beat = 0
            while not ended.wait(LEASE / 3):
                beat += 1
                with contextlib.suppress(UserError):  # the store is away: at worst another computes the part too
                    self._store.put(name, self._content(beat))

        thread = threading.Thread(target=renew, name="vit-jax-claim", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            ended.set()
            thread.join()
            with contextlib.suppress(UserError):
                self._store.delete(name)
            raise
        finally:
            ended.set()
            thread.join()

    def _content(self, beat: int) -> bytes:
        return json.dumps({**self._worker, "beat": beat}).encode()


def _name(part: int, turn: int) -> str:
    return f"claims/{part:08d}-{turn}"
