"""The topics in memory."""

import pytest

from catchwater.catalog.errors import TopicUnknown
from catchwater.catalog.rows import (
    Topic,
)
from catchwater.catalog.topics import Topics

A, B = Topic(b"a" * 16, "a", 1), Topic(b"b" * 16, "b", 2)


def test_a_topic_is_found_by_name_and_by_id_until_it_is_removed() -> None:
    topics = Topics([B])
    topics.add(A)
    assert list(topics) == [A, B]
    assert len(topics) == 2
    assert topics.get("a") is topics.by_id(A.id) is topics.find("a") is A
    assert topics.name_of(A.id) == "a"
    topics.remove(A)
    assert topics.get("a") is topics.by_id(A.id) is topics.name_of(A.id) is None
    with pytest.raises(TopicUnknown, match="no topic a"):
        topics.find("a")
