"""Work on the event loop in turns."""

from catchwater.broker.limits.large import A_TURN, Turns
from catchwater.clock import ManualClock


class Counting(ManualClock):
    """Counts how often others were given a turn."""

    turns = 0

    async def sleep(self, seconds: float) -> None:
        self.turns += 1
        await super().sleep(seconds)


async def test_others_have_a_turn_after_so_much_work() -> None:
    clock = Counting()
    turns = Turns(clock)
    for _ in range(A_TURN - 1):
        await turns.after(1)
    assert clock.turns == 0
    await turns.after(1)
    await turns.after(3 * A_TURN)
    await turns.after(A_TURN - 1)
    assert (clock.turns, turns.done) == (2, 5 * A_TURN - 1)
