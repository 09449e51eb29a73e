"""Which epochs are live after any history of commits and rollbacks, held to a dict."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from catchwater.sinks.epochs import Mark, Owner
from catchwater.sinks.kinds.log import WITHDRAWN, LogMarks


class FakeControl:
    """Keeps epochs as the catalog does: without gaps, for ever."""

    def __init__(self) -> None:
        self.sinks: dict[str, dict[int, dict[str, Any]]] = {}

    def put(self, sink: str, epoch: int, content: str) -> None:
        epochs = self.sinks.setdefault(sink, {})
        assert not epochs or epoch == max(epochs) + 1
        epochs[epoch] = {"epoch": epoch, "records": 1, "checksum": content,
                         "offsets": {"0": [5, 9]}}  # fmt: skip

    def last_epoch(self, pipeline: str, sink: str) -> dict[str, Any] | None:
        epochs = self.sinks.get(sink)
        return epochs[max(epochs)] if epochs else None

    def epoch(self, pipeline: str, sink: str, epoch: int) -> dict[str, Any] | None:
        return self.sinks.get(sink, {}).get(epoch)


def marks(control: FakeControl, generation: int) -> LogMarks:
    return LogMarks(control, Owner("cards", "alerts", generation))  # type: ignore[arg-type]


histories = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5)
"""For each generation: how many epochs it writes, and how many the next one takes back."""


@given(histories)
def test_live_epochs_are_those_that_nobody_took_back(history: list[tuple[int, int]]) -> None:
    control = FakeControl()
    live: dict[int, str] = {}
    for generation, (written, taken) in enumerate(history):
        ours = marks(control, generation)
        for _ in range(written):
            epoch = max(live, default=-1) + 1
            live[epoch] = f"{generation}:{epoch}"
            control.put(ours.name(generation), epoch, live[epoch])
        assert ours.last_live() == max(live, default=None)
        for epoch in range(max(live, default=0) + 3):
            found = ours.find(epoch)
            assert (found.checksum if found else None) == live.get(epoch)
        assert ours.newest_generation() == generation
        after = max(live, default=-1) - taken
        live = {epoch: content for epoch, content in live.items() if epoch <= after}
        newer = marks(control, generation + 1)
        control.put(newer.name(generation + 1, WITHDRAWN), max(after, -1) + 1, "")
        assert newer.last_live() == max(live, default=None)
        assert ours.newest_generation() > generation


def test_a_generation_is_a_sink_of_its_own_in_the_catalog() -> None:
    control = FakeControl()
    control.put("alerts", 7, "c")
    ours = marks(control, 0)
    assert [ours.name(0), ours.name(2), ours.name(2, WITHDRAWN)] == [
        "alerts", "alerts@2", "alerts@2:withdrawn",
    ]  # fmt: skip
    assert ours.read(0, 7) == Mark(7, 0, 1, "c", {"0": (5, 9)})
    assert ours.read(0, 8) is None


def test_a_generation_that_took_nothing_back_goes_on_with_the_last() -> None:
    control = FakeControl()
    for epoch in range(3):
        control.put("alerts", epoch, "old")
    control.put("alerts@1", 3, "new")
    newer = marks(control, 1)
    assert newer.last_live() == 3
    assert [found.checksum for e in range(4) if (found := newer.find(e))] == ["old"] * 3 + ["new"]
    assert marks(control, 0).newest_generation() == 1
