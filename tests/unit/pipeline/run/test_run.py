"""A query whose Python process was not there in time is started again, and no other one."""

from collections.abc import Iterable

from catchwater.clock import ManualClock
from catchwater.pipeline.run.run import STARTS, run_to_end

STARVED = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class FakeQuery:
    """Has ended when it is looked at, with this failure."""

    def __init__(self, failure: str | None) -> None:
        self._failure = failure
        self.stopped = False
        self.isActive = False

    def exception(self) -> str | None:
        return self._failure

    def stop(self) -> None:
        self.stopped = True


def run(failures: Iterable[str | None], goes_on: bool = True) -> tuple[str | None, list[FakeQuery]]:
    """What is said in the end, and the queries that were started."""
    waiting, started = iter(failures), []

    def start() -> FakeQuery:
        started.append(FakeQuery(next(waiting)))
        return started[-1]

    failure = run_to_end(start, lambda: goes_on, ManualClock())  # type: ignore[arg-type]
    assert all(query.stopped for query in started)
    return failure, started


def test_a_starved_query_is_started_again_at_once() -> None:
    failure, started = run([STARVED, STARVED, None])
    assert (failure, len(started)) == (None, 3)


def test_not_for_ever_and_not_for_another_reason() -> None:
    failure, started = run([STARVED] * 9)
    assert (failure, len(started)) == (STARVED, STARTS)
    assert run(["ValueError: no such card", None])[0] == "ValueError: no such card"


def test_what_is_to_stop_is_not_started_again() -> None:
    failure, [query] = run([STARVED], goes_on=False)
    assert (failure, query.isActive) == (STARVED, False)
