"""What the results come to: a table of steps and clients, and the failures nobody has explained.

A failure is explained by a row of the table under `## Steps that fail` in docs/protocol.md:
client (or `all`), step, why. An explained step that passes is said too, so that the page is kept.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.run import Result

PAGE = Path(__file__).parent.parent / "docs" / "protocol.md"
SIGNS = {"pass": "ok", "fail": "FAIL", "skip": "–", "known": "known"}


def explained(page: str) -> dict[tuple[str, str], str]:
    """(client, step) to the reason that the page gives."""
    _, _, section = page.partition("## Steps that fail\n")
    section = section.partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\w-]+) \| (.+) \|$", section, re.MULTILINE)
    return {(client, step): why for client, step, why in rows if client != "client"}


def reason_for(result: Result, reasons: dict[tuple[str, str], str]) -> str | None:
    """Why this step may fail, if the page says so."""
    return reasons.get((result.client, result.step)) or reasons.get(("all", result.step))


def table(
    steps: Iterable[str],
    clients: Sequence[str],
    results: Iterable[Result],
    reasons: dict[tuple[str, str], str],
) -> str:
    """Markdown: one row a step, one column a client, and a row of counts."""
    by_cell = {(r.step, r.client): _sign(r, reasons) for r in results}
    rows = [["step", *clients], ["---"] * (len(clients) + 1)]
    for step in steps:
        rows.append([step, *(by_cell.get((step, client), "–") for client in clients)])
    for sign in SIGNS.values():
        counts = [sum(row[at] == sign for row in rows[2:]) for at in range(1, len(clients) + 1)]
        rows.append([f"*{sign}*", *map(str, counts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _sign(result: Result, reasons: dict[tuple[str, str], str]) -> str:
    known = result.outcome == "fail" and reason_for(result, reasons)
    return SIGNS["known" if known else result.outcome]


def unexplained(results: Iterable[Result], reasons: dict[tuple[str, str], str]) -> list[Result]:
    """The failures that make the run fail."""
    return [r for r in results if r.outcome == "fail" and reason_for(r, reasons) is None]
