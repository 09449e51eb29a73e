"""What pipelines report of themselves, kept by brokers and shown with its age."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.test_control_entry import call

from catchwater.broker.access import Guard, Rule, change, with_rule, with_user
from catchwater.broker.broker import Broker
from catchwater.broker.control.pipelines import MAX_REPORT_BYTES
from catchwater.broker.gate import ResourceType
from catchwater.catalog.errors import TooManyReports
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import ReportRow
from catchwater.clock import ManualClock
from catchwater.wire.security.verifiers import verifiers

OK = {"state": "ok", "reason": "All is there.", "next": "catchwater pipeline status"}
REPORT = {"name": "cards", "correct": OK, "recoverable": OK, "fresh": OK, "more": [1, None]}
ALICE, PIPELINE = ("alice", "secret"), ResourceType.TRANSACTIONAL_ID


@pytest.fixture
def reporting(broker: Broker) -> Broker:
    kept: dict[str, ReportRow] = {}

    async def keep_report(row: ReportRow) -> None:
        if len(kept) == 3 and row.name not in kept:
            raise TooManyReports("Full.")
        kept[row.name] = row

    async def reports() -> list[ReportRow]:
        return [kept[name] for name in sorted(kept)]

    broker.log.keep_report = keep_report  # type: ignore[method-assign]
    broker.log.reports = reports  # type: ignore[method-assign]
    return broker


async def put(broker: Broker, name: str, body: Any, login: Any = None) -> tuple[int, Any]:
    path = f"/api/v1/pipelines/{name}/report"
    status, text, _ = await call(broker, "PUT", path, body, login)
    return status, json.loads(text)


async def get(broker: Broker, path: str, login: Any = None) -> tuple[int, Any]:
    status, text, _ = await call(broker, "GET", f"/api/v1/pipelines{path}", None, login)
    return status, json.loads(text)


async def test_the_last_report_is_shown_with_its_age(reporting: Broker) -> None:
    clock = reporting.clock
    assert isinstance(clock, ManualClock)
    assert (await get(reporting, "/cards"))[1]["error"] == "NO_REPORT"
    received_ms = clock.now_ms()
    assert await put(reporting, "cards", REPORT) == (200, {"received_ms": received_ms})
    clock.advance(12_000)
    _, shown = await get(reporting, "/cards")
    assert shown == {"name": "cards", "received_ms": received_ms, "age_s": 12.0, "report": REPORT}
    assert await get(reporting, "") == (200, {"pipelines": [shown]})
    clock.advance(12_000)
    _, shown = await get(reporting, "/cards")
    assert {shown["report"][name]["state"] for name in ("correct", "recoverable", "fresh")} == {
        "unknown"
    }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**REPORT, "name": "others"}, "a report of others, not of cards"),
        ({**REPORT, "fresh": {**OK, "state": "green"}}, "no report"),
        ({"name": "cards"}, "missing required field"),
        ([], "is not what is wanted"),
    ],
)
async def test_what_is_no_report_of_this_pipeline_is_refused(
    reporting: Broker, body: Any, says: str
) -> None:
    status, answer = await put(reporting, "cards", body)
    assert (status, answer["error"]) == (400, "INVALID_BODY")
    assert says in answer["message"]


async def test_reports_are_bounded_in_size_and_number(reporting: Broker) -> None:
    status, answer = await put(reporting, "cards", {**REPORT, "more": "x" * MAX_REPORT_BYTES})
    assert (status, answer["error"]) == (413, "BODY_TOO_LARGE")
    for name in ("a", "b", "c"):
        assert (await put(reporting, name, {**REPORT, "name": name}))[0] == 200
    assert await put(reporting, "d", {**REPORT, "name": "d"}) == (
        507, {"error": "TOO_MANY_REPORTS", "message": "Full.", "hint": None},
    )  # fmt: skip
    assert (await put(reporting, "a", {**REPORT, "name": "a"}))[0] == 200


async def test_who_may_act_as_a_pipeline_reports_as_it_and_sees_it(
    reporting: Broker, tmp_path: Path
) -> None:
    for name in ("alices-p", "others"):
        await put(reporting, name, {**REPORT, "name": name})
    path = tmp_path / "access.json"
    rule = Rule("User:alice", "ALLOW", "WRITE", PIPELINE, "alices-", "PREFIXED")
    change(path, lambda now: with_rule(with_user(now, "alice", verifiers("secret")), rule))
    reporting.guard = Guard(path, ["User:admin"])
    assert (await put(reporting, "alices-p", {**REPORT, "name": "alices-p"}))[0] == 401
    assert (await put(reporting, "others", {**REPORT, "name": "others"}, ALICE))[0] == 403
    assert (await put(reporting, "alices-p", {**REPORT, "name": "alices-p"}, ALICE))[0] == 200
    _, shown = await get(reporting, "", ALICE)
    assert [each["name"] for each in shown["pipelines"]] == ["alices-p"]
    assert (await get(reporting, "/others", ALICE))[0] == 403


def test_a_report_takes_the_place_of_the_last_one_and_old_ones_make_room() -> None:
    catalog = MemoryCatalog(MemoryDatabase(ManualClock(), call_now))
    first, second, third = (
        ReportRow(name, at, "{}") for name, at in zip("aab", (5, 7, 9), strict=True)
    )
    for row in (first, second):
        catalog.keep_report(row, 0, 1).result(60)
    assert catalog.reports() == [second]
    with pytest.raises(TooManyReports, match="1 pipelines have reported"):
        catalog.keep_report(third, 7, 1).result(60)
    assert catalog.reports() == [second]
    catalog.keep_report(third, 8, 1).result(60)
    assert catalog.reports() == [third]
