"""A spare on another machine keeps its copies of the shards close to the driver's.

While it waits for a checkpoint at a URL, it reads the ledger there now and then, and brings each
shard's local store to where the newest entry says that it stands: what was changed since the last
time, or, the first time, all of it. What is left to be read at its turn is what came since.

Nothing rests on it: a store that is behind, or half-way, is brought on by the task that needs it.
So an error here is said and tried again, as where the driver has swept what was about to be read.
Executors of a cluster have the stores of their shards themselves: there it does nothing.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.folder import key_part, refresh
from catchwater.recovery.savepoint.create import NothingToSave, Source
from catchwater.state.log import StateLog
from catchwater.state.store import ShardStore, read_boot_id

_log = logging.getLogger("catchwater.pipeline")

EVERY_S = 2.0
"""How often the ledger is looked at."""


class Follower:
    """The local stores of one machine that waits."""

    def __init__(self, checkpoint: Path, local: Path, clock: Clock) -> None:
        """`local` is the folder that has one for each function, with the shards in it."""
        self._checkpoint = checkpoint
        self._local = local
        self._clock = clock
        self._stopped = threading.Event()
        self._logs: dict[tuple[int, int], StateLog] = {}
        self.epoch = -1
        """The epoch whose state the stores have; -1: none."""

    def run(self) -> None:
        """Follow until `stop`."""
        said = ""
        while not self._stopped.is_set():
            try:
                self.turn()
            except NothingToSave:
                pass
            except CatchwaterError as error:
                if said != str(error):
                    said = str(error)
                    _log.warning("The state could not be followed, it is tried again: %s", error)
            self._stopped.wait(EVERY_S)

    def stop(self) -> None:
        """Go no further than the shard that is being read."""
        self._stopped.set()

    def turn(self) -> int:
        """Bring the stores to the newest entry; how many bytes of the state logs that took."""
        refresh(self._checkpoint, self._clock)
        source = Source.at(self._checkpoint, self._clock)
        entry = source.entry(None)
        if entry.epoch == self.epoch:
            return 0
        read_bytes = 0
        for each in entry.shards:
            if self._stopped.is_set():
                return read_bytes
            function, place = source.functions[each.stage], (each.stage, each.shard)
            log = self._logs.setdefault(place, source.log(*place))
            directory = self._local / key_part(function) / str(each.shard)
            store = ShardStore.open(directory, function, each.shard, read_boot_id())
            with closing(store):
                store.begin(each.position, log)
                read_bytes += store.read_bytes
        self.epoch = entry.epoch
        return read_bytes


@contextmanager
def following(checkpoint: Path, local: Path, clock: Clock) -> Iterator[None]:
    """Follow the state while this lasts; behind it nothing of it is open here."""
    follower = Follower(checkpoint, local, clock)
    thread = threading.Thread(target=follower.run, name="follow-state", daemon=True)
    thread.start()
    try:
        yield
    finally:
        follower.stop()
        thread.join()
        if follower.epoch >= 0:
            _log.info("The state was followed up to epoch %d.", follower.epoch)
