"""Catchwater: stateful stream processing whose recovery is boring.

The chapters, in the order of a record's journey:

 1. wire       bytes to messages and back
 2. broker     one request in, one reply out
 3. log        from accepted batches to immutable segments, and back
 4. wal        durable before acknowledged
 5. objects    immutable objects in a store
 6. catalog    who has what
 7. replay     history without brokers
 8. state      a shard's entries: local store, state log, savepoints
 9. pipeline   stateful functions on Spark
10. sinks      an epoch is written once
11. recovery   what a restore would need
12. drill      what happened, held against what may happen

Beside them: `demo` rehearses the whole journey, `operators` are classes to derive a function from,
`testing` runs a function without a cluster, `values` makes typed columns of bytes, `cli` is the
command line, and `clock` and `config` are what everything stands on.
"""

from catchwater.pipeline.calls.policy import Breaker, Call
from catchwater.pipeline.functions.declare import function
from catchwater.pipeline.functions.entries import (
    ListState,
    MapState,
    ValueState,
    list_state,
    map_state,
    value_state,
)
from catchwater.pipeline.functions.spec import Context, Keyed, Out, keyed

__all__ = [
    "Breaker",
    "Call",
    "Context",
    "Keyed",
    "ListState",
    "MapState",
    "Out",
    "ValueState",
    "function",
    "keyed",
    "list_state",
    "map_state",
    "value_state",
]
