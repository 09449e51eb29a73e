"""One operator's pipeline with its input, its folder, and what it holds in the end.

It runs in this process (`in_session`), or in another one that is killed; either way its files and
the topic that it writes are looked at from here, and held to the models of `every_operator`.
"""

import os
import random
import shutil
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e import in_session
from tests.e2e.every_operator import CASES, Kept, Seen, State
from tests.unit.pipeline.operators.streams import END, Epochs, shuffled
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.config import CatchwaterError
from catchwater.drill.feeder import Event, Feeder
from catchwater.drill.rows import canonical
from catchwater.objects.local import LocalStore
from catchwater.recovery import checkpoint, ledger, pins, rewind
from catchwater.recovery.ledger import EpochEntry, Ledger
from catchwater.recovery.savepoint.create import Source
from catchwater.replay.control import Control
from catchwater.sinks.base import RETRACTS_HEADER
from catchwater.state.entries import DictEntries, Table, prefix_of
from catchwater.state.keys import HASH_BYTES
from catchwater.state.records import Record
from catchwater.wire.arrow import decode, place
from catchwater.wire.client import LATEST, Client

EVENTS, USERS, PARTITIONS = 400, 12, 2
STEP_MS = 300
"""Of event time, from one event to the next."""
SHOPS = 6
"""Shops with a town; of three more the table never hears."""
_FOR_EVER = {"retention.ms": "-1"}
_UNVERSIONED = '"dedup": "id"}'
"""How the declaration that all functions share ends."""

FILE = """\
[pipeline]
name = "{name}"
functions = {functions}
checkpoint = "{checkpoint}"
local = "local"
trigger = "available-now"
tasks = 2
shards = {shards}

[source]
kafka.bootstrap.servers = "{bootstrap}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
{source}
[sink.out]
topic = "{name}-out"
partitions = 2
{sinks}
[recovery]
retain = 1000
"""

_decode_record = msgspec.msgpack.Decoder(Record[Any]).decode
_decode = msgspec.msgpack.Decoder().decode
_numbers = count(1)


class Life:
    """One pipeline of `CASES`, from its first event to its last."""

    def __init__(
        self, case: str, bootstrap: str, folder: Path, spark: Any = None, *, events: int = EVENTS
    ) -> None:
        folder.mkdir()
        self.case, self.bootstrap, self.folder, self.spark = CASES[case], bootstrap, folder, spark
        self.name = f"{case}-{next(_numbers)}"
        self.topics = {
            kind.__name__.lower(): f"{self.name}-{kind.__name__.lower()}"
            for kind in self.case.types
        }
        self.shops = f"{self.name}-shops"
        self.between: Callable[[int], None] = lambda epoch: None
        self._settings: dict[str, Any] = {
            "checkpoint": "checkpoint", "shards": 2, "epoch_events": 20, "sinks": "",
        }  # fmt: skip
        self._checkpoints = [folder / "checkpoint"]
        self._events = self._drawn(random.Random(case), events)
        self._fed = 0
        with Client(bootstrap) as client:
            client.create_topics(dict.fromkeys(self.topics.values(), PARTITIONS), _FOR_EVER)
            if self.case.has_table:
                client.create_topics({self.shops: 1}, {"cleanup.policy": "compact"})
        self.write_code(version=1)

    def _drawn(self, draw: random.Random, events: int) -> list[Any]:
        """As they arrive: a little out of order, 5 % late, 10 % twice."""
        made = []
        for i in range(events):
            user, at = f"u{draw.randrange(USERS)}", i * STEP_MS + draw.randrange(2_000)
            made.append(self.case.draw(draw, user, str(i), at))
        return shuffled(draw, made)

    # What is done to it.

    def write(self, **settings: Any) -> None:
        """The pipeline's file: checkpoint, shards, epoch_events or sinks are changed."""
        self._settings |= settings
        if self.checkpoint != self._checkpoints[-1]:
            self._checkpoints.append(self.checkpoint)
        self.file.write_text(
            FILE.format(
                name=self.name, bootstrap=self.bootstrap, source=self._sources(), **self._settings
            )
        )

    def write_code(self, *, version: int, bad: bool = False) -> None:
        """The module of the functions in this version, and the file that names it."""
        module = f"{self.name.replace('-', '_')}_{next(_numbers)}"
        code = Path(self.case.source.__file__).read_text()
        assert self.case.bad[0] in code and _UNVERSIONED in code
        code = code.replace(_UNVERSIONED, f'{_UNVERSIONED[:-1]}, "version": {version}}}')
        if bad:
            code = code.replace(*self.case.bad)
        (self.folder / f"{module}.py").write_text(code)
        self.write(functions=[f"{module}:{name}" for name in self.case.functions])

    def _sources(self) -> str:
        if len(self.topics) == 1:
            text = f'subscribe = "{next(iter(self.topics.values()))}"\n'
        else:
            inputs = "".join(f'{kind}s = "{topic}"\n' for kind, topic in self.topics.items())
            text = f"[inputs]\n{inputs}"
        return text + (f'[table.shops]\ntopic = "{self.shops}"\n' if self.case.has_table else "")

    def feed(self, share: float) -> None:
        """Go on until this share of the input is there; a table's rows come as the events do."""
        until = int(share * len(self._events))
        self.produce(self._events[self._fed : until])
        if self.case.has_table:
            towns = {f"s{n}": {"town": f"T{n}"} for n in range(int(share * SHOPS))}
            with Client(self.bootstrap) as client:
                rows = (Event(s.encode(), msgspec.json.encode(t), 0) for s, t in towns.items())
                Feeder(client, self.shops, 1, 10).feed(rows, len(towns))
        self._fed = until

    def end(self) -> None:
        """One event far behind all others, which ends whatever is open."""
        self.produce([self.case.draw(random.Random(0), "last", "last", END)])

    def produce(self, events: Sequence[Any]) -> None:
        with Client(self.bootstrap) as client:
            for kind, topic in self.topics.items():
                own = [e for e in events if type(e).__name__.lower() == kind]
                encoded = (Event(e.user.encode(), msgspec.json.encode(e), 0) for e in own)
                Feeder(client, topic, PARTITIONS, 100).feed(encoded, len(own))

    def run(self) -> None:
        """Until the input that there is now is consumed."""
        pipeline = in_session.Pipeline(self.spark, self.folder, self.file, self.between)
        pipeline.run()

    def wipe(self) -> None:
        """What this machine has of the state is lost."""
        shutil.rmtree(self.folder / "local", ignore_errors=True)

    def lose_commit(self) -> None:
        """Spark's last commit file is lost, unless there is but one.

        Without epoch 0's the ledger would forget that epoch, and the models need them all.
        """
        last = checkpoint.last_commit(self.checkpoint)
        if last > 0:
            (self.checkpoint / "commits" / str(last)).unlink()
            (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)

    def go_back(self, epochs: int | None) -> None:
        """To the checkpoint of so many epochs ago, or to the oldest."""
        tails = pins.kafka_tails(self.bootstrap, [*self.topics.values(), *self._table_topics()])
        committed = checkpoint.committed_epochs(self.checkpoint)
        chosen = committed[0] if epochs is None else committed[-1] - epochs
        assert chosen in committed, "there are not as many epochs to go back"
        rewind.rewind(self.checkpoint, chosen, tails)

    def type(self, *words: str) -> None:
        """`catchwater …`, which must succeed."""
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)

    # What is there.

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.toml"

    @property
    def checkpoint(self) -> Path:
        return self.folder / str(self._settings["checkpoint"])

    @property
    def done(self) -> int:
        """Epochs in the ledger of the running checkpoint."""
        return len(Ledger(self.checkpoint).epochs())

    def _table_topics(self) -> list[str]:
        return [self.shops] if self.case.has_table else []

    def entries(self) -> list[EpochEntry]:
        """Every epoch as it counts now, from the first, whichever checkpoint it ran on."""
        found: dict[int, EpochEntry] = {}
        for folder in self._checkpoints:
            kept = Ledger(folder)
            own = {n: entry for n in kept.epochs() if (entry := kept.read(n)) is not None}
            first = min(own, default=0)
            found = {n: entry for n, entry in found.items() if n < first} | own
        return [found[n] for n in sorted(found)]

    def seen(self) -> Seen:
        """What went in. Every record of the log must be in one epoch, and in one only."""
        entries = self.entries()
        numbers = [each.epoch for each in entries]
        assert numbers == list(range(len(numbers)))
        for before, after in pairwise(entries):
            assert (before.end.offsets, before.end.tables) == (
                after.start.offsets, after.start.tables,
            )  # fmt: skip
            assert before.end.watermark_ms <= after.end.watermark_ms
        values = {topic: values_of(self.bootstrap, topic) for topic in self.topics.values()}
        assert entries[-1].end.offsets == {
            topic: {str(n): len(held) for n, held in enumerate(parts)}
            for topic, parts in values.items()
        }

        def epochs(stage: int) -> Epochs:
            return [(e.end.watermark_of(stage), list(self._events_of(e, values))) for e in entries]

        return Seen(epochs, [*self._rows(entries)])

    def _events_of(
        self, entry: EpochEntry, values: Mapping[str, list[list[bytes]]]
    ) -> Iterator[Any]:
        for kind, topic in zip(self.case.types, self.topics.values(), strict=True):
            for partition, end in entry.end.offsets[topic].items():
                start = entry.start.offsets[topic][partition]
                for value in values[topic][int(partition)][start:end]:
                    yield msgspec.json.decode(value, type=kind)

    def _rows(self, entries: Sequence[EpochEntry]) -> Iterator[dict[str, str]]:
        if not self.case.has_table:
            return
        ((records),) = records_of(self.bootstrap, self.shops)
        towns = [(key.decode(), msgspec.json.decode(value)["town"]) for key, value in records]
        for entry in entries:
            yield dict(towns[: entry.end.tables[self.shops]["0"]])

    def states(self) -> list[State]:
        """Of each function, read from the state logs alone."""
        source = Source.at(self.checkpoint)
        entry = source.entry(None)
        found: list[State] = []
        for stage in range(len(self.case.functions)):
            tables = DictEntries()
            for shard, at in entry.positions(stage).items():
                for changes in source.log(stage, shard).read(at):
                    tables.apply(changes)
            found.append(kept_in(tables))
        return found

    @property
    def expected(self) -> Counter[bytes]:
        """The rows that a plain loop gives."""
        return counted(self.case.outputs(self.seen()))

    @property
    def rows(self) -> Counter[bytes]:
        """What a reader of the topic has who knows of retractions."""
        found: Counter[bytes] = Counter()
        for headers, value in in_session.read(self.bootstrap, f"{self.name}-out"):
            found[canonical(msgspec.json.decode(value))] += -1 if RETRACTS_HEADER in headers else 1
        assert not found or min(found.values()) >= 0, "what was not there is retracted"
        return +found

    def check(self) -> None:
        """Outputs and state are those of plain loops, and all events are accounted for."""
        seen = self.seen()
        self.check_outputs(seen)
        states = self.states()
        assert self.case.found(states) == self.case.left(seen)
        known = {(user, id) for user, kept in states[0].items() for id in kept.ids}
        taken = set(self.case.ids(seen))
        assert known == taken
        events = sum(len(events) for _, events in seen.epochs(0))
        assert sum(self.dropped()) == events - len(taken)

    def check_outputs(self, seen: Seen) -> None:
        """The sink's are those of a plain loop."""
        assert self.rows == counted(self.case.outputs(seen))

    def dropped(self) -> tuple[int, int]:
        """Events that were late, and that were known."""
        shards = [shard for entry in self.entries() for shard in entry.shards if shard.stage == 0]
        return sum(shard.late for shard in shards), sum(shard.duplicates for shard in shards)

    def check_whole(self) -> None:
        """As `check`, when all of the input is done: some was late, some came twice."""
        self.check()
        assert min(self.dropped()) > 0, self.dropped()


def counted(outputs: Any) -> Counter[bytes]:
    return Counter(canonical(msgspec.to_builtins(output)) for output in outputs)


def kept_in(tables: DictEntries) -> dict[str, Kept]:
    """The entries of a function's shards as plain values, by key."""
    fields: dict[bytes, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    values: dict[bytes, dict[str, Any]] = defaultdict(dict)
    for entry, value in tables.scan(Table.ENTRY):
        size = HASH_BYTES + 1 + entry[HASH_BYTES]
        name, _, key = entry[size:].partition(b"\0")
        plain = _decode(value[8:])
        if key:
            fields[entry[:size]][name.decode()].append((_decode(key), plain))
        else:  # a value state's, or what a list or map knows of itself
            values[entry[:size]][name.decode()] = plain
    records = dict(tables.scan(Table.RECORD))
    spilled: dict[bytes, set[str]] = defaultdict(set)
    for entry, _ in tables.scan(Table.SEEN):
        stored = next(key for key in records if entry.startswith(key))
        spilled[stored].add(entry[len(stored) : -1].decode())
    found = {}
    for stored, data in records.items():
        record, place = _decode_record(data[2:]), prefix_of(stored)
        ids = {id if isinstance(id, str) else id.decode() for id in record.seen}
        found[stored[HASH_BYTES:].decode()] = Kept(
            record.state, record.timers, fields[place], values[place],
            frozenset(ids | spilled[stored]),
        )  # fmt: skip
    return found


def values_of(bootstrap: str, topic: str) -> list[list[bytes]]:
    """The records' values by partition; their places are their offsets."""
    return [[value for _, value in part] for part in records_of(bootstrap, topic)]


def records_of(bootstrap: str, topic: str) -> list[list[tuple[bytes, bytes]]]:
    """The records' keys and values by partition."""
    found = []
    with Client(bootstrap) as client:
        for number in client.metadata([topic]).partitions(topic):
            key, part = (topic, number), []
            end = client.list_offsets({key: LATEST})[key]
            while len(part) < end:
                fetched = client.fetch({key: len(part)})[key]
                batches = place(fetched.records, partial_tail=True)
                columns = ["key", "value"]
                for table in decode(fetched.records, batches, first=len(part), columns=columns):
                    part += zip(*(table.column(name).to_pylist() for name in columns), strict=True)
            found.append(part)
    return found


class Steps:
    """Counts what an epoch leaves behind, and ends the process with kill -9 at one of them."""

    def __init__(self, last: int, *, after: bool) -> None:
        self._last, self._after = last, after
        self._done = 0
        self._lock = threading.Lock()

    def wrap(self, owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)

        def step(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self._done += 1
                is_last = self._done == self._last
            if is_last and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return original(*arguments, **named)
            finally:
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)

        patch.setattr(owner, name, step)


def run_and_die(folder: Path, last: int, *, after: bool) -> None:
    """In a process of its own: run the pipeline here, and be killed before or after a step.

    A step is a file of Spark's or of the ledger's, an object of the state or of what is staged, and
    a request to the log's control API, by which the sink is committed.
    """
    steps = Steps(last, after=after)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (in_session, "write_whole"), (ledger, "write_whole"), (Control, "_attempt"),
            (LocalStore, "put"), (LocalStore, "put_if_absent"),
        ):  # fmt: skip
            steps.wrap(owner, name, patch)
        try:
            in_session.Pipeline(None, folder, folder / "pipeline.toml").run()
        except CatchwaterError as error:
            raise SystemExit(f"{error} {error.hint}") from error


def live(
    life: Life,
    check: Callable[[], None] | None = None,
    restored: Callable[[int], None] = lambda epoch: None,
) -> None:
    """Go through what befalls state, checkpoints and versions; after each, `check`.

    `restored` is called when an older epoch's savepoint was restored, and nothing yet replayed.
    """
    check = check or life.check
    lose_and_go_back(life, check)
    rescale(life, restored)
    check()
    upgrade_and_roll_back(life)
    check()
    life.write_code(version=3)
    life.type("pipeline", "upgrade", str(life.file), "--to", "3", "--yes")
    life.feed(1)
    life.run()
    check()
    life.check_whole()
    life.end()
    life.run()
    life.check_outputs(life.seen())


def lose_and_go_back(life: Life, check: Callable[[], None]) -> None:
    """Lose local state between epochs, and the last commit; go back by 1, by 10, and to epoch 0."""

    def lose_some(epoch: int) -> None:
        if epoch in (2, 3, 7):
            life.wipe()

    life.between = lose_some
    life.feed(0.55)
    life.run()
    life.between = lambda epoch: None
    check()
    life.lose_commit()
    life.run()
    check()
    for back in (1, 10, None):
        life.go_back(back)
        life.write(epoch_events=30)  # epochs end again where they did, whatever is admitted now
        life.wipe()
        life.run()
        check()


def rescale(life: Life, restored: Callable[[int], None]) -> None:
    """Go on from a savepoint in three shards, though in two more was done since."""
    life.type("savepoint", "create", str(life.file), "--name", "two", "--yes")
    saved = checkpoint.last_commit(life.checkpoint)
    life.feed(0.7)
    life.run()
    life.check()
    life.write(checkpoint="three", shards=3)
    life.type("savepoint", "restore", str(life.file), "two", "--yes")
    restored(saved)
    life.run()


def upgrade_and_roll_back(life: Life) -> None:
    """To a version that writes something else, and back with what it wrote."""
    life.write_code(version=2, bad=True)
    life.type("pipeline", "upgrade", str(life.file), "--to", "2", "--yes")
    life.feed(0.85)
    life.run()
    assert life.rows != life.expected, "a bad version that nobody notices"
    life.type("pipeline", "rollback", str(life.file), "--yes")
    life.run()
