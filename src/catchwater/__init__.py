"""Catchwater: stateful stream processing whose recovery is boring.

The chapters, in the order of a record's journey:

 1. wire       bytes to messages and back
 2. broker     one request in, one reply out
 3. log        from accepted batches to immutable segments, and back
 4. wal        durable before acknowledged
 5. objects    immutable objects in a store
 6. catalog    who has what
 7. replay     history without brokers
 8. pipeline   stateful functions on Spark
 9. sinks      an epoch is written once
10. recovery   what a restore would need
11. drill      what happened, held against what may happen

Beside them: `demo` rehearses the whole journey, `testing` runs a function without a cluster,
`cli` is the command line, and `clock` and `config` are what everything stands on.
"""

from catchwater.pipeline.function import Context, Keyed, Out, function

__all__ = ["Context", "Keyed", "Out", "function"]
