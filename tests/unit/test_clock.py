"""Time that tests move by hand, and draws that processes never share."""

import os
import pickle

from catchwater.clock import Clock, ManualClock


def test_a_seed_gives_the_same_draws_again() -> None:
    a, b = Clock(seed=7), Clock(seed=7)
    assert [a.token(), a.uuid()] == [b.token(), b.uuid()]
    assert len(a.token()) == 16


def test_a_forked_process_draws_for_itself() -> None:
    clock = Clock()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, clock.token().encode())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = os.read(read, 16).decode()
    os.close(read)
    os.close(write)
    assert len(drawn) == 16
    assert drawn != clock.token()


def test_a_clock_can_be_sent_to_another_process() -> None:
    assert len(pickle.loads(pickle.dumps(Clock())).token()) == 16
    sent = pickle.loads(pickle.dumps(Clock(seed=3)))
    assert sent.token() == Clock(seed=3).token()


async def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    assert clock.now_ms() == 1000
    clock.advance(5)
    await clock.sleep(2)
    clock.pause(1)
    assert clock.now_ms() == 4005
    assert clock.monotonic_s() == 4.005
