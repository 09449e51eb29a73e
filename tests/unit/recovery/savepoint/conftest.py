"""A checkpoint as a pipeline leaves it, made without Spark: state, ledger, Spark's two logs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.objects.open import open_store
from catchwater.recovery.folder import home_of
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    ShardEpoch,
    SourceOffset,
    write_whole,
)
from catchwater.recovery.savepoint.create import Source, state_log
from catchwater.recovery.savepoint.store import Shelf
from catchwater.state.entries import DictEntries, Table, no_changes
from catchwater.state.keys import encode_key, shard_of, stored_key
from catchwater.state.roll import EMPTY, Position

FUNCTIONS = ["count", "alert"]
SHARDS = 2


@dataclass
class Made:
    """A checkpoint under construction; each epoch sets some keys of every function."""

    folder: Path
    clock: Clock = field(default_factory=lambda: Clock(1))
    epochs: int = 0
    model: list[dict[bytes, bytes]] = field(default_factory=list)
    """After each epoch: stored key → record, the same for every function."""

    def __post_init__(self) -> None:
        identity = {"pipeline": "cards", "functions": FUNCTIONS, "shards": SHARDS}
        write_whole(self.folder / FOLDER / "pipeline.json", msgspec.json.encode(identity))
        write_whole(self.folder / FOLDER / "versions.json", b'{"history": [], "generation": 3}')
        write_whole(self.folder / FOLDER / "code" / "abc.py", b"print('hello')")
        Ledger(self.folder).begin(self.offset(-1))
        store = open_store(home_of(self.folder), self.clock)
        self.logs = {
            (stage, shard): state_log(store, "", name, shard)
            for stage, name in enumerate(FUNCTIONS)
            for shard in range(SHARDS)
        }
        self.entries = {place: DictEntries() for place in self.logs}
        self.positions = dict.fromkeys(self.logs, EMPTY)

    def offset(self, epoch: int) -> SourceOffset:
        return SourceOffset(epoch, {"payments": {"0": 10 * (epoch + 1)}}, [epoch], epoch)

    def run(self, **changes: bytes) -> EpochEntry:
        """One epoch that sets the records of these keys."""
        records = {stored_key(encode_key(key)): value for key, value in changes.items()}
        self.model.append({**(self.model[-1] if self.model else {}), **records})
        return self.run_entries(Table.RECORD, records)

    def run_entries(self, table: Table, records: dict[bytes, bytes]) -> EpochEntry:
        """One epoch that sets entries whose keys begin with a stored key."""
        shards = []
        for (stage, shard), log in self.logs.items():
            changed = no_changes()
            changed[table].update(
                {key: value for key, value in records.items() if shard_of(key, SHARDS) == shard}
            )
            base = self.positions[stage, shard]
            to = Position(base.version + 1, self.clock.token())
            log.append(base, to, changed, self.entries[stage, shard])
            self.entries[stage, shard].apply(changed)
            self.positions[stage, shard] = to
            keys = len(changed[table])
            shards.append(ShardEpoch(shard, stage, to.version, to.token, keys, next_due_ms=shard))
        entry = EpochEntry(
            self.epochs, self.offset(self.epochs - 1), self.offset(self.epochs), shards, {}, 0
        )
        Ledger(self.folder).write(entry)
        lines = [b"v1", b'{"batchTimestampMs": 0}', msgspec.json.encode(entry.end)]
        write_whole(self.folder / "offsets" / str(self.epochs), b"\n".join(lines))
        write_whole(self.folder / "commits" / str(self.epochs), b"v1\n{}")
        self.epochs += 1
        return entry

    @property
    def source(self) -> Source:
        return Source.at(self.folder, self.clock)


def state_of(checkpoint: Path, stage: int = 0) -> dict[bytes, bytes]:
    """All records that the last epoch's entry leads to, read back."""
    source = Source.at(checkpoint)
    found: dict[bytes, Any] = {}
    entry = source.entry(None)
    for shard, at in entry.positions(stage).items():
        for changes in source.log(stage, shard).read(at):
            assert all(shard_of(k, source.shards) == shard for k in changes[Table.RECORD])
            found.update(changes[Table.RECORD])
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Three epochs of two functions in two shards."""
    made = Made(tmp_path / "checkpoint")
    made.run(a=b"1", b=b"1", c=b"1")
    made.run(a=b"2", d=b"2")
    made.run(b=b"3", e=b"3")
    return made


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf.at((tmp_path / "savepoints").as_uri(), Clock(2))
