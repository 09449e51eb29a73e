"""What is waited for before the start, and which query is started again."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from catchwater.clock import SYSTEM, Clock, ManualClock
from catchwater.config import ConfigError
from catchwater.objects.open import KEYS
from catchwater.pipeline.run.config import AVAILABLE_NOW, CONTINUOUS
from catchwater.pipeline.run.driver import Stop, _standing_by, run_in
from catchwater.pipeline.run.run import (
    STARTS,
    InputMissing,
    _scratch_of,
    packed_rows,
    run_to_end,
    take_checkpoint,
)
from catchwater.pipeline.supervise import Failure, Restarts
from catchwater.replay.subscription import TopicUnknown

STARVED = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class FakeQuery:
    """Has ended when it is looked at, with this failure."""

    def __init__(self, failure: str | None) -> None:
        self._failure = failure
        self.stopped = False
        self.isActive = False

    def awaitTermination(self) -> None:
        pass

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

    failure = run_to_end(start, lambda: goes_on)  # type: ignore[arg-type]
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


class Registry:
    """A session of which a query is given the source that was registered last, as Spark does."""

    def __init__(self) -> None:
        self.sources = 0
        self._both = threading.Barrier(2)
        self.dataSource = SimpleNamespace(register=self._register)
        chain = SimpleNamespace(load=lambda: self.sources)
        chain.format = chain.options = lambda *_, **__: chain
        self.readStream = chain

    def _register(self, source: type) -> None:
        self.sources += 1
        # Where nothing hinders them both have registered before either loads.
        with suppress(threading.BrokenBarrierError):
            self._both.wait(0.5)


def test_of_queries_that_start_at_once_each_has_a_source_of_its_own() -> None:
    session: Any = Registry()
    settings: Any = SimpleNamespace(to_option=dict)
    with ThreadPoolExecutor(2) as two:
        found = [two.submit(packed_rows, session, settings) for _ in range(2)]
    assert sorted(each.result() for each in found) == [1, 2]


def test_where_a_run_on_this_machine_leaves_what_is_not_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/run/of-ours")
    monkeypatch.setenv("CATCHWATER_CACHE", "/run/cache")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    alone: Any = SimpleNamespace(spark={}, local=None, checkpoint=tmp_path)
    state, sparks = _scratch_of(alone)
    assert state.parent == Path("/run/cache/shards") and sparks == Path("/run/of-ours")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/run/a,/run/b")
    alone.local = Path("/run/state")
    assert set(map(str, _scratch_of(alone))) == {"/run/state", "/run/of-ours", "/run/a", "/run/b"}
    alone.spark = {"master": "spark://m:7077"}
    assert _scratch_of(alone) == [], "others' machines have it, too"


def test_with_keys_a_session_of_the_callers_is_not_taken_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEYS, "env:OURS")
    anything: Any = None
    with pytest.raises(ConfigError, match="files of a session of yours, on this machine would not"):
        run_in(anything, anything, anything, anything)


class Missing:
    """A look before the start that finds a topic only the third time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: int = 3) -> None:
        self.looks = 0
        self._found = found
        monkeypatch.setattr("catchwater.pipeline.run.run.look_before", self)

    def __call__(self, config: object, began_s: float, clock: ManualClock) -> str:
        self.looks += 1
        if self.looks < self._found:
            raise TopicUnknown("There is no topic or partition clicks at 127.0.0.1:1.")
        return "parts"


def prepared(trigger: str, stop: Stop) -> object:
    config = SimpleNamespace(trigger=trigger, spare=False)
    held = SimpleNamespace(acquire=lambda lapsed: None)
    return take_checkpoint(config, held, 0.0, stop, ManualClock())  # type: ignore[arg-type]


def test_a_topic_that_is_not_there_is_waited_for_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = Missing(monkeypatch)
    assert prepared(CONTINUOUS, Stop()) == "parts"
    assert look.looks == 3
    told = [record.message for record in caplog.records if "clicks" in record.message]
    assert told == [
        "There is no topic or partition clicks at 127.0.0.1:1. The pipeline waits for it."
    ]


def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    look = Missing(monkeypatch, found=99)

    def pause(self: ManualClock, seconds: float, woken: int | None = None) -> None:
        stop.requested = True

    monkeypatch.setattr(ManualClock, "pause", pause)
    assert prepared(CONTINUOUS, stop) is None
    assert look.looks == 1


def test_a_run_with_an_end_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    Missing(monkeypatch)
    with pytest.raises(InputMissing, match="clicks") as missing:
        prepared(AVAILABLE_NOW, Stop())
    assert "Create the topic" in (missing.value.hint or "")
    failure = Failure(1, str(missing.value), restart=missing.value.restart)
    assert Restarts(10, Random(0)).failed(failure, progressed=False, now_s=0.0) is None


@pytest.mark.parametrize("master", ["spark://m:1", "local[2]"])
def test_a_spare_watches_the_driver_while_a_cluster_gets_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, master: str
) -> None:
    """One without room for it would get ready for a minute, and not be."""
    steps = []
    caplog.set_level("INFO")

    def warm_up(spark: object, tasks: int, enough: Callable[[], bool], clock: Clock) -> bool:
        while master != "local[2]" and not enough():
            SYSTEM.pause(0.001)
        steps.append("ready")
        return master == "local[2]"

    monkeypatch.setattr("catchwater.pipeline.spark.warmup.warm_up", warm_up)
    config = SimpleNamespace(tasks=1, every_sink={}, spark={"master": master})
    with _standing_by(None, config, None, Stop(), SYSTEM):  # type: ignore[arg-type]
        steps.append("the other one is gone")
    expected = ["the other one is gone", "ready"]
    assert steps == (expected if master != "local[2]" else expected[::-1])
    is_said_to_be = "Spark is ready for a takeover." in caplog.text
    assert is_said_to_be == (master == "local[2]"), "not where its turn came before"


def test_a_spare_on_a_cluster_gets_ready_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries, ready = [], threading.Event()
    caplog.set_level("INFO")

    def warm_up(spark: object, tasks: int, enough: Callable[[], bool], clock: Clock) -> bool:
        tries.append("tried")
        if len(tries) == 3:
            ready.set()
        return ready.is_set()

    monkeypatch.setattr("catchwater.pipeline.spark.warmup.warm_up", warm_up)
    monkeypatch.setattr("catchwater.pipeline.run.driver._AGAIN_S", 0.001)
    config = SimpleNamespace(tasks=1, every_sink={}, spark={"master": "spark://m:1"})
    with _standing_by(None, config, None, Stop(), SYSTEM):  # type: ignore[arg-type]
        assert ready.wait(60), "its first try was its last"
    assert len(tries) == 3
    assert "Spark is ready for a takeover." in caplog.text
