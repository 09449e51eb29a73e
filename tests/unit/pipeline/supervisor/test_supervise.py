"""The supervisor's loop, over drivers that are played."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest

from catchwater.clock import ManualClock
from catchwater.pipeline.run.driver import Stop
from catchwater.pipeline.supervise import (
    HUNG,
    STOP_S,
    EpochWatch,
    Failure,
    GivenUp,
    Restarts,
    Supervision,
    Supervisor,
    read_supervision,
)
from catchwater.recovery.ledger import FOLDER


@dataclass
class Play:
    """What one driver does after it was told to go."""

    lives_s: float
    failure: Failure
    epochs: int = 0
    ignores_stop: bool = False


class Actor:
    """A driver that does what its play says."""

    def __init__(self, stage: "Stage", play: Play, pid: int) -> None:
        self.pid = pid
        self._stage = stage
        self._play = play
        self.went_s: float | None = None
        self.asked = False
        self.gone = False

    def go(self) -> None:
        self.went_s = self._stage.clock.monotonic_s()

    def ended(self) -> Failure | None:
        assert not self.gone
        if self.asked and not self._play.ignores_stop:
            return Failure(-signal.SIGTERM) if self.went_s is None else Failure(0)
        if self.went_s is None:
            return None
        lived_s = self._stage.clock.monotonic_s() - self.went_s
        if self._play.epochs and lived_s >= min(1, self._play.lives_s / 2):
            self._stage.committed += self._play.epochs
            self._play.epochs = 0
        return self._play.failure if lived_s >= self._play.lives_s else None

    def stop(self) -> None:
        self.asked = True

    def end(self) -> None:
        self.gone = True


@dataclass
class Stage:
    """All the drivers of one test, and what the supervisor kept of itself."""

    plays: Iterator[Play]
    clock: ManualClock = field(default_factory=ManualClock)
    committed: int = -1
    actors: list[Actor] = field(default_factory=list)
    kept: list[Supervision] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)

    def start(self) -> Actor:
        self.actors.append(Actor(self, next(self.plays), 100 + len(self.actors)))
        return self.actors[-1]

    def supervisor(
        self, *, limit: int = 10, spare: bool = False, watch: EpochWatch | None = None
    ) -> Supervisor:
        return Supervisor(
            start=self.start,
            restarts=Restarts(limit, Random(1)),
            committed=lambda: self.committed,
            keep=self.kept.append,
            spare=spare,
            stop=self.stop,
            clock=self.clock,
            watch=watch,
        )

    @property
    def went(self) -> list[float]:
        """When each driver got its turn, from the first on."""
        times = [a.went_s for a in self.actors if a.went_s is not None]
        return [round(t - times[0], 1) for t in times]


KILLED = Failure(-9)
DONE = Failure(0)


def stage(*plays: Play) -> Stage:
    return Stage(iter(plays))


def test_a_pipeline_that_ends_by_itself_is_left_alone():
    play = stage(Play(5, DONE, epochs=3))
    play.supervisor().run()
    assert [each.state for each in play.kept] == ["running", "ended"]
    assert all(actor.gone for actor in play.actors)


def test_a_killed_driver_is_started_again_at_once():
    play = stage(Play(5, KILLED, epochs=3), Play(5, DONE))
    play.supervisor().run()
    assert play.went[1] == pytest.approx(5, abs=0.2)
    last = play.kept[-1]
    assert (last.restarts, last.last_cause) == (1, "The driver was ended by SIGKILL (signal 9).")


def test_a_driver_is_ended_whole_before_the_next_gets_its_turn():
    class Strict(Stage):
        def start(self) -> Actor:
            assert all(actor.gone for actor in self.actors)
            return super().start()

    play = Strict(iter([Play(5, KILLED, epochs=3), Play(1, KILLED), Play(1, DONE)]))
    play.supervisor().run()


def test_a_failure_is_dated_when_it_was_noticed_not_when_the_rest_was_gone():
    """Ending a JVM takes a while: that belongs to the way to the next start, not before it."""

    class Slow(Stage):
        def start(self) -> Actor:
            actor = super().start()
            end = actor.end

            def end_slowly() -> None:
                self.noticed_ms.append(self.clock.now_ms())
                self.clock.advance(7)
                end()

            actor.end = end_slowly  # type: ignore[method-assign]
            return actor

        noticed_ms: list[int]

    play = Slow(iter([Play(5, KILLED, epochs=3), Play(5, DONE)]))
    play.noticed_ms = []
    play.supervisor().run()
    assert play.kept[-1].last_failed_ms == play.noticed_ms[0]


def test_failures_without_an_epoch_between_are_spaced():
    play = stage(*[Play(1, KILLED) for _ in range(4)], Play(1, DONE))
    play.supervisor().run()
    gaps = [b - a - 1 for a, b in pairwise(play.went)]
    for gap, declared in zip(gaps, (0, 1, 2, 4), strict=True):
        assert gap == pytest.approx(declared, rel=0.2, abs=0.15)
    assert "waiting" in [each.state for each in play.kept]


def test_too_many_failures_end_it_with_the_cause():
    play = stage(*[Play(1, Failure(1, "The log is gone.", "Find it."), 1) for _ in range(3)])
    with pytest.raises(GivenUp, match="after 3 failures within an hour; the last: The log") as told:
        play.supervisor(limit=2).run()
    assert (told.value.exit_code, told.value.hint) == (1, "Find it.")
    assert play.kept[-1].state == "given up"


@pytest.mark.parametrize("code", [2, 5])
def test_what_was_refused_is_refused_once_with_its_exit_code(code: int):
    play = stage(Play(1, Failure(code, "It is another pipeline.")))
    with pytest.raises(GivenUp, match="It is another pipeline") as told:
        play.supervisor().run()
    assert told.value.exit_code == code


def test_a_driver_that_was_killed_too_often_ends_with_the_shells_code():
    play = stage(Play(1, KILLED))
    with pytest.raises(GivenUp) as told:
        play.supervisor(limit=0).run()
    assert told.value.exit_code == 137


def asked_after(play: Stage, seconds: float) -> None:
    """Let somebody ask the supervisor to stop at this time."""
    at_s = play.clock.monotonic_s() + seconds
    pause = play.clock.pause

    def pause_and_ask(wait_s: float, woken: int | None = None) -> None:
        pause(wait_s, woken)
        play.stop.requested = play.clock.monotonic_s() >= at_s

    play.clock.pause = pause_and_ask  # type: ignore[method-assign]


def test_a_stop_reaches_driver_and_spare():
    play = stage(Play(99, KILLED, epochs=1), Play(99, KILLED))
    asked_after(play, 10)
    play.supervisor(spare=True).run()
    driver, spare = play.actors
    assert (driver.asked, driver.gone, spare.gone) == (True, True, True)
    assert play.kept[-1].state == "stopped"


def test_a_driver_that_does_not_stop_is_killed():
    play = stage(Play(9999, KILLED, ignores_stop=True))
    asked_after(play, 10)
    began_s = play.clock.monotonic_s()
    with pytest.raises(GivenUp, match="It did not stop within"):
        play.supervisor().run()
    assert play.clock.monotonic_s() - began_s == pytest.approx(10 + STOP_S, abs=1)
    assert play.actors[0].gone


def test_a_stop_while_it_waits_starts_nothing_more():
    play = stage(*[Play(1, Failure(1, "No route."))] * 9)
    asked_after(play, 17)
    with pytest.raises(GivenUp, match="stopped after it had failed: No route"):
        play.supervisor().run()
    assert play.kept[-1].state == "stopped"


def test_a_spare_takes_over_and_gets_a_successor():
    play = stage(Play(10, KILLED, epochs=1), Play(10, DONE, epochs=1), Play(99, DONE))
    play.supervisor(spare=True).run()
    first, second, third = play.actors
    assert play.went == [0, pytest.approx(10, abs=0.2)]
    assert third.went_s is None
    assert third.gone
    assert [(told.driver, told.spare) for told in play.kept[:4]] == [
        (first.pid, None), (first.pid, second.pid), (second.pid, None), (second.pid, third.pid),
    ]  # fmt: skip


def test_no_spare_is_started_before_the_driver_has_got_on():
    play = stage(Play(10, KILLED), Play(10, DONE))
    play.supervisor(spare=True).run()
    assert len(play.actors) == 2
    assert not any(told.spare for told in play.kept)


def test_a_spare_that_dies_is_replaced_after_a_while():
    play = stage(Play(200, DONE, epochs=1), Play(0, KILLED), Play(99, DONE))
    start = play.start

    def start_dying() -> Actor:
        actor = start()
        if len(play.actors) == 2:
            actor.go()  # ends at once, as a spare without memory does
        return actor

    play.start = start_dying  # type: ignore[method-assign]
    play.supervisor(spare=True).run()
    assert len(play.actors) == 3
    assert play.kept[-1].restarts == 0


def test_what_it_told_can_be_read_by_others(tmp_path: Path):
    assert read_supervision(tmp_path) is None
    told = Supervision(1, "running", 2, driver=3)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "supervisor.json").write_bytes(msgspec.json.encode(told))
    assert read_supervision(tmp_path) == told


def test_a_driver_that_does_not_get_on_with_an_epoch_is_ended_and_followed_by_another() -> None:
    stage = Stage(iter([Play(10_000, Failure(1)), Play(30, Failure(0), epochs=3)]))
    watch = EpochWatch(120, lambda: 7 if stage.committed < 0 else -1, stage.clock)
    stage.supervisor(watch=watch).run()
    assert stage.actors[0].gone and 120 <= stage.went[1] <= 125
    last = stage.kept[-1]
    assert (last.state, last.restarts) == ("ended", 1)
    assert last.last_cause == (
        "Epoch 7 was not done within 2 min (epoch_timeout), so its driver was ended."
    )


def test_an_epoch_is_watched_from_its_plan_on_and_sleep_does_not_count() -> None:
    clock, planned = ManualClock(), [-1]
    watch = EpochWatch(60, lambda: planned[0], clock)

    def looks(seconds: int) -> Failure | None:
        found = None
        for _ in range(seconds):
            clock.pause(1)
            found = found or watch.look()
        return found

    assert looks(300) is None, "nothing is planned"
    for planned[0] in (0, 1, 2):
        assert looks(55) is None, "one after the other gets done"
    clock.pause(3600)  # the machine was asleep
    assert watch.look() is None
    found = looks(20)
    assert found is not None and found.exit_code == HUNG and "Epoch 2" in found.message
    watch.begin()
    assert looks(50) is None
