"""A backfill: a pipeline's functions over a bounded part of its input's past, beside the live one.

To everything below, a backfill is a pipeline of its own: it has a name, a checkpoint, state, pins
and marks in the sinks that are not the live one's, so that neither notices the other, and what it
puts out is written exactly once however often it is killed. What makes it a backfill is that its
range of offsets is fixed before its first start and kept in its checkpoint.

Relies on the log to still hold the range, and pins it before anything else; what the log has
deleted of it, the topics' tables must hold as records. State begins empty.
That of a pipeline at a URL has a URL of its own below it, and goes on wherever it is started again.
"""

import re
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.open import join
from catchwater.pipeline.run.config import AVAILABLE_NOW, PipelineConfig
from catchwater.pipeline.run.versions import Identity, find_function, is_target
from catchwater.recovery import checkpoint, handover
from catchwater.recovery.folder import lock, refresh
from catchwater.recovery.ledger import FOLDER, OffsetMap, folder_of, read_json, url_of, write_whole
from catchwater.recovery.pins import positions
from catchwater.replay.control import Control, ControlRefused
from catchwater.replay.offsets import from_json, to_json
from catchwater.replay.options import Offsets, parse_options
from catchwater.replay.plan import Missing
from catchwater.replay.subscription import COMMAND_S, Subscription
from catchwater.sinks.config import target_of
from catchwater.wire.client import EARLIEST
from catchwater.wire.fields import TopicPartition

BACKFILLS = ".backfills"
"""How the name of the folder beside a checkpoint ends that its backfills lie in."""

_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
STARTING = ("starting", "ending", "maxtriggerdelay", "minoffsets")
"""What begins so in the file says where the live pipeline begins or how it waits."""


class BadBackfill(CatchwaterError):
    """A backfill that cannot be: its label, its range, or another range under the same label."""

    exit_code = 2


class Bounds(msgspec.Struct, frozen=True):
    """The offsets [start, end) of every partition that a backfill reads."""

    start: OffsetMap
    end: OffsetMap
    tables: dict[str, str] = {}
    """Of a rebuild, until it takes their place: sink → target (`Kind.aside`), not the file's."""
    taking: bool = False
    """A rebuild has begun to take the live tables' place, and reads no more before it has."""
    log: OffsetMap = {}
    """Of partitions that begin in the topics' tables: where the log, which is held, goes on."""

    @property
    def records(self) -> int:
        """How many offsets that is."""
        first = from_json(self.start)
        return sum(end - first[key] for key, end in from_json(self.end).items())

    @property
    def from_tables(self) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of each partition that the topic's table is to have."""
        start = from_json(self.start)
        return {key: (start[key], at) for key, at in from_json(self.log).items()}

    @property
    def held(self) -> OffsetMap:
        """From where on the log is to hold each partition."""
        return to_json(from_json(self.start) | from_json(self.log))


def resolve(config: PipelineConfig, since: str, until: str, clock: Clock) -> Bounds:
    """The offsets of a range, each side `earliest`, `latest`, an ISO time or offsets as JSON.

    It may begin where topics' tables do: `table`. A time stands for the first record, of the log or
    of a table that goes on before it, that is not older. A partition that ends before the range
    begins has nothing of it. Raises `BadBackfill`, `BadOption`.
    """
    kept = {k: v for k, v in config.source_options.items() if not k.lower().startswith(STARTING)}
    options = {**kept, **point("starting", since), **point("ending", until)}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    asked = parse_options(options)
    with closing(Subscription(asked, clock, timeout_s=COMMAND_S)) as subscription:
        start, end = subscription.starting(EARLIEST), subscription.ending()
        start |= subscription.by_tables(start, asked.starting)
        end |= subscription.by_tables(end, asked.ending)
        last = subscription.latest()
        start = {key: min(at, end[key]) for key, at in start.items()}
        log = where_log_goes_on(subscription, start, end)
    # The range is fixed for good, so one that cannot be read to its end would never be done.
    beyond = [
        f"{topic}-{number}" for (topic, number), at in end.items() if at > last[topic, number]
    ]
    if beyond:
        raise BadBackfill(
            f"The log ends before where the backfill is to end in {', '.join(sorted(beyond))}.",
            hint="Choose an earlier end, or latest.",
        )
    bounds = Bounds(to_json(start), to_json(end), log=to_json(log))
    if not bounds.records:
        raise BadBackfill(
            f"There is no record from {since} to {until}.",
            hint="What there is, tells the same command with --dry-run, without --from and --to.",
        )
    return bounds


def hold(config: PipelineConfig, bounds: Bounds, control: Control) -> Bounds:
    """Pin the range until the backfill is done; the bounds, with where the log goes on by then.

    Raises `BadBackfill` where retention was faster, and tables have not what it deleted.
    """
    options = parse_options(config.source_options)
    while True:
        content = {"owner": config.name, "positions": positions(bounds.held)}
        try:
            control.set_pin(f"{config.name}/range", content)
        except ControlRefused as refusal:
            if not refusal.missing:
                raise
            start, end = from_json(bounds.start), from_json(bounds.end)
            with closing(Subscription(options, timeout_s=COMMAND_S)) as subscription:
                log = where_log_goes_on(subscription, start, end)
            bounds = msgspec.structs.replace(bounds, log=to_json(log))
        else:
            return bounds


def where_log_goes_on(subscription: Subscription, start: Offsets, end: Offsets) -> Offsets:
    """Where the log begins, of partitions that begin earlier; the topics' tables have the rest.

    Raises `BadBackfill` where they have not.
    """
    log = {key: at for key, at in subscription.earliest(start).items() if start[key] < at}
    deleted = [Missing(*key, start[key], min(at, end[key])) for key, at in log.items()]
    _, lost = subscription.in_tables([each for each in deleted if each.start < each.end])
    if lost is not None:
        hint = f"Choose a later start, or earliest. {lost.remedy}".strip()
        raise BadBackfill(str(lost), hint=hint)
    return log


def point(side: str, given: str) -> dict[str, str]:
    """The source's option for one side of a range, `starting` or `ending`. Raises `BadBackfill`."""
    if given in ("earliest", "latest", "table") or given.startswith("{"):
        return {f"{side}Offsets": given}
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise BadBackfill(
            f"{given!r} says no place in a log.",
            hint="Give earliest, latest, an ISO time such as 2026-06-01T00:00:00Z, or offsets as "
            'JSON: {"payments": {"0": 1000}}; to begin, also table.',
        ) from None
    if at.tzinfo is None:
        raise BadBackfill(f"{given!r} names no time zone.", hint=f"Is it {at.isoformat()}Z?")
    return {f"{side}Timestamp": str(max(0, int(at.timestamp() * 1000)))}


def backfill_of(live: PipelineConfig, label: str) -> PipelineConfig:
    """The backfill as a pipeline; reads its range if it was begun. Raises `BadBackfill`."""
    if not _LABEL.fullmatch(label):
        raise BadBackfill(
            f"{label!r} cannot name a backfill.",
            hint="Use lower-case letters, digits and hyphens, at most 63.",
        )
    name = live.name or find_function(live.functions[0], live.folder).name
    folder = _folder(live.checkpoint, label)
    bounds = begun(folder)
    source = {k: v for k, v in live.source.items() if not k.lower().startswith(STARTING)}
    if bounds:
        source["startingOffsets"] = msgspec.json.encode(bounds.start).decode()
    tables = bounds.tables if bounds else {}
    return replace(
        live,
        name=f"{name}.{label}",
        sinks={
            sink: each.put_aside(tables[sink]) if sink in tables else each
            for sink, each in live.sinks.items()
        },
        checkpoint=folder,
        local=live.local and live.local / "backfills" / label,
        state=live.state and join(live.state, "backfills"),
        source=source,
        until=bounds.end if bounds else None,
        from_tables=bounds.from_tables if bounds else {},
        trigger=AVAILABLE_NOW,
        spare=False,
        metrics=None,
    )


def _folder(live: Path, label: str) -> Path:
    """The backfill's checkpoint: beside the live one, or below its URL."""
    if (url := url_of(live)) is None:
        root = _root(live)
        return root.with_name(f"{root.name}{BACKFILLS}") / label
    from catchwater.pipeline.spark.session import cache_folder

    folder = folder_of(join(url, f"backfills/{label}"), cache_folder().absolute())
    refresh(folder)
    return folder


def check_apart(backfill: PipelineConfig, live: PipelineConfig) -> None:
    """Raise `BadBackfill` where a sink would write to what the live pipeline writes to.

    What that is, its checkpoint knows; before its first start, its file says so.
    """
    bound = Identity.read(live.checkpoint)
    for name, sink in backfill.sinks.items():
        target = target_of(sink, backfill.folder)
        taken = bound.sinks.get(name, "") if bound else target_of(live.sinks[name], live.folder)
        if is_target(sink, backfill.folder, taken):
            variable = f"CATCHWATER_SINK__{name.upper()}__{sink.declared.named_by.upper()}"
            raise BadBackfill(
                f"The sink {name!r} writes to {target}, which is the live pipeline's.",
                hint=f"Name another target by the environment: {variable}=...",
            )


def begin(backfill: PipelineConfig, bounds: Bounds) -> None:
    """Fix the range, which every start of the backfill reads from now on."""
    path = _path(backfill.checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(backfill.checkpoint) if url_of(backfill.checkpoint) else nullcontext():
        write_whole(path, msgspec.json.encode(bounds))


def begun(folder: Path) -> Bounds | None:
    """The range of the backfill whose checkpoint this is; None if there is none yet."""
    return read_json(_path(folder), Bounds)


def progress(folder: Path) -> tuple[int, int]:
    """How many of its offsets a backfill has read and committed, and how many there are."""
    bounds = begun(folder)
    if bounds is None:
        return 0, 0
    found = checkpoint.read(folder)
    at: Mapping[tuple[str, int], int] = from_json(found.last.end.offsets if found.last else {})
    start = from_json(bounds.start)
    return sum(at.get(key, first) - first for key, first in start.items()), bounds.records


def _root(folder: Path) -> Path:
    """The checkpoint that the pipeline's file names, before any handover."""
    while (shadow := handover.shadow_of(folder)) is not None:
        folder = Path(shadow.leader)
    return folder


def _path(folder: Path) -> Path:
    return folder / FOLDER / "backfill.json"
