"""Lists are sorted, searched and paged on the server; numbers read the same everywhere."""

import pytest

from catchwater.web import of_log, words
from catchwater.web.facts import GroupFact, TopicFact
from catchwater.web.view import PAGE_ROWS, PageQuery, Table, query_of

NOW_MS = 1_790_000_000_000
TOPICS = [
    TopicFact(f"orders.{n:03d}", 14, 10 * n, 20 * n, 1_000 * n, NOW_MS - 1_000, {}, float(n))
    for n in range(700)
]


def shown(asked: PageQuery) -> Table:
    table = of_log.topics(TOPICS, asked, NOW_MS, -1).panels[0].table
    assert table is not None
    return table


def test_a_list_begins_with_the_largest_and_has_one_page_of_rows() -> None:
    table = shown(PageQuery())
    assert table.paging is not None
    assert (table.paging.total, table.paging.pages) == (700, 14)
    assert [row[0].text for row in table.rows[:2]] == ["orders.699", "orders.698"]
    assert len(table.rows) == PAGE_ROWS


def test_a_list_is_sorted_and_searched_as_asked() -> None:
    assert shown(PageQuery("name", False)).rows[0][0].text == "orders.000"
    found = shown(PageQuery("name", False, 1, "ORDERS.01"))
    assert [row[0].text for row in found.rows] == [f"orders.01{n}" for n in range(10)]
    assert shown(PageQuery(find="nothing")).empty == "Nothing has 'nothing' in its name."


def test_what_nobody_should_ask_for_is_answered_with_what_there_is() -> None:
    table = shown(PageQuery.of({"sort": "x' OR 1", "order": "sideways", "page": "99999999"}))
    assert table.paging is not None
    assert (table.paging.sort, table.paging.page) == ("size", 14)
    assert PageQuery.of({"page": "-1"}).page == 1
    assert PageQuery.of({"page": "9" * 5000}).page == 1


def test_a_link_to_another_page_keeps_the_order_and_the_search() -> None:
    paging = shown(PageQuery("records", True, 1, "a&b")).paging
    assert paging is not None
    assert query_of(paging, page=2) == "?sort=records&order=desc&page=2&find=a%26b"


@pytest.mark.parametrize(
    ("lag_s", "promise_s", "mark"),
    [(5.0, 30.0, "ok"), (31.0, 30.0, "fail"), (None, 30.0, "unknown"), (31.0, None, "")],
)
def test_a_group_is_held_against_what_was_promised(
    lag_s: float | None, promise_s: float | None, mark: str
) -> None:
    group = GroupFact("g", "Stable", "consumer", 1, 4, 1, 10, lag_s, {"t": 10}, promise_s)
    table = of_log.groups([group], PageQuery(), NOW_MS).panels[0].table
    assert table is not None
    (row,) = table.rows
    assert row[5].mark == mark


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0005, "0.5 ms"), (0.859, "859 ms"), (1.2, "1.2 s"), (41.2, "41 s"),
     (130.0, "2 min 10 s"), (600.0, "10 min"), (None, "–")],
)  # fmt: skip
def test_a_duration_has_a_unit_that_fits(seconds: float | None, text: str) -> None:
    assert words.span(seconds) == text


def test_counts_sizes_and_rates_are_short() -> None:
    assert words.count(12441) == "12\u202f441"
    assert words.size(3_328_599_654) == "3.1 GiB"
    assert words.rate(8100.2) == "8.1k/s"
    assert words.ago(-1, NOW_MS) == "never"
    assert words.moment(10**18) == "–"
