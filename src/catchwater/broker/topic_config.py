"""The topic settings that exist: which values they take and what they are when not set.

A setting is here because the log honours it, or because tools set it to the one thing we do
anyway; any other value is refused, not stored and ignored.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from catchwater.config import BrokerConfig
from catchwater.log.keep.policy import CLEANUP_POLICY, COMPACT, DELETE, Policy

_LARGEST = 2**63 - 1
_DOUBLE = 6
_DEFAULT = Policy(-1, -1)


class Setting(NamedTuple):
    """One topic setting; its type by DescribeConfigs' numbers: 2 string, 3 int, 5 long, 6 double,
    7 list.
    """

    kafka_type: int
    default: Callable[[BrokerConfig], str]
    smallest: int | None = None
    """For numbers; None for a setting that has exactly one possible value, its default, or a list
    of `members`.
    """
    largest: int = _LARGEST
    members: frozenset[str] = frozenset()


def _only(value: str) -> Callable[[BrokerConfig], str]:
    return lambda config: value


TOPIC_SETTINGS: Mapping[str, Setting] = {
    CLEANUP_POLICY: Setting(7, _only(DELETE), members=frozenset((DELETE, COMPACT))),
    "compression.type": Setting(2, _only("producer")),
    "delete.retention.ms": Setting(5, _only(str(_DEFAULT.delete_retention_ms)), 0),
    "max.message.bytes": Setting(3, lambda c: str(c.message_max_bytes), 1, 2**31 - 1),
    "min.cleanable.dirty.ratio": Setting(6, _only(str(_DEFAULT.min_dirty_ratio)), 0, 1),
    "min.compaction.lag.ms": Setting(5, _only(str(_DEFAULT.min_compaction_lag_ms)), 0),
    "message.timestamp.type": Setting(2, _only("CreateTime")),
    "min.insync.replicas": Setting(3, _only("1")),
    "retention.bytes": Setting(5, lambda c: str(c.log_retention_bytes), -1),
    "retention.ms": Setting(5, lambda c: str(c.log_retention_ms), -1),
}


def refusal(name: str, value: str | None, config: BrokerConfig) -> str | None:
    """Why a topic may not have this setting, as a sentence; None where it may."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return f"There is no topic setting {name!r}."
    if value is None:
        return f"{name} needs a value."
    if setting.members:
        return _refused_list(name, value, setting.members)
    if setting.smallest is None:
        only = setting.default(config)
        return None if value == only else f"{name} can only be {only}, not {value!r}."
    pattern = r"\d{1,9}(\.\d{1,9})?" if setting.kafka_type == _DOUBLE else r"-?\d{1,19}"
    is_number = re.fullmatch(pattern, value, re.ASCII)
    number = float if setting.kafka_type == _DOUBLE else int
    if is_number and setting.smallest <= number(value) <= setting.largest:
        return None
    return f"{name} must be a number from {setting.smallest} to {setting.largest}."


def _refused_list(name: str, value: str, members: frozenset[str]) -> str | None:
    if members.issuperset(part.strip() for part in value.split(",")):
        return None
    return f"{name} is a list of {' and '.join(sorted(members))}, not {value!r}."
