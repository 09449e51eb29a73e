"""A Spark session that cannot start leaves nothing behind."""

import os
from typing import Any

import pytest

from catchwater.pipeline.spark import session

pytestmark = pytest.mark.spark


def test_a_session_that_fails_to_start_takes_its_jvm_along(spark: Any) -> None:
    """A JVM that went on would hold the checkpoint's lock in this process's name."""
    told, held = os.pipe()
    with pytest.raises(ValueError, match="SparkContext"):
        session.start("second", quick=True, keep_open=(held,))
    os.close(held)
    os.set_blocking(told, False)
    assert os.read(told, 1) == b"", "a process that still holds the pipe open makes this raise"
    os.close(told)
    assert spark.range(3).count() == 3


def test_the_jvm_says_how_long_it_stood_still(spark: Any) -> None:
    ask = session.collected_ms(spark)
    before = ask()
    assert before >= 0
    for _ in range(100):
        spark._jvm.java.lang.System.gc()
        if ask() > before:
            break
    assert ask() > before, "full collections take milliseconds each"
