"""The call journal: the answers of endpoints, kept so that a replay gets the same ones.

An epoch's answers of one shard are one object, written before a handler sees any of them:
`<folder>/<function>/<epoch, 20 digits>/<shard, 5 digits>.<part>`. Its name is taken by
`put_if_absent`: of two attempts at an epoch the one that comes second drops its own answers and
uses those that are there. An attempt that finds only some of its questions answered (the one
before it failed half way) adds the rest as the next part.

An object is magic, CRC-32C of what follows, and msgpack of `_Page`. Relies on the objects' seam.
"""

import msgspec
from crc32c import crc32c

from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectExists, ObjectMissing, ObjectStore
from catchwater.objects.open import place
from catchwater.pipeline.calls.answers import Key, Outcome

_MAGIC = b"CWCALLS1"
_HEAD = len(_MAGIC) + 4


class JournalDamaged(CatchwaterError):
    """A page of the journal is damaged, so an epoch cannot be repeated as it was."""

    exit_code = 5


class _Page(msgspec.Struct, frozen=True, array_like=True):
    function: str
    epoch: int
    shard: int
    entries: list[tuple[str, bytes, Outcome]]
    """Call, question, outcome."""


class Journal:
    """The answers that one function got, by epoch and shard."""

    def __init__(self, store: ObjectStore, folder: str, function: str) -> None:
        self._store = store
        self._folder = f"{folder}/{function}"
        self._function = function

    def open(self, epoch: int, shard: int) -> "Pages":
        """What is kept for an epoch of a shard. Raises `JournalDamaged`, `StoreError`."""
        pages = Pages(self, epoch, shard)
        while pages.take_next():
            pass
        return pages

    def forget_before(self, epoch: int) -> None:
        """Delete the answers of epochs that no retained checkpoint could replay."""
        for info in self._store.list(f"{self._folder}/"):
            if int(info.key.split("/")[-2]) >= epoch:
                return
            self._store.delete(info.key)

    def read(self, epoch: int, shard: int, part: int) -> dict[Key, Outcome] | None:
        """One object's outcomes, None if there is no such object. Raises `JournalDamaged`."""
        key = self._key(epoch, shard, part)
        try:
            data = self._store.get(key)
        except ObjectMissing:
            return None
        page = self._decode(key, data)
        if (page.function, page.epoch, page.shard) != (self._function, epoch, shard):
            raise self._damaged(key, f"it is of epoch {page.epoch}, shard {page.shard}")
        return {(call, question): outcome for call, question, outcome in page.entries}

    def write(self, epoch: int, shard: int, part: int, found: dict[Key, Outcome]) -> bool:
        """Store outcomes durably; False, and nothing changed, if another attempt came first."""
        entries = [(*key, found[key]) for key in sorted(found)]
        body = msgspec.msgpack.encode(_Page(self._function, epoch, shard, entries))
        head = _MAGIC + crc32c(body).to_bytes(4, "big")
        try:
            self._store.put_if_absent(self._key(epoch, shard, part), [head, body])
        except ObjectExists:
            return False
        return True

    def _key(self, epoch: int, shard: int, part: int) -> str:
        return f"{self._folder}/{epoch:020}/{shard:05}.{part}"

    def _decode(self, key: str, data: bytes) -> _Page:
        if len(data) <= _HEAD or data[: len(_MAGIC)] != _MAGIC:
            raise self._damaged(key, "it does not begin as one")
        if crc32c(data[_HEAD:]) != int.from_bytes(data[len(_MAGIC) : _HEAD], "big"):
            raise self._damaged(key, "its checksum differs")
        return msgspec.msgpack.decode(data[_HEAD:], type=_Page)

    def _damaged(self, key: str, why: str) -> JournalDamaged:
        return JournalDamaged(
            f"{place(self._store, key)} is not the page of the call journal that was written: "
            f"{why}.",
            hint="Restore the object from a copy. Without it the endpoints are asked again, and "
            "the epoch may give other outputs than the sinks have: delete it only if none has "
            "them yet.",
        )


class Pages:
    """What is kept for one epoch of one shard, and what is added to it."""

    def __init__(self, journal: Journal, epoch: int, shard: int) -> None:
        self._journal = journal
        self._epoch = epoch
        self._shard = shard
        self._parts = 0
        self.outcomes: dict[Key, Outcome] = {}

    def take_next(self) -> bool:
        """Read the next part, if there is one."""
        found = self._journal.read(self._epoch, self._shard, self._parts)
        if found is None:
            return False
        self._parts += 1
        self.outcomes = found | self.outcomes
        return True

    def add(self, found: dict[Key, Outcome]) -> None:
        """Store outcomes; where another attempt has stored one first, use that."""
        while new := {key: found[key] for key in found.keys() - self.outcomes.keys()}:
            if self._journal.write(self._epoch, self._shard, self._parts, new):
                self._parts += 1
                self.outcomes |= new
            else:
                there = self.take_next()
                assert there, "what put_if_absent met can be read"
