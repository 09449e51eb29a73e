"""One sentence out of a failed query: ours by our own words, others by their last line."""

import traceback
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.pipeline.spark.failure import PipelineFailed, Traces, cause, is_starved
from catchwater.pipeline.workers import Doing, ProcessEnd, write_end
from catchwater.state.store import ShardStoreFailed

LOG = Path("spark.log")
TRACE = """Job aborted due to stage failure: Traceback (most recent call last):
  File "operator.py", line 20, in run
{error}

\tat org.apache.spark.api.python.BasePythonRunner
"""


def test_our_own_error_in_a_workers_traceback_is_told_with_its_kind_and_exit_code() -> None:
    error = "catchwater.recovery.contract.HistoryGone: The log begins at offset 9."
    failed = cause(TRACE.format(error=error), Traces(LOG))
    assert isinstance(failed, PipelineFailed)
    assert str(failed) == "The pipeline failed: The log begins at offset 9."
    assert (failed.kind, failed.exit_code) == ("HistoryGone", 5)


def test_the_hint_of_an_error_comes_with_it() -> None:
    error = ShardStoreFailed("The shard store x cannot be written.", hint="Make room for it.")
    told = "".join(traceback.format_exception_only(error)).rstrip()
    failed = cause(TRACE.format(error=told), Traces(LOG))
    assert str(failed) == "The pipeline failed: The shard store x cannot be written."
    assert failed.hint == "Make room for it. The whole story is in spark.log."
    assert cause(TRACE.format(error=told.partition("\n")[0]), Traces(LOG)).hint == (
        "The whole story is in spark.log."
    )


def test_of_others_the_last_error_is_told_and_where_the_rest_is() -> None:
    failed = cause(TRACE.format(error="ValueError: no such card"), Traces(LOG))
    assert str(failed) == "The pipeline failed: ValueError: no such card"
    assert failed.exit_code == 1
    assert "spark.log" in (failed.hint or "")
    assert str(cause("", Traces(LOG))) == "The pipeline failed: no cause was given"


def test_of_a_query_that_spark_ended_its_own_words_are_told_and_not_the_state_below() -> None:
    text = """[STREAM_FAILED] Query [id = 67, runId = 57] terminated with exception: Python worker \
failed to connect back. SQLSTATE: XXKST
=== Streaming Query ===
Current State: INITIALIZING
Thread State: RUNNABLE"""
    assert (
        str(cause(text, Traces(LOG)))
        == "The pipeline failed: Python worker failed to connect back."
    )


def test_a_starved_query_is_known_by_what_spark_says_of_it() -> None:
    assert is_starved(
        "terminated with exception: Python worker failed to connect back. SQLSTATE: X"
    )
    assert not is_starved("terminated with exception: Python worker exited unexpectedly")


LOST = """{what}
=== Streaming Query ===
Identifier: cards [id = d1be7728, runId = a021c104]
Current State: ACTIVE
Logical Plan:
   +- ~StreamingDataSourceV2ScanRelation[label#8] catchwater-packed
"""


def end(at_ms: int, what: str = "A Python worker", code: int = -9) -> ProcessEnd:
    doing = Doing("cards", 0, 3, 17) if "worker" in what else None
    return ProcessEnd(99, at_ms, code, what, doing, out_of_memory=code == -9)


def test_a_process_that_died_is_named_with_its_signal_and_what_it_did(tmp_path: Path) -> None:
    clock = ManualClock(10_000_000)
    write_end(tmp_path, end(clock.now_ms() - 5, "The source's Python", -11), "1")
    write_end(tmp_path, end(clock.now_ms()), "2")
    lost = "Job aborted: Python worker exited unexpectedly (crashed)"
    failed = cause(LOST.format(what=lost), Traces(LOG, tmp_path), clock)
    assert str(failed) == (
        "The pipeline failed: A Python worker (process 99) was ended by SIGKILL (signal 9) in "
        "function 'cards' (epoch 17, shard 3)."
    )
    assert "lack of memory" in (failed.hint or "")
    assert isinstance(failed, PipelineFailed) and failed.kind == "ProcessEnded"


@pytest.mark.parametrize(
    "what", ["Broken pipe", "terminated with exception:  SQLSTATE: XXKST (no cause message)"]
)
def test_whatever_spark_says_of_a_process_that_is_gone(what: str, tmp_path: Path) -> None:
    clock = ManualClock(10_000_000)
    write_end(tmp_path, end(clock.now_ms(), "The source's Python"), "1")
    failed = cause(LOST.format(what=what), Traces(LOG, tmp_path), clock)
    assert "The source's Python (process 99) was ended by SIGKILL" in str(failed)
    raised = f"{what}\nTraceback (most recent call last):\nValueError: no such card"
    failed = cause(LOST.format(what=raised), Traces(LOG, tmp_path), clock)
    assert str(failed) == "The pipeline failed: ValueError: no such card"


def test_a_worker_that_crashed_is_told_though_the_driver_shows_a_traceback(tmp_path: Path) -> None:
    clock = ManualClock(10_000_000)
    write_end(tmp_path, end(clock.now_ms()), "1")
    text = f"{TRACE.format(error='py4j.protocol.Py4JJavaError: An error occurred')}\nCaused by: "
    text += "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): "
    failed = cause(text, Traces(LOG, tmp_path), clock)
    assert isinstance(failed, PipelineFailed) and failed.kind == "ProcessEnded"


def test_an_end_before_the_query_began_is_not_its_cause(tmp_path: Path) -> None:
    clock = ManualClock(10_000_000)
    write_end(tmp_path, end(clock.now_ms() - 5), "1")
    told = Traces(LOG, tmp_path, since_ms=clock.now_ms() - 4)
    assert "Broken pipe" in str(cause(LOST.format(what="Broken pipe"), told, clock))


def test_an_end_of_long_ago_is_not_the_cause(tmp_path: Path) -> None:
    clock = ManualClock(10_000_000)
    write_end(tmp_path, end(clock.now_ms() - 100_000), "1")
    failed = cause(LOST.format(what="Broken pipe"), Traces(LOG, tmp_path), clock)
    assert str(failed) == "The pipeline failed: Broken pipe"


def test_the_querys_plan_is_no_cause() -> None:
    text = LOST.format(what="Ran out of luck")
    assert str(cause(text, Traces(LOG))) == "The pipeline failed: Ran out of luck"
