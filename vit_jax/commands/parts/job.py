"""What workers compute together: a job whose parts are objects of a store, each written once."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Field, UserError
from ...files import strict_json
from ...files.destination import check_folder
from ...files.stores.base import Store, check_conditional
from ...files.stores.open import is_remote, open_store
from .claims import LEASE, Claims

FACTS = "job.json"
_MOST = 5  # parts that a message names
_WATCHED = 16  # parts of others that are watched at a time
Note = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A job of `total` examples, of which each part has `size`."""

    store: Store
    facts: Mapping[str, Any]
    suffix: str

    @property
    def count(self) -> int:
        """The number of parts."""
        return -(-int(self.facts["inputs"]) // int(self.facts["part_size"]))

    def span(self, part: int) -> tuple[int, int]:
        """(the first example of a part, the one after its last)."""
        size = int(self.facts["part_size"])
        return part * size, min((part + 1) * size, int(self.facts["inputs"]))

    def name(self, part: int) -> str:
        """The name of a part in the store."""
        return f"parts/{part:08d}{self.suffix}"

    def there(self) -> set[int]:
        """The parts that are written."""
        names = re.compile(rf"parts/(\d{{8}}){re.escape(self.suffix)}")
        return {int(found[1]) for found in map(names.fullmatch, self.store.list("parts/")) if found}

    def check_whole(self) -> None:
        """Raise UserError where parts are missing, which says which, and who claims them."""
        missing = sorted({*range(self.count)} - self.there())
        if not missing:
            return
        claims = Claims(self.store)
        claims.refresh()
        which = ", ".join(f"{part} (claimed by {claims.owner(part)})" for part in missing[:_MOST])
        more = ", ..." if len(missing) > _MOST else ""
        what = f"{len(missing):,} of {self.count:,} parts are missing: {which}{more}"
        raise UserError(self.store.url, what, "repeat the command without --merge, which computes what is missing")

    def read(self, part: int) -> bytes:
        """The content of a part, which is there."""
        content = self.store.load(self.name(part))
        if content is None:
            raise UserError(f"{self.store.url}/{self.name(part)}", "is not there", "repeat the command without --merge")
        return content


def begin(place: str, facts: Mapping[str, Any], suffix: str) -> Job:
    """Begin a job, or join it."""
    store = open_store(place)
    content = json.dumps(facts, indent=1).encode() + b"\n"
    if store.tag(FACTS) is None:
        check_conditional(store)
    if not store.create(FACTS, content):
        _check_same(facts, facts_of(place), place)
    return Job(store, facts, suffix)


def check_place(place: str, reads: Iterable[str | Path]) -> None:
    """Raise UserError where a job cannot be kept in a place: a folder of something else, or a run."""
    if is_remote(place):
        return
    check_folder("parts", place, force=True, reads=reads)
    others = os.path.isdir(place) and [name for name in os.listdir(place) if not name.startswith(".")]
    if others and not os.path.lexists(os.path.join(place, FACTS)):
        what = f"holds {min(others)}, and no {FACTS}"
        raise UserError(f"--parts {place}", what, "give a new folder, or one in which parts were begun")


def facts_of(place: str) -> dict[str, Any]:
    """The facts of the job in a place. Raises UserError where there is none."""
    store = open_store(place)
    content = store.load(FACTS)
    if content is None:
        what = f"has no {FACTS}: no parts were begun there"
        raise UserError(store.url, what, "check the place, or leave out --merge to begin them")
    try:
        facts = strict_json.parse(content)
        assert isinstance(facts, dict)
        return facts
    except (ValueError, AssertionError) as error:
        what = f"cannot be read as JSON ({error})"
        raise UserError(f"{store.url}/{FACTS}", what, "restore it, or begin in another place") from error


def _check_same(ours: Mapping[str, Any], theirs: Mapping[str, Any], place: str) -> None:
    """Raise UserError about the first fact that differs."""
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            what = f"is {_shown(ours, name)}, but the parts in {place} were begun with {_shown(theirs, name)}"
            raise UserError(Field(name), what, "give that again, or another place to --parts")


def _shown(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name, "none")
    return value if isinstance(value, str) else json.dumps(value)


def work(job: Job, compute: Callable[[int], bytes], done: Callable[[int], None], note: Note) -> int:
    """Compute the parts that no other worker does, until all are there."""
    claims, mine, alone, told = Claims(job.store), 0, True, False
    while True:
        claims.refresh()
        there = job.there()
        done(len(there))
        missing = [part for part in range(job.count) if part not in there]
        if not missing:
            return mine
        free = [part for part in missing if not claims.has(part)]
        begin = 0 if alone or not free else random.randrange(len(free))  # so that workers do not run after each other
        for part in free[begin:]:
            if not (alone := claims.take(part)):
                break  # another worker was faster: look again
            mine += _write(job, claims, part, compute)
            done(len(there) + mine)
        if free:
            continue
        lapsed = next((part for part in missing[:_WATCHED] if claims.lapsed(part)), None)
        if lapsed is not None:
            if claims.take(lapsed) and job.store.tag(job.name(lapsed)) is None:
                note(f"part {lapsed} is taken over: its worker has gone")
                mine += _write(job, claims, lapsed, compute)
            continue
        if not told:
            note(f"waiting for {len(missing):,} parts of other workers, such as {claims.owner(missing[0])}")
            told = True
        time.sleep(min(1.0, LEASE / 10))


def _write(job: Job, claims: Claims, part: int, compute: Callable[[int], bytes]) -> int:
    """Compute a part that is claimed, and write it; returns 1 if the one that is there is this worker's or equal."""
    with claims.keep_claimed(part):
        return int(job.store.create(job.name(part), compute(part)))
