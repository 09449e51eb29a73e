"""Traces from a produce request to a sink, against OpenTelemetry's exporter in memory."""

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.ports import free_port

from catchwater.broker.traces import MOST_LINKS, MOST_REQUESTS, ChunkTraces
from catchwater.broker_config import LogConfig
from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError, ConfigError
from catchwater.log.log import Log
from catchwater.log.write.writer import Submission
from catchwater.pipeline.run.traces import EpochTraces, trace
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SinkEpoch, SourceOffset
from catchwater.traces import Traces
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_single

PRODUCERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENTRY = EpochEntry(
    3,
    SourceOffset(3, {"t": {"0": 0}}, [1_000], 5_000),
    SourceOffset(3, {"t": {"0": 3, "1": 0}}, [2_000], 5_000),
    [ShardEpoch(0, events=3, outputs=2)],
    {"rows": SinkEpoch("rows.db", 2, "")},
    5_250,
    run_ms=100.0,
    sink_ms={"rows": 7.0, "copy": 3.0},
)


class Seen:
    """Spans as they were exported."""

    def __init__(self) -> None:
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        self._exporter = memory.InMemorySpanExporter()
        self.traces = Traces(
            "catchwater-test", {"service.instance.id": "1"},
            export.SimpleSpanProcessor(self._exporter),
        )  # fmt: skip

    def __getitem__(self, name: str) -> list[Any]:
        return [each for each in self._exporter.get_finished_spans() if each.name == name]

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    opened = await Log.open(tmp_path, LogConfig(background=False), SYSTEM)
    await opened.create_topic("t", 2)
    yield opened
    await opened.close()


def batch(log: Log, partition: int = 0, headers: Sequence[Any] = ()) -> Submission:
    data = memoryview(encode_batch([(None, b"v", 1_000, headers)] * 3))
    return Submission((log.topics.find("t").id, partition), read_single(data), data)


def traced(log: Log, seen: Seen, every: int = 1) -> ChunkTraces:
    broker: Any = SimpleNamespace(log=log, clock=SYSTEM, config=SimpleNamespace(node_id=7))
    made = ChunkTraces(broker, seen.traces, every)
    log.observe_chunks(made.committed)
    return made


def ids(spans: Sequence[Any]) -> list[int]:
    return [each.context.span_id for each in spans]


async def test_a_record_is_followed_from_its_producer_to_the_sinks(log: Log, seen: Seen) -> None:
    chunks = traced(log, seen)
    await log.submit([batch(log, headers=[("traceparent", PRODUCERS.encode())])])
    [produce], [chunk] = seen["produce"], seen["chunk"]
    assert f"{produce.context.trace_id:032x}" == PRODUCERS.split("-")[1]
    assert f"{produce.parent.span_id:016x}" == PRODUCERS.split("-")[2]
    assert produce.attributes["messaging.destination.name"] == "t"
    assert produce.attributes["messaging.batch.message_count"] == 3
    assert [each.context.span_id for each in chunk.links] == ids([produce])
    assert chunk.attributes["catchwater.broker"] == 7
    parts = [seen["wal"][0], seen["commit"][0]]
    assert [each.parent.span_id for each in parts] == ids([chunk, chunk])
    assert chunk.start_time <= parts[0].end_time == parts[1].start_time <= chunk.end_time

    trace(seen.traces, "cards", ENTRY, chunks.among((log.topics.find("t").id, 0), 0, 3))
    [epoch] = seen["epoch"]
    assert [each.context.span_id for each in epoch.links] == ids([chunk])
    assert (epoch.start_time, epoch.end_time) == (5_000_000_000, 5_250_000_000)
    below = [*seen["run"], *seen["sink rows"], *seen["sink copy"]]
    assert [each.parent.span_id for each in below] == ids([epoch] * 3)
    ends = [(each.start_time // 10**6, each.end_time // 10**6) for each in below]
    assert ends == [(5_140, 5_240), (5_240, 5_247), (5_247, 5_250)]
    assert below[1].attributes["catchwater.records"] == 2
    assert epoch.resource.attributes["service.name"] == "catchwater-test"


async def test_every_nth_chunk_is_traced_and_of_many_requests_the_first(
    log: Log, seen: Seen
) -> None:
    chunks = traced(log, seen, every=3)
    for _ in range(7):
        await log.submit([batch(log)])
    assert len(seen["chunk"]) == 2
    key = log.topics.find("t").id, 0
    assert len(chunks.among(key, 0, 21)) == 2
    assert len(chunks.among(key, 6, 7)) == 1, "the third chunk has 6 to 8"
    assert chunks.among(key, 9, 15) == chunks.among((key[0], 1), 0, 21) == []
    seen.clear()
    chunks = traced(log, seen)
    answers = [log.submit([batch(log, 1)]) for _ in range(4 * MOST_REQUESTS)]
    for answer in answers:
        await answer
    assert sum(each.attributes["catchwater.requests"] for each in seen["chunk"]) == len(answers)
    assert len(seen["produce"]) <= MOST_REQUESTS * len(seen["chunk"])
    assert len(chunks.among((key[0], 1), 0, 10**6)) <= MOST_LINKS


class Links:
    """A broker's control API that knows one traced chunk, or does not answer."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.asked: list[Any] = []

    def request(self, method: str, path: str, content: Any) -> dict[str, Any]:
        self.asked.append((method, path, content))
        if self.broken:
            raise CatchwaterError("Nobody is there.")
        return {"links": [PRODUCERS]}


@pytest.mark.parametrize("broken", [False, True])
def test_an_epoch_is_linked_to_what_its_broker_has_traced(seen: Seen, broken: bool) -> None:
    control = Links(broken)
    spans = EpochTraces(seen.traces, "cards", 3, lambda: control)  # type: ignore[arg-type,return-value]
    spans.take_all([ENTRY])
    spans._waiting.put(None)
    spans._thread.join(60)
    asked = {"topic": "t", "ranges": [{"partition": 0, "start": 0, "end": 3}]}
    assert control.asked == [("POST", "/api/v1/traces", asked)], "of partition 1 nothing was read"
    [epoch] = seen["epoch"]
    assert len(epoch.links) == (0 if broken else 1)
    assert epoch.attributes["catchwater.pipeline"] == "cards"


def test_who_asks_for_traces_without_the_extra_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError, match="not installed") as error:
        Traces("catchwater-test", {})
    assert error.value.hint == "pip install 'catchwater[otel]'"


def test_a_collector_that_is_away_is_one_line_a_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    traces = Traces("catchwater-test", {})
    traces.span("chunk", 1, 2, {})
    traces.close()
    told = [each for each in caplog.records if each.name.startswith("opentelemetry.exporter")]
    assert [each.levelname for each in told] == ["ERROR"]


def test_who_asks_for_none_has_nothing_of_it_imported() -> None:
    code = "import sys, catchwater.broker.main; print('opentelemetry' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
