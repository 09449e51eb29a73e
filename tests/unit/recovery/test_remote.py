"""A checkpoint at a URL: what one machine committed is there on another, and nothing else is."""

import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.spark.test_epochs import FakeSink, Rows, manifest, plan

from catchwater.clock import Clock, ManualClock
from catchwater.objects.base import StoreRefused, StoreUnavailable
from catchwater.objects.local import LocalStore
from catchwater.pipeline.epochs import EpochWriter
from catchwater.recovery import checkpoint, fenced, handover, remote, rewind
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.fenced import LeaseHeld, LeaseLost
from catchwater.recovery.folder import Lock, hold, home_of, lock, refresh
from catchwater.recovery.ledger import (
    Ledger,
    NotAtUrl,
    SinkEpoch,
    SourceOffset,
    folder_of,
    refuse_url,
    shown,
    write_whole,
)
from catchwater.recovery.remote import ElsewhereInUse, ScratchGone
from catchwater.sinks.base import Staged

FIRST = SourceOffset(-1, {"t": {"0": 0}}, [0], 5)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def machine(tmp_path: Path, url: str) -> Callable[[str], Path]:
    """The checkpoint's folder on a machine of this name."""
    return lambda name: folder_of(url, tmp_path / name)


def run(folder: Path, epochs: Iterable[int], sink: Any, *, commits: bool = True) -> None:
    """As Spark and the driver do, under the lock."""
    sinks: Any = {"out": sink}
    writer = EpochWriter(Ledger(folder), sinks, 1, Clock(1))
    Ledger(folder).begin(FIRST)
    for epoch in epochs:
        plan(folder, epoch)
        writer(Rows([manifest(0)]), epoch)
        if commits:
            checkpoint.write_commit(folder, epoch, 5)


def files(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path, _ in remote._files(folder)}


def test_another_machine_goes_on_where_one_was_stopped(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, range(3), FakeSink())
    with lock(there):
        assert files(there) == files(here)
        assert [each.epoch for each in checkpoint.read(there).committed] == [0, 1, 2]
        assert checkpoint.read(there).planned is None
        run(there, range(3, 5), FakeSink())
    with lock(here):
        assert checkpoint.last_commit(here) == 4


def test_the_folder_here_is_scratch(machine: Callable[[str], Path]) -> None:
    here = machine("a")
    with lock(here):
        run(here, range(3), FakeSink())
    before = files(here)
    # As power that fails leaves it: files that are torn, missing, or of an epoch that is not.
    (here / "offsets" / "1").write_bytes(b"")
    (here / "commits" / "2").unlink()
    (here / "catchwater" / "epochs" / "2.json").write_bytes(b"{")
    (here / "catchwater" / "beginning.json").unlink()
    plan(here, 3)
    checkpoint.write_commit(here, 3, 5)
    with lock(here):
        assert files(here) == before
        assert [each.epoch for each in checkpoint.read(here).committed] == [0, 1, 2]
        assert checkpoint.read(here).planned is None
    shutil.rmtree(here)
    here = machine("a")
    with lock(here):
        assert files(here) == before
        assert checkpoint.last_commit(here) == 2


def test_an_epoch_is_committed_by_its_entry_whether_spark_knew_or_not(
    machine: Callable[[str], Path],
) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, range(2), FakeSink(), commits=False)
    with lock(there):
        assert checkpoint.last_commit(there) == 1


def test_the_end_of_an_epoch_is_there_before_a_sink_has_its_outputs(
    machine: Callable[[str], Path],
) -> None:
    here, there = machine("a"), machine("b")

    class Dies(FakeSink):
        def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
            super().commit(epoch, staged)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lock(here):
        run(here, [0], Dies())
    with lock(there):
        found = checkpoint.read(there)
        assert found.last is None and found.planned is not None
        assert found.planned.epoch == 0
        assert Ledger(there).first() == FIRST


@pytest.mark.parametrize("gone", [".", "offsets", "catchwater/epochs", "catchwater/versions.json"])
def test_a_scratch_folder_that_something_deletes_takes_nothing_with_it(
    machine: Callable[[str], Path], gone: str
) -> None:
    here, there = machine("a"), machine("b")
    with pytest.raises(ScratchGone, match="nothing was published"), lock(here):
        write_whole(here / "catchwater" / "versions.json", b"{}")
        run(here, range(3), FakeSink())
        before = files(here)
        if (here / gone).is_dir():
            shutil.rmtree(here / gone)
        else:
            (here / gone).unlink()
        remote.publish(here)
    with lock(there):
        assert files(there) == before
        assert checkpoint.last_commit(there) == 2


def test_what_is_forgotten_and_purged_is_gone_everywhere(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, range(5), FakeSink())
        Ledger(here).forget_before(3)
        for epoch in (1, 0):  # Spark purges in any order, beside what we do
            (here / "offsets" / str(epoch)).unlink()
            remote.publish(here)
    with lock(there):
        assert Ledger(there).epochs() == [3, 4]
        assert [each.epoch for each in checkpoint.read(there).committed] == [3, 4]


def test_what_a_command_began_and_did_not_end_is_not_there(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, range(3), FakeSink())
    with pytest.raises(KeyboardInterrupt), lock(here):
        (here / "catchwater" / "epochs" / "2.json").unlink()
        raise KeyboardInterrupt
    with lock(there):
        assert Ledger(there).epochs() == [0, 1, 2]


def test_a_rewind_here_is_one_there(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, range(4), FakeSink())
    rewind.rewind(here, 1, {("t", 0): PartitionTail(0, 1000, 1)})
    with lock(there):
        assert checkpoint.last_commit(there) == 1
        assert Ledger(there).recorded_epochs() == [2, 3]


def test_a_restore_that_was_cut_short_is_refused_on_every_machine(
    machine: Callable[[str], Path],
) -> None:
    here, there = machine("a"), machine("b")
    work = handover.Restore("file:///savepoints/s", "catchwater savepoint restore FILE s")
    with pytest.raises(KeyboardInterrupt), lock(here):
        handover.begin_restore(here, work)
        raise KeyboardInterrupt
    with lock(there), pytest.raises(handover.RestoreUnfinished):
        handover.make_ready(there, Clock(1))


def test_a_machine_keeps_what_is_its_own(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")
    (here / "catchwater" / "supervisor.json").write_bytes(b"{}")
    with lock(here):
        (here / "catchwater" / "spark.log").write_bytes(b"a log")
        run(here, [0], FakeSink())
    with lock(there):
        names = {path.name for path in (there / "catchwater").iterdir()}
        assert names == {"beginning.json", "epochs", "lock", "url.json"}
    with lock(here):
        assert (here / "catchwater" / "supervisor.json").exists()


def test_two_drivers_at_once_are_one(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")

    class Beats(ManualClock):
        def pause(self, seconds: float, woken: int | None = None) -> None:
            super().pause(seconds)
            remote._taken[here]._writer.beat()

    with lock(here):
        with pytest.raises(LeaseHeld, match=r"in use by process \d+ on"), lock(there, Beats()):
            pass
        run(here, [0], FakeSink())


def test_a_superseded_driver_commits_nothing_and_no_sink_hears_of_it(
    machine: Callable[[str], Path],
) -> None:
    here, there = machine("a"), machine("b")
    with ExitStack() as ends:
        stopped = ends.enter_context(closing(Lock(here)))
        stopped.acquire()
        run(here, range(2), FakeSink())
        with lock(there, ManualClock()):  # whose clock does not wait: SIGSTOP, a lease later
            run(there, [2], FakeSink())
            sink = FakeSink()
            with pytest.raises(LeaseLost, match="has taken over the checkpoint"):
                run(here, [2], sink)
            assert sink.epochs == {}
            with pytest.raises(LeaseLost):
                remote.check(here)
            run(there, [3], FakeSink())
    with lock(here):
        assert checkpoint.last_commit(here) == 3


def test_a_driver_that_is_superseded_while_a_sink_commits_leaves_no_entry(
    machine: Callable[[str], Path],
) -> None:
    here, there = machine("a"), machine("b")

    class Sleeps(FakeSink):
        def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
            with lock(there, ManualClock()):
                run(there, [0], FakeSink())
            return super().commit(epoch, staged)

    with closing(Lock(here)) as held:
        held.acquire()
        with pytest.raises(LeaseLost):
            run(here, [0], Sleeps())
    with lock(here):
        assert checkpoint.last_commit(here) == 0


def test_the_next_start_on_a_machine_does_not_wait_for_its_last_one(
    machine: Callable[[str], Path],
) -> None:
    here, clock = machine("a"), ManualClock()
    first = Lock(here)
    first.acquire()
    run(here, [0], FakeSink())
    # kill -9: the system lets go of the lock, and nobody of the lease.
    remote._taken.pop(here)._ended.set()
    first.close()
    before_ms = clock.now_ms()
    with lock(here, clock):
        assert checkpoint.last_commit(here) == 0
    assert clock.now_ms() == before_ms


def test_a_spare_waits_until_the_driver_elsewhere_is_silent_for_a_lease(
    machine: Callable[[str], Path],
) -> None:
    here, there, clock = machine("a"), machine("b"), ManualClock()
    beats_until_s = clock.monotonic_s() + 60

    def wait(seconds: float) -> bool:
        clock.pause(seconds)
        if clock.monotonic_s() < beats_until_s:
            remote._taken[here]._writer.beat()
        return True

    with closing(Lock(here)) as held, closing(Lock(there, clock=clock)) as spare:
        held.acquire()
        run(here, [0], FakeSink())
        lapsed = remote.await_turn(there, wait, clock)
        assert clock.monotonic_s() - beats_until_s >= fenced.LEASE_MS / 1000 - 2
        before_s = clock.monotonic_s()
        spare.acquire(lapsed=lapsed)
        assert clock.monotonic_s() == before_s, "it has waited already"
        run(there, [1], FakeSink())
        with pytest.raises(LeaseLost):
            run(here, [1], FakeSink())


def test_a_spare_has_its_turn_when_the_driver_lets_go_or_is_its_own_machines(
    machine: Callable[[str], Path], tmp_path: Path
) -> None:
    here, there = machine("a"), machine("b")
    waits = iter([True, False])
    with lock(here):
        assert remote.await_turn(here, lambda _: False, Clock(1)) == "", "the lock here tells"
        assert remote.await_turn(there, lambda _: next(waits), Clock(1)) == "", "asked to stop"
        assert next(waits, None) is None
    assert remote.await_turn(there, lambda _: False, Clock(1)) == ""
    assert remote.await_turn(tmp_path, lambda _: False, Clock(1)) == ""


def test_an_entry_that_the_store_did_not_take_is_not_there(
    machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("a")
    put = LocalStore.put_if_absent

    def fails(store: LocalStore, key: str, parts: Any) -> int:
        if key.startswith("ledger/") and (here / "catchwater" / "epochs" / "1.json").exists():
            raise fenced.StoreError("No.")
        return put(store, key, parts)

    with lock(here):
        run(here, [0], FakeSink())
        monkeypatch.setattr(LocalStore, "put_if_absent", fails)
        with pytest.raises(fenced.StoreError):
            run(here, [1], FakeSink())
        monkeypatch.undo()
        (here / "catchwater" / "epochs" / "1.json").unlink()
    with lock(here):
        found = checkpoint.read(here)
        assert found.last is not None and found.last.epoch == 0
        assert found.planned is not None and found.planned.epoch == 1


def test_who_only_reads_sees_what_is_there_and_takes_nothing(
    machine: Callable[[str], Path], tmp_path: Path
) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, range(2), FakeSink())
        refresh(there)
        assert checkpoint.last_commit(there) == 1
        assert re.fullmatch(r"process \d+ on .+", remote.elsewhere(there) or "")
        run(here, [2], FakeSink())
        refresh(here)
        assert checkpoint.last_commit(here) == 2
    refresh(there)
    assert checkpoint.last_commit(there) == 2
    assert remote.elsewhere(there) is remote.elsewhere(here) is remote.elsewhere(tmp_path) is None


def test_what_another_machine_may_delete_is_not_copied(machine: Callable[[str], Path]) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        run(here, [0], FakeSink())
        with hold(here, 0, Clock(1)):
            pass
        with pytest.raises(ElsewhereInUse, match=r"in use by process \d+ on"):
            with hold(there, 0, Clock(1)):
                pass
    with hold(there, 0, Clock(1)):
        pass


def test_state_and_outputs_lie_at_the_url(machine: Callable[[str], Path], url: str) -> None:
    assert home_of(machine("a")) == home_of(machine("b")) == url
    assert shown(machine("a")) == url


def test_what_needs_a_checkpoint_beside_it_is_refused(
    machine: Callable[[str], Path], tmp_path: Path, url: str
) -> None:
    with pytest.raises(NotAtUrl, match=f"A backfill needs .*, and this one is {url}"):
        refuse_url(machine("a"), "A backfill")
    refuse_url(tmp_path, "A backfill")


def test_a_folder_takes_no_part_in_this(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    with lock(folder):
        run(folder, [0], FakeSink())
    assert folder not in remote._taken
    assert not (folder / "catchwater" / "url.json").exists()
    assert home_of(folder) == (folder / "catchwater").as_uri()


def test_a_file_name_that_leads_out_of_the_folder_is_refused(
    machine: Callable[[str], Path], tmp_path: Path
) -> None:
    writer = fenced.take(LocalStore(tmp_path / "store"), Clock(1))
    writer.append({"../../outside": b"1"})
    writer.beat(released=True)
    with pytest.raises(Exception, match="outside"), lock(machine("a")):
        pass
    assert not (tmp_path / "outside").exists()


def test_a_store_that_is_away_is_said_to_be(
    machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> int:
        raise StoreUnavailable("The store is away.")

    monkeypatch.setattr(LocalStore, "size", away)
    with pytest.raises(StoreUnavailable, match="is away"), lock(machine("a"), ManualClock()):
        pass
    monkeypatch.undo()
    with lock(machine("a")):
        pass


def test_a_store_that_denies_writes_is_said_to_and_has_nothing_of_it(
    machine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> int:
        raise StoreRefused("The lease cannot be stored: S3 answered 403.")

    for name in ("put", "put_if_absent"):
        monkeypatch.setattr(LocalStore, name, denied)
    with pytest.raises(StoreRefused, match="answered 403"), lock(machine("a")):
        pass
    monkeypatch.undo()
    assert Ledger(machine("b")).epochs() == []
    with lock(machine("b")):
        pass
