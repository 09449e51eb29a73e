"""The marks of a target as an object in a store, for kinds whose target cannot keep them itself.

A store has no transactions, and a driver that stood still could put older marks over those of its
successor. So a driver with a claim writes an object of its own, `marks/<log>-<fence>.json`, and the
marks that count are the furthest of all there are: an epoch's mark is only added behind the epoch,
and what is taken back raises the generation. A checkpoint in a folder has one driver, and
`marks.json`. A store is listed for the objects of other drivers only: one that shows nothing costs
what they have marked, and those epochs are found to be there when they run again.
"""

import msgspec

from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.objects.open import place
from catchwater.recovery.fenced import parse_claim
from catchwater.sinks.epochs import Marks, Owner, decode_marks


class KeptMarks:
    """The marks of one sink under a prefix."""

    def __init__(self, store: ObjectStore, prefix: str, owner: Owner, nothing: Marks) -> None:
        """`nothing` are the marks where there are none yet."""
        self._store = store
        self._prefix = prefix
        self._owner = owner
        self._nothing = nothing
        self._others: list[str] | None = None
        """The keys of other drivers, where no other can come."""

    def claim(self) -> None:
        """Let no earlier driver of the checkpoint write from now on. Raises `Superseded`."""
        mine = self._owner.claim
        if mine is None:
            return
        self.write(self.read())
        for key in self._listed():
            text = key.removeprefix(f"{self._prefix}/").removesuffix(".json").replace("-", "/")
            claim = parse_claim(text)
            if claim is not None and claim.is_before(mine):
                self._store.delete(key)

    def read(self) -> Marks:
        """The marks that count. Raises `TargetTaken`, `Superseded`, `MarksDamaged`."""
        best = None
        for key in dict.fromkeys((self._key, f"{self._prefix}.json", *self._listed())):
            try:
                found = decode_marks(self._store.get(key), place(self._store, key))
            except ObjectMissing:
                continue  # a later driver has taken it away
            found.owned_by(self._owner, self._store.url())
            found.claimed(self._owner)
            if best is None or _progress(found) > _progress(best):
                best = found
        return (best or self._nothing).claimed(self._owner)

    def write(self, marks: Marks) -> None:
        """Let these count."""
        self._store.put(self._key, [marks.encode()])

    def are_of(self, pipeline: str) -> bool:
        """Whether another pipeline's sink of this name goes on with these marks (`give`)."""
        return self._raw().pipeline == pipeline

    def give(self, pipeline: str) -> None:
        """Let another pipeline's sink of this name go on with these marks."""
        given = msgspec.structs.replace(self._raw(), pipeline=pipeline)
        self._store.put(self._key, [given.encode()])

    def _raw(self) -> Marks:
        """Without asking whose they are; where no other driver writes."""
        return decode_marks(self._store.get(self._key), place(self._store, self._key))

    @property
    def _key(self) -> str:
        claim = self._owner.claim
        return f"{self._prefix}/{claim.log}-{claim.fence}.json" if claim else f"{self._prefix}.json"

    def _listed(self) -> list[str]:
        if self._others is None or self._owner.claim is not None:
            self._others = [info.key for info in self._store.list(f"{self._prefix}/")]
        return self._others


def _progress(marks: Marks) -> tuple[int, int]:
    return marks.generation, -1 if marks.newest is None else marks.newest
