"""A JVM that ends unasked, told in one sentence.

Whoever asks it something then fails in a way of its own: Spark's bridge with a refused connection,
its server for counters, of which we have none, with a traceback on the screen.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from catchwater.config import CatchwaterError
from catchwater.pipeline.workers import ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYING_S = 10.0
"""So long may a JVM that does not answer take to end."""


class JvmEnded(CatchwaterError):
    """Spark's JVM has ended, and nobody had told it to."""


@contextmanager
def alive(spark: "SparkSession") -> Iterator[None]:
    """Raises `JvmEnded` where what is done meanwhile fails because the JVM is gone."""
    from py4j.protocol import Py4JNetworkError

    process = spark.sparkContext._gateway.proc
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        try:
            code = process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            raise error from None
        raise JvmEnded(
            f"Spark's JVM {ended(code)}.",
            hint="Where memory is short, the system ends what takes most: see the kernel's log.",
        ) from error


def without_tracebacks(context: Any) -> None:
    """Let the server for counters be silent about a JVM that is gone."""
    context._accumulatorServer.handle_error = lambda request, address: None
