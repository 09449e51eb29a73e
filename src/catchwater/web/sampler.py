"""Looks at the broker every five seconds: what can be plotted goes into the history, and what has
changed onto the timeline.

The latest looks are kept, so that a page can say what happened within the last minute. What cannot
be asked now is left out: a gap in a plot says so.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from catchwater.config import CatchwaterError
from catchwater.verdicts import PipelineStatus, Verdict
from catchwater.web.facts import BrokerFact, Facts, GroupFact
from catchwater.web.history import History
from catchwater.web.of_pipelines import Event
from catchwater.web.view import Mark

EVERY_S = 5.0
_GROUPS_EVERY = 3
_MOST_GROUPS = 100
"""Those furthest behind are plotted."""
_MOST_PIPELINES = 20
_LOOKS = 13
"""A minute of them."""
_VERDICTS = ("correct", "recoverable", "fresh")


class Sampler:
    """Fills a history from one broker's facts."""

    def __init__(self, facts: Facts, history: History) -> None:
        self._facts = facts
        self._history = history
        self._clock = facts.broker.clock
        self._looks: deque[tuple[float, BrokerFact]] = deque(maxlen=_LOOKS)
        self._seen: dict[str, PipelineStatus] = {}
        self._brokers: dict[int, str] | None = None
        self._count = 0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(EVERY_S)

    async def look(self) -> None:
        """Look once."""
        at_ms, at_s = self._facts.now_ms, self._clock.monotonic_s()
        me = f"broker/{self._facts.broker.config.node_id}"
        now = self._facts.broker_now()
        values: dict[str, float] = {}
        if self._looks:
            before_s, before = self._looks[-1]
            values |= {
                f"{me}/{key}": value
                for key, value in of_broker(now, before, at_s - before_s).items()
            }
        self._looks.append((at_s, now))
        events = self._joined_and_left(at_ms)
        try:
            reports = await self._facts.reports()
            for report in reports[:_MOST_PIPELINES]:
                name = f"pipeline/{report.name}"
                values |= {f"{name}/{key}": value for key, value in of_report(report).items()}
            events += self._changed(reports, at_ms)
            if self._count % _GROUPS_EVERY == 0:
                values |= of_groups(await self._facts.groups())
        except CatchwaterError:  # the catalog is away: a gap shows it
            pass
        self._history.add(at_ms, values)
        self._count += 1
        if events or self._count % 12 == 0:
            await asyncio.to_thread(self._write, events)

    def _write(self, events: Sequence[Event]) -> None:
        if events:
            self._history.note(events)
        self._history.flush()

    def recent(self) -> tuple[BrokerFact, BrokerFact | None, float]:
        """The broker now, as it was a minute ago at most, and how many seconds lie between."""
        now = self._facts.broker_now()
        if not self._looks:
            return now, None, 0.0
        at_s, before = self._looks[0]
        over_s = self._clock.monotonic_s() - at_s
        return now, before if over_s >= 1.0 else None, over_s

    def _changed(self, reports: Iterable[PipelineStatus], at_ms: int) -> list[Event]:
        events = []
        for report in reports:
            before = self._seen.get(report.name)
            self._seen[report.name] = report
            # What fails already when this broker begins to look is no change, and has to be there.
            events += changes(before, report, at_ms) if before else failing(report, at_ms)
        return events

    def _joined_and_left(self, at_ms: int) -> list[Event]:
        now: dict[int, str] = {row.id: row.state for row in self._facts.brokers()}
        before, self._brokers = self._brokers, now
        if before is None:
            node_id = self._facts.broker.config.node_id
            return [Event(at_ms, f"broker {node_id}", "started", "ok")]
        return of_brokers(before, now, at_ms)


def of_broker(now: BrokerFact, before: BrokerFact, over_s: float) -> dict[str, float]:
    """What is plotted of a broker, over the time between two looks."""
    over_s = max(0.001, over_s)
    found: dict[str, float | None] = {
        "cpu": max(0.0, now.cpu_s - before.cpu_s) / over_s,
        "bytes_in": (now.bytes_in - before.bytes_in) / over_s,
        "bytes_out": (now.bytes_out - before.bytes_out) / over_s,
        "planned": (now.planned_bytes - before.planned_bytes) / over_s,
        "lagging": (now.lagging_bytes - before.lagging_bytes) / over_s,
        "produce_p99": now.produce.since(before.produce).quantile(0.99),
        "fsync_p99": now.fsync.since(before.fsync).quantile(0.99),
        "loop_lag": now.loop_lag.since(before.loop_lag).quantile(1.0),
    }
    return {key: value for key, value in found.items() if value is not None}


def of_report(report: PipelineStatus) -> dict[str, float]:
    """What is plotted of a pipeline; nothing where another version reports otherwise."""
    try:
        return _of_report(report)
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _of_report(report: PipelineStatus) -> dict[str, float]:
    restore: Mapping[str, Any] = report.restore or {}
    catching_up, fresh = report.catching_up, report.freshness
    found: dict[str, float | None] = {
        "lag": report.lag.records,
        "lag_s": report.lag.seconds,
        "staleness_s": fresh.max_staleness_s,
        "checkpoint_age_s": fresh.checkpoint_age_s,
        "in_per_s": report.rate.get("in_per_s"),
        "out_per_s": report.rate.get("out_per_s"),
        "catch_up_per_s": None
        if catching_up is None
        else sum(p["per_s"] or 0 for p in catching_up["partitions"]),
        "estimate_s": restore.get("seconds"),
        "max_restore_s": restore.get("max_restore_s"),
        "measured_s": report.restores[-1].measured_s if report.restores else None,
        "restoring_s": None if catching_up is None else catching_up["since_s"],
        "state_bytes": report.operator.get("state_bytes"),
        "wrong": sum(each.wrong for each in report.compared) if report.compared else None,
    }
    return {key: float(value) for key, value in found.items() if value is not None}


def of_groups(groups: Iterable[GroupFact]) -> dict[str, float]:
    """What is plotted of groups."""
    found: dict[str, float] = {}
    for group in sorted(groups, key=lambda each: -each.lag)[:_MOST_GROUPS]:
        found[f"group/{group.name}/lag"] = float(group.lag)
        if group.lag_s is not None:
            found[f"group/{group.name}/lag_s"] = group.lag_s
    return found


def changes(before: PipelineStatus, now: PipelineStatus, at_ms: int) -> list[Event]:
    """What is new in a report: verdicts, versions, its state, restarts and restores."""
    of = f"pipeline {now.name}"
    events = []
    if now.state != before.state:
        events.append(Event(at_ms, of, f"{now.state}, was {before.state}", ""))
    for name, version in now.versions.items():
        was = before.versions.get(name)
        if was != version:
            what = f"{name} v{version} is live" + (f", v{was} was" if was is not None else "")
            events.append(Event(at_ms, of, what, ""))
    if before.catching_up is None and now.catching_up is not None:
        events.append(Event(at_ms, of, "restore began", "warn"))
    if before.catching_up is not None and now.catching_up is None:
        took = _took(before)
        events.append(Event(at_ms, of, f"restore ended{took}", "ok"))
    restarts = [(each.supervisor or {}).get("restarts") or 0 for each in (before, now)]
    if restarts[1] > restarts[0]:
        cause = (now.supervisor or {}).get("last_cause") or "the driver ended"
        events.append(Event(at_ms, of, f"started again: {cause}", "warn"))
    for name in _VERDICTS:
        was, given = getattr(before, name), getattr(now, name)
        if given.state != was.state:
            events.append(_of_verdict(now, name, at_ms))
    return events


def failing(report: PipelineStatus, at_ms: int) -> list[Event]:
    """The verdicts that fail, of a pipeline that was not seen before."""
    bad = (name for name in _VERDICTS if getattr(report, name).state == "fail")
    return [_of_verdict(report, name, at_ms) for name in bad]


def _of_verdict(report: PipelineStatus, name: str, at_ms: int) -> Event:
    given: Verdict = getattr(report, name)
    mark: Mark = given.state
    command = "" if mark == "ok" else given.next
    what = f"{name}: {given.state}. {given.reason}"
    return Event(at_ms, f"pipeline {report.name}", what, mark, command)


def _took(before: PipelineStatus) -> str:
    """How long it had taken when it was last seen."""
    since_s = (before.catching_up or {}).get("since_s")
    return "" if since_s is None else f" after about {since_s:.0f} s"


def of_brokers(before: Mapping[int, str], now: Mapping[int, str], at_ms: int) -> list[Event]:
    """Who came and who went."""
    events = [
        Event(
            at_ms,
            f"broker {node}",
            state if node in before else "joined",
            "ok" if state == "live" else "warn",
        )
        for node, state in now.items()
        if before.get(node) != state
    ]
    events += [Event(at_ms, f"broker {node}", "is gone", "warn") for node in before.keys() - now]
    return events
