"""What a Spark session reads the log with: the data source `catchwater`, and frames faster than it.

`register` makes `format("catchwater")` known; `read` and `read_stream` give what it would give,
cut into columns by Spark's own code.
"""

from catchwater.replay.frame import read, read_stream
from catchwater.replay.source import register

__all__ = ["read", "read_stream", "register"]
