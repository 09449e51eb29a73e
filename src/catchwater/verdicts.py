"""A pipeline's status as one record, and the three questions that it answers.

Is it *correct*, can it *recover*, is it *fresh*? Each answer is a `Verdict`: a state, one sentence
that says why, and the command to copy next. What is not known is `unknown`, and never `ok`.

The record is what `catchwater pipeline status --json` prints, what a running pipeline reports to
its broker (`PUT /api/v1/pipelines/{name}/report`), and what the page and `catchwater top` show. A
report ages: `as_seen` takes back what it said of the present once it is too old to say so.

Pure: times come as arguments, and nothing is opened.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

FORMAT = 1

REPORT_S = 5.0
"""How often a running pipeline reports at least."""
OLD_S = 20.0
"""A report that is older says nothing of the present: four were due since."""
COMPARED_S = 600.0
"""After so long without a comparison nobody knows whether a sink is still what was put out."""
MAX_STALENESS_MS = 300_000
"""The promise of a pipeline that declares none."""
NEAR = 0.8
"""From this share of a promise on it is close to being broken."""

State = Literal["ok", "warn", "fail", "unknown"]
STATES: tuple[State, ...] = ("ok", "warn", "fail", "unknown")
"""As metrics number them."""
VERDICTS = ("correct", "recoverable", "fresh")
Grade = Literal["pass", "warn", "fail"]
"""What a single check of the recovery contract says."""

_RUNNING = ("running", "idle")


class Verdict(msgspec.Struct, frozen=True):
    """One answer."""

    state: State
    reason: str
    """One sentence."""
    next: str
    """The command to copy."""


class Behind(msgspec.Struct, frozen=True):
    """How far a reader is behind in one partition."""

    topic: str
    partition: int
    records: int
    seconds: float | None
    """The age of the oldest record that it has not read; None: not known."""


class Lag(msgspec.Struct, frozen=True):
    """How far a pipeline is behind the end of its input; control markers are not counted."""

    records: int | None = None
    seconds: float | None = None
    """The age of the oldest record that was not read; None: not known."""
    unknown: str | None = None
    """Why that is not known; None: it is."""
    partitions: list[Behind] = []
    """Those that are behind, furthest first, `MAX_SHOWN` at most."""


MAX_SHOWN = 50
"""Partitions that a lag lists."""


class Freshness(msgspec.Struct, frozen=True):
    """What the verdict `fresh` rests on, seconds."""

    max_staleness_s: float
    """The promise: so old may the oldest record be that was not processed."""
    is_declared: bool
    """Whether the pipeline's file says so, or it is the default."""
    staleness_s: float | None = None
    checkpoint_age_s: float | None = None
    """Since the newest checkpoint."""
    epoch_s: float | None = None
    """How long the last epoch took."""
    trigger_s: float | None = None
    """The interval that an epoch should fit into; None: epochs follow each other at once."""
    under_way_s: float | None = None
    """For how long an epoch has been planned and not committed; None: there is none."""


class Compared(msgspec.Struct, frozen=True):
    """What the last comparison of a sink with what was put out has found."""

    sink: str
    checked_ms: int
    rows: int = 0
    """Rows that the target should have, of the epochs that were compared."""
    missing: int = 0
    doubled: int = 0
    altered: int = 0
    foreign: int = 0
    lost: int = 0
    """Epochs that the target has lost."""
    first_epoch: int | None = None
    last_epoch: int | None = None
    every_s: float = 0.0
    """How often it is compared; 0: by a command."""
    exactly_once: bool = True
    """Otherwise a doubled row is what was agreed on."""
    problem: str | None = None
    """Why it could not be compared; None: it was."""

    @property
    def wrong(self) -> int:
        """Rows, and epochs, that differ in a way that the sink's delivery rules out."""
        doubled = self.doubled if self.exactly_once else 0
        return self.missing + doubled + self.altered + self.foreign + self.lost


class Drilled(msgspec.Struct, frozen=True):
    """What the newest results of a drill say."""

    name: str
    verdict: str
    """Of the newest run: pass, fail, error."""
    started_ms: int
    restore_s: float | None = None
    """What a restore took, in the newest run that measured it."""
    estimate_s: float | None = None
    passed_ms: int | None = None
    """When it last passed."""


class Restored(msgspec.Struct, frozen=True):
    """One restore that was measured, from the failure until caught up."""

    ended_ms: int
    """0: not known."""
    measured_s: float
    estimated_s: float | None
    """What the newest contract before the failure had said; None: nothing."""
    noticed_s: float | None = None
    """From the last sign of life to its detection; None: not known."""
    started_s: float = 0.0
    """From the detection to the first epoch."""
    state_s: float = 0.0
    """Rebuilding state."""
    input_s: float = 0.0
    """Reading input again."""


class PipelineStatus(msgspec.Struct, frozen=True):
    """All there is to say of a pipeline. Times of day are milliseconds since 1970."""

    name: str
    state: str
    """running, idle, waiting, stopped, ended, killed, never started, elsewhere, unknown."""
    correct: Verdict
    recoverable: Verdict
    fresh: Verdict
    reported_ms: int
    """When this was found out, by the clock of who did."""
    checkpoint: str
    lag: Lag
    freshness: Freshness
    elsewhere: str | None = None
    committed_epoch: int | None = None
    planned_epoch: int | None = None
    last_finished_ms: int | None = None
    restorable: list[int] = []
    watermark_ms: int | None = None
    process: int | None = None
    supervisor: dict[str, Any] | None = None
    versions: dict[str, int] = {}
    """Function → its version."""
    owner: str | None = None
    runbook: str | None = None
    rate: dict[str, float | None] = {}
    operator: dict[str, Any] = {}
    functions: list[dict[str, Any]] = []
    shards: list[dict[str, Any]] = []
    """Where each shard is, and what of its state had to be read there in the recent epochs."""
    sinks: list[dict[str, Any]] = []
    compared: list[Compared] = []
    recent_epochs: list[dict[str, Any]] = []
    checks: list[dict[str, str]] = []
    """What holds of the newest recovery contract now: verdict, subject, message."""
    restore: dict[str, Any] | None = None
    history_margin_s: float | None = None
    """How much earlier than a restore needs it the log begins, by the input's rate; None: unknown,
    or nothing comes."""
    catching_up: dict[str, Any] | None = None
    drills: list[Drilled] = []
    """Of drills whose results lie in the folder `drills` beside the pipeline's file."""
    restores: list[Restored] = []
    """The newest that were measured, oldest first."""
    problems: list[str] = []
    format: int = FORMAT


class Checked(NamedTuple):
    """One check of the recovery contract."""

    grade: Grade
    subject: str
    message: str


# Is it correct?


def correct(
    sinks: Iterable[str],
    compared: Sequence[Compared],
    *,
    poisoned: int,
    runs: bool,
    now_ms: int,
    file: str,
) -> Verdict:
    """Whether every sink has what was put out, each row once: by the newest comparisons.

    `poisoned`: records that could not be handled, over all epochs.
    """
    verify = f"catchwater sink verify {file}"
    for each in compared:
        if each.wrong:
            return Verdict("fail", _differs(each), f"{verify} --sink {each.sink}")
    if unknown := _not_compared(sinks, compared, runs=runs, now_ms=now_ms):
        return Verdict("unknown", unknown, verify)
    for each in compared:
        if each.doubled:
            return Verdict("warn", _differs(each), f"{verify} --sink {each.sink}")
    if poisoned:
        what = "1 record was" if poisoned == 1 else f"{poisoned} records were"
        reason = f"All rows are there once, but {what} not handled."
        return Verdict("warn", reason, f"catchwater pipeline status {file}")
    rows = sum(each.rows for each in compared)
    if not rows:
        reason = "No rows were put out in the epochs that were compared, and none are there."
        return Verdict("ok", reason, verify)
    return Verdict("ok", f"{rows} of {rows} rows that were compared are there once.", verify)


def _not_compared(
    sinks: Iterable[str], compared: Sequence[Compared], *, runs: bool, now_ms: int
) -> str:
    """Why it is not known whether every sink is right; empty if it is."""
    found = {each.sink for each in compared}
    for name in sinks:
        if name not in found:
            return f"The sink {name} has not been compared with what was put out."
    for each in compared:
        age_s = (now_ms - each.checked_ms) / 1000
        if each.problem is not None:
            return f"The sink {each.sink} could not be compared: {_clause(each.problem)}."
        if runs and age_s > max(COMPARED_S, 2 * each.every_s):
            return f"The sink {each.sink} was last compared {spelled_s(age_s)} ago."
    if not any(each.last_epoch is not None for each in compared):
        return "Nothing was put out yet that could be compared."
    return ""


def _differs(each: Compared) -> str:
    """What is wrong in a sink, in a sentence."""
    if each.lost:
        return f"The target of the sink {each.sink} has lost {each.lost} epochs."
    kinds = ("missing", "doubled", "altered", "foreign")
    parts = [f"{count} {kind}" for kind in kinds if (count := getattr(each, kind))]
    return f"The sink {each.sink} differs from what was put out: {', '.join(parts)}."


# Can it recover?


def recoverable(
    checks: Sequence[Checked] | None,
    *,
    estimate: str,
    broken: Mapping[int, str],
    newest: int | None,
    unknown: str | None,
    file: str,
) -> Verdict:
    """Whether a restore from the newest checkpoint would succeed, in time.

    `checks` are those of its contract, None without one; `broken` are the epochs whose files are
    damaged; `unknown` is why the log was not asked.
    """
    check = f"catchwater contract check {file}"
    if newest is not None and newest in broken:
        reason = f"The newest checkpoint, {newest}, is damaged: {_clause(broken[newest])}."
        return Verdict("fail", reason, check)
    if checks is None:
        start = f"catchwater pipeline run {file}"
        return Verdict("unknown", "There is no checkpoint with a contract yet.", start)
    for grade in ("fail", "warn"):
        for each in checks:
            if each.grade == grade:
                return Verdict(grade, f"{each.subject}: {_clause(each.message)}.", check)
    if unknown is not None:
        return Verdict("unknown", f"The log was not asked: {_clause(unknown)}.", check)
    if broken:
        epoch, why = next(iter(broken.items()))
        return Verdict("warn", f"The checkpoint {epoch} is damaged: {_clause(why)}.", check)
    return Verdict("ok", f"Input, pin and sinks are there; a restore takes {estimate}.", check)


# Is it fresh?


def fresh(state: str, lag: Lag, freshness: Freshness, *, file: str) -> Verdict:
    """Whether the oldest record that was not processed is younger than was promised."""
    status, start = f"catchwater pipeline status {file}", f"catchwater pipeline run {file}"
    go_on = status if state in _RUNNING else start
    if state == "elsewhere":
        return Verdict("unknown", "Another machine runs it, or was lost.", status)
    if state == "unknown":
        return Verdict("unknown", "The checkpoint's store does not answer.", status)
    if lag.records is None:
        return Verdict("unknown", f"The lag is not known: {_clause(lag.unknown or '')}.", go_on)
    if lag.records and lag.seconds is None:
        reason = f"{lag.records} records behind, of which the age is not known."
        return Verdict("unknown", reason, go_on)
    sentence = "All input is processed"
    if lag.records:
        promised = spelled_s(freshness.max_staleness_s)
        by = "are promised" if freshness.is_declared else "are allowed by default"
        sentence = f"{spelled_s(lag.seconds or 0.0)} behind, {promised} {by}"
    grade, why = _kept(state, lag.seconds or 0.0, freshness)
    mend = f"catchwater diagnose {file}" if state in _RUNNING else start
    return Verdict(grade, f"{sentence}{why}.", mend if grade != "ok" else status)


def _kept(state: str, late_s: float, freshness: Freshness) -> tuple[State, str]:
    """Whether a known lag keeps the promise, and what else is to be said of it."""
    promised_s, trigger_s, epoch_s = (
        freshness.max_staleness_s, freshness.trigger_s, freshness.epoch_s
    )  # fmt: skip
    if state not in _RUNNING:
        return "fail" if late_s > promised_s else "warn", f", and nothing runs ({state})"
    if late_s > promised_s:
        return "fail", _stuck(freshness)
    if late_s > NEAR * promised_s:
        return "warn", _stuck(freshness)
    if trigger_s is not None and epoch_s is not None and epoch_s > trigger_s:
        return "warn", f"; an epoch takes {spelled_s(epoch_s)} of {spelled_s(trigger_s)}"
    return "ok", ""


def _stuck(freshness: Freshness) -> str:
    """That an epoch does not end, if it has taken much longer than the one before."""
    under_way_s, last_s = freshness.under_way_s, freshness.epoch_s
    if under_way_s is None or under_way_s < max(10.0, 3 * (last_s or 0.0)):
        return ""
    return f"; the epoch under way has taken {spelled_s(under_way_s)} so far"


# What a report still says after a while.


def as_seen(report: Mapping[str, Any], age_s: float) -> dict[str, Any]:
    """The record as it may be shown so long after it came: old verdicts are unknown.

    A failure stays one: a pipeline that went silent was not mended by that.
    """
    shown = dict(report)
    if age_s <= OLD_S:
        return shown
    for name in VERDICTS:
        verdict = shown.get(name)
        if not isinstance(verdict, Mapping) or verdict.get("state") == "fail":
            continue
        before = f"it was {verdict.get('state', 'unknown')} then"
        reason = f"The pipeline has not reported for {spelled_s(age_s)}; {before}."
        shown[name] = {**verdict, "state": "unknown", "reason": reason}
    return shown


def spelled_s(seconds: float) -> str:
    """How long something takes, in two units at most: "0.8 s", "41 s", "2 min 5 s", "3 h"."""
    if seconds < 10:
        return f"{round(max(0.0, seconds), 1):g} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s" if left else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d"


def _clause(text: str) -> str:
    """A sentence as the end of another one."""
    return text.rstrip(". ")
