"""What every sink must do: written once, all or nothing, taken back, compared and mended.

Kills come in two forms: an exception at every step of a commit, in this process, and an end of the
process itself (a fork that leaves without a word) at every step. After each, the epoch is staged
and committed again, as Spark does it, and a plain reader finds every output once.
"""

import gc
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.foreign_targets import IcebergTarget, KafkaTarget, ParquetTarget
from tests.conformance.kv_server import key_value_server
from tests.conformance.sink_targets import (
    Alert,
    HttpTarget,
    LogTarget,
    PostgresTarget,
    PostgresUpsertTarget,
    SqliteTarget,
    SqliteUpsertTarget,
    Target,
    plan_damage,
    record,
    stage,
    write,
)
from tests.forked import FORKSERVER, preload

from catchwater.clock import SYSTEM, ManualClock
from catchwater.config import CatchwaterError
from catchwater.recovery.fenced import Claim, LeaseLost
from catchwater.replay.control import Control
from catchwater.sinks import reconcile, table
from catchwater.sinks.base import (
    RETRACTS_ID_HEADER,
    EpochDiffers,
    EpochMissing,
    OutputRecord,
    RowsUnreadable,
    Sink,
    SinkUnavailable,
    Superseded,
    TargetState,
    TargetTaken,
)
from catchwater.sinks.config import alter_target
from catchwater.sinks.kinds import sqlite

ROWS = 5
"""Of each of the two shards that put something out."""
KILLED = 9
preload(__name__, "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow")
_NUMBERS = count(1)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def http_server() -> Iterator[Any]:
    with key_value_server() as server:
        yield server


def _log(request: pytest.FixtureRequest, root: Path) -> Target:
    return LogTarget(root, request.getfixturevalue("broker"), f"alerts-{next(_NUMBERS)}")


def _kafka(request: pytest.FixtureRequest, root: Path) -> Target:
    return KafkaTarget(root, request.getfixturevalue("broker").bootstrap, f"far-{next(_NUMBERS)}")


TARGETS: dict[str, Callable[[pytest.FixtureRequest, Path], Target]] = {
    "sqlite": lambda request, root: SqliteTarget(root),
    "sqlite upsert": lambda request, root: SqliteUpsertTarget(root),
    "postgres": lambda request, root: PostgresTarget(root, request.getfixturevalue("postgres_url")),
    "postgres upsert": lambda request, root: PostgresUpsertTarget(
        root, request.getfixturevalue("postgres_url")
    ),
    "http": lambda request, root: HttpTarget(root, request.getfixturevalue("http_server")),
    "log": _log,
    "parquet": lambda request, root: ParquetTarget(root),
    "parquet s3": lambda request, root: ParquetTarget(root, request.getfixturevalue("s3_url")),
    "iceberg": lambda request, root: IcebergTarget(root),
    "kafka": _kafka,
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    made = TARGETS[request.param](request, tmp_path)
    yield made
    made.close()


def ids(target: Target) -> Counter[str]:
    """How often each output is there."""
    return Counter(alert["id"] for alert in target.read())


def wanted(*epochs: int, salt: str = "", rows: int = ROWS) -> Counter[str]:
    return Counter(f"{e}-{shard}-{row}{salt}" for e in epochs for shard in (0, 2)
                   for row in range(rows))  # fmt: skip


def test_what_is_staged_is_not_visible_and_what_is_committed_is(target: Target) -> None:
    sink = target.open()
    assert sink.last_epoch() is None
    pieces = stage(sink, 0, ROWS)
    assert not ids(target)
    done = sink.commit(0, pieces)
    assert done.records == 2 * ROWS
    assert ids(target) == wanted(0)
    assert sink.last_epoch() == 0
    sink.close()
    (alert,) = (alert for alert in target.read() if alert["id"] == "0-2-3")
    assert alert == msgspec.to_builtins(msgspec.json.decode(record(0, 2, 3).value, type=Alert))


def test_an_epoch_that_is_repeated_is_written_once(target: Target) -> None:
    sink = target.open()
    first = sink.commit(0, stage(sink, 0, ROWS))
    again = target.open()
    assert again.commit(0, stage(again, 0, ROWS)) == first
    write(again, 1, ROWS)
    assert again.commit(0, stage(again, 0, ROWS)) == first  # and not only the newest
    assert ids(target) == wanted(0, 1)
    sink.close()
    again.close()


def test_an_epoch_without_output_is_marked_too(target: Target) -> None:
    sink = target.open()
    for epoch in range(3):
        assert sink.commit(epoch, stage(sink, epoch, 0)).records == 0
    assert sink.last_epoch() == 2
    assert not ids(target)
    sink.close()


def test_an_epoch_with_other_content_is_refused_and_changes_nothing(target: Target) -> None:
    sink = target.open()
    write(sink, 0, ROWS)
    with pytest.raises(EpochDiffers, match="epoch 0 of 'cards' with checksum"):
        sink.commit(0, stage(sink, 0, ROWS + 1))
    with pytest.raises(EpochDiffers):
        sink.commit(0, stage(sink, 0, ROWS, salt="x"))
    assert ids(target) == wanted(0)
    assert not reconcile.verify(sink, 0).findings
    sink.close()


def test_an_epoch_that_does_not_follow_is_refused(target: Target) -> None:
    sink = target.open()
    write(sink, 3, ROWS)  # a sink may begin anywhere
    with pytest.raises(EpochMissing, match="not follow"):
        sink.commit(5, stage(sink, 5, ROWS))
    assert ids(target) == wanted(3)
    sink.close()


def test_looking_tells_whose_it_is_and_how_far_and_changes_nothing(target: Target) -> None:
    there = sorted(target.root.rglob("*"))
    assert target.look() == TargetState()
    assert sorted(target.root.rglob("*")) == there
    sink = target.open()
    write(sink, 0, ROWS)
    write(sink, 1, 0)
    seen = target.look()
    assert (seen.ours, seen.newest, seen.differs) == (target.marked, 1, None)
    write(sink, 2, ROWS)
    assert ids(target) == wanted(0, 2)
    sink.close()


@dataclass
class Wider(Alert):
    """The outputs of the function's next version."""

    shop: str


def test_a_table_that_lacks_a_column_is_altered_on_request(target: Target) -> None:
    sink = target.open()
    write(sink, 0, ROWS)
    differs = target.look(Wider).differs
    if target.kind not in ("sqlite", "postgres"):  # it adds columns when it is opened
        assert differs is None
        sink.close()
        return
    assert differs is not None and "shop is missing" in str(differs)
    assert differs.alter[0].startswith('ALTER TABLE "alerts" ADD COLUMN "shop"')
    alter_target(target.config(), replace(target.around("cards", 0, SYSTEM), output_type=Wider))
    assert target.look(Wider) == target.look()
    assert target.look()[:3] == (True, 0, None)
    write(sink, 1, ROWS)  # the version before goes on
    assert ids(target) == wanted(0, 1)
    sink.close()


def test_a_second_writer_is_refused_or_kept_apart(target: Target) -> None:
    sink = target.open()
    write(sink, 0, ROWS)
    if target.exclusive:
        with pytest.raises(TargetTaken, match="'alerts' of the pipeline 'cards'"):
            target.open(pipeline="other").last_epoch()
    else:
        other = target.open(pipeline="other")
        assert other.last_epoch() is None
        other.close()
    sink.close()


class Steps:
    """Counts what the driver asks of the outside, and ends at one of them."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self.done = 0
        self.end_at: tuple[int, bool] | None = None

    def wrap(self, owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)

        def step(*arguments: Any, **named: Any) -> Any:
            at, self.done = self.done, self.done + 1
            if self.end_at == (at, False):
                self._end()
            answer = original(*arguments, **named)
            if self.end_at == (at, True):
                self._end()
            return answer

        patch.setattr(owner, name, step)


def commit_ending(
    target: Target, sink: Sink, epoch: int, at: tuple[int, bool] | None, end: Callable[[], None]
) -> int:
    """Stage and commit, ended before (False) or after (True) a step; how many there were."""
    pieces = stage(sink, epoch, ROWS)
    steps = Steps(end)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in target.seams(sink):
            steps.wrap(owner, name, patch)
        steps.end_at = at
        sink.commit(epoch, pieces)
    return steps.done


def raise_killed() -> None:
    raise Killed


def check_whole_or_nothing(target: Target, epoch: int) -> None:
    found = Counter({id: n for id, n in ids(target).items() if id.startswith(f"{epoch}-")})
    if target.atomic:
        assert found in (Counter(), wanted(epoch)), "readers saw a part of the epoch"
    assert not found or max(found.values()) == 1


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_commit_that_ends_at_any_step_leaves_all_or_nothing(target: Target, every: int) -> None:
    sink = target.open()
    steps = commit_ending(target, sink, 0, None, raise_killed)
    assert steps >= 2
    points = [(at, after) for at in range(steps) for after in (False, True)]
    for epoch, point in enumerate(points[::every], start=1):
        with suppress(Killed):
            commit_ending(target, sink, epoch, point, raise_killed)
        check_whole_or_nothing(target, epoch)
        sink.close()
        sink = target.open()
        write(sink, epoch, ROWS)
    assert ids(target) == wanted(*range(len(points[::every]) + 1))
    assert not reconcile.verify(sink, None).findings
    sink.close()


def commit_and_die(target: Target, epoch: int, point: tuple[int, bool]) -> None:
    try:
        commit_ending(target, target.open(), epoch, point, lambda: os._exit(KILLED))
    finally:
        os._exit(0)


def kill_fork(target: Target, epoch: int, point: tuple[int, bool]) -> int:
    """The exit code of a fork of this process that dies at this point of its commit."""
    child = os.fork()
    if child == 0:
        gc.disable()  # what other tests left may belong to threads that the fork has not
        commit_and_die(target, epoch, point)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_process(target: Target, epoch: int, point: tuple[int, bool]) -> int | None:
    """The same of a process that was forked before there were threads."""
    started = FORKSERVER.Process(target=commit_and_die, args=(target, epoch, point))
    started.start()
    started.join(200)
    return started.exitcode


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_again_and_again_leaves_no_difference(
    target: Target, kills: int
) -> None:
    if not target.forks and target.kind != "iceberg":
        pytest.skip("its client does not survive a fork; it is killed in tests/e2e")
    sink = target.open()
    steps = commit_ending(target, sink, 0, None, raise_killed)
    sink.close()
    points = random.Random(5)
    kill = kill_fork if target.forks else kill_process
    for epoch in range(1, 1 + kills):
        assert kill(target, epoch, (points.randrange(steps), points.random() < 0.5)) == KILLED
        check_whole_or_nothing(target, epoch)
        sink = target.open()
        write(sink, epoch, ROWS)
        sink.close()
    assert ids(target) == wanted(*range(1 + kills))
    sink = target.open()
    assert not reconcile.verify(sink, None).findings
    sink.close()


class Drivers:
    """The drivers of one checkpoint at a URL, one after the other."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.newest = 0

    def open(self, number: int, **options: str) -> Sink:
        """The sink of this driver, which knows of a later one once that has the checkpoint."""

        def hold() -> None:
            if number < self.newest:
                raise LeaseLost("Another driver has taken over.")

        self.newest = max(number, self.newest)
        self.target.claim, self.target.hold = Claim("f00d", number), hold
        return self.target.open(**options)


@dataclass
class _Successor:
    """A driver that takes over amid another one's commit, runs that epoch and the next."""

    drivers: Drivers
    number: int
    epoch: int
    options: dict[str, str]
    sink: Sink | None = None
    begun: bool = False
    """It takes the steps at which the other one stands still, too."""

    def take_over(self) -> None:
        if self.begun:
            return
        self.begun = True
        try:
            sink = self.drivers.open(self.number, **self.options)
        except SinkUnavailable:
            assert self.drivers.target.kind == "sqlite", "one machine has the file, and waits"
            self.begun = False
            self.drivers.newest = self.number - 1
            return
        write(sink, self.epoch, ROWS)
        sink.commit(self.epoch + 1, _revised(sink, self.epoch + 1, self.epoch))
        self.sink = sink


def _revised(sink: Sink, epoch: int, of: int) -> list[Any]:
    """The pieces of an epoch that says something else of the same ids than an earlier one."""
    pieces = []
    for shard in (0, 2):
        alerts = [msgspec.json.decode(record(of, shard, row).value) for row in range(ROWS)]
        records = [
            record(of, shard, row)._replace(value=msgspec.json.encode(alert | {"amount": -1.0}))
            for row, alert in enumerate(alerts)
        ]
        pieces.append(sink.stager().stage(epoch, shard, records))
    return pieces


def _amounts(target: Target, epoch: int) -> Counter[bool]:
    """How many rows there are with ids of this epoch: as it had them first, and as revised."""
    return Counter(
        alert["amount"] < 0 for alert in target.read() if alert["id"].startswith(f"{epoch}-")
    )


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_driver_that_stood_still_at_any_step_undoes_nothing_of_its_successor(
    target: Target, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.01)
    options = {"http": {"concurrency": "1"}, "sqlite": {"retry": "1ms"}}.get(target.kind, {})
    if target.kind == "log":  # the copies' thread takes one after the other, for both drivers
        monkeypatch.setattr(target, "seams", lambda sink: [(Control, "_attempt")])
    drivers = Drivers(target)
    sink = drivers.open(1, **options)
    steps = commit_ending(target, sink, 0, None, raise_killed)
    points = [(at, after) for at in range(steps) for after in (False, True)]
    epoch = 1
    for number, point in enumerate(points[::every], start=2):
        successor = _Successor(drivers, number, epoch, options)
        with suppress(CatchwaterError):
            commit_ending(target, sink, epoch, point, successor.take_over)
        sink.close()
        successor.take_over()
        assert successor.sink is not None
        sink = successor.sink
        revised = {True: 2 * ROWS} if target.replaces else {False: 2 * ROWS, True: 2 * ROWS}
        assert _amounts(target, epoch) == revised, f"after standing still at {point}"
        assert sink.last_epoch() == epoch + 1
        epoch += 2
    write(sink, epoch, ROWS)
    if not target.replaces:
        assert not reconcile.verify(sink, None).findings
    sink.close()


def test_a_driver_writes_nothing_once_its_successor_has_opened_the_sink(target: Target) -> None:
    drivers = Drivers(target)
    old = drivers.open(1)
    write(old, 0, ROWS)
    late = stage(old, 1, ROWS, salt="old")
    new = drivers.open(2)
    for _ in range(2):
        with pytest.raises(Superseded, match=r"another driver|has taken its place"):
            old.commit(1, late)
    with pytest.raises(Superseded):
        drivers.open(1)
    new.commit(1, stage(new, 1, ROWS, salt="new"))
    write(new, 2, ROWS)
    with pytest.raises(Superseded):
        old.commit(3, stage(old, 3, ROWS))
    assert ids(target) == wanted(0, 2) + wanted(1, salt="new")
    assert not reconcile.verify(new, None).findings
    # Fences of another place, to which the checkpoint was moved, say nothing of these.
    target.claim, target.hold = Claim("beef", 1), lambda: None
    moved = target.open()
    write(moved, 3, ROWS)
    target.claim = None
    folder = target.open()
    write(folder, 4, ROWS)
    assert folder.last_epoch() == 4
    for sink in (old, new, moved, folder):
        sink.close()


def test_what_an_older_generation_wrote_behind_a_rollback_is_taken_back(target: Target) -> None:
    old = target.open()
    for epoch in range(4):
        write(old, epoch, ROWS)
    new = target.open(generation=1)
    new.withdraw(1)
    assert ids(target) == wanted(0, 1)
    assert new.last_epoch() == 1
    new.withdraw(1)  # a rollback that was interrupted does it again
    assert not reconcile.verify(new, 1).findings
    write(new, 2, ROWS, salt="x")
    new.withdraw(1)  # and what the new generation has written is its own
    assert ids(target) == wanted(0, 1) + wanted(2, salt="x")
    assert not reconcile.verify(new, 2).findings
    if target.kind == "log":  # where the catalog does not know of generations
        with pytest.raises(Superseded):
            target.open()
    else:
        with pytest.raises(Superseded):
            old.commit(4, stage(old, 4, ROWS))
    old.close()
    new.close()


def test_a_second_rollback_takes_back_what_both_generations_wrote(target: Target) -> None:
    for generation, after, epochs in ((0, -1, (0, 1, 2, 3)), (1, 2, (3, 4)), (2, 1, (2,))):
        sink = target.open(generation=generation)
        if generation:
            sink.withdraw(after)
        for epoch in epochs:
            write(sink, epoch, ROWS, salt="xyz"[generation])
        assert sink.last_epoch() == epochs[-1]
        assert not reconcile.verify(sink, epochs[-1]).findings
        sink.close()
    assert ids(target) == wanted(0, 1, salt="x") + wanted(2, salt="z")


def test_behind_what_was_swept_a_sink_goes_back_or_says_first_that_it_cannot(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_SWEEP_EPOCHS", 1)
    old = target.open()
    for epoch in range(8):
        write(old, epoch, 1)
    assert target.look().undone_from in (None, 0)
    old.sweep(6, SYSTEM.now_ms() + 1000)
    write(old, 8, 1)
    first = target.look().undone_from
    new = target.open(generation=1)
    if first is None:
        new.withdraw(1)
        assert ids(target) == wanted(0, 1, rows=1)
        assert new.last_epoch() in (1, None), "where it has forgotten its marks until there"
        write(new, 2, 1, salt="x")
        assert ids(target) == wanted(0, 1, rows=1) + wanted(2, rows=1, salt="x")
    else:
        assert first == 6 and target.replaces
        with suppress(RowsUnreadable):  # a table cannot know what it has forgotten
            new.withdraw(first - 1)
        assert ids(target) == wanted(*range(6), rows=1)
    old.close()
    new.close()


def test_everything_can_be_taken_back(target: Target) -> None:
    old = target.open()
    for epoch in range(2):
        write(old, epoch, ROWS)
    new = target.open(generation=1)
    new.withdraw(-1)
    assert not ids(target)
    assert new.last_epoch() is None
    write(new, 0, ROWS, salt="x")
    assert ids(target) == wanted(0, salt="x")
    old.close()
    new.close()


def changed(epoch: int, row: int) -> OutputRecord:
    """Another value for the same output of every epoch."""
    plain = msgspec.json.decode(record(0, 0, row).value)
    value = msgspec.json.encode({**plain, "at": epoch})
    return record(0, 0, row)._replace(value=value)


def test_rows_that_replaced_others_give_them_back(target: Target) -> None:
    sink = target.open()
    if sink.identity(record(0, 0, 0)) is None:
        sink.close()
        pytest.skip("rows of this sink replace nothing")
    for epoch in range(3):
        rows = range(epoch, 4)  # the first row is replaced never, the last one twice
        sink.commit(epoch, [sink.stager().stage(epoch, 0, [changed(epoch, row) for row in rows])])
    assert sorted((a["id"], a["at"]) for a in target.read()) == [
        ("0-0-0", 0), ("0-0-1", 1), ("0-0-2", 2), ("0-0-3", 2),
    ]  # fmt: skip
    assert not reconcile.verify(sink, 2).findings
    new = target.open(generation=1)
    new.withdraw(0)
    assert sorted((a["id"], a["at"]) for a in target.read()) == [
        (f"0-0-{row}", 0) for row in range(4)
    ]
    assert not reconcile.verify(new, 0).findings
    sink.close()
    new.close()


def taken_back(row: int) -> OutputRecord:
    """What takes the output back, whatever its value was."""
    return record(0, 0, row)._replace(headers=((RETRACTS_ID_HEADER, b"id"),))


def test_what_no_longer_holds_is_taken_back_and_a_rollback_gives_it_again(target: Target) -> None:
    sink = target.open()
    if not sink.retracts:
        sink.close()
        pytest.skip("this sink is staged no retractions")
    sink.commit(0, [sink.stager().stage(0, 0, [changed(0, row) for row in range(4)])])
    # Taken back; replaced; replaced and taken back; taken back and replaced; never there.
    mixed = [
        taken_back(0), changed(1, 1), changed(1, 2), taken_back(2), taken_back(3), changed(1, 3),
        taken_back(7),
    ]  # fmt: skip
    for _ in range(2):
        sink.commit(1, [sink.stager().stage(1, 0, mixed)])
    assert not reconcile.verify(sink, 1).findings
    if sink.identity(record(0, 0, 0)) is None:
        assert Counter(a["id"] for a in target.read()) == Counter(
            f"0-0-{row}" for row in (0, 1, 2, 3, 0, 1, 2, 2, 3, 3, 7)
        )
    else:
        assert sorted((a["id"], a["at"]) for a in target.read()) == [("0-0-1", 1), ("0-0-3", 1)]
    new = target.open(generation=1)
    new.withdraw(0)
    assert sorted((a["id"], a["at"]) for a in target.read()) == [
        (f"0-0-{row}", 0) for row in range(4)
    ]
    assert not reconcile.verify(new, 0).findings
    sink.close()
    new.close()


def test_at_least_once_an_epoch_that_is_repeated_is_there_twice_and_known(target: Target) -> None:
    if not target.at_least_once:
        pytest.skip("there is no such mode, or it makes no difference")
    sink = target.open(delivery="at-least-once")
    write(sink, 0, ROWS)
    write(sink, 0, ROWS)
    write(sink, 1, ROWS)
    assert sink.last_epoch() is None
    assert ids(target) == wanted(0) + wanted(0) + wanted(1)
    report = reconcile.verify(sink, 1)
    assert [f.kind for f in report.findings] == ["doubled"] * 2 * ROWS
    left = reconcile.repair(sink, report)
    if "doubled" in target.mends:
        assert not left
        assert ids(target) == wanted(0, 1)
    sink.close()


def test_at_least_once_too_what_an_older_generation_wrote_is_taken_back(target: Target) -> None:
    if not target.at_least_once:
        pytest.skip("there is no such mode, or it makes no difference")
    old = target.open(delivery="at-least-once")
    for epoch in (0, 1, 1, 2):
        write(old, epoch, ROWS)
    new = target.open(generation=1, delivery="at-least-once")
    for _ in range(2):
        new.withdraw(0)
        assert ids(target) == wanted(0)
    assert new.truth.epochs() == [0]
    write(new, 1, ROWS, salt="x")
    assert ids(target) == wanted(0) + wanted(1, salt="x")
    old.close()
    new.close()


def check_damage(target: Target, epochs: int, rows: int, number: int) -> None:
    sink = target.open()
    lost, doubled, altered = plan_damage(target, epochs, rows, number)
    for epoch in range(epochs):
        write(sink, epoch, rows)
    target.damage(lost, doubled, altered)
    report = reconcile.verify(sink, epochs - 1)
    assert (report.first, report.last, report.rows) == (0, epochs - 1, 2 * epochs * rows)
    expected = [("missing", id) for id in lost] + [("doubled", id) for id in doubled]
    expected += [("altered", id) for id in altered]
    assert sorted((f.kind, f.id) for f in report.findings) == sorted(expected)
    assert len(report.findings) == number
    keys = {f.id: f.key for f in report.findings}
    assert all(keys[id] == record(*id).key for _, id in expected)
    left = reconcile.repair(sink, report)
    assert {f.kind for f in left} == {f.kind for f in report.findings} - target.mends
    again = reconcile.verify(sink, epochs - 1)
    assert sorted(again.findings) == sorted(left)
    if target.mends >= {f.kind for f in report.findings}:
        assert ids(target) == wanted(*range(epochs), rows=rows)
    sink.close()


def test_every_damaged_row_is_found_and_mended(target: Target) -> None:
    check_damage(target, epochs=3, rows=40, number=24)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_damaged_rows_of_a_hundred_thousand_are_found_and_mended(
    target: Target,
) -> None:
    check_damage(target, epochs=5, rows=10_000, number=100)


def test_what_is_kept_is_forgotten_when_no_restore_goes_back_to_it(target: Target) -> None:
    clock = ManualClock()
    sink = target.open(clock=clock)
    for epoch in range(6):
        write(sink, epoch, ROWS)
    sink.sweep(4, clock.now_ms() + 10**12)
    assert sink.truth.epochs() == [4, 5]
    report = reconcile.verify(sink, 5)
    assert (report.first, report.last, report.rows, report.findings) == (4, 5, 4 * ROWS, ())
    write(sink, 6, ROWS)
    assert ids(target) == wanted(*range(7))
    sink.close()


def test_staged_outputs_are_kept_for_as_long_as_the_file_says(target: Target) -> None:
    sink = target.open(keep="7d")
    for epoch in range(3):
        write(sink, epoch, ROWS)
    sink.sweep(2, ManualClock().now_ms())
    assert sink.truth.epochs() == [0, 1, 2]
    sink.close()


def test_what_is_behind_is_swept_while_the_next_epochs_are_committed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.sinks.table._SWEEP_EPOCHS", 1)
    sink = target.open()
    written = [0]

    def sweep() -> None:
        for _ in range(30):
            sink.sweep(max(written[0] - 2, 0), 10**15)

    # As the pipeline does it: one thread runs epochs, another looks after those behind.
    with ThreadPoolExecutor(1) as other:
        sweeping = other.submit(sweep)
        while written[0] < 5 or not sweeping.done():
            write(sink, written[0], ROWS)
            written[0] += 1
        sweeping.result()
    assert ids(target) == wanted(*range(written[0]))
    assert sink.last_epoch() == written[0] - 1
    sink.close()
