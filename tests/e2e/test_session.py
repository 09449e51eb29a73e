"""A Spark session that cannot start leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path
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


START = """
from catchwater.config import CatchwaterError
from catchwater.pipeline.spark import session

with open("spark.log", "wb") as log:
    try:
        session.start("refused", quick=True, log=log, conf={"spark.serializer": "not.there"})
    except CatchwaterError as error:
        print(error, error.hint)
"""


def test_what_spark_cannot_start_with_is_said_in_its_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith(
        "Spark does not start on local[2,4]: java.lang.ClassNotFoundException: not.there"
    ), (done.stdout, done.stderr)
    assert "spark.log" in done.stdout


def test_the_jvm_says_how_long_it_stood_still(spark: Any) -> None:
    ask = session.collected_ms(spark)
    before = ask()
    assert before >= 0
    for _ in range(100):
        spark._jvm.java.lang.System.gc()
        if ask() > before:
            break
    assert ask() > before, "full collections take milliseconds each"
