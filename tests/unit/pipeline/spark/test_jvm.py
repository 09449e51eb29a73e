"""A JVM that is gone is told as that; what else fails is left as it is."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from catchwater.pipeline.spark import session
from catchwater.pipeline.spark.session import JvmEnded, alive, without_tracebacks

py4j = pytest.importorskip("py4j.protocol")
SparkContext = pytest.importorskip("pyspark").SparkContext


def over(process: subprocess.Popen[bytes], **more: Any) -> Any:
    """A session over this process."""
    gateway = SimpleNamespace(proc=process, shutdown=refuse)
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway), **more)


def refuse() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL (signal 9)"),
        ("sys.exit(3)", "ended with exit code 3"),
    ],
)
def test_a_jvm_that_is_gone_is_told(code: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_gateway", "_jvm"):  # a session of other tests keeps its own
        monkeypatch.setattr(SparkContext, name, getattr(SparkContext, name))
    command = [sys.executable, "-c", f"import os, sys; {code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        spark = over(process, stop=refuse)
        with pytest.raises(JvmEnded, match=re.escape(f"Spark's JVM {told}")), alive(spark):
            raise py4j.Py4JNetworkError("Answer from Java side is empty")
        session.stop(spark)


def test_what_else_fails_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "DYING_S", 0.01)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(ConnectionRefusedError), alive(over(process)):
            refuse()
        with pytest.raises(ValueError, match="other"), alive(over(process)):
            raise ValueError("other")
        process.kill()


def test_the_server_for_counters_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    from pyspark.accumulators import AccumulatorTCPServer

    with AccumulatorTCPServer(("127.0.0.1", 0), object, "token") as server:  # type: ignore[arg-type]
        without_tracebacks(SimpleNamespace(_accumulatorServer=server))
        server.handle_error(None, None)  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""
