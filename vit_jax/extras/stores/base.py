"""Objects under names in one place: a folder, s3://, gs:// or https://.

They are read by ranges, listed, written whole, created where none is, and deleted. What is read again under a tag is
the same object, or an error. Object stores are reached by tensorstore, with the variables that their users have set.
"""

from __future__ import annotations

import secrets

from ...errors import UserError
from ...files.places import Store, StoreError

PLAIN = ("https://", "http://")  # begin the URLs of servers that list nothing, and are only read
PROBE = ".vit-jax-probe-"  # begins the name of an object that tells of nothing: one stays where a probe is killed


def check_conditional(store: Store) -> None:
    """Check that a store creates an object only where none is, which claims and locks need."""
    name = f"{PROBE}{secrets.token_hex(8)}"
    won = [store.create(name, content) for content in (b"first", b"second")]
    store.delete(name)
    if won != [True, False]:
        what = "it does not honour conditional writes (If-None-Match), so two writers could not be kept apart"
        raise UserError(store.url, what, "take a store that does: S3, Google Cloud Storage, or a folder")


def replaced(where: str) -> StoreError:
    """The error for an object that is another one than before."""
    return StoreError(
        where, "was replaced while it was read: its tag is another", "start again with the object as it is"
    )


def too_short(where: str, size: int, stop: int) -> StoreError:
    """The error for an object that ends too early."""
    return StoreError(where, f"ends after {size:,} bytes, and {stop:,} were to be read", "restore the whole object")
