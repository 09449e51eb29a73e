"""The topic settings that exist: which values they take and what they are when not set.

A setting is here because the log honours it, or because tools set it to the one thing we do
anyway; any other value is refused, not stored and ignored.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from catchwater.config import BrokerConfig

_LARGEST = 2**63 - 1


class Setting(NamedTuple):
    """One topic setting; its type by DescribeConfigs' numbers: 2 string, 3 int, 5 long, 7 list."""

    kafka_type: int
    default: Callable[[BrokerConfig], str]
    smallest: int | None = None
    """For numbers; None for a setting that has exactly one possible value, its default."""
    largest: int = _LARGEST


def _only(value: str) -> Callable[[BrokerConfig], str]:
    return lambda config: value


TOPIC_SETTINGS: Mapping[str, Setting] = {
    "cleanup.policy": Setting(7, _only("delete")),
    "compression.type": Setting(2, _only("producer")),
    "max.message.bytes": Setting(3, lambda c: str(c.message_max_bytes), 1, 2**31 - 1),
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
    if setting.smallest is None:
        only = setting.default(config)
        return None if value == only else f"{name} can only be {only}, not {value!r}."
    digits = value.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < 20
    if is_number and setting.smallest <= int(value) <= setting.largest:
        return None
    return f"{name} must be a number from {setting.smallest} to {setting.largest}."
