"""A real broker's traces, as an OpenTelemetry collector gets them; and who may ask for links."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.conftest import BrokerProcess, until

from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

PATIENCE_S = 60.0


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        wire = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got = wire.ExportTraceServiceRequest.FromString(body)
                for resource in got.resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[Any]:
        return [each for each in self.spans if each.name == name]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_what_a_producer_sent_is_seen_at_the_collector_and_found_by_its_offsets(
    make_broker: Callable[..., BrokerProcess],
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    broker = make_broker({"catchwater.traces.every": "1"})
    with Client(broker.bootstrap, timeout_s=PATIENCE_S) as client:
        client.create_topics({"t": 1})
        client.produce([(("t", 0), encode_batch([(None, b"x", 1_000, [])] * 5))])
    # Which of them is exported first is nobody's promise.
    until(lambda: collector.named("produce") and collector.named("chunk"), PATIENCE_S)
    [produce], [chunk] = collector.named("produce"), collector.named("chunk")
    assert [each.span_id for each in chunk.links] == [produce.span_id]
    assert produce.start_time_unix_nano <= produce.end_time_unix_nano

    def links(start: int, end: int) -> list[str]:
        asked = {"topic": "t", "ranges": [{"partition": 0, "start": start, "end": end}]}
        url = broker.control_url + "/api/v1/traces"
        with urllib.request.urlopen(url, json.dumps(asked).encode(), PATIENCE_S) as reply:
            found: list[str] = json.load(reply)["links"]
            return found

    assert links(0, 5) == [f"00-{chunk.trace_id.hex()}-{chunk.span_id.hex()}-01"]
    assert links(5, 9) == []
    broker.stop()
    assert "Traceback" not in broker.log()
