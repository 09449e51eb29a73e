"""The readiness report as one HTML page that needs nothing else: no script, no font, no picture.

Pure. Everything that comes from files or from a system is escaped. A broker's page has the same
`SIGNS` and `PALETTE`.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from catchwater.drill.readiness import Report, Restored

SIGNS = {
    "ok": "✔", "pass": "✔", "warn": "⚠", "partial": "⚠", "fail": "✘", "blocker": "✘",
    "unknown": "?",
}  # fmt: skip

PALETTE = """
:root { color-scheme: light dark;
  --ink: #1b2430; --soft: #566273; --line: #dfe4ea; --faint: #eef1f4; --paper: #ffffff;
  --ground: #f5f7f9; --link: #1f5fa8; --ok: #1a7f43; --warn: #8f5f00; --fail: #b3261e;
  --ok-bg: #e7f4ec; --warn-bg: #fbf1dc; --fail-bg: #fbe9e7; --unknown-bg: #eceff3;
  --plot-1: #2463a8; --plot-2: #c2571a; --plot-3: #6b7a8c; --plot-4: #7a4fb0; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #dde4ec; --soft: #97a4b4; --line: #2b3541; --faint: #1d252e; --paper: #171e26;
  --ground: #10151b; --link: #7db3ee; --ok: #5cc98a; --warn: #e0b252; --fail: #f28b82;
  --ok-bg: #14301f; --warn-bg: #35290f; --fail-bg: #3a1a18; --unknown-bg: #232c36;
  --plot-1: #6aa9ea; --plot-2: #eb9a5f; --plot-3: #8d9bab; --plot-4: #b394e6; } }
.pass, .ok, .warn, .partial, .fail, .blocker, .unknown { font-weight: 600; }
.pass, .ok { color: var(--ok); } .warn, .partial { color: var(--warn); }
.fail, .blocker { color: var(--fail); } .unknown { color: var(--soft); }
"""
"""Light or dark as the reader prefers. Text has a contrast of 4.5 to 1 against its background
(WCAG 2.2, 1.4.3), and no colour stands without a word or a sign.
"""

_STYLE = (
    PALETTE
    + """
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); max-width: 72rem;
       margin: 2rem auto; padding: 0 1.2rem; background: var(--paper); }
h1 { margin-bottom: .2rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
p.said { color: var(--soft); margin: .2rem 0 1rem; } a { color: var(--link); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0;
         border-bottom: 1px solid var(--faint); overflow-wrap: break-word; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
td ul { margin: 0; padding-left: 1.1rem; } td { min-width: 4.5rem; }
.pass, .warn, .fail, .unknown, .partial, .blocker { white-space: nowrap; }
code { font-size: .9em; } svg { max-width: 100%; height: auto; color: var(--soft); }
.dot { fill: var(--plot-1); fill-opacity: .75; } .frame { fill: none; stroke: var(--line); }
.line { stroke: var(--soft); } .off { stroke: var(--soft); stroke-dasharray: 4 4; opacity: .6; }
@media (max-width: 40rem) { body { font-size: 13px; margin-top: 1rem; padding: 0 .8rem; }
  ul { padding-left: 1.1rem; } .long { min-width: 13rem; } }
"""
)
_SIZE, _MARGIN = 420, 55
_LONG = 40
"""More characters are a sentence."""


def page(report: Report) -> str:
    """The whole page."""
    when = datetime.fromtimestamp(report.asked_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"<h1>Readiness: {_mark(report.overall)}</h1>",
        f'<p class="said">Asked on {when}. Each line is explained in docs/readiness.md.</p>',
        "<h2>Scorecard</h2>",
        _table(
            ["of", "mark", "passes when", "because"],
            ([escape(c.of), _mark(c.mark), escape(c.rule), _list(c.because)] for c in report.cards),
        ),
        "<h2>Work items</h2>",
        _list(report.work_items) or "<p>None.</p>",
        "<h2>Checklist</h2>",
        _table(
            ["area", "line", "of", "verdict", "found", "evidence"],
            (
                [
                    escape(x.area),
                    escape(x.id),
                    escape(x.subject),
                    _mark(x.verdict),
                    escape(x.found),
                    _link(x.evidence),
                ]
                for x in report.lines
            ),
        ),
        "<h2>Scores</h2>",
        '<p class="said">1 nothing is known, 2 something fails or is not known, 3 checked, '
        "4 rehearsed, 5 rehearsed lately, without hands, and watched. There is no average.</p>",
        _table(
            ["area", "score", "why"],
            (
                [escape(s.of), "●" * s.score + "○" * (5 - s.score), escape(s.why)]
                for s in report.scores
            ),
        ),
        "<h2>Decisions</h2>",
        _table(
            ["constraint", "option", "risk", "fit", "evidence"],
            (
                [
                    escape(c.constraint),
                    escape(c.option),
                    escape(c.risk),
                    _mark(c.fit),
                    _link(c.evidence),
                ]
                for c in report.choices
            ),
        ),
        "<h2>Restores, measured against estimated</h2>",
        _plot(report.restores),
        "<h2>Pipelines</h2>",
        _table(
            ["pipeline", "owner", "runbook", "file"],
            (
                [
                    escape(p.name),
                    escape(p.owner or "nobody"),
                    _link(p.runbook or "none"),
                    escape(p.file),
                ]
                for p in report.pipelines
            ),
        ),
        "<h2>Drills</h2>",
        _table(
            ["drill", "platform", "verdict", "restore", "estimate", "by hand", "result"],
            (
                [
                    escape(d.result.drill),
                    escape(d.result.platform),
                    _mark(d.result.verdict),
                    _seconds(d.result.restore_s),
                    _seconds(d.result.estimate_s),
                    str(len(d.result.manual_steps)),
                    _link(d.file),
                ]
                for d in report.drills
            ),
        ),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Readiness: {escape(report.overall)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _cell(content: str) -> str:
    """A sentence keeps some width on a phone, where a table is moved sideways."""
    return f'<td class="long">{content}</td>' if len(content) > _LONG else f"<td>{content}</td>"


def _mark(verdict: str) -> str:
    return f'<span class="{verdict}">{SIGNS[verdict]} {verdict}</span>'


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>" if items else ""


def _link(place: str) -> str:
    """A link where it is a path or a page, not where it could be a script."""
    if place.startswith(("http://", "https://", "/", "./", "../")):
        return f'<a href="{escape(place)}">{escape(place.rpartition("/")[2] or place)}</a>'
    return escape(place)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _plot(restores: Sequence[Restored]) -> str:
    """A point a restore, on logarithmic scales; on the diagonal the estimate was right."""
    points = [r for r in restores if r.estimated_s and r.measured_s > 0]
    if not points:
        return "<p>No restore was both measured and estimated.</p>"
    values = [v for r in points for v in (r.measured_s, r.estimated_s or 0.0)]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values) * 1.01))

    def at(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return _MARGIN + min(1.0, max(0.0, share)) * (_SIZE - 2 * _MARGIN)

    def line(factor: float, style: str) -> str:
        begin, end = max(low, low / factor), min(high, high / factor)
        return (
            f'<line x1="{at(begin):.1f}" y1="{_SIZE - at(begin * factor):.1f}" '
            f'x2="{at(end):.1f}" y2="{_SIZE - at(end * factor):.1f}" {style}/>'
        )

    ticks, value = [], low
    while value <= high * 1.001:
        ticks.append(
            f'<text x="{at(value):.1f}" y="{_SIZE - _MARGIN + 18}" text-anchor="middle">{value:g}'
            f'</text><text x="{_MARGIN - 8}" y="{_SIZE - at(value) + 4:.1f}" text-anchor="end">'
            f"{value:g}</text>"
        )
        value *= 10
    dots = [
        f'<circle cx="{at(r.estimated_s or low):.1f}" cy="{_SIZE - at(r.measured_s):.1f}" r="5" '
        f'class="dot"><title>{escape(r.of)}: {r.measured_s:.1f} s measured, '
        f"{r.estimated_s:.1f} s estimated</title></circle>"
        for r in points
    ]
    side = _SIZE - 2 * _MARGIN
    dashed = 'class="off"'
    return (
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" width="{_SIZE}" height="{_SIZE}" role="img" '
        'font-size="12" fill="currentColor" aria-label="Restores, measured against estimated">'
        f'<rect x="{_MARGIN}" y="{_MARGIN}" width="{side}" height="{side}" '
        'class="frame"/>'
        + line(1.0, 'class="line"')
        + line(1.25, dashed)
        + line(0.75, dashed)
        + "".join(ticks)
        + "".join(dots)
        + f'<text x="{_SIZE / 2}" y="{_SIZE - 12}" text-anchor="middle">estimated, s</text>'
        f'<text x="14" y="{_SIZE / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {_SIZE / 2})">measured, s</text></svg>'
        f'<p class="said">{len(points)} restores; the dashed lines are a quarter off.</p>'
    )
