"""Every class of anomaly, planted once, is found alone; a log that behaves has none."""

import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.drill.check import ALLOWED, NEVER, Report, check
from catchwater.drill.history import (
    AssignLine,
    LedgerLine,
    Line,
    Poll,
    PollLine,
    RebalanceLine,
    Send,
    SendLine,
    TopicLine,
    TrimLine,
    TxnLine,
    Type,
    Value,
    WatermarkLine,
)

WRITER, OTHER, READER = 1, 2, 3


def send(value: Value, offset: int | None, process: int = WRITER, partition: int = 0) -> SendLine:
    outcome: Type = "info" if offset is None else "ok"
    return SendLine("t", partition, value, None, offset, process=process, type=outcome)


def failed(value: Value) -> SendLine:
    return SendLine("t", 0, value, process=WRITER, type="fail")


def poll(
    *records: tuple[int, Value],
    head: int | None = None,
    committed: bool = True,
    final: bool = False,
    process: int = READER,
    partition: int = 0,
) -> PollLine:
    step = ("t", partition, list(records), head, committed, final)
    return PollLine(*step, process=process, type="ok")


def txn(*steps: Send | Poll, process: int = WRITER, outcome: Type = "ok") -> TxnLine:
    return TxnLine(process=process, type=outcome, steps=list(steps))


def watermark(offset: int | None, process: int = READER) -> WatermarkLine:
    kind: Type = "invoke" if offset is None else "ok"
    return WatermarkLine(process=process, type=kind, topic="t", partition=0, offset=offset)


def ledger(part: str, says: int) -> LedgerLine:
    return LedgerLine(process=0, type="ok", name="p", epoch=4, part=part, says=says)


def assign() -> AssignLine:
    return AssignLine(process=READER, type="ok")


def rebalance() -> RebalanceLine:
    return RebalanceLine(process=READER, type="ok")


def trim(offset: int) -> TrimLine:
    return TrimLine(process=0, type="ok", topic="t", partition=0, offset=offset)


def counts(*lines: Line) -> dict[str, int]:
    return check(lines).counts()


THREE = [send("a", 0), send("b", 1), send("c", 2)]
PLANTED: dict[str, list[Line]] = {
    "lost-write": [*THREE, assign(), poll((0, "a")), assign(), poll((2, "c"))],
    "unseen": [*THREE, poll((0, "a"), (1, "b"), final=True)],
    "duplicate": [*THREE, poll((0, "a"), (1, "b"), (2, "c"), (3, "a"))],
    "inconsistent-offsets": [
        *THREE,
        send("d", None),
        poll((0, "a"), (1, "d"), (2, "c")),
        poll((0, "a"), (1, "b"), (2, "c"), process=9),
    ],
    "garbage": [*THREE, poll((0, "a"), (1, "b"), (2, "c"), (3, "what"))],
    "G1a": [send("a", 0), failed("b"), poll((0, "a"), (1, "b"))],
    "precommitted-read": [txn(Send("t", 0, "a", None, 0), Poll("t", 0, [(0, "a")]))],
    "G1c": [
        txn(Send("t", 0, "a", None, 0), Poll("t", 1, [(0, "b")])),
        txn(Send("t", 1, "b", None, 0), Poll("t", 0, [(0, "a")]), process=OTHER),
    ],
    "poll-skip": [
        *THREE,
        poll((0, "a")),
        poll((2, "c")),
        poll((0, "a"), (1, "b"), process=9),
    ],
    "nonmonotonic-poll": [*THREE, poll((0, "a"), (1, "b")), poll((1, "b"), (2, "c"))],
    "int-poll-skip": [
        *THREE,
        txn(Poll("t", 0, [(0, "a")]), Poll("t", 0, [(2, "c")]), process=READER),
        poll((0, "a"), (1, "b"), process=9),
    ],
    "int-nonmonotonic-poll": [
        *THREE,
        txn(Poll("t", 0, [(0, "a"), (1, "b"), (2, "c")]), Poll("t", 0, [(1, "b")])),
    ],
    "nonmonotonic-send": [send("a", 1), send("b", 0), poll((0, "b"), (1, "a"))],
    "int-nonmonotonic-send": [
        txn(Send("t", 0, "a", None, 1), Send("t", 0, "b", None, 0)),
        poll((0, "b"), (1, "a")),
    ],
    "hw-regression": [*THREE, watermark(None), watermark(2)],
    "torn-contract": [ledger("offsets", 7), ledger("state", 7), ledger("sink", 8)],
    "G0": [
        txn(Send("t", 0, "a", None, 0), Send("t", 1, "b", None, 1)),
        txn(Send("t", 0, "c", None, 1), Send("t", 1, "d", None, 0), process=OTHER),
    ],
    "int-send-skip": [
        txn(Send("t", 0, "c", None, 1), process=OTHER),
        txn(Send("t", 0, "a", None, 0), Send("t", 0, "b", None, 2)),
    ],
    "rebalance-poll-skip": [
        *THREE,
        poll((0, "a")),
        rebalance(),
        poll((2, "c")),
        poll((0, "a"), (1, "b"), process=9),
    ],
    "rebalance-nonmonotonic-poll": [
        *THREE,
        poll((0, "a"), (1, "b"), (2, "c")),
        rebalance(),
        poll((1, "b"), (2, "c")),
    ],
    "poll-hw-regression": [*THREE, poll((0, "a"), head=3), poll((1, "b"), head=2), poll((2, "c"))],
    "poll-beyond-hw": [*THREE, poll((0, "a"), (1, "b"), head=1), poll((2, "c"))],
}


@pytest.mark.parametrize("anomaly", [*NEVER, *ALLOWED])
def test_an_anomaly_planted_once_is_found_and_nothing_else(anomaly: str) -> None:
    report = check(PLANTED[anomaly])
    # What comes with it by its nature: a circle of writes is one of interleaved ones.
    beside = {"int-send-skip": {"G0"}}.get(anomaly, set())
    assert report.counts().keys() - beside == {anomaly}
    assert report.counts()[anomaly] == 1
    assert (report.verdict == "fail") == (anomaly in NEVER)
    (found,) = [each for each in report.findings if each.anomaly == anomaly]
    assert found.examples[0].what and found.examples[0].lines
    assert found.told == f"{anomaly} (1): {found.examples[0].what}"


# --- what is uncertain, and what is allowed ----------------------------------------------------


def test_an_unknown_send_owes_nothing_and_forbids_nothing() -> None:
    assert counts(send("a", 0), send("b", None), poll((0, "a"), final=True)) == {}
    assert counts(send("a", 0), send("b", None), poll((0, "a"), (1, "b"), final=True)) == {}


def test_an_operation_that_never_ends_may_have_happened() -> None:
    invoked = SendLine("t", 0, "a", process=WRITER, type="invoke")
    assert counts(invoked, poll((0, "a"), final=True)) == {}
    assert counts(invoked, poll(head=0, final=True)) == {}


def test_one_record_read_tells_that_its_whole_transaction_was_committed() -> None:
    unknown = txn(Send("t", 0, "a", None, 0), Send("t", 0, "b", None, 1), outcome="info")
    assert counts(unknown, poll(head=2, final=True)) == {}
    assert counts(unknown, poll((0, "a"), final=True)) == {"unseen": 1}
    assert counts(unknown, poll((1, "b"), final=True)) == {"lost-write": 1}


def test_a_record_that_was_there_once_has_to_be_there_at_the_end() -> None:
    read = [poll((0, "a"), (1, "b"), (2, "c")), assign()]
    assert counts(*THREE, *read, poll((0, "a"), (1, "b"), (2, "c"), final=True)) == {}
    assert counts(*THREE, *read, poll((0, "a"), (1, "b"), final=True)) == {"unseen": 1}


def test_an_aborted_record_may_be_read_uncommitted_only() -> None:
    aborted = txn(Send("t", 0, "a", None, 0), outcome="fail")
    assert counts(aborted, poll((0, "a"), committed=False)) == {}
    assert counts(aborted, poll((0, "a"))) == {"G1a": 1}


def test_an_aborted_record_and_a_marker_are_stepped_over() -> None:
    aborted = txn(Send("t", 0, "x", None, 1), outcome="fail")
    lines = [send("a", 0), aborted, send("b", 3), poll((0, "a"), (3, "b"), final=True)]
    assert counts(*lines) == {}


def test_the_reader_of_an_aborted_transaction_goes_back() -> None:
    first = txn(Poll("t", 0, [(1, "b"), (2, "c")]), process=READER, outcome="fail")
    again = txn(Poll("t", 0, [(1, "b"), (2, "c")]), process=READER)
    assert counts(*THREE, poll((0, "a")), first, again) == {}


def test_whoever_assigns_anew_may_start_anywhere() -> None:
    lines = [*THREE, poll((0, "a"), (1, "b"), (2, "c")), assign(), poll((1, "b"), (2, "c"))]
    assert counts(*lines) == {}


def test_what_was_trimmed_may_be_skipped_and_is_not_missed() -> None:
    assert counts(*THREE, trim(2), poll((2, "c"), final=True)) == {}
    assert counts(*THREE, trim(1), poll((2, "c"), final=True)) == {"lost-write": 1}


def test_a_compacted_topic_owes_the_last_value_of_each_key() -> None:
    topic = TopicLine(process=0, type="ok", topic="t", compacted=True)
    keyed = [
        SendLine("t", 0, value, key, offset, process=WRITER, type="ok")
        for offset, (key, value) in enumerate([("k", "1"), ("l", "2"), ("k", "3")])
    ]
    assert counts(topic, *keyed, poll((1, "2"), (2, "3"), final=True)) == {}
    assert counts(topic, *keyed, poll((2, "3"), final=True)) == {"lost-write": 1}


def test_the_watermark_is_held_against_what_was_known_when_it_was_asked_for() -> None:
    assert counts(watermark(None), *THREE, watermark(0)) == {}
    assert counts(watermark(None), watermark(5), watermark(None, 9), watermark(4, 9)) == {
        "hw-regression": 1
    }
    assert counts(poll(head=5), poll(head=4)) == {"poll-hw-regression": 1}, "of another broker"
    assert counts(send("a", 0), poll((0, "a"), head=0)) == {"poll-beyond-hw": 1}
    assert counts(poll(head=5), poll(head=4, process=9)) == {}


def test_without_final_polls_the_verdict_is_unknown() -> None:
    report = check([send("a", 0)])
    assert (report.verdict, report.unjudged) == ("unknown", 1)


# --- any history of a log that behaves -----------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "lost reply", "refused", "txn", "abort", "poll", "head", "trim"]),
        st.integers(0, 1),
        st.integers(1, 3),
    ),
    max_size=60,
)


class Model:
    """A log that does everything right, and writes down what its clients see of it."""

    def __init__(self) -> None:
        self.log: list[list[tuple[Value, bool]]] = [[], []]
        self.starts = [0, 0]
        self.readers = [0, 0]
        self.lines: list[Line] = []
        self.values = 0

    def append(self, partition: int, *, visible: bool = True) -> tuple[Value, int]:
        self.values += 1
        self.log[partition].append((self.values, visible))
        return self.values, len(self.log[partition]) - 1

    def step(self, do: str, partition: int, count: int) -> None:
        match do:
            case "send":
                self.lines.append(send(*self.append(partition), partition=partition))
            case "lost reply":
                value, _ = self.append(partition)
                self.lines.append(send(value, None, partition=partition))
            case "refused":
                self.values += 1
                self.lines.append(failed(self.values))
            case "txn" | "abort":
                sent = [self.append(partition, visible=do == "txn") for _ in range(count)]
                self.log[partition].append((None, False))  # the marker
                steps = [Send("t", partition, value, None, offset) for value, offset in sent]
                self.lines.append(txn(*steps, outcome="ok" if do == "txn" else "fail"))
            case "poll":
                self.poll(partition, count)
            case "head" if partition == 0:
                self.lines += [watermark(None), watermark(len(self.log[0]))]
            case "trim" if partition == 0 and self.log[0]:
                self.starts[0] = min(self.starts[0] + count, len(self.log[0]))
                self.lines.append(trim(self.starts[0]))

    def poll(self, partition: int, count: int, *, final: bool = False) -> None:
        at = max(self.readers[partition], self.starts[partition])
        taken = list(enumerate(self.log[partition]))[at : at + count]
        self.readers[partition] = at + len(taken)
        records = [(offset, value) for offset, (value, visible) in taken if visible]
        head = len(self.log[partition])
        self.lines.append(poll(*records, head=head, final=final, partition=partition))

    def history(self, steps: Iterable[tuple[str, int, int]]) -> list[Line]:
        for step in steps:
            self.step(*step)
        self.readers = [0, 0]
        self.lines.append(assign())
        for partition in (0, 1):
            self.poll(partition, 1_000, final=True)
        return self.lines


def never(report: Report) -> dict[str, int]:
    return {name: count for name, count in report.counts().items() if name in NEVER}


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_log_that_behaves_has_no_anomaly(steps: list[tuple[str, int, int]]) -> None:
    report = check(Model().history(steps))
    assert never(report) == {}
    assert report.verdict == "pass"


@settings(max_examples=100, deadline=None)
@given(STEPS, st.data())
def test_a_record_taken_out_of_every_poll_is_missed(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    lines = Model().history([step for step in steps if step[0] != "trim"])
    acknowledged = [
        line.value for line in lines if isinstance(line, SendLine) and line.type == "ok"
    ]
    if acknowledged:
        lost = data.draw(st.sampled_from(acknowledged))
        for line in lines:
            if isinstance(line, PollLine):
                line.records = [record for record in line.records if record[1] != lost]
        assert never(check(lines)).keys() & {"lost-write", "unseen"}


def test_half_a_million_records_are_checked_in_seconds() -> None:
    sent = [send(value, value) for value in range(100_000)]
    read = [
        poll(*((offset, offset) for offset in range(at, at + 100)), process=process)
        for process in range(10, 14)
        for at in range(0, 100_000, 100)
    ]
    began = time.process_time()
    assert check([*sent, *read]).records == 400_000
    # Half a million in 0.4 s here; the bound only notices when something became quadratic.
    assert time.process_time() - began < 5
