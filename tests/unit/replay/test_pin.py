"""A query's pin: taken with the plan, renewed while tasks read, left to end after that."""

import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from tests.conftest import until

from catchwater.clock import ManualClock
from catchwater.replay import pin as pin_module
from catchwater.replay.control import ControlRefused, ControlUnreachable
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import Offsets, parse_options
from catchwater.replay.pin import MovingPin, ReadPin, held, planned, renewed
from catchwater.replay.plan import Missing, OffsetRange, Slice, Task

URL = "http://c"
LEAST = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
WANTED = OffsetRange("t", 0, 7, 9)


class Api:
    """A control API that remembers pins; `refusals` answers come first."""

    pins: ClassVar[dict[str, Any]] = {}
    renewals: ClassVar[list[tuple[str, int]]] = []
    refusals: ClassVar[list[Exception]] = []

    def __init__(self, url: str, **_: object) -> None:
        assert url == URL

    def set_pin(self, pin_id: str, content: Mapping[str, Any]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.pins[pin_id] = content

    def renew_pin(self, pin_id: str, lease_ms: int) -> bool:
        self.renewals.append((pin_id, lease_ms))
        if self.refusals:
            raise self.refusals.pop(0)
        return pin_id in self.pins

    def release_pin(self, pin_id: str) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.pins.pop(pin_id, None)


class Asked:
    """A subscription whose slices come as they are given."""

    def __init__(self, *answers: list[Slice] | Exception, **options: str) -> None:
        self.options = parse_options({**LEAST, **options})
        self.answers = list(answers)
        self.url: str | None = URL

    def wanted(self) -> list[OffsetRange]:
        return [WANTED]

    def slices(self, wanted: Sequence[OffsetRange]) -> list[Slice]:
        assert wanted == [WANTED]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        slices = self.slices([WANTED])
        return [Task(tuple(slices))] if slices else []

    def control_url(self) -> str | None:
        return self.url

    def earliest(self, partitions: Any) -> Offsets:
        return dict.fromkeys(partitions, 8)


@pytest.fixture(autouse=True)
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Api]]:
    monkeypatch.setattr(pin_module, "Control", Api)
    Api.pins, Api.renewals, Api.refusals = {}, [], []
    Api.others = {*threading.enumerate()}
    yield Api
    pin_module._due_s.clear()


def plan_of(asked: Asked) -> tuple[list[Slice], ReadPin | None]:
    return planned(asked, ManualClock())  # type: ignore[arg-type]


def renewing() -> bool:
    here = {*threading.enumerate()} - Api.others  # tests before this one may have left a pin
    return any(thread.name == pin_module.THREAD for thread in here)


SLICES = [Slice("t", 0, 7, 9), Slice("t", 1, 3, 5), Slice("t", 1, 5, 6), Slice("u", 0, 0, 9)]
TOO_LATE = ControlRefused(
    416, {"error": "OFFSET_OUT_OF_RANGE", "missing": [{"partition": 0, "start": 7, "end": 9}]}
)


def test_a_pin_holds_the_first_offset_that_is_read_of_each_partition(api: type[Api]) -> None:
    slices, pin = plan_of(Asked(SLICES))
    assert slices == SLICES and pin is not None
    assert (pin.control_url, pin.lease_ms) == (URL, 600_000)
    content = api.pins[pin.id]
    places = [(each["topic"], each["partition"], each["offset"]) for each in content["positions"]]
    assert places == [("t", 0, 7), ("t", 1, 3), ("u", 0, 0)]
    assert content["lease_ms"] == 600_000
    assert content["lease_until_ms"] == ManualClock().now_ms() + 600_000
    assert pickle.loads(pickle.dumps(pin)) == pin


OLDER = [Slice("t", 0, 0, 7, files=("file:///f",)), Slice("t", 0, 8, 9)]


def test_of_what_a_table_has_the_log_is_held_from_where_it_begins(api: type[Api]) -> None:
    """A pin cannot hold what the log has deleted; one of the topic keeps the table's files."""
    for slices in (OLDER, OLDER[:1]):
        _, pin = plan_of(Asked(slices))
        assert pin is not None
        [place] = api.pins[pin.id]["positions"]
        assert place == {"topic": "t", "partition": 0, "offset": 8}
    moving = MovingPin(60_000, ManualClock())
    _, pin = moving.planned(Asked(OLDER[:1]), {}, {("t", 0): 7})  # type: ignore[arg-type]
    assert pin is not None
    assert api.pins[pin.id]["positions"] == [place]


def test_nothing_is_pinned_where_nothing_of_our_storage_is_read(api: type[Api]) -> None:
    assert plan_of(Asked([])) == ([], None)
    elsewhere = Asked(SLICES)
    elsewhere.url = None
    assert plan_of(elsewhere) == (SLICES, None)
    assert plan_of(Asked(SLICES, **{"catchwater.pin.lease": "0"})) == (SLICES, None)
    assert api.pins == {}


def test_when_retention_was_faster_than_the_pin_a_new_plan_is_made(api: type[Api]) -> None:
    api.refusals = [TOO_LATE]
    slices, pin = plan_of(Asked(SLICES, SLICES[1:]))
    assert slices == SLICES[1:] and pin is not None
    assert list(api.pins) == [pin.id]
    api.refusals = [TOO_LATE]
    with pytest.raises(HistoryLost, match="t-0 offsets 7 to 8"):
        plan_of(Asked(SLICES, HistoryLost([Missing("t", 0, 7, 9)], "Gone")))


def test_another_refusal_is_an_error(api: type[Api]) -> None:
    api.refusals = [ControlRefused(507, {"message": "The disk is full."})]
    with pytest.raises(ControlRefused, match="disk is full"):
        plan_of(Asked(SLICES))


def test_a_pin_is_renewed_while_a_task_reads_even_if_nobody_takes_its_batches(
    api: type[Api],
) -> None:
    pin = ReadPin(URL, "read/1", 30)
    api.pins = {pin.id: {}}
    reading = renewed(iter("abc"), pin)
    assert next(reading) == "a"
    until(lambda: len(api.renewals) >= 5)
    assert set(api.renewals) == {(pin.id, 30)}
    assert list(reading) == ["b", "c"]
    until(lambda: not renewing())


def test_a_task_that_is_given_up_renews_no_more(api: type[Api]) -> None:
    reading = renewed(iter("abc"), ReadPin(URL, "read/1", 30))
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    until(lambda: not renewing())


def test_tasks_of_one_process_renew_no_more_often_than_one_long_task(api: type[Api]) -> None:
    pin = ReadPin(URL, "read/1", 60_000)
    api.pins = {pin.id: {}}
    pin_module._due_s[URL, pin.id] = 0.0  # long due
    for _ in range(20):
        assert list(renewed(iter("ab"), pin)) == ["a", "b"]
    until(lambda: not renewing())
    assert len(api.renewals) <= 1


def test_a_failing_renewal_is_tried_again_and_the_task_goes_on(
    api: type[Api], caplog: pytest.LogCaptureFixture
) -> None:
    pin = ReadPin(URL, "read/1", 30)
    api.pins = {pin.id: {}}
    api.refusals = [ControlUnreachable("The control API did not answer.")]
    reading = renewed(iter("ab"), pin)
    next(reading)
    until(lambda: len(api.renewals) >= 3)
    assert "The pin read/1 was not renewed: The control API did not answer." in caplog.text
    assert list(reading) == ["b"]


def test_a_pin_that_has_ended_is_told_once_and_not_asked_for_again(
    api: type[Api], caplog: pytest.LogCaptureFixture
) -> None:
    reading = renewed(iter("ab"), ReadPin(URL, "read/1", 30))
    next(reading)
    until(lambda: not renewing())
    assert api.renewals == [("read/1", 30)]
    assert "The pin read/1 has ended" in caplog.text
    assert list(reading) == ["b"]


def test_a_pin_that_the_driver_holds_is_renewed_until_it_is_released(api: type[Api]) -> None:
    pin = ReadPin(URL, "read/1", 30)
    api.pins = {pin.id: {}}
    release = held(pin, lambda: True)
    until(lambda: len(api.renewals) >= 3)
    assert api.pins == {pin.id: {}}
    release()
    assert api.pins == {} and not renewing()
    release()


def test_it_is_removed_too_when_nobody_needs_it_any_more(api: type[Api]) -> None:
    pin = ReadPin(URL, "read/1", 30)
    api.pins = {pin.id: {}}
    needed = iter([True, True, False])
    held(pin, lambda: next(needed))
    until(lambda: not renewing())
    assert api.pins == {} and len(api.renewals) == 2


def test_a_pin_that_cannot_be_removed_is_left_to_its_lease(
    api: type[Api], caplog: pytest.LogCaptureFixture
) -> None:
    pin = ReadPin(URL, "read/1", 60_000)
    api.refusals = [ControlUnreachable("The control API did not answer.")]
    held(pin, lambda: True)()
    assert "read/1 ends with its lease; not removed: The control API did not" in caplog.text


class Stream:
    """A streaming query's pin with a lease of 100 s, and the micro-batches that it holds."""

    def __init__(self, *answers: list[Slice] | Exception) -> None:
        self.clock = ManualClock()
        self.pin = MovingPin(100_000, self.clock)
        self.asked = Asked(*answers)

    def plan(self, end: Offsets) -> ReadPin | None:
        return self.pin.planned(self.asked, {}, end)[1]  # type: ignore[arg-type]


def held_by(api: type[Api]) -> dict[tuple[str, int], int]:
    (content,) = api.pins.values()
    assert (content["owner"], content["lease_ms"]) == ("a streaming query on Spark", 100_000)
    return {(p["topic"], p["partition"]): p["offset"] for p in content["positions"]}


def test_a_stream_s_pin_moves_on_with_its_micro_batches(api: type[Api]) -> None:
    stream = Stream([Slice("t", 0, 7, 9)], [Slice("t", 0, 9, 12)], [Slice("t", 1, 4, 5)])
    pin = stream.plan({("t", 0): 9, ("t", 1): 4})
    assert pin is not None and list(api.pins) == [pin.id]
    assert held_by(api) == {("t", 0): 7, ("t", 1): 4}
    stream.clock.advance(9_000)
    assert stream.plan({("t", 0): 12, ("t", 1): 4}) == pin
    assert held_by(api) == {("t", 0): 7, ("t", 1): 4}, "not set again so soon"
    stream.clock.advance(2_000)
    assert stream.plan({("t", 0): 12, ("t", 1): 5}) == pin
    assert held_by(api) == {("t", 0): 12, ("t", 1): 4}


def test_a_stream_s_pin_is_set_where_retention_has_deleted_all_of_a_partition(
    api: type[Api],
) -> None:
    """Without `failOnDataLoss`; it was asked for ever to hold what was gone."""
    stream = Stream(*[[Slice("t", 0, 9, 12)]] * 2)
    api.refusals = [TOO_LATE]
    assert stream.plan({("t", 0): 12, ("t", 1): 4}) is not None
    assert held_by(api) == {("t", 0): 9, ("t", 1): 8}


def test_a_stream_without_anything_to_read_renews_its_pin_at_its_triggers(
    api: type[Api], caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream([Slice("t", 0, 7, 9)], [], [Slice("t", 0, 9, 10)])
    stream.pin.renew()
    assert api.renewals == [], "before the first micro-batch there is none"
    pin = stream.plan({("t", 0): 9})
    assert pin is not None
    for _ in range(20):
        stream.clock.advance(5_000)
        stream.pin.renew()
    assert api.renewals == [(pin.id, 100_000)] * 3
    assert stream.plan({("t", 0): 9}) is None, "nothing is read, so nobody need renew it"
    api.refusals = [ControlUnreachable("The control API did not answer.")]
    stream.clock.advance(30_000)
    stream.pin.renew()
    assert "was not renewed: The control API did not answer." in caplog.text
    api.pins.clear()
    stream.pin.renew()
    assert "has ended; the next micro-batch sets it" in caplog.text
    assert stream.plan({("t", 0): 10}) == pin
    assert held_by(api) == {("t", 0): 9}


def test_a_stream_that_retention_has_overtaken_is_planned_again(api: type[Api]) -> None:
    api.refusals = [TOO_LATE]
    stream = Stream([Slice("t", 0, 7, 9)], [Slice("t", 0, 8, 9)])
    assert stream.plan({("t", 0): 9}) is not None
    assert held_by(api) == {("t", 0): 8}
    api.refusals = [TOO_LATE]
    stream = Stream([Slice("t", 0, 7, 9)], HistoryLost([Missing("t", 0, 7, 9)], "Gone"))
    with pytest.raises(HistoryLost, match="t-0 offsets 7 to 8"):
        stream.plan({("t", 0): 9})
    api.refusals = [ControlRefused(507, {"message": "The disk is full."})]
    with pytest.raises(ControlRefused, match="disk is full"):
        Stream([Slice("t", 0, 7, 9)]).plan({("t", 0): 9})


def test_a_stream_has_no_pin_unless_it_asks_for_one(api: type[Api]) -> None:
    assert parse_options({**LEAST}).stream_pin_lease_ms == 0
    assert parse_options({**LEAST, "catchwater.pin.lease": "1h"}).stream_pin_lease_ms == 3_600_000
    without = MovingPin(0, ManualClock())
    asked = Asked([Slice("t", 0, 7, 9)])
    tasks, pin = without.planned(asked, {}, {("t", 0): 9})  # type: ignore[arg-type]
    without.renew()
    assert (len(tasks), pin, api.pins, api.renewals) == (1, None, {}, [])
    stream = Stream([Slice("t", 0, 7, 9)])
    stream.asked.url = None  # another Kafka, or the leaders
    assert stream.plan({("t", 0): 9}) is None
    assert api.pins == {}
