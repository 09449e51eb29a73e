"""How many pages are watched at once, and by whom."""

from collections import Counter

import pytest

from catchwater.broker.control.replies import Refusal
from catchwater.broker.gate import ANONYMOUS
from catchwater.web.pages import check_streams


def test_a_user_watches_only_half_of_the_pages_there_may_be() -> None:
    watching = Counter({"User:alice": 31})
    check_streams(watching, "User:alice")
    watching["User:alice"] += 1
    with pytest.raises(Refusal, match="User:alice is watching 32 pages already"):
        check_streams(watching, "User:alice")
    check_streams(watching, "User:bob")
    check_streams(watching, ANONYMOUS)


def test_without_users_all_pages_are_anybodys_up_to_the_bound() -> None:
    watching = Counter({ANONYMOUS: 63})
    check_streams(watching, ANONYMOUS)
    watching[ANONYMOUS] += 1
    with pytest.raises(Refusal, match="64 pages are watching already"):
        check_streams(watching, ANONYMOUS)
