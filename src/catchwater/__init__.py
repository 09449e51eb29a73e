"""Catchwater: stateful stream processing whose recovery is boring.

The chapters, in the order of a record's journey:

 1. wire       bytes to messages and back
 2. broker     one request in, one reply out
 3. log        from accepted batches to immutable segments, and back
 4. wal        durable before acknowledged
 5. objects    immutable objects in a store
 6. catalog    which objects hold which offsets, and all small state
 7. replay     history without brokers
 8. state      a shard's entries: a local store, and the log of their changes
 9. pipeline   stateful functions on Spark
10. sinks      an epoch is written once
11. recovery   what a restore would need
12. drill      breaks things on purpose, and compares what happened with what may happen
13. web        the page: is it correct, can it recover, is it fresh?

Besides: `demo` runs the whole journey, `operators` are classes to derive a function from, `spark`
reads the log in a user's own session, `testing` runs a function without a cluster, `values` decodes
bytes into typed columns, `audit` keeps who did what in a chain, `cli` is the command line, and all
modules may use `config`, `broker_config` (with `kafka_settings` and `kafka_listeners`), `clock`,
`retries`, `room`, `traces` and `verdicts`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from catchwater.pipeline.calls.policy import Breaker, Call
    from catchwater.pipeline.ends import Files, Http, Iceberg, Kafka, Sink, Table, Topic
    from catchwater.pipeline.functions.declare import function
    from catchwater.pipeline.functions.entries import (
        ListState,
        MapState,
        ValueState,
        list_state,
        map_state,
        value_state,
    )
    from catchwater.pipeline.functions.spec import Context, Keyed, Out, Retraction, keyed
    from catchwater.pipeline.pipeline import Pipeline, Plan, RunningPipeline

__all__ = [
    "Breaker",
    "Call",
    "Context",
    "Files",
    "Http",
    "Iceberg",
    "Kafka",
    "Keyed",
    "ListState",
    "MapState",
    "Out",
    "Pipeline",
    "Plan",
    "Retraction",
    "RunningPipeline",
    "Sink",
    "Table",
    "Topic",
    "ValueState",
    "function",
    "keyed",
    "list_state",
    "map_state",
    "value_state",
]

_HOMES = {
    "pipeline.calls.policy": ("Breaker", "Call"),
    "pipeline.ends": ("Files", "Http", "Iceberg", "Kafka", "Sink", "Table", "Topic"),
    "pipeline.functions.declare": ("function",),
    "pipeline.functions.entries": (
        "ListState", "MapState", "ValueState", "list_state", "map_state", "value_state",
    ),
    "pipeline.functions.spec": ("Context", "Keyed", "Out", "Retraction", "keyed"),
    "pipeline.pipeline": ("Pipeline", "Plan", "RunningPipeline"),
}  # fmt: skip
"""Module → what users import from here; loaded when it is first asked for.

Every command imports this package, and what declares functions takes longer to load than all else
that `catchwater --help` needs.
"""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:  # a type checker would take every name for one of this package's

    def __getattr__(name: str) -> Any:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = found
        return found
