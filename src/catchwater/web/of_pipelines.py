"""The pages of pipelines: the overview, one pipeline in four questions, drills, the timeline.

Each is a pure function from reports to the record that is shown. A report says what it knew when it
was made; `verdicts.as_seen` has taken back what it is too old to say.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from catchwater.drill.result import Finding, Result
from catchwater.verdicts import OLD_S, Compared, Freshness, PipelineStatus, Restored
from catchwater.verdicts import Verdict as Given
from catchwater.web import words
from catchwater.web.facts import GroupFact, TopicFact
from catchwater.web.of_log import group_href, promised, topic_href
from catchwater.web.view import (
    Cell,
    Chart,
    Column,
    Command,
    Crumb,
    Head,
    Line,
    Mark,
    PageQuery,
    Panel,
    Sorted,
    Table,
    Trend,
    Verdict,
    View,
    listed,
    worst,
)

_MARKS: Mapping[str, Mark] = {
    "ok": "ok",
    "pass": "ok",
    "warn": "warn",
    "fail": "fail",
    "unknown": "unknown",
}
_OVER = ("stopped", "ended")
"""States in which a pipeline reports for the last time."""
_MOST_EPOCHS = 12
_MOST_EVENTS = 200
_FAR_OFF = 1.25
"""A restore that took more than so many times the estimate was not foretold well."""


class Event(NamedTuple):
    """Something that happened, on the timeline."""

    at_ms: int
    of: str
    """The pipeline, or "broker 1"."""
    what: str
    mark: Mark = ""
    command: str = ""
    """What to type about it; empty: nothing."""


def pipeline_href(name: str) -> str:
    """Where a pipeline's page is."""
    return f"/pipelines/{quote(name, safe='')}"


Trends = Mapping[str, Trend]
"""Verdict to what it rests on over the last hour."""


def head(report: PipelineStatus, now_ms: int, trends: Trends | None = None) -> Head:
    """A pipeline in one line."""
    restore, fresh, trends = report.restore or {}, report.freshness, trends or {}
    return Head(
        report.name,
        pipeline_href(report.name),
        state_then(report, now_ms),
        [
            _verdict("correct", report.correct, None, trends),
            _verdict("recoverable", report.recoverable, _share(restore), trends),
            _verdict("fresh", report.fresh, _stale(fresh), trends),
        ],
        about=_versions(report),
        at_ms=report.reported_ms,
    )


def _versions(report: PipelineStatus) -> str:
    return ", ".join(f"{name} v{version}" for name, version in sorted(report.versions.items()))


def _stale(fresh: Freshness) -> float | None:
    """Which share of its promise a pipeline is behind."""
    if fresh.staleness_s is None or not fresh.max_staleness_s:
        return None
    return min(1.0, fresh.staleness_s / fresh.max_staleness_s)


def trends_of(name: str, read: Callable[[str], list[float | None]]) -> Trends:
    """What the history has of a pipeline's verdicts, in the last hour."""
    me = f"pipeline/{name}"
    behind, promised = read(f"{me}/lag_s"), read(f"{me}/staleness_s")
    estimate, budget = read(f"{me}/estimate_s"), read(f"{me}/max_restore_s")
    return {
        "fresh": Trend(behind, promised[-1], "seconds behind, over the last hour"),
        "recoverable": Trend(estimate, budget[-1], "estimated restore, over the last hour"),
    }


def is_old(report: PipelineStatus, now_ms: int) -> bool:
    """Whether a report says nothing of the present any more."""
    return now_ms - report.reported_ms > OLD_S * 1000


def state_then(report: PipelineStatus, now_ms: int) -> str:
    """What the pipeline was doing; that it runs is not believed of one that is silent."""
    if not is_old(report, now_ms) or report.state in _OVER:
        return report.state
    return f"was {report.state} {words.ago(report.reported_ms, now_ms)}"


def _verdict(of: str, given: Given, share: float | None, trends: Trends) -> Verdict:
    mark = _MARKS.get(given.state, "unknown")
    return Verdict(
        of, mark, given.reason, given.next, None if mark == "unknown" else share, trends.get(of)
    )


def rank(each: Head) -> tuple[int, str]:
    """What needs somebody comes first."""
    order = ("fail", "unknown", "warn", "ok")
    return order.index(worst(verdict.mark for verdict in each.verdicts)), each.name


# --- the overview --------------------------------------------------------------------------------


class Overview(NamedTuple):
    """What the first page is made of."""

    reports: Sequence[PipelineStatus]
    log: Sequence[Line]
    """The broker and its storage, in a few lines."""
    groups: Sequence[GroupFact]
    events: Sequence[Event]
    topics: Sequence[TopicFact] = ()
    trends: Mapping[str, Trends] = {}
    """By pipeline."""


def overview(seen: Overview, now_ms: int) -> View:
    """Every pipeline with its verdicts, then the log in a few lines."""
    made = (head(report, now_ms, seen.trends.get(report.name)) for report in seen.reports)
    heads = sorted(made, key=rank)
    behind = sorted((g for g in seen.groups if g.lag), key=lambda g: -g.lag)[:6]
    groups = Table(
        [Column("group"), Column("behind", right=True), Column("in seconds", right=True)],
        [
            [
                Cell(g.name, href=group_href(g.name)),
                Cell(words.count(g.lag)),
                Cell("unknown" if g.lag_s is None else words.span(g.lag_s), mark=promised(g)),
            ]
            for g in behind
        ],
        "No group is behind." if seen.groups else "No group has a position.",
    )
    start = [
        Panel(
            "start",
            "No pipeline has reported yet",
            wide=True,
            note="A pipeline reports to the broker that it reads from, from its first start on.",
            commands=[
                Command("catchwater init my-pipeline", "Write a small one to start from"),
                Command("catchwater demo --open", "Watch one being killed, and come back"),
            ],
        )
    ]
    return View(
        "Overview",
        "overview",
        now_ms,
        pipelines=heads,
        about=_summary(heads),
        panels=[
            *([] if heads else start),
            Panel("log", "The log", list(seen.log), wide=True, strip=True),
            Panel("behind", "Groups that are behind", table=groups),
            Panel("busy", "Topics that are written to most", table=_busiest(seen.topics)),
            Panel(
                "timeline",
                "What happened lately",
                table=_timeline(seen.events[:8], now_ms),
                wide=True,
            ),
        ],
    )


def _busiest(found: Sequence[TopicFact]) -> Table:
    written = sorted((t for t in found if t.per_s), key=lambda t: (-(t.per_s or 0.0), t.name))[:6]
    return Table(
        [Column("topic"), Column("records", right=True), Column("written", right=True)],
        [
            [
                Cell(t.name, href=topic_href(t.name)),
                Cell(words.count(t.records)),
                Cell(words.rate(t.per_s)),
            ]
            for t in written
        ],
        _why_none_is_busy(found),
    )


def _why_none_is_busy(found: Sequence[TopicFact]) -> str:
    if not found:
        return "There are no topics yet."
    is_known = any(topic.per_s is not None for topic in found)
    return "Nothing is written at the moment." if is_known else "That is known in a moment."


def _summary(heads: Sequence[Head]) -> str:
    marks = [worst(verdict.mark for verdict in each.verdicts) for each in heads]
    said = {"fail": "failing", "unknown": "not known", "warn": "with a warning", "ok": "good"}
    parts = [f"{marks.count(mark)} {text}" for mark, text in said.items() if mark in marks]
    return f"{words.plural(len(heads), 'pipeline')}: {', '.join(parts)}" if heads else ""


# --- one pipeline --------------------------------------------------------------------------------


class PipelinePage(NamedTuple):
    """What the page of a pipeline is made of."""

    report: PipelineStatus
    transactions: Sequence[Line]
    """Of the log, where it is ours."""
    load: Sequence[Line]
    """Of the broker that was asked."""
    events: Sequence[Event]
    last_drill: tuple[str, Result] | None
    """The file of the newest drill, and what it found."""
    trends: Mapping[str, Trend] = {}


def pipeline(seen: PipelinePage, now_ms: int) -> View:
    """One pipeline: is it correct, can it recover, does it keep up, what could stop it?"""
    try:
        return _pipeline(seen, now_ms)
    except (AttributeError, KeyError, TypeError, ValueError):
        note = "Parts of its report are not as this broker knows them; another version wrote it."
        return View(
            seen.report.name,
            "overview",
            now_ms,
            crumbs=[Crumb("Pipelines", "/")],
            pipelines=[head(seen.report, now_ms)],
            panels=[Panel("unreadable", "The rest cannot be shown", note=note, wide=True)],
        )


def _pipeline(seen: PipelinePage, now_ms: int) -> View:
    report = seen.report
    said = {
        "correct": Panel("correct", "Is it correct?", _correct(report)),
        "recover": Panel("recover", "Can it recover?", _recover(report, now_ms)),
        "fresh": Panel("fresh", "Is it keeping up?", _fresh(report, now_ms)),
        "stop": Panel("stop", "What could stop it?", _stop(report)),
        "live": _plots(report.name),
        "lag": Panel("lag", "Behind, by partition", table=_lag(report)),
        "contract": Panel("contract", "The newest checkpoint's contract", table=_checks(report)),
        "restores": Panel(
            "restores",
            "Restores: estimated, and measured",
            table=_restores(report, now_ms),
            wide=True,
        ),
        "functions": Panel("functions", "Functions", table=_functions(report), wide=True),
        "sinks": Panel("sinks", "Sinks", table=_sinks(report), wide=True),
        "checkpoints": Panel(
            "checkpoints", "Checkpoints", table=_epochs(report, now_ms), wide=True
        ),
    }
    if is_old(report, now_ms):
        said = {name: _as_then(panel) for name, panel in said.items()}
    else:
        said = _catching_up(report) | said
    # What the broker knows itself goes beside what the pipeline has said.
    for name, lines in {
        "correct": seen.transactions,
        "recover": [_drilled(seen.last_drill, now_ms)],
        "stop": seen.load,
    }.items():
        said[name] = replace(said[name], lines=[*said[name].lines, *lines])
    happened = _timeline(seen.events[:_MOST_EVENTS], now_ms)
    return View(
        report.name,
        "overview",
        now_ms,
        crumbs=[Crumb("Pipelines", "/")],
        pipelines=[head(report, now_ms, seen.trends)],
        about=_about(report, now_ms),
        panels=[
            *said.values(),
            Panel("timeline", "Versions and what happened", table=happened, wide=True),
        ],
    )


def _plots(name: str) -> Panel:
    me = f"pipeline/{name}"
    rates = {
        f"{me}/in_per_s": "in",
        f"{me}/out_per_s": "out",
        f"{me}/catch_up_per_s": "catching up",
    }
    behind = {f"{me}/lag_s": "oldest record not processed", f"{me}/staleness_s": "promised"}
    restore = {
        f"{me}/estimate_s": "estimated",
        f"{me}/measured_s": "last one measured",
        f"{me}/restoring_s": "going on for",
        f"{me}/max_restore_s": "budget",
    }
    charts = [
        Chart("Records a second", "per s", rates),
        Chart("Behind", "s", behind),
        Chart("A restore", "s", restore),
        Chart("State", "bytes", {f"{me}/state_bytes": "state"}),
    ]
    return Panel("live", "Live and replay, on the same axes", charts=charts, wide=True)


def _as_then(panel: Panel) -> Panel:
    """What an old report found to be good, which nobody knows now."""
    lines = [replace(each, mark=_then(each.mark)) for each in panel.lines]
    table = panel.table
    if table is not None:
        rows = [[replace(cell, mark=_then(cell.mark)) for cell in row] for row in table.rows]
        table = replace(table, rows=rows)
    return replace(panel, lines=lines, table=table)


def _then(mark: Mark) -> Mark:
    return "unknown" if mark == "ok" else mark


def _about(report: PipelineStatus, now_ms: int) -> str:
    parts = [
        _versions(report),
        state_then(report, now_ms),
        f"reported {words.ago(report.reported_ms, now_ms)}",
    ]
    if report.owner:
        parts.append(f"owner {report.owner}")
    return " · ".join(filter(None, parts))


def _correct(report: PipelineStatus) -> list[Line]:
    lines = [_comparison(each, report.reported_ms) for each in report.compared]
    seen = {each.sink for each in report.compared}
    lines += [
        Line(f"sink {each['sink']}", "not compared yet", mark="unknown")
        for each in report.sinks
        if each.get("sink") not in seen
    ]
    total = {
        key: sum(f.get(key) or 0 for f in report.functions)
        for key in ("late", "duplicates", "poisoned")
    }
    over = f"in the last {words.plural(len(report.recent_epochs), 'epoch')}"
    return [
        *(lines or [Line("sinks", "unknown", mark="unknown", note="none has been compared")]),
        Line("late", words.count(total["late"]), note=over),
        Line("duplicates dropped", words.count(total["duplicates"]), note=over),
        Line(
            "could not be handled",
            words.count(total["poisoned"]),
            note=over,
            mark="warn" if total["poisoned"] else "ok" if report.functions else "unknown",
        ),
        _committed(report.recent_epochs),
    ]


def _committed(epochs: Sequence[Mapping[str, Any]]) -> Line:
    """How long an epoch's outputs took to be committed to all sinks."""
    took = sorted(each["sinks_ms"] for each in epochs if each.get("sinks_ms") is not None)
    if not took:
        return Line("a commit takes", "unknown", mark="unknown")
    text = f"{_ms(took[(len(took) - 1) // 2])} / {_ms(took[-1])}"
    return Line("a commit takes", text, note="median / longest of all sinks, of these epochs")


def _comparison(each: Compared, now_ms: int) -> Line:
    label = f"sink {each.sink}"
    when = f"compared {words.ago(each.checked_ms, now_ms)}"
    if each.problem is not None:
        return Line(label, "could not be compared", mark="unknown", note=each.problem)
    if each.wrong:
        kinds = ("missing", "doubled", "altered", "foreign", "lost")
        parts = [f"{words.count(n)} {kind}" for kind in kinds if (n := getattr(each, kind))]
        return Line(label, ", ".join(parts), mark="fail", note=when)
    rows = words.count(each.rows)
    return Line(label, f"{rows} of {rows} rows", mark="ok", note=f"missing 0, duplicate 0; {when}")


def _recover(report: PipelineStatus, now_ms: int) -> list[Line]:
    restore = report.restore or {}
    state_bytes = report.operator.get("state_bytes")
    epochs = report.recent_epochs
    grown = sum(each.get("delta_bytes") or 0 for each in epochs[-1:])
    lines = [
        Line(
            "last checkpoint",
            "none" if report.committed_epoch is None else f"#{report.committed_epoch}",
            mark="unknown" if report.committed_epoch is None else "",
            note=words.ago(report.last_finished_ms, now_ms),
        ),
        Line("took", _ms(_last(epochs, "total_ms"))),
        Line("state", words.size(state_bytes), note=f"{words.size(grown)} changed in it"),
        Line(
            "a restore takes",
            _seconds(restore, "seconds"),
            mark=_in_budget(restore),
            note=_error_bar(restore),
            share=_share(restore),
        ),
        Line(
            "to be read again",
            "unknown" if not restore else f"{words.span(restore.get('recovery_point_s'))} of input",
            mark="" if restore else "unknown",
            note=_amount(restore),
        ),
        *_history(report),
        Line(
            "oldest checkpoint kept",
            f"#{report.restorable[0]}" if report.restorable else "none",
            mark="" if report.restorable else "unknown",
            note=words.plural(len(report.restorable), "checkpoint"),
        ),
    ]
    return lines


def _in_budget(restore: Mapping[str, Any]) -> Mark:
    if not restore:
        return "unknown"
    seconds, most = restore.get("seconds"), restore.get("max_restore_s")
    if seconds is None:
        return "fail"
    if most is None:
        return ""
    high = restore.get("high_s")
    return "fail" if seconds > most else "warn" if high is None or high > most else "ok"


def _share(restore: Mapping[str, Any]) -> float | None:
    seconds, most = restore.get("seconds"), restore.get("max_restore_s")
    return min(1.0, seconds / most) if seconds is not None and most else None


def _seconds(found: Mapping[str, Any], key: str) -> str:
    if not found:
        return "unknown"
    return "it never catches up" if found.get(key) is None else words.span(found[key])


def _error_bar(restore: Mapping[str, Any]) -> str:
    if not restore:
        return "no checkpoint has a contract yet"
    low, high, most = (restore.get(key) for key in ("low_s", "high_s", "max_restore_s"))
    parts = []
    if low is not None:
        parts.append(f"{words.span(low)} to {'never' if high is None else words.span(high)}")
    parts.append("no max_restore is declared" if most is None else f"of {words.span(most)}")
    rests = restore.get("samples") or 0
    parts.append(
        f"rests on {words.plural(rests, 'restore')}" if rests else "nothing was measured yet"
    )
    return "; ".join(parts)


def _amount(restore: Mapping[str, Any]) -> str:
    """How much of the input a restore reads again."""
    if restore.get("replay_records") is None:
        return ""
    records = words.plural(restore["replay_records"], "record")
    return f"{words.size(restore['replay_bytes'])}, {records}"


def _history(report: PipelineStatus) -> list[Line]:
    """What keeps the log from deleting what a restore needs, and how near that is."""
    margin_s = report.history_margin_s
    spare = "" if margin_s is None else f"; {words.span(margin_s)} of input more than is needed"
    return [
        Line(
            "the log keeps it",
            _of_check(each["verdict"]),
            mark=_MARKS.get(each["verdict"], "unknown"),
            note=f"{each['message']}{spare}",
        )
        for each in report.checks
        if each["subject"] == "pin"
    ]


def _drilled(last: tuple[str, Result] | None, now_ms: int) -> Line:
    if last is None:
        return Line("last drill", "none is known", mark="unknown", href="/drills")
    file, result = last
    measured, estimate = result.restore_s, result.estimate_s
    note = words.ago(result.started_ms, now_ms)
    if measured is not None:
        note += f"; measured {words.span(measured)}"
        note += "" if estimate is None else f", estimated {words.span(estimate)}"
    href = f"/drills/{quote(file, safe='')}"
    return Line("last drill", result.drill, mark=_MARKS[result.verdict], note=note, href=href)


def _fresh(report: PipelineStatus, now_ms: int) -> list[Line]:
    lag, fresh, rate = report.lag, report.freshness, report.rate
    known = lag.records is not None
    promised = "promised" if fresh.is_declared else "by default; max_staleness declares it"
    epoch_mark: Mark = ""
    if fresh.trigger_s is not None and fresh.epoch_s is not None:
        epoch_mark = "warn" if fresh.epoch_s > fresh.trigger_s else "ok"
    return [
        Line(
            "behind",
            words.plural(lag.records or 0, "record") if known else "unknown",
            mark="" if known else "unknown",
            note=lag.unknown or "",
        ),
        Line(
            "in seconds",
            words.span(lag.seconds) if lag.seconds is not None else "unknown",
            mark=_MARKS.get(report.fresh.state, "unknown"),
            share=_stale(fresh),
            note=f"{words.span(fresh.max_staleness_s)} {promised}",
        ),
        Line(
            "in / out",
            f"{words.rate(rate.get('in_per_s'))} / {words.rate(rate.get('out_per_s'))}",
            note=f"over {words.span(rate['over_s'])}" if rate.get("over_s") else "",
        ),
        Line(
            "an epoch takes",
            words.span(fresh.epoch_s) if fresh.epoch_s is not None else "unknown",
            mark=epoch_mark,
            note="" if fresh.trigger_s is None else f"of {words.span(fresh.trigger_s)}",
        ),
        Line(
            "epoch under way",
            words.span(fresh.under_way_s) if fresh.under_way_s is not None else "none",
        ),
        Line(
            "watermark behind",
            "none yet"
            if not report.watermark_ms or report.watermark_ms < 0
            else words.span(max(0.0, now_ms - report.watermark_ms) / 1000),
        ),
        Line(
            "in the operator",
            f"{_ms(report.operator.get('operator_p50_ms'))} / "
            f"{_ms(report.operator.get('operator_p99_ms'))}",
            note="p50 / p99 of an event",
        ),
    ]


def _stop(report: PipelineStatus) -> list[Line]:
    supervisor = report.supervisor or {}
    lines = []
    if report.runbook:
        is_link = report.runbook.startswith(("https://", "http://"))
        lines.append(Line("runbook", report.runbook, href=report.runbook if is_link else ""))
    for problem in report.problems:
        lines.append(Line("problem", problem, mark="fail"))
    if supervisor:
        restarts = supervisor.get("restarts") or 0
        lines.append(
            Line(
                "restarts",
                words.count(restarts),
                mark="warn" if restarts else "ok",
                note=supervisor.get("last_cause") or "",
            )
        )
    else:
        lines.append(Line("supervisor", "none", note="nothing starts it again when it fails"))
    return lines


def _catching_up(report: PipelineStatus) -> dict[str, Panel]:
    """A restore that is under way, first on the page."""
    restore = report.catching_up
    if restore is None:
        return {}
    lines = [
        Line(
            "all",
            f"{restore['percent']:.0f} %",
            share=restore["percent"] / 100,
            note=f"{restore['phase']}, {words.span(restore['since_s'])} after the start"
            + ("" if restore["eta_s"] is None else f", {words.span(restore['eta_s'])} left"),
        )
    ]
    for each in [*restore["shards"], *restore["partitions"]][:16]:
        speed = each["bytes_per_s"]
        left = "" if each["eta_s"] is None else f", {words.span(each['eta_s'])} left"
        note = "" if speed is None else f"{speed / 1e6:.1f} MB/s{left}"
        note = "done" if each["percent"] >= 100 else note
        lines.append(
            Line(each["name"], f"{each['percent']:.0f} %", share=each["percent"] / 100, note=note)
        )
    return {"catching-up": Panel("catching-up", "Restoring now", lines, wide=True, strip=True)}


def _lag(report: PipelineStatus) -> Table:
    return Table(
        [Column("partition"), Column("behind", right=True), Column("in seconds", right=True)],
        [
            [
                Cell(f"{each.topic}-{each.partition}"),
                Cell(words.count(each.records)),
                Cell("unknown" if each.seconds is None else words.span(each.seconds)),
            ]
            for each in report.lag.partitions
        ],
        report.lag.unknown or "No partition is behind.",
    )


def _restores(report: PipelineStatus, now_ms: int) -> Table:
    """Newest first, each with the estimate that stood when the failure came."""
    titles = ("measured", "estimated", "off by", "unnoticed", "start", "state", "input")
    rows = [
        [
            Cell(words.ago(each.ended_ms, now_ms) if each.ended_ms else "not known"),
            Cell(words.span(each.measured_s)),
            Cell("none" if each.estimated_s is None else words.span(each.estimated_s)),
            _missed(each),
            *(
                Cell(words.span(part))
                for part in (each.noticed_s, each.started_s, each.state_s, each.input_s)
            ),
        ]
        for each in reversed(report.restores)
    ]
    return Table(
        [Column("over"), *(Column(title, right=True) for title in titles)],
        rows,
        "No restore was measured yet: catchwater drill run measures one.",
    )


def _missed(each: Restored) -> Cell:
    """By how much the estimate was wrong; a restore that took much longer is a warning."""
    if not each.estimated_s:
        return Cell(words.DASH)
    share = each.measured_s / each.estimated_s - 1
    return Cell(f"{share:+.0%}", mark="warn" if share > _FAR_OFF - 1 else "ok")


def _checks(report: PipelineStatus) -> Table:
    return Table(
        [Column("what"), Column("holds"), Column("found", grows=True)],
        [
            [
                Cell(each["subject"]),
                Cell(_of_check(each["verdict"]), mark=_MARKS.get(each["verdict"], "unknown")),
                Cell(each["message"]),
            ]
            for each in report.checks
        ],
        "No checkpoint has a contract yet.",
    )


def _of_check(verdict: str) -> str:
    return {"pass": "yes", "warn": "barely", "fail": "no"}.get(verdict, "unknown")


def _functions(report: PipelineStatus) -> Table:
    names = ("events", "outputs", "late", "duplicates", "poisoned", "keys")
    return Table(
        [
            Column("function"),
            Column("version", right=True),
            *(Column(name, right=True) for name in names),
            Column("state", right=True),
            Column("p99", right=True),
        ],
        [
            [
                Cell(str(f["function"])),
                Cell(f"v{version}" if (version := report.versions.get(str(f["function"]))) else ""),
                *(Cell(words.count(f.get(name))) for name in names),
                Cell(words.size(f.get("state_bytes"))),
                Cell(_ms(f.get("operator_p99_ms"))),
            ]
            for f in report.functions
        ],
        "No epoch has run yet.",
    )


def _sinks(report: PipelineStatus) -> Table:
    compared = {each.sink: each for each in report.compared}
    rows = []
    for sink in report.sinks:
        name = str(sink["sink"])
        line = (
            _comparison(compared[name], report.reported_ms)
            if name in compared
            else Line("", "not compared yet", mark="unknown")
        )
        rows.append(
            [
                Cell(name),
                Cell(str(sink.get("target", ""))),
                Cell(words.count(sink.get("epoch")), ""),
                Cell(words.count(sink.get("records"))),
                Cell(_ms(sink.get("commit_ms"))),
                Cell(line.text, mark=line.mark),
            ]
        )
    return Table(
        [
            Column("sink"),
            Column("target"),
            Column("epoch", right=True),
            Column("records", right=True),
            Column("commit", right=True),
            Column("holds"),
        ],
        rows,
        "No sink has been given anything yet.",
    )


def _epochs(report: PipelineStatus, now_ms: int) -> Table:
    kept = set(report.restorable)
    parts = ("source_ms", "operator_ms", "sinks_ms", "commit_ms", "total_ms")
    rows = [
        [
            Cell(f"#{e['epoch']}"),
            Cell("yes" if e["epoch"] in kept else "no"),
            Cell(words.count(e.get("events"))),
            Cell(words.count(e.get("outputs"))),
            *(Cell(_ms(e.get(part))) for part in parts),
            Cell(words.size(e.get("delta_bytes"))),
            Cell(words.span(e["restore_s"]) if e.get("restore_s") else ""),
            Cell(words.ago(e.get("finished_ms"), now_ms)),
        ]
        for e in reversed(report.recent_epochs[-_MOST_EPOCHS:])
    ]
    right = (
        "events",
        "outputs",
        "source",
        "function",
        "sinks",
        "commit",
        "in all",
        "state changed",
        "state rebuilt in",
        "finished",
    )
    return Table(
        [Column("checkpoint"), Column("kept"), *(Column(title, right=True) for title in right)],
        rows,
        "No epoch was committed yet.",
    )


def _last(epochs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    value: float | None = epochs[-1].get(key) if epochs else None
    return value


def _ms(value: float | None) -> str:
    return words.DASH if value is None else words.span(value / 1000)


# --- drills, and what happened -------------------------------------------------------------------


class Drills(NamedTuple):
    """The folder of results."""

    folder: Path | None
    """None: none is named."""
    results: Mapping[str, Result]
    """File → what it says, oldest first."""
    damaged: Mapping[str, str] = {}


def drills(seen: Drills, asked: PageQuery, now_ms: int) -> View:
    """Every drill that was kept: verdict, and the restore measured against its estimate."""
    columns = [
        Sorted(
            Column("drill", "drill"),
            lambda d: Cell(d[1].drill, href=f"/drills/{quote(d[0], safe='')}"),
            lambda d: d[1].drill,
        ),
        Sorted(
            Column("verdict", "verdict"),
            lambda d: Cell(d[1].verdict, mark=_MARKS[d[1].verdict]),
            lambda d: d[1].verdict,
        ),
        Sorted(
            Column("platform", "platform"), lambda d: Cell(d[1].platform), lambda d: d[1].platform
        ),
        Sorted(
            Column("restore", "restore", right=True),
            lambda d: Cell(words.span(d[1].restore_s)),
            lambda d: d[1].restore_s or 0.0,
        ),
        Sorted(
            Column("estimated", "estimated", right=True),
            lambda d: Cell(words.span(d[1].estimate_s), mark=_foretold(d[1])),
            lambda d: d[1].estimate_s or 0.0,
        ),
        Sorted(
            Column("by hand", "hands", right=True),
            lambda d: Cell(str(len(d[1].manual_steps))),
            lambda d: len(d[1].manual_steps),
        ),
        Sorted(
            Column("when", "when", right=True),
            lambda d: Cell(words.ago(d[1].started_ms, now_ms)),
            lambda d: d[1].started_ms,
        ),
    ]
    if seen.folder is None:
        empty = "This broker was not told where results are kept (catchwater.drills.dir)."
    else:
        empty = f"There is no result in {seen.folder} yet."
    table = listed(list(seen.results.items()), columns, asked, "-when", empty, lambda d: d[1].drill)
    lines = [Line(file, why, mark="unknown") for file, why in seen.damaged.items()]
    return View(
        "Drills",
        "drills",
        now_ms,
        about=words.plural(len(seen.results), "result"),
        panels=[
            Panel(
                "drills",
                "",
                table=table,
                wide=True,
                commands=[]
                if seen.results
                else [
                    Command("catchwater drill list", "What can be rehearsed"),
                    Command("catchwater drill all", "Rehearse all of it"),
                ],
            ),
            *([Panel("damaged", "Results that cannot be read", lines, wide=True)] if lines else []),
        ],
    )


def _foretold(result: Result) -> Mark:
    if result.restore_s is None or not result.estimate_s:
        return ""
    return "warn" if result.restore_s > _FAR_OFF * result.estimate_s else "ok"


def drill(result: Result, now_ms: int) -> View:
    """One drill: what was expected, what was broken, what was found."""
    facts = [
        Line("verdict", result.verdict, mark=_MARKS[result.verdict]),
        Line("expected", result.hypothesis),
        Line("could be hurt", result.blast_radius),
        Line("platform", result.platform),
        Line("took", words.span(result.seconds), note=words.moment(result.started_ms) + " UTC"),
    ]
    if result.restore_s is not None:
        estimate = (
            "not estimated"
            if result.estimate_s is None
            else f"{words.span(result.estimate_s)} estimated"
        )
        facts.append(
            Line("restore", words.span(result.restore_s), note=estimate, mark=_foretold(result))
        )
    findings = Table(
        [
            Column("finding"),
            Column("verdict"),
            Column("measured", right=True),
            Column("budget", right=True),
            Column("why", grows=True),
        ],
        [
            [
                Cell(f.name),
                Cell(f.verdict, mark=_MARKS[f.verdict]),
                Cell(_measured(f, f.measured)),
                Cell(_measured(f, f.budget)),
                Cell(f.why),
            ]
            for f in result.findings
        ],
        "Nothing was measured.",
    )
    steps = Table(
        [Column("what was done")],
        [
            [Cell(text)]
            for text in [*result.faults, *(f"by hand: {s}" for s in result.manual_steps)]
        ],
        "Nothing was broken.",
    )
    return View(
        result.drill,
        "drills",
        now_ms,
        crumbs=[Crumb("Drills", "/drills")],
        about=words.ago(result.started_ms, now_ms),
        panels=[
            Panel("facts", "What it was", facts),
            Panel("steps", "What was broken", table=steps),
            Panel("findings", "What was found", table=findings, wide=True),
        ],
    )


def _measured(finding: Finding, value: float | int | None) -> str:
    if value is None:
        return words.DASH
    if finding.unit == "s":
        return words.span(value)
    return f"{words.count(value)} {finding.unit}".strip()


def timeline(events: Sequence[Event], now_ms: int) -> View:
    """What happened, newest first."""
    return View(
        "Timeline",
        "timeline",
        now_ms,
        about="the last 7 days",
        panels=[Panel("timeline", "", table=_timeline(events[:_MOST_EVENTS], now_ms), wide=True)],
    )


def _timeline(events: Sequence[Event], now_ms: int) -> Table:
    return Table(
        [Column("when (UTC)"), Column("of"), Column("what", grows=True)],
        [
            [
                Cell(words.moment(e.at_ms)),
                Cell(e.of, href=_of(e.of)),
                Cell(e.what, mark=e.mark, command=e.command),
            ]
            for e in events
        ],
        "Nothing has happened since this broker keeps its history.",
    )


def _of(name: str) -> str:
    if name.startswith("pipeline "):
        return pipeline_href(name.removeprefix("pipeline "))
    return "/brokers" if name.startswith("broker ") else "/drills"
