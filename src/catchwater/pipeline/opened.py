"""One pipeline, opened: its file, its functions, its checkpoint, its log and its sinks.

Every command that works on a pipeline opens it here: run, plan, upgrade, savepoint, sink repair.
Opening connects to nothing. Functions are imported, brokers asked and sinks opened when they are
first needed, and once; `close` closes the sinks. Opening a sink creates and claims its target;
otherwise only `withdraw`, `pin` and `release` change anything.

Before, the file is compared with the functions (`check_fit`, `check_sinks`): inputs, tables, calls,
sinks, dead letters. What does not fit is refused with both sides named (exit code 2).
"""

import hashlib
import logging
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Self

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, ConfigError
from catchwater.objects.open import join
from catchwater.pipeline.epochs import RestoreWatch
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.backfill import BACKFILLS
from catchwater.pipeline.run.config import DEAD_LETTER, PipelineConfig, ValueConfig
from catchwater.pipeline.run.versions import FunctionCode, Identity, find_function, is_target
from catchwater.recovery import checkpoint, pins, remote
from catchwater.recovery.contract import LogState, PartitionTail, check_covered, kept_ms
from catchwater.recovery.folder import home_of, key_part
from catchwater.recovery.ledger import SourceOffset, url_of
from catchwater.recovery.savepoint.create import Progress, Source, create
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.store import Shelf
from catchwater.replay.control import Control
from catchwater.replay.options import SourceOptions, parse_options
from catchwater.replay.subscription import COMMAND_S, Subscription
from catchwater.sinks.base import RowsUnreadable, Sink, Superseded
from catchwater.sinks.config import (
    PackageMissing,
    SinkConfig,
    SinkContext,
    check_sink,
    guarantee,
    look_at,
    open_sink,
    target_of,
)
from catchwater.state.records import from_plain
from catchwater.values.events import EventValues, event_values
from catchwater.values.registry import SchemaUnavailable
from catchwater.values.settings import Registry, ValueFormat, ValueSettings
from catchwater.values.subjects import EventsUnfit, check_subject
from catchwater.verdicts import spelled_s
from catchwater.wire.client import RequestRefused

_log = logging.getLogger("catchwater.pipeline")


class OutputsStay(CatchwaterError):
    """Sinks have outputs that would have to be taken back and cannot be."""

    exit_code = 5


class HistoryTooShort(CatchwaterError):
    """Another Kafka deletes input sooner than a function may need it again."""

    exit_code = 5


class OpenPipeline:
    """One pipeline, and what was opened of it so far.

    Its log is asked for `timeout_s` before that is given up; without `functions` it finds those
    that its file names.
    """

    codes: Sequence[FunctionCode] = ()
    """The code of `specs` as the checkpoint keeps it; there in a run only (`run.prepare`)."""
    watch: RestoreWatch | None = None
    """How the restore that a run began with is measured; None: it is none."""

    def __init__(
        self,
        config: PipelineConfig,
        functions: Sequence[FunctionSpec] | None = None,
        *,
        clock: Clock = SYSTEM,
        timeout_s: float = COMMAND_S,
    ) -> None:
        self.config = config
        self.clock = clock
        self.timeout_s = timeout_s
        if functions is not None:
            self.specs = [*functions]
        self._opened = ExitStack()

    def with_log(self) -> Self:
        """Ask the brokers who they are, so that what needs the log fails before it begins."""
        _ = self.control
        return self

    def close(self) -> None:
        """Close the sinks."""
        self._opened.close()
        vars(self).pop("sinks", None)

    # What the file and the checkpoint say.

    @cached_property
    def name(self) -> str:
        """The pipeline's name: what the file says, or what the checkpoint is bound to.

        Only of a new one the function is asked, for a version that is to be taken back may be one
        that cannot even be imported.
        """
        if self.config.name:
            return self.config.name
        bound = Identity.read(self.config.checkpoint)
        return bound.pipeline if bound else self.specs[0].name

    @cached_property
    def specs(self) -> list[FunctionSpec]:
        """The functions of the chain, in order. Raises `ConfigError`.

        Found once: kept code of another version is loaded under the same module's name.
        """
        if self.config.specs is not None:
            return [*self.config.specs]
        return [find_function(named, self.config.folder) for named in self.config.functions]

    @cached_property
    def generation(self) -> int:
        """The one that its sinks are written with."""
        return versions.load(self.config.checkpoint).generation

    @property
    def home(self) -> str:
        """URL of the checkpoint's object store."""
        return home_of(self.config.checkpoint)

    def identity(self, without: Container[str] = ()) -> Identity:
        """What the checkpoint is bound to; `without` these sinks."""
        config = self.config
        return Identity(
            pipeline=config.name or self.specs[0].name,
            functions=[spec.name for spec in self.specs],
            shards=config.shard_count,
            topics=list(self.options.topics),
            sinks={
                name: target_of(sink, config.folder)
                for name, sink in config.every_sink.items()
                if name not in without
            },
        )

    def other(
        self,
        *,
        config: PipelineConfig | None = None,
        functions: Sequence[FunctionSpec] | None = None,
        generation: int | None = None,
    ) -> "OpenPipeline":
        """The same log, with something else of the pipeline in its place; closed by itself."""
        chosen = config or self.config
        specs = self.specs if functions is None else functions
        other = type(self)(chosen, specs, clock=self.clock, timeout_s=self.timeout_s)
        other.name = chosen.name or self.name
        if generation is not None:
            other.generation = generation
        if "control" in vars(self):
            other.control = self.control
        return other

    # The log.

    @cached_property
    def options(self) -> SourceOptions:
        """Of the data source that reads all inputs."""
        return parse_options(self.config.source_options)

    @cached_property
    def source(self) -> Subscription:
        """All inputs. Close it after use: it connects again when it is asked again."""
        return Subscription(self.options, self.clock, timeout_s=self.timeout_s)

    @cached_property
    def control(self) -> Control | None:
        """The control API of the log; None: it is another Kafka, and has no pins.

        Raises what brokers that are away raise.
        """
        with closing(self.source):
            url = self.source.log_control_url()
        if not url:
            return None
        locations = self.options.locations
        return Control(url, timeout_s=self.timeout_s, clock=self.clock, locations=locations)

    def tails(self, topics: Iterable[str] | None = None) -> dict[tuple[str, int], PartitionTail]:
        """What the log holds now of these topics; otherwise of all that the pipeline reads."""
        if topics is None:
            topics = {*self.options.topics, *self.config.tables.values()}
        if self.control is not None:
            tails = pins.read_tails(self.control, topics)
            return {key: self._with_table(key, tail) for key, tail in tails.items()}
        names, secured = list(topics), self.options.security
        return pins.kafka_tails(self.options.bootstrap, names, secured, timeout_s=self.timeout_s)

    def _with_table(self, key: tuple[str, int], tail: PartitionTail) -> PartitionTail:
        """What the log holds of a partition, and what of it a backfill has in the topic's table.

        A log that begins later than it was held from has lost what is in neither.
        """
        found = self.config.from_tables.get(key)
        if found is None or tail.log_start > found[1]:
            return tail
        return replace(tail, table_from=found[0])

    def log_state(self, topics: Sequence[str], sink_epochs: Mapping[str, int | None]) -> LogState:
        """What a contract is compared with; another Kafka has no pins."""
        if self.control is not None:
            return pins.read_log_state(self.control, topics, sink_epochs)
        with closing(self.source) as source:
            try:
                configs = source.settings(topics)
            except RequestRefused:
                configs = {}
        kept = {topic: kept_ms(each) for topic, each in configs.items()}
        return LogState(self.tails(topics), {}, sink_epochs, kept)

    def since(self, at_ms: int) -> Mapping[tuple[str, int], int]:
        """The input's first offsets that are not older than this time."""
        with closing(self.source) as source:
            return source.since(at_ms)

    def check_history(self) -> None:
        """Raise `HistoryTooShort` where another Kafka keeps less of the input than `needs_history`.

        A log of ours keeps it, by a pin; of one that does not tell its settings nothing is known.
        """
        needs = max(self.specs, key=lambda spec: spec.needs_history_ms or 0)
        if not needs.needs_history_ms or self.config.until or self.control is not None:
            return
        with closing(self.source) as source:
            try:
                configs = source.settings(sorted(self.options.topics))
            except RequestRefused:
                return
        for topic, settings in configs.items():
            kept = kept_ms(settings)
            if 0 <= kept < needs.needs_history_ms:
                raise HistoryTooShort(
                    f"{needs.name} needs {spelled_s(needs.needs_history_ms / 1000)} of history "
                    f"(needs_history), and {topic} at {self.options.bootstrap} is kept for "
                    f"{spelled_s(kept / 1000)} (retention.ms): another Kafka has no pins.",
                    hint=f"Lengthen retention.ms of {topic}, or need less.",
                )

    def check_covered(self, end: SourceOffset) -> None:
        """Raise `HistoryGone` or `LogBehind` unless the log reaches back to here."""
        check_covered(end, self.tails())

    # Savepoints.

    @property
    def savepoints(self) -> str:
        """URL of the place where savepoints lie by the file.

        A rebuild that has taken the pipeline's place lies in a folder of its own, and they stay.
        """
        if (url := url_of(self.config.checkpoint)) is not None:
            return self.config.savepoints or join(url, "savepoints")
        folder = self.config.checkpoint.resolve()
        while folder.parent.name.endswith(BACKFILLS):
            folder = folder.parent
        return self.config.savepoints or (folder.parent / "savepoints").as_uri()

    def shelf(self, url: str | None = None) -> Shelf:
        """Where savepoints lie: there, or where the file says, or beside the checkpoint."""
        return Shelf.at(url or self.savepoints, self.clock)

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
        content = {"owner": f"savepoint/{name}", "positions": pins.positions(end.needed)}
        self.control.set_pin(pin, content)
        return pin

    def savepoint(
        self, name: str | None = None, epoch: int | None = None, at: str | None = None
    ) -> tuple[str, int, Shelf]:
        """What `save` would take: its name, the epoch that it copies, and where to.

        Without a name it is named by pipeline and epoch. Raises `NothingToSave`,
        `NoSuchCheckpoint`.
        """
        source = Source.at(self.config.checkpoint, self.clock)
        epoch = source.entry(epoch).epoch
        return name or f"{key_part(source.pipeline).lstrip('_-')}-{epoch}", epoch, self.shelf(at)

    def save(
        self, name: str, epoch: int, shelf: Shelf, progress: Progress | None = None
    ) -> Savepoint:
        """Take a savepoint, also while it runs. Raises as `savepoint.create.create`."""
        source = Source.at(self.config.checkpoint, self.clock)
        return create(
            source, shelf, name, epoch=epoch, pin=partial(self.pin, at=shelf), unpin=self.release,
            clock=self.clock, progress=progress,
        )  # fmt: skip

    def release(self, pin: str) -> None:
        """Take a savepoint's pin away."""
        if pin and self.control is not None:
            self.control.release_pin(pin)

    # The sinks.

    @cached_property
    def sinks(self) -> dict[str, Sink]:
        """All sinks by name, opened; that of dead letters the last.

        Raises `ConfigError`, and what a target can raise.
        """
        found: dict[str, Sink] = {}
        with ExitStack() as opened:
            for name, sink in self.config.every_sink.items():
                found[name] = opened.enter_context(closing(open_sink(sink, self.context_of(sink))))
            self._opened.push(opened.pop_all())
        return found

    def context_of(self, sink: SinkConfig) -> SinkContext:
        """What one sink learns of its pipeline, and of the function whose outputs it takes."""
        context = SinkContext(
            pipeline=self.name,
            objects=self.home,
            folder=self.config.folder,
            bootstrap=self.options.bootstrap,
            security=self.options.security,
            control=self.control,
            generation=self.generation,
            clock=self.clock,
            claim=remote.claim_of(self.config.checkpoint),
            hold=partial(remote.hold, self.config.checkpoint),
        )
        return outlet_of(sink, self.specs, context)

    def doubt(self, name: str, was: str) -> str:
        """Why this sink cannot have moved from the target it was bound to (`versions.Doubts`).

        It has where the target now holds all that was written to the one before.
        """
        sink, folder = self.config.every_sink[name], self.config.folder
        if is_target(sink, folder, was):
            return ""
        if was.startswith(f"{sink.kind} "):
            if other := sink.declared.cannot_be(was, target_of(sink, folder)):
                return other
        context = SinkContext(self.name, "", folder, clock=self.clock)
        committed = checkpoint.last_commit(self.config.checkpoint)
        try:
            seen = look_at(sink, outlet_of(sink, self.specs, context))
        except CatchwaterError as error:
            return f"of which nobody can tell what it holds: {str(error).rstrip('.')}"
        if not seen.ours:
            return "which has nothing of this pipeline's: what was written before is missing there"
        if sink.exactly_once and (seen.newest is None or seen.newest < committed):
            has = "none of them" if seen.newest is None else f"them up to epoch {seen.newest}"
            return f"which lacks epochs: it has {has} of {committed}"
        return ""

    def sink_epochs(self) -> dict[str, int | str | None]:
        """Sink → the newest epoch that its target has, None if none, or why that is not known.

        Looks at the targets and changes none. Raises what a log that is away does.
        """
        found: dict[str, int | str | None] = {}
        self.with_log()
        for name, sink in self.config.every_sink.items():
            try:
                found[name] = look_at(sink, self.context_of(sink)).newest
            except CatchwaterError as error:
                found[name] = str(error).rstrip(".")
        return found

    def withdraw(
        self, specs: Sequence[FunctionSpec], into: Path, epoch: int, generation: int
    ) -> int:
        """Undo in all sinks what they have of later epochs; the generation to write with.

        As the checkpoint `into`, whose functions are these. The generation is the one given unless
        a sink is ahead and knows a writer as new: then the first one that is newer than all of
        them. Again: no-op.
        """
        config = replace(self.config, checkpoint=into)
        for attempt in count(generation):
            writer = self.other(config=config, functions=specs, generation=attempt)
            try:
                with closing(writer):
                    if writer._withdrawn(epoch):
                        return attempt
            except Superseded:
                continue
        raise AssertionError("some generation is newer than all there are")

    def check_withdraw(self, specs: Sequence[FunctionSpec], into: Path, epoch: int) -> None:
        """Raise `OutputsStay` where `withdraw` could not undo all; changes nothing.

        Raises what a target that is away does, too.
        """
        other = self.other(config=replace(self.config, checkpoint=into), functions=specs)
        lost = []
        for name, sink in self.config.every_sink.items():
            if sink.exactly_once:
                seen = look_at(sink, other.context_of(sink))
                first = seen.undone_from
                if first is not None and first > epoch + 1:
                    lost.append(f"epochs {epoch + 1} to {first - 1} of the sink {name!r}")
        if lost:
            raise OutputsStay(
                f"To be taken back: {'; '.join(lost)}. What that needs is not kept any more, or "
                "never was.",
                hint='With delivery = "at-least-once" in its section a sink keeps what it has of '
                "them; the replay writes the rows of the other version over those of the same "
                'identity. keep = "7d" reaches farther back the next time.',
            )

    def _withdrawn(self, epoch: int) -> bool:
        """Withdraw as a writer of this generation; whether no sink is ahead any more."""
        ahead = [name for name in self.sinks if self._is_ahead(name, epoch)]
        for name in ahead:
            self._take_back(name, epoch)
        return not any(self._is_ahead(name, epoch) for name in ahead)

    def _take_back(self, name: str, epoch: int) -> None:
        """Where nothing can be taken back, at least once is no worse for it: that is only said."""
        sink = self.sinks[name]
        try:
            sink.withdraw(epoch)
        except RowsUnreadable as error:
            if self.config.every_sink[name].exactly_once:
                raise
            _log.warning("%s What it wrote after epoch %d stays.", error, epoch)
            sink.truth.withdraw(epoch)

    def _is_ahead(self, name: str, epoch: int) -> bool:
        """Whether a sink has later epochs: by its marks, or without any by what was staged."""
        sink = self.sinks[name]
        if self.config.every_sink[name].exactly_once:
            last = sink.last_epoch()
        else:
            last = max(sink.truth.epochs(), default=None)
        return last is not None and last > epoch


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# Does the file fit the functions?


def values_of(config: PipelineConfig, spec: FunctionSpec) -> EventValues | None:
    """How the chain's first function reads values, if not as JSON. Raises `BadSchema`."""
    values = _encoded(config)
    if values is not None:
        for event_type in [each.event_type for each in spec.inputs.values()] or [spec.event_type]:
            values.check(event_type, "event")
    return values


def table_values_of(config: PipelineConfig, spec: FunctionSpec) -> dict[str, EventValues]:
    """How a function reads the rows of its tables, where not as JSON. Raises `BadSchema`."""
    found = {}
    for name, table in spec.tables.items():
        values = _encoded(config.table_values.get(name, ValueConfig()))
        if values is not None:
            values.check(table.row_type, "row")
            found[name] = values
    return found


def _encoded(config: PipelineConfig | ValueConfig) -> EventValues | None:
    """How values are decoded; None: they are JSON. Raises `BadSchema`."""
    registry = None
    if ValueFormat(config.value_format) is ValueFormat.JSON and not config.registry_url:
        return None
    if config.registry_url:
        from catchwater.pipeline.spark.session import cache_folder

        kept = cache_folder() / "schemas" / re.sub(r"\W+", "-", config.registry_url)
        folder = (config.registry_folder or kept).absolute()
        registry = Registry(config.registry_url, str(folder), config.registry_login)
    return event_values(
        ValueSettings(ValueFormat(config.value_format), config.value_schema, config.value_message),
        registry,
    )


def check_subjects(config: PipelineConfig, spec: FunctionSpec) -> None:
    """Hold the newest schemas of the inputs against the classes that the first function declares.

    Raises `EventsUnfit` for one whose values are no events, and `SchemaUnavailable`.
    """
    values = values_of(config, spec)
    if values is None or values.registry is None:
        return
    topics = config.source_options.get("subscribe", "").split(",")
    declared = {topic.strip(): spec.event_type for topic in topics}
    declared |= {topic: spec.inputs[name].event_type for name, topic in config.inputs.items()}
    for topic, event_type in declared.items():
        check_subject(values, topic, event_type, from_plain)


def check_known_subjects(config: PipelineConfig, spec: FunctionSpec, *, again: bool) -> None:
    """`check_subjects`, unless the registry is away.

    A start that goes on from a checkpoint (`again`) is warned only: no producer's new schema may
    stand in the way of a restore, and its records go the way of poison.
    """
    try:
        check_subjects(config, spec)
    except SchemaUnavailable as error:
        _log.warning("The schemas of the input were not checked. %s", error)
    except EventsUnfit as error:
        if not again:
            raise
        _log.warning("%s", error)


def check_fit(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Raise `ConfigError` unless every name in the file is one of a function, and none is missing.

    Also for a sink that cannot give the delivery it is to give.

    `specs` are those of the chain, in order.
    """
    _check_beginning(config)
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise ConfigError(f"A function stands twice in the chain {', '.join(names)}.")
    _same(f"inputs of {names[0]!r}", "[inputs]", specs[0].inputs, config.inputs)
    for spec in specs[1:]:
        if spec.inputs:
            raise ConfigError(
                f"The function {spec.name!r} has several inputs; in a chain only the first may."
            )
    tables = {name for spec in specs for name in spec.tables}
    _same("declared tables", "[table.NAME]", tables, config.tables)
    calls = {name for spec in specs for name in spec.calls}
    _same("declared calls", "[call.NAME]", calls, config.calls, all_needed=False)
    for sink in config.sinks.values():
        if sink.source is not None and sink.source not in names:
            raise ConfigError(
                f"The sink {sink.name!r} takes the outputs of {sink.source!r}, which is not a "
                f"function of this pipeline; there are {', '.join(names)}."
            )
        source = source_of(sink, specs)
        guarantee(sink, output_id=source.output_id if source else ())
    _check_late(config, specs)
    if config.dead_letter is not None:
        guarantee(config.dead_letter)
    values_of(config, specs[0])
    for spec in specs:
        table_values_of(config, spec)
    for spec in specs:
        sent = [
            what
            for what, to in (
                ("what it cannot handle", config.poison or spec.poison.policy),
                ("late events", spec.late_sink),
            )
            if to == DEAD_LETTER
        ]
        if sent and config.dead_letter is None:
            raise ConfigError(
                f"The function {spec.name!r} sends {' and '.join(sent)} to a dead letter sink, "
                "and there is none.",
                hint='Add a section [dead_letter] with topic = "…".',
            )


def _check_beginning(config: PipelineConfig) -> None:
    """Raise `ConfigError` for a beginning that no restore could be promised from."""
    starting = [v for k, v in config.source.items() if k.lower() == "startingoffsets"]
    if "table" in (each.strip().lower() for each in starting):
        raise ConfigError(
            "A pipeline begins in the log, which keeps what its restores need; startingOffsets in "
            "[source] is table.",
            hint="Begin at earliest. What only the topic's table has, backfills and rebuilds read: "
            "catchwater pipeline backfill FILE --label NAME --from table.",
        )


def _check_late(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Late events go to sinks that there are, and that take nothing else."""
    for spec in specs:
        name = spec.late_sink
        if name is None or name == DEAD_LETTER:
            continue
        if name not in config.sinks:
            raise ConfigError(
                f"The function {spec.name!r} declares late={name!r}, and there is no "
                f"[sink.{name}]; there are {', '.join(config.sinks) or 'none'}.",
                hint="late is 'drop', 'process', 'dead-letter' or the name of a sink.",
            )
        if config.sinks[name].source is not None:
            raise ConfigError(
                f"The sink {name!r} takes the late events of {spec.name!r}, so it cannot take the "
                f"outputs of {config.sinks[name].source!r} as well.",
                hint=f"Take from out of [sink.{name}], or name another sink.",
            )
    if config.sinks and not any(source_of(sink, specs) for sink in config.sinks.values()):
        raise ConfigError(
            "All sinks take late events: the outputs would go nowhere.",
            hint='Add a section such as [sink.alerts] with topic = "alerts".',
        )


def _same(
    what: str,
    section: str,
    declared: Collection[str],
    named: Iterable[str],
    *,
    all_needed: bool = True,
) -> None:
    """Raise `ConfigError` unless both sides name the same."""
    missing = sorted({*declared} - {*named}) if all_needed else []
    unknown = sorted({*named} - {*declared})
    if missing or unknown:
        declares = (
            f"The {what} are {', '.join(sorted(declared))}" if declared else f"There are no {what}"
        )
        wrong = f"lacks {', '.join(missing)}" if missing else f"names {', '.join(unknown)}"
        raise ConfigError(f"{declares}; the pipeline's file, {section}, {wrong}.")


def source_of(sink: SinkConfig, specs: Sequence[FunctionSpec]) -> FunctionSpec | None:
    """The function whose outputs a sink takes: the one it names, or the last of the chain.

    None: it takes dead letters, or what is late for a function that names it.
    """
    if sink.name in {DEAD_LETTER, *(spec.late_sink for spec in specs)}:
        return None
    return next((spec for spec in specs if spec.name == sink.source), specs[-1])


def outlet_of(sink: SinkConfig, specs: Sequence[FunctionSpec], context: SinkContext) -> SinkContext:
    """What one sink learns of its pipeline: also what the function puts out that it takes."""
    spec = source_of(sink, specs)
    if spec is None:
        return context  # events that were not handled are as they came
    return replace(context, output_type=spec.output_type, output_id=spec.output_id)


def check_sinks(config: PipelineConfig, specs: Sequence[FunctionSpec]) -> None:
    """Refuse sinks that no start could open; opens nothing. Raises as `check_sink`."""
    for missing in packages_missing(config, specs).values():
        raise missing


def packages_missing(
    config: PipelineConfig, specs: Sequence[FunctionSpec]
) -> dict[str, PackageMissing]:
    """Sink → the package it lacks. Raises `ConfigError` for a sink that no package would mend."""
    context = SinkContext(config.name or specs[0].name, "", config.folder)
    missing: dict[str, PackageMissing] = {}
    for sink in config.every_sink.values():
        try:
            check_sink(sink, outlet_of(sink, specs, context))
        except PackageMissing as error:
            missing[sink.name] = error
    there = [each for each in config.every_sink.values() if each.name not in missing]
    _refuse_shared_targets(there, config.folder)
    return missing


def _refuse_shared_targets(sinks: Sequence[SinkConfig], folder: Path) -> None:
    """Two sinks of one pipeline may write to one topic, or one endpoint, and to nothing else.

    What is one target under two names, its opening finds out.
    """
    writers: dict[str, str] = {}
    for each in sinks:
        if each.declared.one_writer:
            other = writers.setdefault(target_of(each, folder), each.name)
            if other != each.name:
                raise ConfigError(
                    f"The sinks {other!r} and {each.name!r} would both write to {each.place}.",
                    hint="Give each a target of its own.",
                )
