"""What `make suites` holds foreign programs' runs to, on runs made up here."""

from conformance.suites.promises import (
    Acknowledged,
    backward,
    disordered,
    lost,
    miscounted,
    missing,
    twice,
)

FIRST, SECOND = Acknowledged("k", 1, (0, 10)), Acknowledged("k", 2, (0, 11))


def test_a_record_is_lost_unless_it_stands_at_its_place():
    assert lost([FIRST, SECOND], {(0, 10): 1, (0, 11): 2, (0, 12): 3}) == []
    assert lost([FIRST, SECOND], {(0, 10): 1}) == [SECOND]
    assert lost([FIRST], {(0, 10): 2, (0, 11): 1}) == [FIRST]


def test_a_value_stands_in_the_log_once():
    assert twice({(0, 1): 7, (0, 2): 8}) == []
    assert twice({(0, 1): 7, (1, 1): 7}) == [7]


def test_records_of_a_key_are_in_the_order_of_their_sending():
    assert disordered([SECOND, FIRST]) == []
    late = Acknowledged("k", 0, (0, 12))
    assert disordered([FIRST, SECOND, late]) == [(SECOND, late)]
    elsewhere = Acknowledged("k", 3, (1, 0))
    assert disordered([FIRST, elsewhere]) == [(FIRST, elsewhere)]
    assert disordered([FIRST, Acknowledged("other", 0, (1, 0))]) == []


def test_a_position_moves_forward_and_never_goes():
    assert backward([{}, {0: 4}, {0: 4, 1: 1}, {0: 9, 1: 1}]) == []
    assert backward([{0: 4}, {0: 3}]) == [(0, 4, 3)]
    assert backward([{0: 4, 1: 2}, {1: 2}, {0: 5, 1: 2}]) == [(0, 4, -1)]


def test_counts_have_no_gap_no_repeat_and_no_end_too_early():
    wanted = {"a": 3, "b": 1}
    assert miscounted([("a", 1), ("b", 1), ("a", 2), ("a", 3)], wanted) == []
    assert miscounted([("a", 1), ("b", 1), ("a", 2), ("a", 2), ("a", 3)], wanted) == ["a"]
    assert miscounted([("a", 1), ("b", 1), ("a", 3)], wanted) == ["a"]
    assert miscounted([("a", 1), ("a", 2), ("a", 3), ("c", 1)], wanted) == ["b", "c"]


def test_lines_may_come_twice_and_may_not_be_missing():
    assert missing(["line 1", "line 0", "line 1"], 2) == []
    assert missing(["line 1", "line"], 3) == [0, 2]
