"""Which names clients may give to what lives here. Object keys are never built from them."""

import re

LONGEST_GROUP_ID = 255

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule (`Topic.validate`): 1 to 249 of the legal characters, not `.` nor `..`."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_legal_group_id(group_id: str) -> bool:
    """Not empty, not huge, and printable, so that it can be shown in logs and tools as it is."""
    return 0 < len(group_id) <= LONGEST_GROUP_ID and group_id.isprintable()
