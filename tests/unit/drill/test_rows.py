"""What the sink lacks or has too often is counted."""

from collections import Counter

from catchwater.drill.rows import differences


def test_rows_are_compared_with_how_often_they_occur() -> None:
    expected = Counter({b"a": 1, b"b": 1, b"c": 1})
    assert differences(expected, Counter({b"a": 1, b"b": 1, b"c": 1})) == (0, 0)
    assert differences(expected, Counter({b"a": 2, b"c": 1})) == (1, 1)
    assert differences(expected, Counter({b"a": 1, b"b": 1, b"c": 1, b"x": 2})) == (0, 2)
