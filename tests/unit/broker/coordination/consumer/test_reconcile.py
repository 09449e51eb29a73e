"""One member's way to its target: give up, say so, get."""

import pytest

from catchwater.broker.coordination.consumer.member import NOWHERE, Standing, reconcile

T = b"t" * 16
P0, P1, P2 = (T, 0), (T, 1), (T, 2)


def some(*keys):
    return frozenset(keys)


def free(*taken):
    return lambda key: key not in taken


def test_a_new_member_gets_what_is_free_and_waits_for_the_rest() -> None:
    after = reconcile(NOWHERE, 3, some(P0, P1), some(), free(P1))
    assert after == Standing(3, 0, some(P0), some(), True)
    assert reconcile(after, 3, some(P0, P1), None, free(P1)) == after
    done = reconcile(after, 3, some(P0, P1), None, free())
    assert done == Standing(3, 0, some(P0, P1))
    assert reconcile(done, 3, some(P0, P1), None, free()) is done


def test_what_is_taken_away_is_given_up_before_anything_is_given() -> None:
    had = Standing(3, 0, some(P0, P1))
    told = reconcile(had, 4, some(P0, P2), None, free())
    assert told == Standing(3, 0, some(P0), some(P1))
    assert told.held == had.held
    done = reconcile(told, 4, some(P0, P2), some(P0), free())
    assert done == Standing(4, 3, some(P0, P2))


@pytest.mark.parametrize("owned", [None, some(P0, P1), some(P1)])
def test_it_is_not_given_up_before_the_member_says_so(owned) -> None:
    told = Standing(3, 0, some(P0), some(P1))
    assert reconcile(told, 4, some(P0, P2), owned, free()) is told


def test_what_was_not_asked_for_is_not_taken_for_an_answer() -> None:
    had = Standing(3, 0, some(P0))
    assert reconcile(had, 4, some(), some(), free()) == Standing(3, 0, some(), some(P0))


def test_a_target_that_changed_meanwhile_is_given_up_step_by_step() -> None:
    told = Standing(3, 0, some(P0), some(P1))
    more = reconcile(told, 5, some(P2), some(P0), free())
    assert more == Standing(4, 3, some(), some(P0))
    assert reconcile(more, 5, some(P2), some(), free()) == Standing(5, 4, some(P2))


def test_a_static_members_heir_holds_nothing_that_it_would_have_to_give_up() -> None:
    heir = Standing(assigned=some(P0, P1))
    assert reconcile(heir, 7, some(P1, P2), some(), free(P2)) == Standing(
        7, 0, some(P1), some(), True
    )
