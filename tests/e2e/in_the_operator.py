"""A function's shards as a Spark task runs them, epoch after epoch, without Spark."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.pack import pack
from catchwater.pipeline.rows import DRIVER, EVENTS, HEAD, Head, Manifest, Row, shard_labels
from catchwater.pipeline.run.versions import publish
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.recovery.ledger import ShardEpoch
from catchwater.state.roll import EMPTY


class Operator:
    """One stage, and where its shards stand."""

    def __init__(
        self, spec: FunctionSpec, folder: Path, shards: int, objects: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._spec = spec
        self._labels = shard_labels(shards)
        self.stage = Stage(
            index=0, code=publish(spec, folder), shards=shards,
            objects=objects or (folder / "home").as_uri(), folder="state", function=spec.name,
            local=str(folder / "local"), stagers={},
        )  # fmt: skip
        self.stood: dict[int, ShardEpoch] = {}
        self.epochs = 0

    def run(self, events: Iterable[object] = (), watermark_ms: int = 0) -> list[ShardEpoch]:
        """One epoch; what each shard says of it."""
        values = [msgspec.json.encode(event) for event in events]
        rows = self._heads(watermark_ms)
        if values:
            packed = pack(
                self._spec, None, pa.array(values, pa.binary()),
                pa.array(range(len(values)), pa.int64()), origin="t-0", shards=len(self._labels),
            )  # fmt: skip
            rows += [Row(self._labels[shard], 0, shard, EVENTS, blob) for shard, blob in packed]
        out = run_stage(self.stage, rows)
        told = [
            msgspec.msgpack.decode(r.blob, type=Manifest).shard for r in out if r.stage == DRIVER
        ]
        self.stood = {each.shard: each for each in told}
        self.epochs += 1
        return told

    def sweep(self) -> None:
        """Delete what the last epoch does not need, as the driver does behind it."""
        for shard, each in self.stood.items():
            while self.stage.log(shard).sweep([each.position]):
                pass

    @property
    def keys(self) -> int:
        """How many have a record."""
        return sum(each.keys for each in self.stood.values())

    def _heads(self, watermark_ms: int) -> list[Row]:
        rows = []
        for shard, label in enumerate(self._labels):
            stood = self.stood.get(shard)
            base, keys = (stood.position, stood.keys) if stood else (EMPTY, 0)
            head = Head(self.epochs, watermark_ms, 1_000, base, keys)
            rows.append(Row(label, 0, shard, HEAD, msgspec.msgpack.encode(head)))
        return rows


def some(draw: random.Random, of: Sequence[int], count: int) -> list[int]:
    """So many different ones."""
    return draw.sample(of, count)
