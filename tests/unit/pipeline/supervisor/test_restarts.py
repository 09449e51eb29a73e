"""When a failed pipeline is started again."""

from random import Random

import pytest

from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline.process.poison import EventFailed, PoisonLimitReached
from catchwater.pipeline.run.run import InputMissing
from catchwater.pipeline.run.versions import CodeChanged
from catchwater.pipeline.spark.session import JavaMissing, SparkMissing
from catchwater.pipeline.supervise import HOUR_S, Failure, Restarts
from catchwater.recovery.folder import CheckpointInUse
from catchwater.recovery.ledger import LedgerDamaged
from catchwater.sinks import kafka_client as kafka
from catchwater.sinks.arrow_columns import ValueUnfit
from catchwater.sinks.columns import RowUnfit
from catchwater.sinks.kinds import http
from catchwater.state.parts import ShardDamaged

KILLED = Failure(-9)
LASTING = (CheckpointInUse, CodeChanged, InputMissing, JavaMissing, SparkMissing)
DAMAGED = (LedgerDamaged, ShardDamaged)
ONCE = (EventFailed, PoisonLimitReached, RowUnfit, ValueUnfit, http.RecordRefused,
        kafka.RecordRefused)  # fmt: skip


def waits(restarts: Restarts, count: int, *, progressed: bool = False) -> list[float | None]:
    return [restarts.failed(KILLED, progressed=progressed, now_s=n) for n in range(count)]


def test_the_first_start_is_at_once_then_waits_double_to_a_minute():
    found = waits(Restarts(99, Random(1)), 12)
    assert found[0] == 0
    for wait_s, declared in zip(found[1:], [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=False):
        assert wait_s is not None
        assert 0.8 * declared <= wait_s <= 1.2 * declared


def test_a_pipeline_that_gets_on_is_always_started_at_once():
    assert waits(Restarts(99, Random(1)), 20, progressed=True) == [0] * 20
    restarts = Restarts(99, Random(1))
    waits(restarts, 6)
    assert restarts.failed(KILLED, progressed=True, now_s=7) == 0


def test_more_than_so_many_failures_within_an_hour_end_it():
    assert waits(Restarts(3, Random(1)), 4, progressed=True) == [0, 0, 0, None]
    restarts = Restarts(3, Random(1))
    waits(restarts, 3, progressed=True)
    assert restarts.failed(KILLED, progressed=True, now_s=HOUR_S + 2) == 0
    assert restarts.recent == 2


@pytest.mark.parametrize(
    "failure", [Failure(2), Failure(5), *(Failure(1, restart=each.restart) for each in LASTING)]
)
def test_what_a_start_does_not_mend_is_not_tried_again(failure: Failure):
    assert Restarts(99, Random(1)).failed(failure, progressed=True, now_s=0) is None


def test_poison_is_tried_once_more_and_again_after_progress():
    restarts, poison = Restarts(99, Random(1)), Failure(1, "a record", restart=EventFailed.restart)
    assert restarts.failed(poison, progressed=True, now_s=0) == 0
    assert restarts.failed(poison, progressed=False, now_s=1) is None
    assert restarts.failed(poison, progressed=True, now_s=2) == 0


def test_a_failure_says_what_it_was():
    assert str(KILLED) == "The driver was ended by SIGKILL (signal 9)."
    assert str(Failure(1)) == "The driver ended with exit code 1."
    assert str(Failure(1, "The log is gone.")) == "The log is gone."


@pytest.mark.parametrize("kind", [*ONCE, *DAMAGED])
def test_what_input_files_or_a_target_are_to_blame_for_is_tried_once_more(
    kind: type[CatchwaterError],
):
    restarts, refused = Restarts(99, Random(1)), Failure(1, "a row", restart=kind.restart)
    assert restarts.failed(refused, progressed=False, now_s=0) == 0
    assert restarts.failed(refused, progressed=False, now_s=1) is None


def test_only_a_broken_file_sends_a_start_back_to_an_older_checkpoint():
    found = {kind.restart for kind in DAMAGED}
    assert found == {Restart.FALL_BACK}
    assert {kind.restart for kind in ONCE} == {Restart.ONCE}
    assert CatchwaterError.restart is Restart.AGAIN
