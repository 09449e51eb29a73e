"""A pipeline with a checkpoint, a SQLite sink and versions of its function; no Spark, no broker.

Its epochs are made by hand: each counts some keys up and puts a row out for each.
"""

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.objects.open import open_store
from catchwater.pipeline.epochs import EpochWriter
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.rows import Manifest
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import claim, publish
from catchwater.recovery import handover
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.folder import home_of
from catchwater.recovery.ledger import Ledger, ShardEpoch, SourceOffset, write_whole
from catchwater.recovery.savepoint.create import state_log
from catchwater.sinks.base import OutputRecord, Staged
from catchwater.sinks.config import parse
from catchwater.state.entries import DictEntries, Table, no_changes
from catchwater.state.keys import encode_key, shard_of, stored_key
from catchwater.state.records import new_record
from catchwater.state.roll import EMPTY, Position

SHARDS = 2

CODE = """\
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    at: int

@dataclass
class Tally:
    {state}

@dataclass
class Row:
    card: str
    seen: int
    by: int
    {row}

@function(
    name="tally", version={version}, key="card", event_time="at", output_id=("card", "seen")
)
class Tallied(Keyed[Order, Tally, Row]):
    def on_event(self, e: Order, s: Tally, ctx: Context) -> Out[Row]:
        return ()
    {more}
"""
FROM_V1 = """
    @staticmethod
    def from_v1(old: dict) -> Tally:
        return Tally(count={count})
"""


class Offline(OpenPipeline):
    """Without brokers: the log holds all there ever was."""

    control = None

    def tails(self, topics: Iterable[str] | None = None) -> dict[tuple[str, int], PartitionTail]:
        return {("orders", 0): PartitionTail(0, 1000, 1)}


@dataclass
class Shop:
    """The pipeline's folder; every code it is given is a module of its own."""

    folder: Path
    clock: Clock = field(default_factory=lambda: Clock(5))
    codes: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    checkpoint_name: str = "checkpoint"
    mode: str = "append"
    """Of its table."""

    def code(
        self, version: int = 1, state: str = "seen: int = 0", more: str = "", row: str = ""
    ) -> OpenPipeline:
        """Put code of a version into place; the pipeline with it."""
        self.codes += 1
        name = f"tallied_{self.folder.name}_{self.codes}".replace("-", "_")
        text = CODE.format(version=version, state=state, more=more, row=row)
        (self.folder / f"{name}.py").write_text(text)
        self.module = f"{name}:Tallied"
        return self.pipeline

    @property
    def config(self) -> PipelineConfig:
        place = {"kind": "sqlite", "path": "rows.db", "table": "tally", "retry": "1s"}
        sink = {**place, "mode": self.mode}
        return PipelineConfig(
            functions=(self.module,),
            checkpoint=self.folder / self.checkpoint_name,
            source={"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"},
            sinks={"rows": parse("rows", sink)},
            folder=self.folder,
            shards=SHARDS,
        )

    @property
    def pipeline(self) -> OpenPipeline:
        return Offline(self.config, clock=self.clock)

    @property
    def checkpoint(self) -> Path:
        return self.config.checkpoint

    def start(self) -> FunctionSpec:
        """What a start of the pipeline looks at; the function that is to run."""
        (spec,) = self.pipeline.specs
        claim(self.checkpoint, self.pipeline.identity())
        code = publish(spec, self.checkpoint)
        ((spec, _),) = versions.admit(self.checkpoint, [(spec, code)], self.epochs, 0)
        return spec

    def run(self, *cards: str, committed: bool = True, told: bool = True) -> None:
        """Start, do one epoch, and stop; perhaps before Spark's commit, or before the ledger."""
        spec = self.start()
        epoch = self.epochs
        base = Ledger(self.checkpoint).base(epoch) if epoch else None
        self.seen.update(cards)
        start = base.end if base else self._offset(-1)
        if base is None:
            Ledger(self.checkpoint).begin(start)
        end = handover.leaders_end(self.checkpoint, epoch) or self._offset(epoch)
        lines = [b"v1", b'{"batchTimestampMs": 0}', msgspec.json.encode(end)]
        write_whole(self.checkpoint / "offsets" / str(epoch), b"\n".join(lines))
        shards, staged = [], []
        writer = self.pipeline.other(functions=[spec])
        for shard in range(SHARDS):
            own = [c for c in cards if shard_of(stored_key(encode_key(c)), SHARDS) == shard]
            at = base.positions()[shard] if base else EMPTY
            to = self._log(spec, shard, at, own)
            shards.append(ShardEpoch(shard, 0, to.version, to.token, events=len(own)))
            records = [
                OutputRecord(c.encode(), json.dumps(self._row(spec, c)).encode(), 0) for c in own
            ]
            staged.append(writer.sinks["rows"].stager().stage(epoch, shard, records))
        if told:
            self._write(epoch, shards, staged, writer)
        else:
            writer.sinks["rows"].commit(epoch, staged)
        writer.close()
        if told and committed:
            write_whole(self.checkpoint / "commits" / str(epoch), b"v1\n{}")
            self.epochs += 1

    def _write(
        self, epoch: int, shards: list[ShardEpoch], staged: list[Staged], opened: OpenPipeline
    ) -> None:
        """As Spark has it done."""
        manifests = [
            Manifest(shard, {"rows": piece}) for shard, piece in zip(shards, staged, strict=True)
        ]
        rows = [SimpleNamespace(blob=msgspec.msgpack.encode(each)) for each in manifests]
        writer = EpochWriter(Ledger(self.checkpoint), opened.sinks, SHARDS, self.clock)
        writer(SimpleNamespace(collect=lambda: rows), epoch)

    def _row(self, spec: FunctionSpec, card: str) -> dict[str, Any]:
        return {"card": card, "seen": self.seen[card], "by": spec.version}

    def _offset(self, epoch: int) -> SourceOffset:
        return SourceOffset(epoch, {"orders": {"0": 10 * (epoch + 1)}}, [0], 0)

    def _log(self, spec: FunctionSpec, shard: int, at: Position, cards: list[str]) -> Position:
        log = state_log(open_store(home_of(self.checkpoint), self.clock), "", "tally", shard)
        entries = DictEntries()
        for changes in log.read(at):
            entries.apply(changes)
        changed = no_changes()
        for card in cards:
            (field,) = msgspec.inspect.type_info(spec.state_type).fields[:1]  # type: ignore[union-attr]
            state = spec.state_type(**{field.name: self.seen[card]})
            changed[Table.RECORD][stored_key(encode_key(card))] = spec.record_codec.encode(
                new_record(state)
            )
        to = Position(at.version + 1, self.clock.token())
        log.append(at, to, changed, entries)
        return to

    def rows(self) -> list[tuple[str, int, int]]:
        """What the sink holds."""
        with sqlite3.connect(self.folder / "rows.db") as database:
            return sorted(database.execute("SELECT card, seen, by FROM tally").fetchall())


@pytest.fixture
def mode() -> str:
    """Of the table; parametrize it."""
    return "append"


@pytest.fixture
def shop(tmp_path: Path, mode: str) -> Iterator[Shop]:
    """Version 1 after two epochs."""
    path = list(sys.path)
    shop = Shop(tmp_path, mode=mode)
    shop.code()
    shop.run("a", "b")
    shop.run("a", "c")
    yield shop
    sys.path[:] = path
