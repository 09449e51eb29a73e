"""Which names clients may give to what lives here. Object keys are never built from them."""

import re

LONGEST_GROUP_ID = 255
LONGEST_TRANSACTIONAL_ID = 1_000

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule (`Topic.validate`): 1 to 249 of the legal characters, not `.` nor `..`."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_legal_member_name(name: str) -> bool:
    """Of a member, its instance or its rack: the same rule as for groups."""
    return is_legal_group_id(name)


def is_legal_group_id(group_id: str) -> bool:
    """Not empty, not huge, and printable, so that it can be shown in logs and tools as it is."""
    return 0 < len(group_id) <= LONGEST_GROUP_ID and group_id.isprintable()


def is_legal_transactional_id(transactional_id: str) -> bool:
    """As a group's id, but longer: frameworks put names of jobs and tasks together."""
    return 0 < len(transactional_id) <= LONGEST_TRANSACTIONAL_ID and transactional_id.isprintable()
