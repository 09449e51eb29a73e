"""Each planted weakness is named and no other; a sound system has none."""

from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from catchwater.drill.page import page
from catchwater.drill.readiness import (
    AREAS,
    DAY_MS,
    FRESH_DAYS,
    CheckAnswer,
    DrillEvidence,
    Evidence,
    PipelineEvidence,
    PlatformEvidence,
    Report,
    Verdict,
    report_of,
)
from catchwater.drill.result import Result
from catchwater.drill.result import Verdict as DrillVerdict

NOW_MS = 1_800_000_000_000
DRILLS = ("kill-driver", "older-checkpoint", "replace-broker", "rollback-version",
          "cold-replay", "redeploy-at-peak")  # fmt: skip
PIPELINE = PipelineEvidence(
    name="cards", file="cards.toml", owner="payments", runbook="https://wiki/cards", restorable=5,
    savepoints=2, contract="contracts/7.json", max_restore_s=600.0, restore_s=40.0,
    needed_ms=3_600_000, retention_ms={"payments": 86_400_000}, pinned=True,
    checks=[CheckAnswer("pass", "payments-0", "is there"), CheckAnswer("pass", "pin", "holds")],
    bounded=True, wrong_rows={"alerts": 0}, split_keys={}, free_share={"checkpoint": 0.6},
    metrics=True,
)  # fmt: skip
LOG = PlatformEvidence(
    name="k:9092", ours=True, brokers=3, wal="object", failure_domain="the store", access="secured"
)


def drilled(
    name: str, verdict: DrillVerdict = "pass", days: float = 1, by_hand: int = 0
) -> DrillEvidence:
    started_ms = round(NOW_MS - days * DAY_MS)
    result = Result(
        name, "catchwater", verdict, [], "h", "b", ["by hand"] * by_hand, [], None, started_ms, 9.0,
        restore_s=12.0, estimate_s=15.0,
    )  # fmt: skip
    return DrillEvidence(f"/drills/{name}.json", result)


SOUND = Evidence(
    asked_ms=NOW_MS, pipelines=[PIPELINE], platforms=[LOG], drills=[drilled(n) for n in DRILLS]
)


def pipeline(**changes: object) -> Evidence:
    return replace(SOUND, pipelines=[replace(PIPELINE, **changes)])


def log(**changes: object) -> Evidence:
    return replace(SOUND, platforms=[replace(LOG, **changes)])


def drills(*instead: DrillEvidence) -> Evidence:
    named = {each.result.drill for each in instead}
    kept = [each for each in SOUND.drills if each.result.drill not in named]
    return replace(SOUND, drills=[*kept, *instead])


UNPINNED = {"pinned": False, "checks": [CheckAnswer("warn", "pin", "nothing keeps the log")]}
PLANTED: dict[str, tuple[Evidence, str, Verdict]] = {
    "no savepoint": (pipeline(savepoints=0), "savepoint", "warn"),
    "retention shorter than a restore": (
        pipeline(**UNPINNED, retention_ms={"payments": 3_599_999}), "retention", "fail"),
    "open access": (log(access="open"), "access", "fail"),
    "single broker": (log(brokers=1), "brokers", "warn"),
    "missing owner": (pipeline(owner=None), "owner", "warn"),
    "stale drill": (drills(drilled("older-checkpoint", days=FRESH_DAYS + 1)), "drill", "warn"),
    "wrong pin": (pipeline(wrong_pins=["cards/7 holds payments-0 from 9, not 3"]), "pin", "fail"),
    "damaged sink row": (pipeline(wrong_rows={"alerts": 1}), "sink", "fail"),
    "broken checkpoint": (pipeline(broken=["epochs/7.json is damaged"]), "checkpoint", "fail"),
    "unbounded source": (pipeline(bounded=False), "bounded", "warn"),
    "no budget": (pipeline(max_restore_s=None), "budget", "warn"),
    "disk nearly full": (pipeline(free_share={"a": 0.5, "b": 0.04}), "disk", "fail"),
    "two partitioners": (pipeline(split_keys={"payments": "c1"}), "partitioner", "warn"),
    "input above capacity": (
        pipeline(restore_s=None, missing_per_s=400.0), "capacity", "fail"),
}  # fmt: skip


def test_a_sound_system_has_no_weakness() -> None:
    report = report_of(SOUND)
    assert report.weaknesses == []
    assert report.overall == "pass"
    assert not report.work_items
    assert all(card.mark == "pass" for card in report.cards)


@pytest.mark.parametrize("weakness", PLANTED)
def test_a_planted_weakness_is_named_and_no_other(weakness: str) -> None:
    evidence, name, verdict = PLANTED[weakness]
    report = report_of(evidence)
    assert report.weaknesses == [name]
    found = [line for line in report.lines if line.verdict != "pass"]
    assert [line.verdict for line in found] == [verdict]
    assert found[0].next, "and what to do about it"
    assert len(report.work_items) == 1
    assert report.overall == ("blocker" if verdict == "fail" else "partial")


@pytest.mark.parametrize(
    ("evidence", "name"),
    [
        (pipeline(restorable=None), "checkpoint"),
        (pipeline(savepoints=None), "savepoint"),
        (pipeline(wrong_rows=None), "sink"),
        (pipeline(split_keys=None), "partitioner"),
        (pipeline(free_share={}), "disk"),
        (log(wal=None), "wal"),
        (log(brokers=None), "brokers"),
        (log(access=None), "access"),
        (drills(drilled("kill-driver", "unknown")), "drill"),
        (replace(SOUND, unreadable={"x.json": "cut short"}), "drill"),
    ],
)
def test_what_cannot_be_asked_is_unknown_and_never_good(evidence: Evidence, name: str) -> None:
    report = report_of(evidence)
    assert report.weaknesses == [name]
    assert {each.verdict for each in report.lines if each.id == name} >= {"unknown"}
    assert report.overall == "partial" or name == "drill"


def test_what_a_plain_spark_job_was_put_through_is_no_drill_of_a_pipeline() -> None:
    failed = drilled("kill-driver", "fail", days=0.1)
    other = replace(failed, result=replace(failed.result, job="spark"))
    assert report_of(replace(SOUND, drills=[*SOUND.drills, other])).weaknesses == []
    assert report_of(replace(SOUND, drills=[*SOUND.drills, failed])).weaknesses == ["drill"]


def test_a_sink_that_lags_is_no_gap_of_the_log() -> None:
    lags = CheckAnswer("fail", "to-bank", "the sink ends at epoch 3, before this checkpoint")
    assert report_of(pipeline(checks=[lags], wrong_rows={"to-bank": 1})).weaknesses == ["sink"]


def mark(report: Report, of: str) -> str:
    return next(card.mark for card in report.cards if card.of == of)


@pytest.mark.parametrize(
    ("evidence", "of", "is_"),
    [
        (PLANTED["broken checkpoint"][0], "compatibility", "blocker"),
        (drills(drilled("rollback-version", "fail")), "rollback", "blocker"),
        (pipeline(metrics=False), "observability", "partial"),
        (replace(SOUND, drills=[d for d in SOUND.drills if d.result.drill != "replace-broker"]),
         "storage", "partial"),
        (log(wal=None), "storage", "partial"),
    ],
)  # fmt: skip
def test_the_scorecards_rules(evidence: Evidence, of: str, is_: str) -> None:
    report = report_of(evidence)
    assert mark(report, of) == is_
    assert all(card.mark == "pass" for card in report.cards if card.of != of)
    assert report.overall == is_
    assert report.work_items, "what is partial opens a work item"


def score(evidence: Evidence, of: str) -> int:
    return next(each.score for each in report_of(evidence).scores if each.of == of)


def test_a_five_needs_fresh_drills_without_hands_and_metrics() -> None:
    assert score(SOUND, "storage") == 5
    aged = drills(drilled("replace-broker", days=FRESH_DAYS - 1))
    assert score(aged, "storage") == 5
    assert score(drills(drilled("replace-broker", by_hand=1)), "storage") == 4
    assert score(pipeline(metrics=False), "storage") == 4
    old = drills(drilled("cold-replay", days=FRESH_DAYS + 1))
    assert score(old, "elasticity") == 4
    assert score(replace(SOUND, drills=[]), "elasticity") == 3
    assert score(PLANTED["disk nearly full"][0], "storage") == 2
    unknown = replace(SOUND, pipelines=[], platforms=[], drills=[])
    assert score(unknown, "elasticity") == 1


def test_there_is_a_score_for_each_area_and_no_average() -> None:
    report = report_of(SOUND)
    assert [each.of for each in report.scores] == list(AREAS)
    assert "average" not in {field for field in report.__struct_fields__}


def test_an_unfit_decision_links_its_evidence() -> None:
    report = report_of(drills(drilled("older-checkpoint", "fail")))
    (choice,) = [each for each in report.choices if each.fit != "pass"]
    assert choice.constraint == "cards can go back"
    assert choice.evidence == "/drills/older-checkpoint.json"


class Tags(HTMLParser):
    """Which tags there are, and whether each that was opened was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in ("meta", "rect", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "line", "circle"):
            return
        assert self.open.pop() == tag


def parsed(evidence: Evidence) -> tuple[Tags, str]:
    text, tags = page(report_of(evidence)), Tags()
    tags.feed(text)
    assert tags.open == []
    return tags, text


@pytest.mark.parametrize("change", [lambda e: e, lambda e: replace(e, drills=[])])
def test_the_page_stands_alone(change: Callable[[Evidence], Evidence]) -> None:
    tags, text = parsed(change(SOUND))
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert "@import" not in text and "url(" not in text
    for area in AREAS:
        assert area in text


def test_every_restore_is_a_point_and_names_itself() -> None:
    tags, text = parsed(SOUND)
    assert tags.seen.count("circle") == len(DRILLS)
    assert "12.0 s measured, 15.0 s estimated" in text


def test_what_comes_from_outside_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>"
    planted = pipeline(name=evil, owner=evil, runbook=f"javascript:{evil}", broken=[evil])
    tags, text = parsed(planted)
    assert "script" not in tags.seen
    assert evil not in text
    assert not [link for link in tags.links if link.startswith("javascript")]
