"""A stage without Spark: what attempts leave behind, what travels on, what is told."""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from catchwater import Context, Keyed, Out, Retraction, function
from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline import shard_epoch
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import Poison
from catchwater.pipeline.pack import pack, pack_table
from catchwater.pipeline.process.poison import EventFailed
from catchwater.pipeline.rows import DRIVER, EVENTS, HEAD, TABLES, Head, Manifest, Row, shard_labels
from catchwater.pipeline.run.versions import publish
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.recovery.ledger import ShardEpoch
from catchwater.sinks.base import RETRACTS_ID_HEADER, OutputRecord, Staged
from catchwater.sinks.epochs import Archive, StagedFile
from catchwater.state.roll import EMPTY

SHARDS = 2


@dataclass
class Sale:
    """An event."""

    shop: str
    at: int
    price: int


@dataclass
class Total:
    """State, and what is put out."""

    shop: str = ""
    at: int = 0
    price: int = 0


@dataclass
class Shop:
    """A table's row."""

    discount: int


@function(name="totals", version=1, key="shop", event_time="at", tables={"shops": Shop})
class Totals(Keyed[Sale, Total, Total]):
    """The running total of each shop, less its discount."""

    def on_event(self, e: Sale, s: Total, ctx: Context) -> Out[Total]:
        """Add, and tell."""
        if e.price < 0:
            raise ValueError("a negative price")
        row = ctx.table("shops").get(e.shop)
        s.price += e.price - (row.discount if row else 0)
        return [Total(e.shop, e.at, s.price)]


@function(name="largest", version=1, key="at", event_time="at")
class Largest(Keyed[Total, Total, Total]):
    """The largest total at each time."""

    def on_event(self, e: Total, s: Total, ctx: Context) -> Out[Total]:
        """Remember."""
        s.price = max(s.price, e.price)
        return [e]


@function(name="totals", version=1, key="shop", event_time="at", late="too-late")
class Kept(Keyed[Sale, Total, Total]):
    """Late events go to a sink."""

    def on_event(self, e: Sale, s: Total, ctx: Context) -> Out[Total]:
        """Nothing."""
        return None


@function(name="totals", version=1, key="shop", event_time="at")
class Sleeper(Keyed[Sale, Total, Total]):
    """A handler that waits for something outside."""

    def on_event(self, e: Sale, s: Total, ctx: Context) -> Out[Total]:
        """Wait."""
        if e.price:
            time.sleep(0.02)
        return None


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    forget_open_stores()


def forget_open_stores() -> None:
    """As in another process."""
    for each in shard_epoch._STORES.values():
        each.store.close()
    shard_epoch._STORES.clear()


def stage(under: Path, **changes: object) -> Stage:
    home = (under / "home").as_uri()
    settings = {
        "index": 0,
        "code": publish(spec_of(Totals), under),
        "shards": SHARDS,
        "objects": home,
        "folder": "state/totals",
        "function": "totals",
        "local": str(under / "local"),
        "stagers": {"out": StagedFile(home, "staged/out")},
    }
    return Stage(**settings | changes)  # type: ignore[arg-type]


def sales(*events: Sale | bytes, first: int = 0) -> list[Row]:
    values = [e if isinstance(e, bytes) else msgspec.json.encode(e) for e in events]
    offsets = pa.array(range(first, first + len(values)), pa.int64())
    packed = pack(
        spec_of(Totals), None, pa.array(values, pa.binary()), offsets, origin="s-0", shards=SHARDS
    )
    return [Row(shard, 0, shard, EVENTS, blob) for shard, blob in packed]


def head_rows(
    before: Sequence[ShardEpoch], epoch: int, index: int = 0, watermark: int = 0
) -> list[Row]:
    stood = {each.shard: each for each in before}
    rows = []
    for shard in range(SHARDS):
        base = stood[shard].position if shard in stood else EMPTY
        keys = stood[shard].keys if shard in stood else 0
        head = msgspec.msgpack.encode(Head(epoch, watermark, 1000 + epoch, base, keys))
        rows.append(Row(shard, index, shard, HEAD, head))
    return rows


def run(of: Stage, rows: Sequence[Row], clock: Clock = SYSTEM) -> tuple[list[Manifest], list[Row]]:
    """The manifests by shard, and the rows for others."""
    out = list(run_stage(of, rows, clock))
    manifests = [msgspec.msgpack.decode(r.blob, type=Manifest) for r in out if r.stage == DRIVER]
    return manifests, [row for row in out if row.stage != DRIVER]


def staged(of: Stage, pieces: Sequence[Staged]) -> list[OutputRecord]:
    archive = Archive(StagedFile(of.objects, "staged"))
    return [record for piece in pieces for record in archive.records(piece)]


def prices(of: Stage, manifests: Sequence[Manifest]) -> dict[str, int]:
    records = staged(of, [manifest.staged["out"] for manifest in manifests])
    totals = [msgspec.json.decode(record.value, type=Total) for record in records]
    return {total.shop: total.price for total in totals}


def test_an_epoch_goes_on_from_the_positions_in_its_heads(tmp_path: Path) -> None:
    of = stage(tmp_path)
    first, _ = run(of, [*head_rows([], 0), *sales(Sale("a", 1, 5), Sale("b", 2, 7))])
    assert prices(of, first) == {"a": 5, "b": 7}
    second, _ = run(of, [*head_rows([m.shard for m in first], 1), *sales(Sale("a", 3, 1))])
    assert prices(of, second) == {"a": 6}
    assert [m.shard.version for m in second] == [2, 2]
    assert sum(m.shard.keys for m in second) == 2
    assert sum(m.shard.events for m in second) == 1
    assert [m.shard.rebuilt_bytes for m in second] == [0, 0]
    assert max(m.shard.max_event_times.get("s-0", 0) for m in second) == 3


class LastFirst:
    """A stager that stages no shard before the third one's turn has come, or its patience ends."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._third = threading.Event()
        self.came: dict[int, bool] = {}

    def stage(self, epoch: int, shard: int, records: Sequence[OutputRecord]) -> Staged:
        if shard == 2:
            self._third.set()
        self.came[shard] = self._third.wait(self._patience_s)
        return Staged(shard, "", 0, 0, 0)


@pytest.mark.parametrize(("held_bytes", "patience_s"), [(4 << 20, 60.0), (0, 0.2)])
def test_shards_are_computed_while_those_before_are_written_as_far_as_memory_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int, patience_s: float
) -> None:
    monkeypatch.setattr(shard_epoch, "_AHEAD_BYTES", held_bytes)
    stager = LastFirst(patience_s)
    of = stage(tmp_path, shards=3, stagers={"out": stager})
    head = msgspec.msgpack.encode(Head(0, 0, 1000, EMPTY, 0))
    manifests, _ = run(of, [Row(shard, 0, shard, HEAD, head) for shard in range(3)])
    assert [each.shard.shard for each in manifests] == [0, 1, 2]
    assert stager.came[0] == (held_bytes > 0)


@pytest.mark.parametrize("lost", ["nothing", "process", "machine"])
def test_an_attempt_that_was_not_committed_never_happened(tmp_path: Path, lost: str) -> None:
    of = stage(tmp_path)
    first, _ = run(of, [*head_rows([], 0), *sales(Sale("a", 1, 5))])
    base = [m.shard for m in first]
    epoch = [*head_rows(base, 1), *sales(Sale("a", 2, 1))]
    failed, _ = run(of, epoch)
    if lost != "nothing":
        forget_open_stores()
    if lost == "machine":
        shutil.rmtree(tmp_path / "local")
    again, _ = run(of, epoch)
    assert prices(of, failed) == prices(of, again) == {"a": 6}
    tokens = [{m.shard.token for m in attempt} for attempt in (failed, again)]
    assert not tokens[0] & tokens[1]
    # Whichever attempt the ledger names, the next epoch goes on from that one.
    for attempt in (failed, again):
        after, _ = run(of, [*head_rows([m.shard for m in attempt], 2), *sales(Sale("a", 3, 1))])
        assert prices(of, after) == {"a": 7}


def test_a_directory_may_go_to_another_checkpoint_in_the_same_process(tmp_path: Path) -> None:
    of = stage(tmp_path)
    run(of, [*head_rows([], 0), *sales(Sale("a", 1, 5))])
    other = stage(tmp_path, objects=(tmp_path / "other").as_uri())
    first, _ = run(other, [*head_rows([], 0), *sales(Sale("a", 1, 7))])
    second, _ = run(other, [*head_rows([m.shard for m in first], 1), *sales(Sale("a", 2, 1))])
    assert prices(of, second) == {"a": 8}  # outputs are staged where they were


def test_a_store_wiped_while_it_is_open_is_rebuilt(tmp_path: Path) -> None:
    of = stage(tmp_path)
    first, _ = run(of, [*head_rows([], 0), *sales(Sale("a", 1, 5), Sale("b", 1, 5))])
    second, _ = run(of, [*head_rows([m.shard for m in first], 1), *sales(Sale("a", 2, 5))])
    shutil.rmtree(tmp_path / "local")
    third, _ = run(of, [*head_rows([m.shard for m in second], 2), *sales(Sale("a", 3, 5))])
    assert prices(of, third) == {"a": 15}
    forget_open_stores()
    shutil.rmtree(tmp_path / "local")
    again, _ = run(of, [*head_rows([m.shard for m in second], 2), *sales(Sale("a", 3, 5))])
    assert prices(of, again) == {"a": 15}
    assert sum(m.shard.rebuilt_bytes for m in again) > 0


def test_a_function_that_raises_leaves_nothing_behind_and_its_store_is_opened_anew(
    tmp_path: Path,
) -> None:
    of = stage(tmp_path)
    first, _ = run(of, [*head_rows([], 0), *sales(Sale("a", 1, 5))])
    base = [m.shard for m in first]
    with pytest.raises(EventFailed, match=r"s-0, offset 7.*a negative price"):
        run(of, [*head_rows(base, 1), *sales(Sale("a", 2, -1), first=7)])
    again, _ = run(of, [*head_rows(base, 1), *sales(Sale("a", 2, 2))])
    assert prices(of, again) == {"a": 7}


def test_dead_letters_say_where_they_come_from_and_why(tmp_path: Path) -> None:
    letters = StagedFile((tmp_path / "home").as_uri(), "staged/dead")
    of = stage(tmp_path, poison=Poison("dead-letter"), dead_letters=letters)
    bad = [Sale("a", 2, -1), b"{", Sale("a", 3, 1)]
    manifests, _ = run(of, [*head_rows([], 0), *sales(*bad, first=7)])
    assert prices(of, manifests) == {"a": 1}
    assert sum(m.shard.poisoned for m in manifests) == 2
    found = staged(of, [m.staged["dead-letter"] for m in manifests])
    told = {dict(r.headers)["offset"]: (r.key, r.value, dict(r.headers)) for r in found}
    key, value, headers = told[b"7"]
    assert (key, msgspec.json.decode(value, type=Sale)) == (b"a", bad[0])
    assert (headers["topic"], headers["partition"]) == (b"s", b"0")
    assert headers["function"] == b"totals"
    assert b"a negative price" in headers["error"]
    assert told[b"8"][1] == b"{"


def test_late_events_go_to_the_sink_that_the_function_names(tmp_path: Path) -> None:
    home = (tmp_path / "home").as_uri()
    of = stage(
        tmp_path,
        code=publish(spec_of(Kept), tmp_path),
        late=StagedFile(home, "staged/too-late"),
        dead_letters=StagedFile(home, "staged/dead"),
    )
    late, good = Sale("a", 1, 5), Sale("a", 1_000, 6)
    manifests, _ = run(of, [*head_rows([], 0, watermark=500), *sales(late, good, first=7)])
    assert sum(m.shard.late for m in manifests) == 1
    assert sum(m.shard.poisoned for m in manifests) == 0
    (record,) = staged(of, [m.staged["too-late"] for m in manifests])
    assert (record.key, msgspec.json.decode(record.value, type=Sale)) == (b"a", late)
    told = dict(record.headers)
    assert (told["topic"], told["offset"], told["function"]) == (b"s", b"7", b"totals")
    assert b"it is late: its event time is 1, the watermark 500" in told["error"]
    assert staged(of, [m.staged["dead-letter"] for m in manifests]) == []


def test_what_a_stage_puts_out_far_ahead_of_the_epochs_clock_is_refused_by_the_next(
    tmp_path: Path,
) -> None:
    first = stage(tmp_path, next=publish(spec_of(Largest), tmp_path))
    ahead = Sale("a", 90_000_000, 5)
    _, rows = run(first, [*head_rows([], 0), *sales(ahead)])
    second = stage(
        tmp_path, index=1, code=publish(spec_of(Largest), tmp_path), function="largest",
        folder="state/largest", local=str(tmp_path / "second"),
    )  # fmt: skip
    with pytest.raises(
        EventFailed, match="its record's timestamp 1000, and max_future is 86400000"
    ):
        run(second, [*head_rows([], 0, index=1), *rows])


@function(name="totals", version=1, key="shop", event_time="at", output_id=("shop", "at"))
class Corrected(Keyed[Sale, Total, Total]):
    """What was put out last is taken back."""

    def on_event(self, e: Sale, s: Total, ctx: Context) -> Out[Total]:
        """Put out the sum."""
        given: list[Any] = [Retraction(Total(e.shop, s.at, s.price))] if s.price else []
        s.at, s.price = e.at, s.price + e.price
        return [*given, Total(e.shop, s.at, s.price)]


def test_retractions_go_to_the_sinks_that_take_them_and_to_no_function(tmp_path: Path) -> None:
    home = (tmp_path / "home").as_uri()
    stagers = {name: StagedFile(home, f"staged/{name}") for name in ("out", "upsert")}
    of = stage(
        tmp_path,
        code=publish(spec_of(Corrected), tmp_path),
        stagers=stagers,
        retracting=frozenset({"upsert"}),
        next=publish(spec_of(Largest), tmp_path),
    )
    manifests, on = run(of, [*head_rows([], 0), *sales(Sale("a", 1, 5), Sale("a", 2, 1))])
    told = {
        name: [
            (msgspec.json.decode(r.value, type=Total).price, r.retracts, r.headers)
            for r in staged(of, [m.staged[name] for m in manifests])
        ]
        for name in stagers
    }
    header = ((RETRACTS_ID_HEADER, b"shop,at"),)
    assert told["out"] == [(5, False, ()), (6, False, ())]
    assert told["upsert"] == [(5, False, ()), (5, True, header), (6, False, ())]
    following = stage(
        tmp_path, index=1, code=publish(spec_of(Largest), tmp_path), function="largest",
        folder="state/largest", local=str(tmp_path / "second"),
    )  # fmt: skip
    final, _ = run(following, [*head_rows([], 0, index=1), *on])
    assert sum(m.shard.events for m in final) == 2


def test_rows_of_a_table_come_before_the_events_of_their_epoch(tmp_path: Path) -> None:
    of = stage(tmp_path)
    rows = pa.array([msgspec.json.encode(Shop(2))], pa.binary())
    packed = pack_table(
        spec_of(Totals), "shops", pa.array([b"a"], pa.binary()), rows,
        pa.array([0], pa.int64()), origin="shops-0", shards=SHARDS,
    )  # fmt: skip
    table = [Row(shard, 0, shard, TABLES, blob) for shard, blob in packed]
    first, _ = run(of, [*sales(Sale("a", 1, 5)), *head_rows([], 0), *table])
    assert prices(of, first) == {"a": 3}
    second, _ = run(of, [*head_rows([m.shard for m in first], 1), *sales(Sale("a", 2, 5))])
    assert prices(of, second) == {"a": 6}


def test_outputs_travel_to_the_shards_of_the_next_stage(tmp_path: Path) -> None:
    of = stage(tmp_path, next=publish(spec_of(Largest), tmp_path), stagers={})
    following = stage(
        tmp_path, index=1, code=publish(spec_of(Largest), tmp_path), folder="state/largest",
        function="largest", local=str(tmp_path / "local2"),
    )  # fmt: skip
    events = [Sale(f"shop-{n}", n % 3, n) for n in range(30)]
    waiting = head_rows([], 0, index=1)
    manifests, on = run(of, [*head_rows([], 0), *waiting, *sales(*events)])
    assert all(row in on for row in waiting), "what is for others passes through"
    labels = shard_labels(SHARDS)
    assert {(row.label, row.shard) for row in on if row.sequence >= EVENTS} == {
        (label, shard) for shard, label in enumerate(labels)
    }
    final, rest = run(following, on)
    assert not rest
    assert sum(m.shard.events for m in final) == 30
    assert {m.shard.stage for m in final} == {1}
    assert sorted(staged(following, [m.staged["out"] for m in final]))[0].timestamp_ms == 1000
    assert {m.shard.stage for m in manifests} == {0}


def test_a_shard_says_where_its_time_went_and_which_key_is_hot(tmp_path: Path) -> None:
    of = stage(tmp_path, code=publish(spec_of(Sleeper), tmp_path))
    many = [Sale("hot", at, 0) for at in range(300)] + [Sale(f"s{at}", at, 0) for at in range(600)]
    manifests, _ = run(of, [*head_rows([], 0), *sales(*many, *[Sale("slow", 1, 1)] * 5)])
    found = [each.shard for each in manifests]
    assert [(s.hot_key, s.hot_events) for s in found if s.hot_events] == [("hot", 300)]
    slow = max(found, key=lambda each: each.handle_ms - each.cpu_ms)
    assert slow.handle_ms - slow.cpu_ms > 80, "it slept for 100 ms, in which the processor did not"
    assert all(0 < each.decode_ms <= each.handle_ms for each in found)
    assert slow.handle_ms <= slow.operator_ms and slow.calls_ms == 0 and slow.disk_reads >= 0
    last = max(found, key=lambda each: each.operator_ms)
    own_ms = last.handle_ms + last.calls_ms + last.state_ms
    assert own_ms <= last.operator_ms, "which has what the shards before it took, too"
    whole_ms = sum(each.handle_ms + each.calls_ms + each.state_ms for each in found)
    assert whole_ms <= 1.1 * last.operator_ms, "one shard after the other: none is counted twice"
