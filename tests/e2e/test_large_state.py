"""State at the size that is asked for: held to a plain model, to a bound of memory, of requests.

What takes minutes is `slow`; its short forms show the same on less.
"""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks import bench_state
from tests.e2e.in_session import Pipeline
from tests.e2e.in_the_operator import Operator
from tests.e2e.kept import Keeps, Note
from tests.s3 import make_bucket
from tests.s3_faults import faulty_proxy

from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.run.driver import MEMORY
from catchwater.pipeline.run.versions import find_function
from catchwater.recovery.savepoint.create import Source
from catchwater.state import roll
from catchwater.state.entries import Table
from catchwater.state.keys import HASH_BYTES
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.client import LATEST, Client

pytestmark = pytest.mark.timeout(1800)

CAP_MIB = 256
PARTITIONS = 2

FUNCTION = '''"""How often each card was seen, each payment once for an hour of event time."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Payment:
    card: str
    id: int
    at: int

@dataclass
class Seen:
    count: int = 0

@dataclass
class Told:
    card: str
    id: int
    count: int

@function(name="seen", key="{key}", event_time="at", watermark="10m", dedup="id", dedup_ttl="1h",
          {more} output_id=("id",))
class Counts(Keyed[Payment, Seen, Told]):
    def on_event(self, e: Payment, s: Seen, ctx: Context) -> Out[Told]:
        s.count += 1
        return [Told(e.card, e.id, s.count)]
'''

FILE = """\
[pipeline]
name = "{name}"
function = "seen_{name}:Counts"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{name}-payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
[sink.told]
topic = "{name}-told"
[recovery]
retain = 3
"""


class Seen(Pipeline):
    """A pipeline over payments of its own."""

    bootstrap: str

    @property
    def name(self) -> str:
        return self.folder.name

    def feed(self, payments: Iterator[tuple[str, int, int]]) -> None:
        """(card, id, event time); a card's in one partition."""
        with Client(self.bootstrap) as client:
            waiting: list[list[Any]] = [[] for _ in range(PARTITIONS)]
            for card, number, at in payments:
                value = b'{"card":"%s","id":%d,"at":%d}' % (card.encode(), number, at)
                records = waiting[hash_of(card) % PARTITIONS]
                records.append((card.encode(), value, 1_700_000_000_000, ()))
                if len(records) == 4_000:
                    self._send(client, waiting)
            self._send(client, waiting)

    def _send(self, client: Client, waiting: list[list[Any]]) -> None:
        """All partitions together: none runs ahead of the others."""
        full = [(p, records) for p, records in enumerate(waiting) if records]
        client.produce([((f"{self.name}-payments", p), encode_batch(r)) for p, r in full])
        for _, records in full:
            records.clear()

    def sink_rows(self) -> Iterator[tuple[str, int, int]]:
        """Every row of the sink: card, id, count."""
        with Client(self.bootstrap) as client:
            topic = f"{self.name}-told"
            keys = [(topic, number) for number in client.metadata([topic]).partitions(topic)]
            for key, end in client.list_offsets(dict.fromkeys(keys, LATEST)).items():
                offset = 0
                while offset < end:
                    fetched = client.fetch({key: offset})[key]
                    batches = place(fetched.records, partial_tail=True)
                    for table in decode(fetched.records, batches, first=offset, columns=["value"]):
                        for value in table.column("value").to_pylist():
                            row = msgspec.json.decode(value)
                            yield row["card"], row["id"], row["count"]
                    offset = batches[-1].next_offset

    def counts(self) -> dict[str, int]:
        """By card: its state, from the state log alone."""
        source = Source.at(self.checkpoint)
        codec = find_function(f"seen_{self.name}:Counts", self.folder).record_codec
        found: dict[str, int] = {}
        for shard, at in source.entry(None).positions().items():
            records: dict[bytes, bytes | None] = {}
            for changes in source.log(0, shard).read(at):
                records.update(changes[Table.RECORD])
            for key, data in records.items():
                if data is not None:
                    card = key[HASH_BYTES:].decode()
                    assert card not in found, "a key lies in one shard"
                    found[card] = codec.decode(data).state.count
        return found


def hash_of(card: str) -> int:
    return int(card.rpartition("-")[2])


@pytest.fixture
def build(make_broker: Callable[..., Any], tmp_path: Path) -> Callable[..., Seen]:
    def make(spark: Any, name: str, key: str, epoch_events: int, more: str = "") -> Seen:
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"seen_{name}.py").write_text(FUNCTION.format(key=key, more=more))
        made = Seen(spark, folder, folder / "pipeline.toml")
        made.bootstrap = make_broker({"log.retention.ms": "-1"}).bootstrap
        text = FILE.format(name=name, bootstrap=made.bootstrap, epoch_events=epoch_events)
        made.file.write_text(text)
        with Client(made.bootstrap) as client:
            client.create_topics({f"{name}-payments": PARTITIONS})
        return made

    return make


def check_against_a_model(pipeline: Seen, cards: int, events: int, at_ms: float) -> None:
    """Feed each card once or more, a tenth of all twice; state and sink are those of a dict."""
    draw, sent = random.Random(4), list[tuple[str, int, int]]()
    counts: Counter[str] = Counter()
    rows: Counter[tuple[str, int, int]] = Counter()
    fresh = events * 9 // 10
    for n in range(fresh):
        card = f"card-{n if n < cards else draw.randrange(cards)}"
        sent.append((card, n, int(n * at_ms)))
        counts[card] += 1
        rows[card, n, counts[card]] += 1
        if n % 9 == 8:
            sent.append(sent[-draw.randrange(1, 100)] if n > 100 else sent[-1])
    pipeline.feed(iter(sent))
    pipeline.run()
    assert sum(entry.total("duplicates") for entry in pipeline.epochs) == len(sent) - fresh
    assert Counter(pipeline.sink_rows()) == rows
    assert pipeline.counts() == counts


def test_many_keys_with_a_tenth_of_the_events_twice_equal_a_dict(
    build: Callable[..., Seen],
) -> None:
    check_against_a_model(build(None, "many", "card", 2_000), 5_000, 10_000, 1.0)


@pytest.mark.spark
@pytest.mark.slow
def test_a_million_keys_with_a_tenth_of_the_events_twice_equal_a_dict(
    build: Callable[..., Seen], spark: Any
) -> None:
    pipeline = build(spark, "million", "card", 200_000)
    check_against_a_model(pipeline, 1_000_000, 1_300_000, 0.1)


@pytest.mark.parametrize(
    ("events", "epoch_events"),
    [(10_000, 500), pytest.param(1_000_000, 20_000, marks=pytest.mark.slow)],
)
def test_ids_are_known_for_their_time_and_take_no_room_after_it(
    build: Callable[..., Seen], events: int, epoch_events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty times the time that an id is known: what is kept is that of one, and then nothing."""
    # In proportion, so that the short form's log of state comes round as often as the long one's.
    monkeypatch.setattr(roll, "LEAST_UNIT", events)
    monkeypatch.setattr(roll, "_SLACK_ENTRIES", events // 100)
    pipeline = build(None, "bounded", "id", epoch_events, 'state_ttl="1h",')
    step_ms, draw = 20 * 3_600_000 / events, random.Random(6)
    sent: list[tuple[str, int, int]] = []
    for n in range(events * 9 // 10):
        sent.append((f"card-{n % 97}", n, int(n * step_ms)))
        if n % 9 == 8:
            sent.append(sent[-draw.randrange(1, 8)])
    last = sent[-1][2]
    pipeline.feed(iter(sent))
    pipeline.run()
    assert Counter(number for _, number, _ in pipeline.sink_rows()) == Counter(
        {number for _, number, _ in sent}
    )
    live = events // 20
    keys = [entry.total("keys") for entry in pipeline.epochs]
    stored = [entry.total("state_bytes") for entry in pipeline.epochs]
    half = len(keys) // 2
    assert max(keys) <= 1.4 * live + 4 * epoch_events
    assert max(stored[half:]) <= 1.5 * max(stored[:half])
    pipeline.feed(
        iter([("card-0", -1, last + 3 * 3_600_000), ("card-1", -2, last + 3 * 3_600_000)])
    )
    pipeline.run()
    assert pipeline.epochs[-1].total("keys") == 2
    assert all(each.timers == 0 for entry in pipeline.epochs for each in entry.shards)


def test_looking_keys_up_asks_no_other_machine(s3_server: str, tmp_path: Path) -> None:
    """The state's store lies behind a proxy that sees every request of the network."""
    bucket = make_bucket(s3_server, "lookups")
    with faulty_proxy(s3_server) as proxy:
        objects = f"{bucket.partition('?')[0]}?endpoint={proxy.endpoint}"
        operator = Operator(spec_of(Keeps), tmp_path, shards=2, objects=objects)
        draw, keys = random.Random(2), range(4_000)
        operator.run(Note(f"key-{n}", 1) for n in keys)
        asked = []
        for count in (0, 500, 4_000, 4_000):
            proxy.seen.clear()
            told = operator.run(Note(f"key-{n}", 2) for n in draw.sample(keys, count))
            assert sum(each.events for each in told) == count
            asked.append(Counter(method for method, _, _ in proxy.seen))
    assert operator.keys == len(keys)
    assert all(set(each) <= {"PUT"} for each in asked), "nothing is read to look a key up"
    assert all(each["PUT"] <= 2 * 12 for each in asked), "as many for any number of keys"


@contextmanager
def at_most(mib: int) -> Iterator[list[str]]:
    """What to put before a command that may have so much memory, its page cache included.

    Where this may not be said to the kernel, nothing.
    """
    group = Path(f"/sys/fs/cgroup/memory/catchwater-{random.getrandbits(32):x}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(mib << 20))
    except OSError:
        yield []
        return
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@pytest.mark.slow
def test_a_state_of_four_times_the_cap_takes_no_more_memory_than_the_cap(tmp_path: Path) -> None:
    """In a process as Spark's workers are: loaded, changed, rebuilt, and expired in one moment.

    The kernel ends a process that needs half of the state in memory, its files' pages included.
    """
    keys = 4 * CAP_MIB * 2**20 // 1_000
    limit_mib = CAP_MIB * 12 // 10
    with at_most(2 * CAP_MIB) as prefix:
        ended = subprocess.run(
            [*prefix, sys.executable, "-m", "tests.e2e.under_a_cap", str(tmp_path), str(keys)],
            env=os.environ | MEMORY, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
    assert ended.returncode == 0, (ended.returncode, ended.stderr[-3000:])
    told = json.loads(ended.stdout)
    print(told, "limited by the kernel" if prefix else "")
    assert max(told.values()) <= limit_mib, told


@pytest.mark.slow
def test_what_a_million_keys_write_and_what_their_restore_reads_follow_the_state_not_the_history(
    tmp_path: Path,
) -> None:
    """One percent of them changes each epoch; a snapshot of the same is what is compared with."""
    history = bench_state.apart(bench_state.make, tmp_path)
    print({key: value for key, value in history.items() if key != "written"})
    assert max(history["written"]) <= 0.05 * history["whole"]
    assert history["read"] <= 2.1 * history["whole"]
    rebuilt = bench_state.apart(bench_state.rebuild, tmp_path, "rolled", history["rolled"])
    print(rebuilt)
