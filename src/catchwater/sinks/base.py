"""The sink seam: an epoch is written once.

Tasks *stage* what their shards put out, where nobody sees it; the driver then *commits* all of an
epoch's staged pieces together with the mark (pipeline, sink, epoch). A sink keeps these promises:

- `commit` is atomic: readers see all of the epoch or nothing, and the mark goes with it.
- Committing an epoch that has its mark already changes nothing and answers what the first commit
  wrote. Spark repeats an epoch after a crash, so this is the ordinary case.
- A repeated epoch has the same content; if its checksum differs, the sink raises
  `EpochDiffers` and changes nothing, because then the function is not deterministic or the
  checkpoint is not the one this sink was written from.
- What was staged and never committed is invisible and is swept away by the place it lies in.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import SinkEpoch


class EpochDiffers(CatchwaterError):
    """The sink has this epoch with other content."""

    exit_code = 5


class SinkAhead(CatchwaterError):
    """The sink has epochs that this checkpoint knows nothing of."""

    exit_code = 5


class OutputRecord(NamedTuple):
    """One output on its way to a sink."""

    key: bytes
    value: bytes
    timestamp_ms: int


class Staged(msgspec.Struct, frozen=True):
    """One shard's output of one epoch, durable and invisible; travels in the manifest row."""

    shard: int
    location: str
    """Where it lies, for the sink; empty if the shard put out nothing."""
    records: int
    bytes: int
    checksum: int
    """CRC-32C over the records in their order; equal on every replay."""


class Stager(Protocol):
    """The half of a sink that works in Spark's tasks; pickles."""

    def stage(self, shard: int, records: Sequence[OutputRecord]) -> Staged:
        """Make one shard's records durable where no reader sees them."""
        ...


class Sink(Protocol):
    """The half of a sink that works on the driver."""

    name: str

    def stager(self) -> Stager:
        """The other half, for the tasks."""
        ...

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Make the epoch visible, once. Raises `EpochDiffers`."""
        ...

    def last_epoch(self) -> int | None:
        """The newest epoch that this sink has of the pipeline."""
        ...


def epoch_checksum(staged: Iterable[Staged]) -> str:
    """One checksum of an epoch: of its shards' checksums and counts, in shard order."""
    parts = sorted((piece.shard, piece.records, piece.checksum) for piece in staged)
    return sha256(repr([part for part in parts if part[1]]).encode()).hexdigest()[:16]
