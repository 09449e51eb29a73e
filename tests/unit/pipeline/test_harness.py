"""The harness: the example of the documentation, and the mistakes it is there to find."""

import random
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from catchwater import Call, Context, Keyed, Out, function
from catchwater.pipeline.process.poison import EventFailed
from catchwater.testing import Harness, ReplayMismatch


@dataclass
class Txn:
    card: str
    id: str
    at: int
    amount: float


@dataclass
class Alert:
    card: str
    id: str
    rule: str


@dataclass
class Risk:
    small_at: int = 0
    spent: dict[str, float] = field(default_factory=dict)


@function(name="card-risk", version=2, key="card", event_time="at", dedup="id", state_ttl="30d")
class CardRisk(Keyed[Txn, Risk, Alert]):
    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        if e.amount > 500 and s.small_at and e.at - s.small_at < 60_000:
            yield Alert(e.card, e.id, "small-then-large")
        if e.amount < 1:
            s.small_at = e.at
            ctx.timer("forget", e.at + 60_000)

    def on_timer(self, name: str, at: int, s: Risk, ctx: Context) -> Out[Alert]:
        s.small_at = 0
        return ()


def payments(count=300, cards=7, seed=1):
    draw = random.Random(seed)
    amounts = (0.5, 20.0, 900.0)
    return [
        Txn(f"c{draw.randrange(cards)}", str(draw.randrange(count)), i * 100, draw.choice(amounts))
        for i in range(count)
    ]


def test_the_documented_example_holds():
    h = Harness(CardRisk)
    out = h.send(Txn("c1", "1", 1000, 0.5), Txn("c1", "2", 2000, 900.0), Txn("c1", "2", 2000, 9.0))
    assert out == [Alert("c1", "2", "small-then-large")]
    assert (h.duplicates, h.late, h.state("c1")) == (1, 0, Risk(1000))
    h.advance_watermark(70_000)
    assert h.state("c1") == Risk(0)
    h.advance_time("31d")
    assert h.state("c1") is None
    h.crash_and_restore(at=1)
    h.check_replay(orders=50)


def test_the_watermark_follows_the_events_and_late_ones_are_counted():
    h = Harness(CardRisk)
    h.send(Txn("c1", "1", 100_000, 5.0))
    assert h.watermark == 70_000
    h.send(Txn("c1", "2", 69_999, 0.5), Txn("c1", "3", 70_000, 0.5))
    assert (h.late, h.state("c1")) == (1, Risk(70_000))


def test_timers_that_events_made_due_fire_in_the_same_send():
    h = Harness(CardRisk)
    h.send(Txn("c1", "1", 1_000, 0.5))
    h.send(Txn("c2", "2", 500_000, 5.0))
    assert h.state("c1") == Risk(0)


def test_the_watermark_never_goes_back():
    h = Harness(CardRisk)
    h.advance_watermark(10)
    with pytest.raises(ValueError, match="never goes back to 9"):
        h.advance_watermark(9)


def test_an_event_of_the_wrong_type_is_refused_as_in_production():
    with pytest.raises(EventFailed, match=r"at events-0, offset 0: .* Expected `int`"):
        Harness(CardRisk).send(Txn("c1", "1", "now", 1.0))


def test_a_good_function_survives_crashes_and_other_orders():
    h = Harness(CardRisk)
    events = payments()
    for start in range(0, len(events), 30):
        h.send(*events[start : start + 30])
    before = {card: h.state(card) for card in ("c0", "c1", "c2")}
    for at in (None, 0, 1, 5):
        h.crash_and_restore(at)
        assert {card: h.state(card) for card in before} == before
    h.check_replay(orders=20)
    assert {card: h.state(card) for card in before} == before


def test_there_must_be_as_many_epochs_to_restore():
    with pytest.raises(ValueError, match="there are 0 epochs"):
        Harness(CardRisk).crash_and_restore(at=1)


def test_hidden_state_is_found_by_a_crash():
    hidden = []

    @function(name="hidden", key="card", event_time="at")
    def remembers_outside(e: Txn, s: Risk, ctx: Context) -> Out[int]:
        hidden.append(e)
        return [len(hidden)]

    h = Harness(remembers_outside)
    h.send(*payments(10))
    h.crash_and_restore()
    with pytest.raises(ReplayMismatch, match="Epoch 1, replayed after a restore at 0"):
        h.crash_and_restore(at=0)


def test_dependence_on_other_keys_is_found_by_replay():
    @function(name="neighbour", key="card", event_time="at")
    class Neighbour(Keyed[Txn, Risk, str]):
        def __init__(self):
            self.last = ""

        def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[str]:
            self.last, before = e.id, self.last
            return [before]

    h = Harness(Neighbour)
    h.send(*payments(20))
    with pytest.raises(ReplayMismatch, match=r"Order \d+ \(seed 0\) of the same events gave key"):
        h.check_replay()


def test_a_fast_run_gives_what_sends_give():
    events = payments(2000, cards=50)
    fast, slow = Harness(CardRisk), Harness(CardRisk)
    expected = [out for i in range(0, 2000, 100) for out in slow.send(*events[i : i + 100])]
    assert fast.run(iter(events), batch=100) == expected
    assert (fast.duplicates, fast.late) == (slow.duplicates, slow.late)
    later = Txn("c1", "new", 1_000_000, 5.0)
    assert fast.send(later) == slow.send(later)
    fast.crash_and_restore(at=0)
    fast.check_replay(orders=3)


def test_importing_the_harness_starts_nothing_heavy():
    heavy = ("pyspark", "pyarrow", "lmdb", "numba", "pandas", "numpy")
    code = f"import sys, catchwater.testing; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_crash_at_any_event_changes_nothing():
    h = Harness(CardRisk)
    events = payments(60)
    for start in range(0, len(events), 7):
        h.send(*events[start : start + 7])
    before = {card: h.state(card) for card in ("c0", "c1", "c2")}
    for event in range(0, 60, 3):
        h.crash_and_restore(event=event)
        assert {card: h.state(card) for card in before} == before
    with pytest.raises(ValueError, match="there were 60 events, not 61"):
        h.crash_and_restore(event=61)


def test_what_half_an_epoch_leaves_outside_the_state_is_found():
    hidden = []

    @function(name="hidden", key="card", event_time="at")
    def counts_outside(e: Txn, s: Risk, ctx: Context) -> Out[int]:
        hidden.append(e)
        return [len(hidden)]

    h = Harness(counts_outside)
    h.send(*payments(10))
    with pytest.raises(ReplayMismatch, match="Epoch 1, replayed after a restore at 0"):
        h.crash_and_restore(event=4)


def test_processing_time_timers_fire_by_the_clock_and_by_nothing_else():
    @function(name="clock", key="card", event_time="at", state_ttl="1h")
    class Clocked(Keyed[Txn, Risk, str]):
        def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[str]:
            ctx.timer("ring", ctx.now + 60_000, clock=True)
            ctx.timer("other", e.at + 1)
            ctx.timer("other", ctx.now + 120_000, clock=True)

        def on_timer(self, name: str, at: int, s: Risk, ctx: Context) -> Out[str]:
            s.small_at += 1
            return [f"{name}@{at} now {ctx.now} {s.small_at}"]

    h = Harness(Clocked, now=1_000)
    h.send(Txn("c1", "1", 5, 1.0))
    assert h.advance_watermark(50_000) == []
    assert h.advance_time("1m") == ["ring@61000 now 61000 1"]
    assert h.advance_time("2h") == ["other@121000 now 7261000 1"]
    for at in range(4):
        h.crash_and_restore(at=at)
    h.check_replay(orders=5)
    h.advance_time("2h")
    assert h.state("c1") is None


def test_bad_records_go_by_the_functions_policy_and_replay_the_same():
    @function(name="strict", key="card", event_time="at", poison="dead-letter")
    def strict(e: Txn, s: Risk, ctx: Context) -> Out[str]:
        s.small_at += 1
        if e.amount < 0:
            raise ValueError("negative")
        return [f"{e.id} {s.small_at}"]

    h = Harness(strict)
    sent = h.send(b"?", Txn("c1", "1", 5, 1.0), Txn("c1", "2", 6, -1.0), Txn("c1", "3", 7, 1.0))
    assert sent == ["1 1", "3 2"]
    assert [(bad.offset, bad.value) for bad in h.poisoned] == [
        (0, b"?"), (2, b'{"card":"c1","id":"2","at":6,"amount":-1.0}'),
    ]  # fmt: skip
    h.crash_and_restore(event=2)
    h.check_replay(orders=5)


class Scored(Keyed[Txn, Risk, str]):
    def ask_score(self, e: Txn) -> str | None:
        return e.card if e.amount > 1 else None

    def call_score(self, question: str) -> int:
        raise AssertionError("a test asks nobody")

    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[str]:
        return [f"{e.id} {ctx.answer('score')}"]


def test_calls_are_answered_as_the_test_says():
    declared = function(
        name="scored", key="card", event_time="at", poison="skip",
        calls={"score": Call(on_failure="dead-letter")},
    )(Scored)  # fmt: skip
    h = Harness(declared)
    with pytest.raises(LookupError, match="nobody answers 'score'"):
        h.send(Txn("c1", "1", 5, 2.0))
    with pytest.raises(LookupError, match="declares no call 'skore'"):
        h.answer("skore", len)
    h.answer("score", {"c1": 7}.__getitem__)
    assert h.send(*(Txn(c, c, 5, a) for c, a in (("c1", 2.0), ("c1", 0.5), ("c2", 2.0)))) == [
        "c1 7", "c1 None",
    ]  # fmt: skip
    assert "KeyError: 'c2'" in h.poisoned[0].error
    h.answer("score", lambda question: 8)
    assert h.send(Txn("c1", "2", 5, 2.0)) == ["2 8"]
    h.crash_and_restore(at=0)


def test_a_later_version_goes_on_with_the_state_there_is():
    @dataclass
    class More(Risk):
        seen: int = 0

    @function(name="card-risk", version=3, key="card", event_time="at", dedup="id")
    def counts(e: Txn, s: More, ctx: Context) -> Out[int]:
        s.seen += 1
        return [s.small_at]

    @function(name="card-risk", version=3, key="at", event_time="at")
    def other_key(e: Txn, s: Risk, ctx: Context) -> Out[int]:
        return None

    h = Harness(CardRisk)
    h.send(Txn("c1", "1", 1_000, 0.5))
    with pytest.raises(ValueError, match="cannot read the state there is: key: its type was str"):
        h.upgrade(other_key)
    h.upgrade(counts)
    assert h.send(Txn("c1", "1", 2_000, 5.0), Txn("c1", "2", 2_000, 5.0)) == [1_000]
    assert h.state("c1") == More(1_000, {}, 1)
    h.crash_and_restore(at=0)
    with pytest.raises(ValueError, match="version 2 does not follow 'card-risk' version 3"):
        h.upgrade(CardRisk)


def test_vectors_are_plain_data_that_say_what_happened():
    h = Harness(CardRisk, now=9)
    h.send(Txn("c1", "1", 1_000, 0.5), Txn("c1", "2", 2_000, 900.0))
    (vector,) = h.vectors()
    assert vector == {
        "events": [
            ("", '{"card":"c1","id":"1","at":1000,"amount":0.5}'),
            ("", '{"card":"c1","id":"2","at":2000,"amount":900.0}'),
        ],
        "watermark_ms": 0,
        "clock_ms": 9,
        "outputs": ['{"card":"c1","id":"2","rule":"small-then-large"}'],
        "late": 0,
        "duplicates": 0,
        "poisoned": [],
    }
