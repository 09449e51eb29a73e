"""A pipeline's traces: each epoch with what ran in it and each sink's commit (`catchwater.traces`).

Made from the ledger's entries behind Spark's commits, as the metrics are. An epoch is linked to the
chunks that it has read and its broker has traced; asking for them happens in a thread, and an epoch
for which nobody answers has none.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import EpochEntry
from catchwater.replay.control import Control
from catchwater.traces import Traces, Value

_log = logging.getLogger("catchwater.pipeline")

_MOST_WAITING = 100
"""Epochs beyond that are not traced."""
_END_S = 3.0
_MS = 1_000_000


class EpochTraces:
    """Makes the spans of one pipeline's epochs, until `close`."""

    def __init__(
        self,
        traces: Traces,
        pipeline: str,
        every: int,
        find_control: Callable[[], Control | None],
    ) -> None:
        """`every` n-th epoch is traced; `find_control` is asked in a thread."""
        self._traces = traces
        self._pipeline = pipeline
        self._every = every
        self._find_control = find_control
        self._control: Control | None = None
        self._is_found = False
        self._waiting: queue.Queue[EpochEntry | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def take_all(self, entries: Sequence[EpochEntry]) -> None:
        """Epochs that were committed. Never blocks."""
        for entry in entries:
            if entry.epoch % self._every == 0 and not self._waiting.full():
                self._waiting.put_nowait(entry)

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        if not self._waiting.full():
            self._waiting.put_nowait(None)
        self._thread.join(_END_S)
        self._traces.close()

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            trace(self._traces, self._pipeline, entry, self._links(entry))

    def _links(self, entry: EpochEntry) -> list[str]:
        try:
            if not self._is_found:
                self._control, self._is_found = self._find_control(), True
            control, found = self._control, list[str]()
            for topic, ends in entry.end.offsets.items() if control is not None else ():
                before = entry.start.offsets.get(topic, {})
                ranges = [
                    {"partition": int(partition), "start": before.get(partition, 0), "end": end}
                    for partition, end in ends.items()
                    if end > before.get(partition, 0)
                ]
                if ranges and control is not None:
                    asked = {"topic": topic, "ranges": ranges}
                    found += control.request("POST", "/api/v1/traces", asked)["links"]
            return found
        except (CatchwaterError, OSError) as error:
            _log.info("Epoch %d is traced without links: %s", entry.epoch, error)
            return []


def trace(traces: Traces, pipeline: str, entry: EpochEntry, links: Sequence[str] = ()) -> str:
    """The spans of one epoch: what Spark ran, then the sinks, which commit one after the other."""
    begin_ns, end_ns = entry.end.clock_ms * _MS, entry.finished_ms * _MS
    sinks_ns = round(sum(entry.sink_ms.values()) * _MS)
    ran_ns = end_ns - sinks_ns
    about: dict[str, Value] = {
        "catchwater.pipeline": pipeline,
        "catchwater.epoch": entry.epoch,
        "catchwater.events": sum(each.events for each in entry.shards if each.stage == 0),
        "catchwater.outputs": entry.total("outputs"),
        "catchwater.state.changed_bytes": entry.total("delta_bytes"),
        "catchwater.state.rebuilt_bytes": entry.total("rebuilt_bytes"),
    }
    epoch = traces.span("epoch", begin_ns, end_ns, about, links=links)
    run_ns = max(begin_ns, ran_ns - round(entry.run_ms * _MS))
    traces.span("run", run_ns, ran_ns, {"catchwater.shards": len(entry.shards)}, parent=epoch)
    for name, took_ms in entry.sink_ms.items():
        at_ns, ran_ns = ran_ns, ran_ns + round(took_ms * _MS)
        sink = entry.sinks.get(name)
        said: dict[str, Value] = {"catchwater.sink": name, "catchwater.epoch": entry.epoch}
        if sink is not None:
            said |= {"catchwater.sink.target": sink.topic, "catchwater.records": sink.records}
        traces.span(f"sink {name}", at_ns, ran_ns, said, parent=epoch)
    return epoch
