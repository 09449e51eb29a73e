"""Traces for OpenTelemetry, where somebody asks for them: produce → chunk → epoch → sink.

A span is made when what it tells of is over, from times that are measured anyway: nothing is
carried along on the way of a record, and whoever asks for no traces has nothing of this imported.
Only every n-th chunk and epoch is traced. A chunk gathers many requests and an epoch many chunks,
so they are joined by links; a link is told as W3C Trace Context has it (`00-…-…-01`).

Where spans go is said by OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT. They
leave in batches, from a thread; what cannot be sent is dropped. Needs the extra `otel`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from catchwater.config import ConfigError

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor

Value = str | int | float
FLUSH_MS = 2_000
"""How long the end waits for spans that are on their way."""


class Traces:
    """Makes spans of one process, until `close`."""

    def __init__(
        self,
        service: str,
        about: Mapping[str, Value],
        processor: "SpanProcessor | None" = None,
    ) -> None:
        """`service` and `about` name the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        have the last word. Raises `ConfigError` where the extra is missing.
        """
        try:
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON

            own = Resource({"service.name": service, **about})
            provider = TracerProvider(ALWAYS_ON, own.merge(OTELResourceDetector().detect()))
            provider.add_span_processor(processor or _exporting())
        except ImportError as missing:
            raise ConfigError(
                "Traces are asked for, and OpenTelemetry is not installed.",
                hint="pip install 'catchwater[otel]'",
            ) from missing
        self._provider = provider
        self._tracer = provider.get_tracer("catchwater")

    def span(
        self,
        name: str,
        begin_ns: int,
        end_ns: int,
        attributes: Mapping[str, Value],
        *,
        parent: str = "",
        links: Sequence[str] = (),
        is_request: bool = False,
    ) -> str:
        """A span that is over, times since 1970; how a link or a child names it."""
        from opentelemetry import trace

        context = None
        if parent:
            context = trace.set_span_in_context(trace.NonRecordingSpan(_context(parent)))
        span = self._tracer.start_span(
            name,
            context,
            trace.SpanKind.CONSUMER if is_request else trace.SpanKind.INTERNAL,
            dict(attributes),
            [trace.Link(_context(each)) for each in links],
            min(begin_ns, end_ns),
        )
        span.end(end_ns)
        made = span.get_span_context()
        return f"00-{made.trace_id:032x}-{made.span_id:016x}-01"

    def close(self) -> None:
        """Send what is left, for two seconds at most; blocks."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


def _exporting() -> "SpanProcessor":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # Where the collector is away, a line for each batch that is dropped says so; not each attempt.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.ERROR)
    return BatchSpanProcessor(OTLPSpanExporter())


def _context(parent: str) -> "trace.SpanContext":
    from opentelemetry import trace

    _, trace_id, span_id, flags = parent.split("-")
    return trace.SpanContext(
        int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16))
    )
