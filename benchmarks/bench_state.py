"""A shard's state: what an epoch writes, what a restore reads and works, what lies in memory.

One shard of a million keys, loaded and then changed by one percent an epoch, so that its log holds
a full round of changes beside its chunks. Restores are made by fresh processes with empty disks
and timed as work (CPU seconds), beside those of a log that is one snapshot. Memory is the most
anonymous memory of a process whose shard is four times the cap, through load, changes and rebuild.
About five minutes, 4 GB of disk.
"""

import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.measure import alternate, publish, row
from catchwater.objects.local import LocalStore
from catchwater.state.entries import Changes, Table, no_changes
from catchwater.state.keys import stored_key
from catchwater.state.log import Logged, StateLog
from catchwater.state.rescale import rewrite
from catchwater.state.roll import EMPTY, END, Place, Position, unit_of
from catchwater.state.store import ShardStore

KEYS = 1_000_000
LOADS = 20
EPOCHS = 150
LARGE_LOADS = 100
LARGE_EPOCHS = 20
CAP_MIB = 256
LARGE_KEYS = 1_000_000
LARGE_VALUE_BYTES = 1000
NOISE_BYTES = 64 << 20
"""Values are cut out of so much noise: what compresses them sees none of it twice."""
SPAWN = multiprocessing.get_context("spawn")


class Shard:
    """A shard with made-up records, and what its epochs wrote."""

    def __init__(self, folder: Path, value_bytes: int) -> None:
        self._log = state_log(folder, "rolled")
        self._store = ShardStore.open(folder / "local", "bench", 0, "this boot")
        self._random = random.Random(1)
        self._value_bytes = value_bytes
        self.at = EMPTY

    def epoch(self, numbers: Iterable[int]) -> Logged:
        """Write the records of these keys anew: half of each is text, half is noise."""
        state = self._store.begin(self.at, self._log)
        half = self._value_bytes // 2
        text = (b"a field and its value, " * (half // 23 + 1))[:half]
        for number in numbers:
            noise = self._random.randbytes(half)
            state.put(Table.RECORD, stored_key(b"customer-%d" % number), text + noise)
        logged = self._store.finish(f"{self._random.getrandbits(64):016x}")
        self.at = logged.at
        return logged

    def run(self, keys: int, loads: int, epochs: int) -> list[Logged]:
        """Load so many keys, then change one percent of them an epoch; gives the latter."""
        for load in range(loads):
            self.epoch(range(load * keys // loads, (load + 1) * keys // loads))
        return [self.epoch(self._random.sample(range(keys), keys // 100)) for _ in range(epochs)]

    def close(self) -> None:
        """Let go of the files."""
        self._store.close()


def state_log(folder: Path, name: str) -> StateLog:
    """A log in a directory."""
    return StateLog(LocalStore(folder / "objects"), name, "bench", 0)


def make(folder: Path) -> dict[str, Any]:
    """The history of a million keys, and the same state as one snapshot."""
    with closing(Shard(folder, 80)) as shard:
        logged = shard.run(KEYS, LOADS, EPOCHS)
    source, target = state_log(folder, "rolled"), state_log(folder, "snapshot")
    (at,) = rewrite([(source, shard.at)], [target])
    last = logged[-1]
    return {
        "rolled": list(last_of(shard.at)),
        "snapshot": list(last_of(at)),
        "written": [each.written_bytes for each in logged[EPOCHS // 2 :]],
        "delta": last.delta_bytes,
        "read": last.state_bytes,
        "objects": last.objects,
        "whole": sum(chunk.size_bytes for chunk in target.roll_of(at).chunks),
    }


def last_of(at: Position) -> tuple[int, str]:
    """A position as JSON has it."""
    return at.version, at.token


def rebuild(folder: Path, name: str, at: tuple[int, str], count: int = KEYS) -> dict[str, Any]:
    """Restore the shard on an empty disk; CPU seconds of all threads."""
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        log = state_log(folder, name)
        began_s, began_wall_s = time.process_time(), time.perf_counter()
        with closing(ShardStore.open(Path(empty), "bench", 0, "this boot")) as store:
            committed = store.begin(Position(*at), log).committed
            work_s, wall_s = time.process_time() - began_s, time.perf_counter() - began_wall_s
            assert committed.count() == count
            return {"work_s": work_s, "wall_s": wall_s}


def large(folder: Path) -> dict[str, Any]:
    """The most anonymous memory through load, changes and rebuild of a shard of 4 × the cap."""
    with peak() as anonymous:
        with closing(Shard(folder, LARGE_VALUE_BYTES)) as shard:
            shard.run(LARGE_KEYS, LARGE_LOADS, LARGE_EPOCHS)
        loaded = max(anonymous)
        log = state_log(folder, "rolled")
        with closing(ShardStore.open(folder / "empty", "bench", 0, "this boot")) as store:
            store.begin(shard.at, log)
            size = store.size_bytes()
    return {"loaded_mib": loaded, "peak_mib": max(anonymous), "size_mib": size / 2**20}


class peak(threading.Thread):
    """Looks at this process's anonymous memory (MiB) a hundred times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_now = threading.Event()
        self.seen_mib: list[float] = []

    def __enter__(self) -> list[float]:
        self.seen_mib.append(anonymous_mib())
        self.start()
        return self.seen_mib

    def __exit__(self, *error: object) -> None:
        self._stop_now.set()
        self.join()

    def run(self) -> None:
        while not self._stop_now.wait(0.01):
            self.seen_mib.append(anonymous_mib())


def anonymous_mib() -> float:
    """What the system says this process has that no file holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the system does not say")


def whole(folder: Path, gigabytes: int) -> dict[str, Any]:
    """A log that is one snapshot of so much state, as a savepoint's restore leaves it."""
    count, draw = gigabytes * 1_000_000_000 // LARGE_VALUE_BYTES, random.Random(1)
    text = (b"a field and its value, " * 30)[: LARGE_VALUE_BYTES // 2]
    step = unit_of(gigabytes * 1_000_000_000) // LARGE_VALUE_BYTES
    half = LARGE_VALUE_BYTES // 2
    noise, spots = draw.randbytes(NOISE_BYTES), range(NOISE_BYTES - half)

    def ranges() -> Iterator[tuple[Changes, Place]]:
        for first in range(0, count, step):
            changes, until = no_changes(), min(first + step, count)
            for number in range(first, until):
                key = number.to_bytes(8, "big") + b"customer-%d" % number
                at = draw.choice(spots)
                changes[Table.RECORD][key] = text + noise[at : at + half]
            yield changes, (Table.RECORD, until.to_bytes(8, "big")) if until < count else END

    logged = state_log(folder, "whole").write_whole(Position(1, "0" * 16), ranges())
    return {"at": list(last_of(logged.at)), "count": count}


def apart(work: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """What the work gives in a fresh process."""
    receiver, sender = SPAWN.Pipe(duplex=False)
    child = SPAWN.Process(target=_send, args=(sender, work, args))
    child.start()
    result: dict[str, Any] = json.loads(receiver.recv())
    child.join()
    return result


def _send(sender: Any, work: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    sender.send(json.dumps(work(*args)))


def main() -> None:
    """All claims, one after the other."""
    with tempfile.TemporaryDirectory(prefix="bench-state-") as name:
        folder = Path(name)
        history = apart(make, folder)
        print({key: value for key, value in history.items() if key != "written"}, flush=True)
        rolled, snapshot = alternate(
            lambda: apart(rebuild, folder, "rolled", history["rolled"])["work_s"],
            lambda: apart(rebuild, folder, "snapshot", history["snapshot"])["work_s"],
        )
    with tempfile.TemporaryDirectory(prefix="bench-state-") as name:
        memory = apart(large, Path(name))
        print(memory, flush=True)
    written, whole = history["written"], [history["whole"]] * len(history["written"])
    publish(
        "state",
        [
            row("rebuild 1M keys after 170 epochs", "s of work", rolled, "budget",
                [2.0] * len(rolled), target=1.0, better="lower"),
            row("rebuild 1M keys after 170 epochs", "s of work", rolled, "one snapshot",
                snapshot, better="lower"),
            row("read by that rebuild", "MB", [history["read"] / 1e6], "one snapshot",
                [history["whole"] / 1e6], target=2.1, better="lower"),
            row("written by an epoch that changes 1 %", "bytes", written, "one snapshot", whole,
                target=0.05, better="lower"),
            row("anonymous memory, state of 4 × the cap", "MiB", [memory["peak_mib"]], "cap",
                [float(CAP_MIB)], target=1.2, better="lower"),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    assert os.name == "posix"
    main()
