"""Is it ready for production? Evidence in, a report out: pure, and nothing in it is believed.

Evidence is what was asked of a running system and what drills have found; the caller fills
`Evidence`, and what could not be asked is None. Each line of the checklist is one rule over it. The
scorecard and the scores follow from the lines and from drills alone, by the rules that stand here
and in docs/readiness.md. There is no average: a 5 in one thing mends no 1 in another.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from catchwater.drill.result import Result
from catchwater.recovery.contract import short_topics

FORMAT = 1
DAY_MS = 86_400_000
FRESH_DAYS = 30
"""Older drills were of a system that has changed since."""
FREE_SHARE_LEAST, FREE_SHARE_LITTLE = 0.05, 0.15

Verdict = Literal["pass", "warn", "fail", "unknown"]
Mark = Literal["pass", "partial", "blocker"]
AREAS = ("checkpoints", "recovery", "storage", "elasticity", "governance", "migration")


class CheckAnswer(msgspec.Struct, frozen=True):
    """The answer to one question: a verdict of the system's own, and its words."""

    verdict: Verdict
    subject: str
    message: str


class Restored(msgspec.Struct, frozen=True):
    """One restore as it was measured, and as it had been foretold, seconds."""

    measured_s: float
    estimated_s: float | None
    of: str


class PipelineEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline; None is what could not be asked."""

    name: str
    file: str
    owner: str | None = None
    runbook: str | None = None
    restorable: int | None = None
    """Checkpoints that can be gone back to."""
    broken: Sequence[str] = ()
    """Files of the checkpoint that are missing or damaged."""
    savepoints: int | None = None
    contract: str | None = None
    """The file of the newest contract."""
    max_restore_s: float | None = None
    restore_s: float | None = None
    """The contract's estimate at its worst; None with a `contract`: it never catches up."""
    missing_per_s: float = 0.0
    needed_ms: int | None = None
    """How far back a restore reads; -1: for ever."""
    retention_ms: Mapping[str, int] | None = None
    """Of each input topic; -1: for ever."""
    checks: Sequence[CheckAnswer] | None = None
    """`contract check`: covered, pinned, within its budgets, sinks."""
    pinned: bool = False
    wrong_pins: Sequence[str] = ()
    """Why pins do not hold what their checkpoints need."""
    bounded: bool | None = None
    """Whether an epoch takes a bounded number of records."""
    wrong_rows: Mapping[str, int] | None = None
    """Sink → rows that differ from what was put out."""
    split_keys: Mapping[str, str] | None = None
    """Topic → a key that was found in two of its partitions."""
    free_share: Mapping[str, float] = {}
    """Folder → the share of its file system that is free."""
    metrics: bool = False
    restores: Sequence[Restored] = ()


class PlatformEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The log."""

    name: str
    ours: bool
    brokers: int | None = None
    wal: str | None = None
    failure_domain: str | None = None
    access: Literal["secured", "loopback", "open"] | None = None


class DrillEvidence(msgspec.Struct, frozen=True):
    """One result of a drill, and its file."""

    file: str
    result: Result


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to judge."""

    asked_ms: int
    pipelines: Sequence[PipelineEvidence]
    platforms: Sequence[PlatformEvidence]
    drills: Sequence[DrillEvidence] = ()
    """Oldest first."""
    unreadable: Mapping[str, str] = {}
    """Results of drills that cannot be read, and why."""


class Line(msgspec.Struct, frozen=True):
    """One line of the checklist."""

    id: str
    area: str
    subject: str
    verdict: Verdict
    found: str
    next: str
    evidence: str

    @property
    def sentence(self) -> str:
        """Of what, which line, and what was found."""
        return f"{self.subject}, {self.id}: {self.found}"


class Card(msgspec.Struct, frozen=True):
    """One row of the scorecard."""

    of: str
    mark: Mark
    rule: str
    because: Sequence[str]


class Score(msgspec.Struct, frozen=True):
    """1 unknown or by hand, 2 with a failure, 3 checked, 4 rehearsed, 5 rehearsed lately."""

    of: str
    score: int
    why: str


class Choice(msgspec.Struct, frozen=True):
    """A row of the decision matrix."""

    constraint: str
    option: str
    risk: str
    fit: Verdict
    evidence: str


class Report(msgspec.Struct, frozen=True):
    """All of it."""

    asked_ms: int
    overall: Mark
    lines: Sequence[Line]
    cards: Sequence[Card]
    scores: Sequence[Score]
    choices: Sequence[Choice]
    work_items: Sequence[str]
    restores: Sequence[Restored]
    pipelines: Sequence[PipelineEvidence]
    drills: Sequence[DrillEvidence]
    format: int = FORMAT

    @property
    def weaknesses(self) -> list[str]:
        """The ids of the lines that did not pass."""
        return sorted({line.id for line in self.lines if line.verdict != "pass"})


class Finding(NamedTuple):
    """What a rule makes of its evidence."""

    verdict: Verdict
    found: str
    next: str = ""


_NOT_ASKED = Finding("unknown", "it could not be asked", "Let the log and the sinks answer.")


@dataclass(frozen=True)
class _Rule:
    id: str
    area: str
    judge: Callable[[PipelineEvidence], Finding]


# --- the lines of a pipeline ---------------------------------------------------------------------


def _checkpoint(p: PipelineEvidence) -> Finding:
    if p.broken:
        return Finding("fail", "; ".join(p.broken[:3]), f"catchwater recovery explain {p.file}")
    if p.restorable is None:
        return _NOT_ASKED
    if not p.restorable:
        return Finding("warn", "there is no checkpoint yet", f"catchwater pipeline run {p.file}")
    return Finding("pass", f"{p.restorable} checkpoints can be restored")


def _savepoint(p: PipelineEvidence) -> Finding:
    if p.savepoints is None:
        return _NOT_ASKED
    if not p.savepoints:
        return Finding("warn", "there is no savepoint", f"catchwater savepoint create {p.file}")
    return Finding("pass", f"{p.savepoints} savepoints")


def _pins(p: PipelineEvidence) -> Finding:
    lost = [each.message for each in p.checks or () if each.subject == "pin"
            and each.verdict == "fail"]  # fmt: skip
    wrong = [*p.wrong_pins, *lost]
    if wrong:
        return Finding("fail", "; ".join(wrong[:3]), "Run the pipeline: it pins each checkpoint.")
    if p.checks is None:
        return _NOT_ASKED
    return Finding("pass", "pins hold it" if p.pinned else "the log has no pins: see retention")


def _budget(p: PipelineEvidence) -> Finding:
    if p.max_restore_s is None:
        mend = 'Say max_restore = "…" in [recovery].'
        return Finding("warn", "how long a restore may take is not declared", mend)
    if p.contract is None:
        return _NOT_ASKED
    if p.restore_s is not None and p.restore_s > p.max_restore_s:
        found = f"{p.restore_s:.0f} s at worst, of {p.max_restore_s:.0f} s"
        return Finding("warn", found, "More tasks, a spare, or shorter checkpoints.")
    return Finding("pass", f"at most {p.max_restore_s:.0f} s are allowed")


def _capacity(p: PipelineEvidence) -> Finding:
    if p.contract is None:
        return _NOT_ASKED
    if p.restore_s is None:
        found = f"a restore may never catch up: {p.missing_per_s:.0f} records/s too few"
        verdict: Verdict = "fail" if p.missing_per_s else "warn"
        return Finding(verdict, found, "Give it more tasks, or it less input.")
    return Finding("pass", f"it catches up in {p.restore_s:.0f} s at worst")


def _retention(p: PipelineEvidence) -> Finding:
    uncovered = [each.message for each in p.checks or () if each.verdict == "fail"
                 and "-" in each.subject and each.subject not in (p.wrong_rows or {})]  # fmt: skip
    if uncovered:
        return Finding("fail", "; ".join(uncovered[:3]), "Restore a newer checkpoint, or rebuild.")
    if p.pinned and not p.wrong_pins:
        return Finding("pass", "pins keep what a restore reads")
    if p.retention_ms is None or p.needed_ms is None:
        return _NOT_ASKED
    if short := short_topics(p.retention_ms, p.needed_ms):
        found = f"{', '.join(short)}: kept for less long than a restore reads back"
        return Finding("fail", found, "Lengthen retention.ms of these topics.")
    return Finding("pass", "topics are kept for longer than a restore reads back")


def _sinks(p: PipelineEvidence) -> Finding:
    if p.wrong_rows is None:
        return _NOT_ASKED
    wrong = {name: rows for name, rows in p.wrong_rows.items() if rows}
    if wrong:
        found = ", ".join(f"{name}: {rows} rows differ" for name, rows in wrong.items())
        return Finding("fail", found, f"catchwater sink repair {p.file}")
    return Finding("pass", "every row is there once and unchanged")


def _bounded(p: PipelineEvidence) -> Finding:
    if p.bounded is None:
        return _NOT_ASKED
    if not p.bounded:
        mend = "Say maxOffsetsPerTrigger in [source]."
        return Finding("warn", "an epoch after an outage takes all there is at once", mend)
    return Finding("pass", "an epoch takes so many records at most")


def _partitioned(p: PipelineEvidence) -> Finding:
    if p.split_keys is None:
        return _NOT_ASKED
    if p.split_keys:
        keys = "; ".join(f"{topic}: {key} is in two" for topic, key in p.split_keys.items())
        mend = "Give all producers of the topic the same partitioner."
        return Finding("warn", f"a key lies in two partitions: {keys}", mend)
    return Finding("pass", "in what was looked at each key has one partition")


def _disk(p: PipelineEvidence) -> Finding:
    if not p.free_share:
        return _NOT_ASKED
    folder, free = min(p.free_share.items(), key=lambda item: item[1])
    found = f"{100 * free:.0f} % free at {folder}"
    if free < FREE_SHARE_LITTLE:
        verdict: Verdict = "fail" if free < FREE_SHARE_LEAST else "warn"
        return Finding(verdict, found, "Make room: a full disk stops epochs.")
    return Finding("pass", found)


def _owner(p: PipelineEvidence) -> Finding:
    missing = [name for name in ("owner", "runbook") if not getattr(p, name)]
    if missing:
        mend = f"Say {' and '.join(missing)} in [pipeline]."
        return Finding("warn", f"no {' and no '.join(missing)}", mend)
    return Finding("pass", f"{p.owner}, {p.runbook}")


def _metrics(p: PipelineEvidence) -> Finding:
    if not p.metrics:
        return Finding("warn", "nobody can ask it for metrics", 'Say metrics = "…" in [pipeline].')
    return Finding("pass", "metrics are served")


_RULES = (
    _Rule("checkpoint", "checkpoints", _checkpoint),
    _Rule("savepoint", "checkpoints", _savepoint),
    _Rule("pin", "checkpoints", _pins),
    _Rule("budget", "recovery", _budget),
    _Rule("capacity", "recovery", _capacity),
    _Rule("retention", "recovery", _retention),
    _Rule("sink", "recovery", _sinks),
    _Rule("disk", "storage", _disk),
    _Rule("bounded", "elasticity", _bounded),
    _Rule("partitioner", "elasticity", _partitioned),
    _Rule("owner", "governance", _owner),
    _Rule("metrics", "governance", _metrics),
)


# --- the lines of the log, and of drills ---------------------------------------------------------


def _log_lines(log: PlatformEvidence) -> Iterable[tuple[str, str, Finding]]:
    if log.wal is None or log.failure_domain is None:
        yield "wal", "storage", _NOT_ASKED
    else:
        yield "wal", "storage", Finding("pass", f"{log.wal}: lost only with {log.failure_domain}")
    if log.brokers is None:
        yield "brokers", "elasticity", _NOT_ASKED
    elif log.brokers < 2:
        mend = "Run several brokers over a shared catalog."
        yield "brokers", "elasticity", Finding("warn", "one broker, and nobody takes over", mend)
    else:
        yield "brokers", "elasticity", Finding("pass", f"{log.brokers} brokers")
    if log.access is None:
        yield "access", "governance", _NOT_ASKED
    elif log.access == "open":
        mend = "Ask for TLS and a login, or listen on loopback."
        found = "who reaches it may read, write and delete: no login is asked for"
        yield "access", "governance", Finding("fail", found, mend)
    else:
        yield "access", "governance", Finding("pass", log.access)


_WANTED = {
    "kill-driver": "recovery",
    "older-checkpoint": "recovery",
    "replace-broker": "storage",
    "rollback-version": "migration",
}
"""Drills that a production system has passed lately, and the area that each speaks for."""


def _drill_line(name: str, evidence: Evidence) -> Finding:
    run = f"catchwater drill run {name}"
    last = _last(evidence, name)
    if last is None:
        return Finding("warn", "it was never rehearsed", run)
    days = (evidence.asked_ms - last.result.started_ms) / DAY_MS
    found = f"{last.result.verdict} on {last.result.platform}, {_ago(days)}"
    if last.result.verdict == "fail":
        return Finding("fail", found, f"{last.file} says why; then {run}")
    if last.result.verdict == "unknown":
        return Finding("unknown", found, run)
    if days > FRESH_DAYS:
        return Finding("warn", f"{found}: older than {FRESH_DAYS} days", run)
    return Finding("pass", found)


def _ago(days: float) -> str:
    whole = round(days)
    return "today" if whole < 1 else "a day ago" if whole == 1 else f"{whole} days ago"


def _last(evidence: Evidence, name: str) -> DrillEvidence | None:
    # What a plain Spark job was put through says nothing of these pipelines.
    mine = (d for d in reversed(evidence.drills) if d.result.job != "spark")
    return next((d for d in mine if d.result.drill == name), None)


def lines_of(evidence: Evidence) -> list[Line]:
    """The checklist, by area."""
    lines = []
    for p in evidence.pipelines:
        for rule in _RULES:
            found = rule.judge(p)
            source = p.contract if rule.area in ("checkpoints", "recovery") and p.contract else None
            lines.append(_line(rule.id, rule.area, p.name, found, source or p.file))
    for log in evidence.platforms:
        for rule_id, area, found in _log_lines(log):
            lines.append(_line(rule_id, area, log.name, found, "asked of the brokers"))
    for name, area in _WANTED.items():
        last = _last(evidence, name)
        source = last.file if last else "no result"
        lines.append(_line("drill", area, name, _drill_line(name, evidence), source))
    for path, why in evidence.unreadable.items():
        found = Finding(
            "unknown", f"it cannot be read: {why}", "Delete it, or run the drill again."
        )
        lines.append(_line("drill", "recovery", path, found, path))
    return sorted(lines, key=lambda line: AREAS.index(line.area))


def _line(rule_id: str, area: str, subject: str, found: Finding, evidence: str) -> Line:
    return Line(rule_id, area, subject, found.verdict, found.found, found.next, evidence)


# --- scorecard, scores, matrix -------------------------------------------------------------------


@dataclass(frozen=True)
class _CardRule:
    of: str
    rule: str
    ids: frozenset[str]
    """Lines that it rests on."""
    drills: frozenset[str] = field(default_factory=frozenset)
    """Drills that it rests on."""


_CARDS = (
    _CardRule(
        "compatibility",
        "The checkpoint's files can be read, and each key has one partition. A blocker stops.",
        frozenset({"checkpoint", "partitioner"}),
    ),
    _CardRule(
        "rollback",
        "There is a savepoint, and a bad version was rolled back lately. A blocker stops.",
        frozenset({"savepoint"}),
        frozenset({"rollback-version"}),
    ),
    _CardRule(
        "storage",
        "The write-ahead log and its failure domain are known, and a broker was replaced lately.",
        frozenset({"wal", "disk", "brokers"}),
        frozenset({"replace-broker"}),
    ),
    _CardRule(
        "replay",
        "The log keeps what a restore reads, it catches up, and both were rehearsed lately.",
        frozenset({"pin", "retention", "capacity", "budget", "bounded", "sink"}),
        frozenset({"kill-driver", "older-checkpoint"}),
    ),
    _CardRule("security", "Nobody gets in without a login.", frozenset({"access"})),
    _CardRule(
        "observability",
        "There are metrics, an owner and a runbook. What is partial opens a work item.",
        frozenset({"metrics", "owner"}),
    ),
)
STOPS = ("compatibility", "rollback")


def cards_of(lines: Sequence[Line]) -> list[Card]:
    """A row passes where all its lines do; one that fails blocks."""
    cards = []
    for rule in _CARDS:
        mine = [
            each
            for each in lines
            if each.id in rule.ids or (each.id == "drill" and each.subject in rule.drills)
        ]
        because = [each.sentence for each in mine if each.verdict != "pass"]
        verdicts = {each.verdict for each in mine}
        mark: Mark = "pass" if mine and verdicts <= {"pass"} else "partial"
        cards.append(Card(rule.of, "blocker" if "fail" in verdicts else mark, rule.rule, because))
    return cards


_DRILLED = {
    "checkpoints": ("older-checkpoint",),
    "recovery": ("kill-driver", "older-checkpoint"),
    "storage": ("replace-broker",),
    "elasticity": ("cold-replay", "redeploy-at-peak"),
    "governance": (),
    "migration": ("rollback-version",),
}


def scores_of(evidence: Evidence, lines: Sequence[Line]) -> list[Score]:
    """One of each area; 5 only with fresh drills that took no hands, and metrics."""
    watched = bool(evidence.pipelines) and all(p.metrics for p in evidence.pipelines)
    return [_score(area, evidence, lines, watched=watched) for area in AREAS]


def _score(area: str, evidence: Evidence, lines: Sequence[Line], *, watched: bool) -> Score:
    mine = [line for line in lines if line.area == area]
    if not mine or all(line.verdict == "unknown" for line in mine):
        return Score(area, 1, "nothing is known of it")
    wrong = [line for line in mine if line.verdict in ("fail", "unknown")]
    if wrong:
        return Score(area, 2, wrong[0].sentence)
    drills = [_last(evidence, name) for name in _DRILLED[area]]
    passed = [d.result for d in drills if d and d.result.verdict in ("pass", "warn")]
    if not drills or len(passed) < len(drills) or any(line.verdict == "warn" for line in mine):
        return Score(area, 3, "checked; not all of it was rehearsed, or something warns")
    oldest = max(evidence.asked_ms - each.started_ms for each in passed)
    if oldest > FRESH_DAYS * DAY_MS:
        return Score(area, 4, f"rehearsed, {_ago(oldest / DAY_MS)}")
    by_hand = sum(len(each.manual_steps) for each in passed)
    if by_hand or not watched:
        why = f"{by_hand} steps by hand" if by_hand else "nobody watches it"
        return Score(area, 4, f"rehearsed lately, with {why}")
    return Score(area, 5, "rehearsed lately, by itself, and watched")


def choices_of(evidence: Evidence, lines: Sequence[Line]) -> list[Choice]:
    """What was chosen for each constraint, and whether the evidence bears it out."""
    choices = []
    for log in evidence.platforms:
        domain = log.failure_domain or "unknown"
        choices.append(
            _choice("what was acknowledged is kept", f"write-ahead log: {log.wal or 'unknown'}",
                    f"lost with {domain}", ("wal",), "replace-broker", lines)
        )  # fmt: skip
    for p in evidence.pipelines:
        kept = "pins" if p.pinned else "retention alone"
        budget = "none" if p.max_restore_s is None else f"{p.max_restore_s:.0f} s"
        choices += [
            _choice(f"{p.name} can go back", kept, "history that is gone", ("pin", "retention"),
                    "older-checkpoint", lines),
            _choice(f"{p.name} is useful again in time", f"a budget: {budget}",
                    "input above the capacity", ("budget", "capacity"), "kill-driver", lines),
            _choice(f"{p.name} can be taken back", f"{p.savepoints or 0} savepoints",
                    "a bad version's rows", ("savepoint",), "rollback-version", lines),
        ]  # fmt: skip
    return choices


def _choice(
    constraint: str, option: str, risk: str, ids: Sequence[str], drill: str, lines: Sequence[Line]
) -> Choice:
    mine = [
        line for line in lines if line.id in ids or (line.id == "drill" and line.subject == drill)
    ]
    order: Sequence[Verdict] = ("fail", "unknown", "warn")
    found = {line.verdict for line in mine}
    fit: Verdict = next((v for v in order if v in found), "pass" if mine else "unknown")
    evidence = next((line.evidence for line in mine if line.id == "drill"), "")
    return Choice(constraint, option, risk, fit, evidence)


def report_of(evidence: Evidence) -> Report:
    """All of it, from evidence alone."""
    lines = lines_of(evidence)
    cards = cards_of(lines)
    marks = {card.mark for card in cards}
    overall: Mark = "blocker" if "blocker" in marks else "partial" if "partial" in marks else "pass"
    drilled = [
        Restored(d.result.restore_s, d.result.estimate_s, f"{d.result.drill} ({d.file})")
        for d in evidence.drills
        if d.result.restore_s is not None
    ]
    return Report(
        asked_ms=evidence.asked_ms,
        overall=overall,
        lines=lines,
        cards=cards,
        scores=scores_of(evidence, lines),
        choices=choices_of(evidence, lines),
        work_items=[f"{line.sentence}. {line.next}" for line in lines if line.verdict != "pass"],
        restores=[*drilled, *(each for p in evidence.pipelines for each in p.restores)],
        pipelines=evidence.pipelines,
        drills=evidence.drills,
    )
