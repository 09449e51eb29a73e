"""Compares a target's rows with the staged outputs: missing, doubled, altered and foreign rows.

`compare` is pure: staged rows and the target's rows in, findings out. `verify` calls it for as many
epochs at a time as bounded memory allows; `repair` has the sink correct what was found. Rows are
compared, not only marks, because a mark does not change when somebody deletes a row. Staged outputs
are kept for `keep`; older epochs are not compared.

A running pipeline and `catchwater sink verify` keep their newest comparison of each sink beside the
checkpoint (`comparisons`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from catchwater.recovery.ledger import FOLDER, LedgerDamaged, read_json, write_whole
from catchwater.sinks.base import (
    Fix,
    OutputRecord,
    RowId,
    RowsUnreadable,
    Sink,
    SinkRow,
    StagedRow,
    Truth,
)
from catchwater.sinks.epochs import PieceDamaged
from catchwater.verdicts import Compared

RANGE_ROWS = 1_000_000
"""Rows that are compared at a time, about 300 bytes each; an epoch is never divided."""

Kind = Literal["missing", "doubled", "altered", "foreign"]


class Finding(NamedTuple):
    """One row that differs."""

    kind: Kind
    """`foreign`: the target has a row with this identity that was never staged."""
    id: RowId
    key: bytes
    """The function's key; empty for a foreign row whose key the target does not show."""


class Report(NamedTuple):
    """The result of `verify`."""

    first: int | None
    """The oldest epoch that was compared; None if no staged outputs are kept."""
    last: int | None
    rows: int
    """How many rows the target should have."""
    findings: tuple[Finding, ...]
    gone: tuple[int, ...] = ()
    """Epochs that were committed and that the target has lost, with no staged outputs left."""


class _Row(NamedTuple):
    key: bytes
    digest: bytes


def compare(
    expected: Iterable[StagedRow],
    held: Iterable[SinkRow],
    *,
    identity: Callable[[OutputRecord], bytes | None],
    digest: Callable[[OutputRecord], bytes],
) -> tuple[int, list[Finding]]:
    """How many rows there should be, and the findings by epoch, shard and row.

    Of rows with one identity only the last is expected: it has replaced the others, or has deleted
    them if it is a retraction.
    """
    wanted = _wanted(expected, identity, digest)
    seen: dict[RowId, int] = {}
    altered: set[RowId] = set()
    foreign: dict[RowId, bytes] = {}
    for row in held:
        should = wanted.get(row.id)
        if should is None:
            foreign[row.id] = row.key
            continue
        seen[row.id] = seen.get(row.id, 0) + 1
        if row.digest is not None and row.digest != should.digest:
            altered.add(row.id)
    findings = [Finding("foreign", id, key) for id, key in foreign.items()]
    findings += [Finding("altered", id, wanted[id].key) for id in altered]
    for id, due in wanted.items():
        count = seen.get(id, 0)
        if count != 1 and id not in altered:
            findings.append(Finding("missing" if count == 0 else "doubled", id, due.key))
    return len(wanted), sorted(findings, key=lambda finding: finding.id)


def verify(sink: Sink, committed: int | None, *, most_rows: int | None = None) -> Report:
    """Compare the sink with its truth, up to the newest epoch of the sink or the ledger.

    With `most_rows`, only the newest epochs that have no more, one at least: a row that a later
    epoch replaced is expected of that one, so the newest can be compared without those before.
    Epochs that a running pipeline sweeps meanwhile are left out. Raises `RowsUnreadable` if the
    target cannot be read, and `PieceDamaged` if staged outputs are damaged.
    """
    last = sink.last_epoch()
    newest = max((e for e in (last, committed) if e is not None), default=-1)
    epochs = [epoch for epoch in sink.truth.epochs() if epoch <= newest]
    if most_rows is not None:
        epochs = _newest(sink, epochs, most_rows)
    lost = set(range(last + 1, newest + 1)) if last is not None else set()
    total = 0
    findings: list[Finding] = []
    for some in _ranges(sink, epochs):
        expected = (row for epoch in some for row in _staged(sink.truth, epoch))
        held = sink.rows(some[0], some[-1])
        rows, found = compare(expected, held, identity=sink.identity, digest=sink.digest)
        total += rows
        findings += found
    kept = set(sink.truth.epochs())
    findings = [finding for finding in findings if finding.id.epoch in kept]
    return Report(
        epochs[0] if epochs else None,
        epochs[-1] if epochs else None,
        total,
        tuple(findings),
        tuple(sorted(lost - set(epochs))),
    )


def repair(sink: Sink, report: Report) -> list[Finding]:
    """Repair the findings; returns those that this sink cannot repair.

    Epochs after the sink's last mark (its target was restored from an older copy) are committed
    again; in all others only rows are repaired. Raises `RowsUnreadable`, with nothing changed, if
    not all of those epochs are kept.
    """
    if report.gone:
        raise RowsUnreadable(
            f"The target of the sink {sink.name!r} has lost epochs {report.gone[0]} to "
            f"{report.gone[-1]}, and what they put out is no longer kept.",
            hint="Restore a newer copy of the target, or rebuild the pipeline into a new one.",
        )
    wrong = {finding.id: finding for finding in report.findings}
    last = sink.last_epoch()
    if last is not None and report.last is not None:
        for epoch in range(last + 1, report.last + 1):
            sink.commit(epoch, sink.truth.pieces(epoch) or ())
            wrong = {id: finding for id, finding in wrong.items() if id.epoch != epoch}
    left = sink.repair(fixes(sink, list(wrong.values())))
    return [wrong[fix.id] for fix in left]


def fixes(sink: Sink, findings: Sequence[Finding]) -> Iterator[Fix]:
    """The fixes of these findings, epoch by epoch."""
    by_epoch: dict[int, dict[RowId, Finding]] = {}
    for finding in findings:
        by_epoch.setdefault(finding.id.epoch, {})[finding.id] = finding
    for epoch, wrong in sorted(by_epoch.items()):
        for row in sink.truth.rows(epoch):
            if row.id in wrong and wrong[row.id].kind != "foreign":
                absent = wrong[row.id].kind == "missing"
                yield Fix(row.id, row.record, row.record.key, absent)
        yield from (
            Fix(each.id, None, each.key) for each in wrong.values() if each.kind == "foreign"
        )


def _wanted(
    expected: Iterable[StagedRow],
    identity: Callable[[OutputRecord], bytes | None],
    digest: Callable[[OutputRecord], bytes],
) -> Mapping[RowId, _Row]:
    wanted: dict[RowId, _Row] = {}
    holders: dict[bytes, RowId] = {}
    for id, record in expected:
        name = identity(record)
        if name is not None:
            replaced = holders.pop(name, None)
            if replaced is not None:
                del wanted[replaced]
            if record.retracts:
                continue
            holders[name] = id
        wanted[id] = _Row(record.key, digest(record))
    return wanted


def _staged(truth: Truth, epoch: int) -> Iterator[StagedRow]:
    """The epoch's rows, as far as they are still kept. Raises `PieceDamaged`."""
    try:
        yield from truth.rows(epoch)
    except PieceDamaged:
        if truth.pieces(epoch) is not None:
            raise


def _newest(sink: Sink, epochs: Sequence[int], most_rows: int) -> list[int]:
    """The newest of the epochs, with no more rows than this, one at least."""
    chosen: list[int] = []
    rows = 0
    for epoch in reversed(epochs):
        rows += sum(piece.records for piece in sink.truth.pieces(epoch) or ())
        if chosen and rows > most_rows:
            break
        chosen.append(epoch)
    return chosen[::-1]


def _ranges(sink: Sink, epochs: Sequence[int]) -> Iterator[list[int]]:
    """The epochs in ranges of about RANGE_ROWS; one range if rows replace each other."""
    first = next((row.record for epoch in epochs for row in _staged(sink.truth, epoch)), None)
    bounded = first is None or sink.identity(first) is None
    run: list[int] = []
    rows = 0
    for epoch in epochs:
        run.append(epoch)
        rows += sum(piece.records for piece in sink.truth.pieces(epoch) or ())
        if bounded and rows >= RANGE_ROWS:
            yield run
            run, rows = [], 0
    if run:
        yield run


# --- what was found is kept -----------------------------------------------------------------------


def summed_up(name: str, report: Report, now_ms: int, *, exactly_once: bool) -> Compared:
    """One comparison in numbers."""
    kinds: Sequence[str] = [finding.kind for finding in report.findings]
    return Compared(
        name,
        now_ms,
        report.rows,
        missing=kinds.count("missing"),
        doubled=kinds.count("doubled"),
        altered=kinds.count("altered"),
        foreign=kinds.count("foreign"),
        lost=len(report.gone),
        first_epoch=report.first,
        last_epoch=report.last,
        exactly_once=exactly_once,
    )


def comparisons(checkpoint: Path) -> list[Compared]:
    """The newest comparison of each sink on this machine; a file that is damaged says nothing."""
    with suppress(LedgerDamaged, OSError):
        return read_json(_comparisons_file(checkpoint), list[Compared]) or []
    return []


def keep_comparisons(checkpoint: Path, found: Iterable[Compared], sinks: Iterable[str]) -> None:
    """Keep these beside those of other sinks, as far as the pipeline still has those."""
    merged = {each.sink: each for each in (*comparisons(checkpoint), *found)}
    there = [merged[name] for name in sinks if name in merged]
    write_whole(_comparisons_file(checkpoint), msgspec.json.encode(there))


def _comparisons_file(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "compared.json"
