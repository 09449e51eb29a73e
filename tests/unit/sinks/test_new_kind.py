"""A new kind of sink is one file: nothing else has to know of it."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from catchwater.config import ConfigError
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.plan import plan_of
from catchwater.pipeline.run.config import load
from catchwater.sinks import kinds as folder
from catchwater.sinks.base import EpochMissing, OutputRecord, Sink
from catchwater.sinks.config import SinkContext, kinds, look_at, open_sink, parse, target_of
from catchwater.sinks.reconcile import repair, verify

LINES = '''
"""Lines of a text file, all of an epoch in one rename; its marks beside it."""

import json
from dataclasses import dataclass
from pathlib import Path

from catchwater.sinks.base import OutputRecord, RowId, TargetState, SinkRow, record_digest
from catchwater.sinks.config import Guarantee, Kind, option, text
from catchwater.sinks.epochs import Mark, Marks, decode_marks


@dataclass(frozen=True)
class LinesOptions:
    path: str = option(text, doc="the file")


class LinesSink:
    retracts = False

    def __init__(self, path, owner, truth, clock):
        self.name, self.truth = owner.sink, truth
        self._path, self._owner, self._clock, self._oldest = path, owner, clock, 0
        self._load().owned_by(owner, str(path))

    def stager(self):
        return self.truth.stager()

    def commit(self, epoch, staged):
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._owner.generation, pieces)
        marks = self._load()
        found = marks.admit(mark)
        if found is None:
            self.truth.record(epoch, pieces, self._clock.now_ms())
            fresh = {str(id): (r.key.decode(), r.value.decode(), r.timestamp_ms)
                     for id, r in self.truth.rows(epoch)}
            self._store(marks.written(mark, self._oldest), {**self._lines(), **fresh})
        return (found or mark).sink_epoch(str(self._path))

    def last_epoch(self):
        return self._load().newest

    def withdraw(self, after):
        marks, gone = self._load().withdrawn(after, self._owner.generation)
        left = {k: v for k, v in self._lines().items() if int(k.split("/")[0]) not in gone}
        self._store(marks, left)
        self.truth.withdraw(after)

    def identity(self, record):
        return None

    def digest(self, record):
        return record_digest(record)

    def rows(self, first, last):
        for name, (key, value, at) in self._lines().items():
            id = RowId(*map(int, name.split("/")))
            if first <= id.epoch <= last:
                record = OutputRecord(key.encode(), value.encode(), at)
                yield SinkRow(id, record.key, record_digest(record))

    def repair(self, fixes):
        lines = self._lines()
        for id, record, *_ in fixes:
            lines.pop(str(id), None)
            if record is not None:
                lines[str(id)] = (record.key.decode(), record.value.decode(), record.timestamp_ms)
        self._store(self._load(), lines)
        return []

    def sweep(self, oldest, now_ms):
        self._oldest = oldest

    def close(self):
        pass

    def _load(self):
        if not self._path.exists():
            return Marks.none(self._owner)
        return decode_marks(json.dumps(json.loads(self._path.read_text())["marks"]), "lines")

    def _lines(self):
        return json.loads(self._path.read_text())["lines"] if self._path.exists() else {}

    def _store(self, marks, lines):
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"marks": json.loads(marks.encode()), "lines": lines}))
        fresh.rename(self._path)


def _open(config, context, truth):
    path = context.folder / config.options.path
    return LinesSink(path, context.owner(config.name), truth, context.clock)


KIND = Kind(
    name="lines",
    options=LinesOptions,
    guarantee=lambda config, output_id: Guarantee("exactly-once", "one rename an epoch"),
    target=lambda config, folder: str(folder / config.options.path),
    place=lambda options: options.path,
    named_by="path",
    open=_open,
    look=lambda config, context: TargetState((context.folder / config.options.path).exists()),
    one_writer=True,
)
'''

FUNCTION = """
from dataclasses import dataclass
from catchwater import Keyed, function

@dataclass
class Event:
    card: str
    at: int

@dataclass
class State:
    count: int = 0

@function(name="cards", version=1, key="card", event_time="at")
class Cards(Keyed[Event, State, Event]):
    def on_event(self, e, s, ctx):
        return ()
"""


FILE = """
[pipeline]
function = "new_kind_function:Cards"
checkpoint = "checkpoint"
[source]
kafka.bootstrap.servers = "127.0.0.1:1"
subscribe = "cards"
[sink.out]
kind = "lines"
path = "out.json"
"""


@pytest.fixture(autouse=True)
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of kinds with one file more."""
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "lines.py").write_text(textwrap.dedent(LINES))
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path / "kinds")])
    kinds.cache_clear()
    yield
    kinds.cache_clear()


def stage(sink: Sink, epoch: int, *values: str) -> list[object]:
    records = [OutputRecord(b"k", msgspec.json.encode(value), 5) for value in values]
    return [sink.stager().stage(epoch, 0, records)]


def test_a_file_that_is_added_is_a_kind_from_its_section_to_its_repair(tmp_path: Path) -> None:
    config = parse("out", {"kind": "lines", "path": "out.json"})
    context = SinkContext("cards", (tmp_path / "checkpoint").as_uri(), tmp_path)
    assert target_of(config, tmp_path) == f"lines {tmp_path}/out.json"
    assert not look_at(config, context).ours
    sink = open_sink(config, context)
    first = sink.commit(0, stage(sink, 0, "a", "b"))  # type: ignore[arg-type]
    assert sink.commit(0, stage(sink, 0, "a", "b")) == first  # type: ignore[arg-type]
    with pytest.raises(EpochMissing):
        sink.commit(2, stage(sink, 2, "c"))  # type: ignore[arg-type]
    assert verify(sink, 0).findings == ()
    out = tmp_path / "out.json"
    out.write_text(out.read_text().replace('"0/0/0"', '"0/0/7"'))
    damaged = verify(sink, 0)
    assert [found.kind for found in damaged.findings] == ["missing", "foreign"]
    assert repair(sink, damaged) == []
    assert verify(sink, 0).findings == ()


def test_its_plan_tells_what_its_file_declares(tmp_path: Path) -> None:
    (tmp_path / "new_kind_function.py").write_text(FUNCTION)
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    (told,) = plan_of(OpenPipeline(load(file, {})))["sinks"]
    assert (told["kind"], told["to"], told["guarantee"], told["why"]) == (
        "lines", "out.json", "exactly-once", "one rename an epoch",
    )  # fmt: skip


def test_its_keys_are_checked_as_all_are() -> None:
    with pytest.raises(ConfigError, match="a sink of kind lines has no key pth") as refused:
        parse("out", {"kind": "lines", "path": "o", "pth": "x"})
    assert refused.value.hint == "The nearest is path."
    with pytest.raises(ConfigError, match=r"path in \[sink.out\] is missing"):
        parse("out", {"kind": "lines"})
