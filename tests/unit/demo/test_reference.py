"""The plain loops that the demo is compared with, on inputs small enough to work out by hand."""

from pathlib import Path

import msgspec

from catchwater.demo import reference
from catchwater.demo.card_risk import Txn
from catchwater.demo.online_retail import COLUMNS


def alerted(*payments: Txn) -> list[str]:
    return [msgspec.json.decode(row)["id"] for row in reference.card_risk(payments).rows]


def test_a_large_payment_within_a_minute_of_a_small_one_alerts() -> None:
    small = Txn("c1", "1", 1_000, 0.5)
    assert alerted(small, Txn("c1", "2", 60_999, 501.0)) == ["2"]
    assert alerted(small, Txn("c1", "2", 61_000, 501.0)) == []
    assert alerted(small, Txn("c2", "2", 2_000, 501.0)) == []
    assert alerted(small, Txn("c1", "2", 2_000, 500.0)) == []


def test_a_repeated_payment_alerts_once_and_is_counted() -> None:
    large = Txn("c1", "2", 2_000, 900.0)
    expected = reference.card_risk([Txn("c1", "1", 1_000, 0.5), large, large])
    assert (expected.events, expected.duplicates, expected.rows.total()) == (3, 1, 1)


def test_a_payment_behind_the_watermark_counts_as_late_and_for_nothing_else() -> None:
    late = Txn("c1", "0", 1_000, 0.5)
    expected = reference.card_risk(
        [Txn("c2", "1", 32_000, 5.0), late, Txn("c1", "2", 32_000, 900.0)]
    )
    assert (expected.late, expected.rows.total()) == (1, 0)


def cancellations(folder: Path, *rows: str) -> list[dict[str, object]]:
    path = folder / "lines.csv"
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return [msgspec.json.decode(row) for row in reference.retail(path).rows]


def test_a_cancellation_takes_units_from_the_newest_purchases_first(tmp_path: Path) -> None:
    (row,) = cancellations(
        tmp_path,
        "1,A,,4,2010-12-01,1.00,7,UK",
        "2,A,,2,2010-12-02,1.00,7,UK",
        "C3,A,,-3,2010-12-03,1.00,7,UK",
    )
    assert row["cancels"] == [["2", 2], ["1", 1]]
    assert (row["rule"], row["never_bought"]) == ("cancellation", 0)
    assert row["spend_30d_thousandths"] == 3_000


def test_returning_more_than_was_bought_is_the_alert(tmp_path: Path) -> None:
    (row,) = cancellations(tmp_path, "1,A,,1,2010-12-01,1.00,7,UK", "C2,A,,-3,2011-02-01,1.00,7,UK")
    assert (row["rule"], row["never_bought"]) == ("returned-more-than-bought", 2)
    assert row["spend_30d_thousandths"] == -3_000


def test_an_identical_row_is_dropped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    row = "1,A,,1,2010-12-01,1.00,7,UK\n"
    path.write_text(",".join(COLUMNS) + "\n" + row * 3)
    expected = reference.retail(path)
    assert (expected.events, expected.duplicates) == (3, 2)
