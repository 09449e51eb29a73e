"""What a user's tests import: a function's harness, which needs no Spark, JVM or network."""

from catchwater.pipeline.harness import Harness, ReplayMismatch

__all__ = ["Harness", "ReplayMismatch"]
