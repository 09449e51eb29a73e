"""What a change needs around a pipeline's checkpoint: its log, its savepoints, its sinks.

Everything here is looked up once and handed on; nothing is changed but by `withdraw`.
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run import identity
from catchwater.pipeline.run.artefact import find_function
from catchwater.pipeline.run.backfill import BACKFILLS
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.outlets import Outlets, open_outlets, surroundings_of
from catchwater.pipeline.run.preflight import tails_of
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.home import home_of, key_part
from catchwater.recovery.ledger import SourceOffset
from catchwater.recovery.pins import positions
from catchwater.recovery.restore import check_covered
from catchwater.recovery.savepoint.storage import Shelf
from catchwater.replay.control import Control
from catchwater.replay.options import parse_options
from catchwater.replay.subscription import Subscription
from catchwater.sinks.base import RowsUnreadable, Sink, Superseded
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.surroundings import Surroundings

_log = logging.getLogger("catchwater.pipeline")


@dataclass(frozen=True)
class Around:
    """One pipeline's file, and what it leads to."""

    config: PipelineConfig
    control: Control | None
    """None: the log is not ours, and has no pins."""
    clock: Clock = SYSTEM

    @classmethod
    def of(cls, config: PipelineConfig, clock: Clock = SYSTEM) -> "Around":
        """Ask the brokers who they are. Raises what a broker that is away raises."""
        subscription = Subscription(parse_options(config.source_options), clock)
        try:
            url = subscription.log_control_url()
        finally:
            subscription.close()
        return cls(config, Control(url, timeout_s=10.0, clock=clock) if url else None, clock)

    @cached_property
    def name(self) -> str:
        """The pipeline's name: what the file says, or what the checkpoint is bound to.

        Only of a new one the function is asked, for a version that is to be taken back may be one
        that cannot even be imported.
        """
        if self.config.name:
            return self.config.name
        bound = identity.read(self.config.checkpoint)
        return bound.pipeline if bound else self.specs[0].name

    @cached_property
    def specs(self) -> list[FunctionSpec]:
        """The functions that the file names. Raises `ConfigError`.

        Found once: kept code of another version is loaded under the same module's name.
        """
        return [find_function(named, self.config.folder) for named in self.config.functions]

    def shelf(self, url: str | None = None) -> Shelf:
        """Where savepoints lie: there, or where the file says, or beside the checkpoint."""
        return Shelf.at(url or shelf_url(self.config), self.clock)

    def tails(self) -> dict[tuple[str, int], PartitionTail]:
        """What the log, ours or another Kafka, holds now of all that the pipeline reads."""
        return tails_of(self.config, self.clock)

    def check_covered(self, end: SourceOffset) -> None:
        """Raise `HistoryGone` or `LogBehind` unless the log reaches back to here."""
        check_covered(end, self.tails())

    def pin_id(self, name: str, at: Shelf | None = None) -> str:
        """The pin of a savepoint of this name, at another place than the file's perhaps."""
        where = at.store.url() if at else ""
        other = "" if where in ("", self.shelf().store.url()) else f"@{_digest(where)}"
        return f"savepoint/{key_part(self.name)}/{name}{other}"

    def pin(self, name: str, end: SourceOffset, at: Shelf | None = None) -> str:
        """Pin the log for a savepoint; the pin's id, or nothing if the log has no pins."""
        if self.control is None:
            return ""
        pin = self.pin_id(name, at)
        content = {"owner": f"savepoint/{name}", "positions": positions(end.needed)}
        self.control.set_pin(pin, content)
        return pin

    def release(self, pin: str) -> None:
        """Take a savepoint's pin away."""
        if pin and self.control is not None:
            self.control.release_pin(pin)

    def surroundings(self, checkpoint: Path, generation: int) -> Surroundings:
        """What the sinks learn of the pipeline, as a writer of this generation."""
        return surroundings_of(
            self.config,
            self.name,
            home_of(checkpoint),
            self.control,
            generation=generation,
            clock=self.clock,
        )

    def withdraw(
        self, specs: Sequence[FunctionSpec], checkpoint: Path, epoch: int, generation: int
    ) -> int:
        """Undo in all sinks what they have of later epochs; the generation to write with.

        That is the one given unless a sink is ahead and knows a writer as new: then the first one
        that is newer than all of them. Again: no-op.
        """
        around = self.surroundings(checkpoint, generation)
        for attempt in count(generation):
            try:
                if self._withdrawn(specs, replace(around, generation=attempt), epoch):
                    return attempt
            except Superseded:
                continue
        raise AssertionError("some generation is newer than all there are")

    def _withdrawn(self, specs: Sequence[FunctionSpec], around: Surroundings, epoch: int) -> bool:
        """Withdraw as a writer of one generation; whether no sink is ahead any more."""
        with closing(open_outlets(self.config, specs, around)) as outlets:
            ahead = [name for name in outlets.all if self._is_ahead(outlets, name, epoch)]
            for name in ahead:
                self._take_back(outlets.all[name], self._config_of(name), epoch)
            return not any(self._is_ahead(outlets, name, epoch) for name in ahead)

    def _take_back(self, sink: Sink, config: SinkConfig, epoch: int) -> None:
        """Where nothing can be taken back, at least once is no worse for it: that is only said."""
        try:
            sink.withdraw(epoch)
        except RowsUnreadable as error:
            if config.exactly_once:
                raise
            _log.warning("%s What it wrote after epoch %d stays.", error, epoch)
            sink.truth.withdraw(epoch)

    def _is_ahead(self, outlets: Outlets, name: str, epoch: int) -> bool:
        """Whether a sink has later epochs: by its marks, or without any by what was staged."""
        sink = outlets.all[name]
        if self._config_of(name).exactly_once:
            last = sink.last_epoch()
        else:
            last = max(sink.truth.epochs(), default=None)
        return last is not None and last > epoch

    def _config_of(self, name: str) -> SinkConfig:
        """The section of a sink, which may be that of the dead letters."""
        return self.config.every_sink[name]


def shelf_url(config: PipelineConfig) -> str:
    """Where the pipeline's savepoints lie by its file.

    A rebuild that has taken the pipeline's place lies in a folder of its own, and they stay.
    """
    folder = config.checkpoint.resolve()
    while folder.parent.name.endswith(BACKFILLS):
        folder = folder.parent
    return config.savepoints or (folder.parent / "savepoints").as_uri()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
