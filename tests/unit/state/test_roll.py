"""What an epoch rewrites: little of it each time, and enough that a restore stays short."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state import roll as rolling
from catchwater.state.roll import EMPTY, END, START, Chunk, Piece, Position, Roll

UNIT = rolling.LEAST_UNIT


class Simulated:
    """A state of `live` bytes that lie evenly over 1,000 places, and its roll."""

    def __init__(self):
        self.version = 0
        self.at = EMPTY
        self.live = 0
        self.roll = Roll()
        self.rewritten = 0
        self.most_parts = 0

    def epoch(self, changed, live):
        """Log so many bytes of changes, after which so many bytes are live."""
        to = Position(self.version + 1, "t")
        self.rewritten = 0
        budget = rolling.bytes_to_rewrite(self.roll, self.live // 100, changed)
        if budget:
            chunks = list(self._chunks(to, budget))
            self.rewritten = sum(chunk.weight for chunk in chunks)
            self.roll = rolling.rewritten(self.roll, chunks)
        run = rolling.run_to_merge(self.roll)
        if run:
            weight = min(sum(piece.weight for piece in run), self.live)
            merged = Piece(to, run[0].first, run[-1].last, weight // 100, weight, weight)
            self.roll = rolling.merged(self.roll, merged)
            self.rewritten += weight
        delta = Piece(to, to.version, to, changed // 100, changed, changed)
        self.roll = rolling.appended(self.roll, delta)
        self.version, self.at, self.live = to.version, to, live
        self.most_parts = max(self.most_parts, len(self.roll.chunks) + len(self.roll.pieces))
        self.check()

    def _chunks(self, to, budget):
        size = rolling.unit(self.roll)
        place = int(self.roll.cursor[1] or b"0")
        step = max(1000 * size // max(self.live, 1), 1)
        for number in range(budget // size):
            end = min(place + step, 1000)
            until = END if end == 1000 else (0, b"%04d" % end)
            weight = self.live * (end - place) // 1000
            yield Chunk(to, number, until, weight // 100, weight, weight)
            place = end
            if until == END:
                return

    def check(self):
        """The parts are all that is needed: ranges without gaps, changes without gaps."""
        ends = [chunk.until for chunk in self.roll.chunks]
        assert ends == sorted(set(ends))
        assert self.roll.cursor == START or self.roll.cursor in ends
        covered = ends[-1:] == [END]
        shown = min((c.by.version - 1 for c in self.roll.chunks), default=0) if covered else 0
        reached = [piece.last.version for piece in self.roll.pieces]
        begun = [piece.first for piece in self.roll.pieces]
        assert begun[0] <= shown + 1 and reached[-1] == self.version
        assert begun[1:] == [last + 1 for last in reached[:-1]]
        assert rolling.pieces_since(self.roll, self.at) == ()

    def read(self):
        return self.roll.size_bytes


@pytest.mark.parametrize(
    "units, share", [(3, 1), (30, 0.2), (300, 0.01), (300, 0.0003), (3, 0.001)]
)
def test_a_restore_reads_little_more_than_the_state_however_long_the_history(units, share):
    state, live = Simulated(), units * UNIT
    for _ in range(8):
        state.epoch(live // 8, state.live + live // 8)
    changed = int(live * share)
    for _ in range(min(int(10 / share), 3_000)):
        state.epoch(changed, live)
        assert state.rewritten <= max(changed, 8 * rolling.unit(state.roll)) + 4 * UNIT
    assert state.read() <= (1.6 if share < 0.03 else 2.1) * live + 4 * UNIT
    assert state.most_parts <= 800


def test_one_percent_of_changed_keys_write_little_of_the_state():
    state, live = Simulated(), 500 * UNIT
    for _ in range(50):
        state.epoch(live // 50, state.live + live // 50)
    written = []
    for _ in range(500):
        state.epoch(live // 100, live)
        written.append(live // 100 + state.rewritten)
    assert max(written[100:]) <= 0.05 * live
    assert sum(written[100:]) / 400 <= 0.04 * live


def test_small_epochs_make_good_what_large_ones_left_owing_a_unit_at_a_time():
    state, live = Simulated(), 256 * UNIT
    for _ in range(4):
        state.epoch(live // 4, state.live + live // 4)
    small = UNIT // 10
    owed_units = state.roll.owed // UNIT
    assert owed_units > 100
    for _ in range(owed_units):
        state.epoch(small, live)
        assert state.rewritten <= 2 * UNIT
    for _ in range(owed_units):
        state.epoch(small, live)
    assert state.roll.owed < 2 * UNIT
    assert state.read() <= 1.6 * live + 4 * UNIT


def test_after_a_great_deletion_idle_epochs_shorten_a_restore():
    state, live = Simulated(), 100 * UNIT
    for _ in range(100):
        state.epoch(UNIT, state.live + UNIT)
    while state.roll.owed >= UNIT:
        state.epoch(0, live)
    state.epoch(UNIT // 4, live // 100)
    for _ in range(300):
        state.epoch(0, live // 100)
        assert state.rewritten <= 4 * UNIT
    assert state.read() <= 4 * UNIT


def test_epochs_without_changes_leave_few_objects():
    state = Simulated()
    for _ in range(1000):
        state.epoch(0, 0)
    assert state.most_parts <= 70


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 3 * UNIT), st.integers(0, 40 * UNIT), st.integers(1, 80)),
        max_size=12,
    )
)
def test_no_history_leaves_a_gap(phases):
    state = Simulated()
    for changed, live, epochs in phases:
        for _ in range(epochs):
            state.epoch(changed, live)
