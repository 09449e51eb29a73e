"""Settings of Apache Kafka's `server.properties` that are ignored or refused here. Pure.

Settings of machinery that does not exist here (threads, replicas, controllers) are ignored, and
named in one warning. A setting whose user would get something else than requested (encryption,
authorisation, another clean-up) is refused, unless it requests what is done anyway.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One value from a file: a text, or TOML's value; `where` is for messages."""

    key: str
    value: Any
    where: str


_WITHOUT_MEANING = (
    # threads, buffers and queues
    *("num.network.threads", "num.io.threads", "num.recovery.threads.per.data.dir"),
    *("background.threads", "socket.*.buffer.bytes", "socket.listen.backlog.size"),
    *("queued.max.requests", "connection.failed.authentication.delay.ms"),
    # controllers, replicas and what coordinators keep in topics of their own
    *("controller.*", "broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
    *("inter.broker.listener.name", "initial.broker.*"),
    *("metadata.*", "replica.*", "num.replica.*", "default.replication.factor"),
    *("min.insync.replicas", "unclean.leader.election.enable", "*leader.imbalance.*"),
    *("auto.leader.rebalance.enable", "controlled.shutdown.*", "request.timeout.ms"),
    *("offsets.topic.*", "offsets.commit.*", "offsets.load.buffer.size"),
    *("transaction.state.log.*", "transaction.*.cleanup.interval.ms", "share.coordinator.*"),
    *("group.share.*", "group.coordinator.*", "zookeeper.*", "reserved.broker.max.id"),
    # files of a partition's log; every acknowledged batch is synced
    *("log.segment.bytes", "log.segment.delete.delay.ms", "log.roll.*", "log.index.*"),
    *("log.flush.*", "log.preallocate", "log.cleaner.*", "log.retention.check.interval.ms"),
    *("log.dir.failure.timeout.ms", "fetch.purgatory.*", "producer.purgatory.*"),
    *("delete.records.purgatory.*", "metrics.*", "metric.reporters", "kafka.metrics.*"),
    *("auto.include.jmx.reporter", "telemetry.max.bytes", "confluent.*"),
)

_NO_SECURITY = "of security there is what docs/security.md names"
_ONLY: Sequence[tuple[str, frozenset[str], str]] = (
    ("process.roles", frozenset({"broker", "broker,controller", "controller,broker"}),
     "this process serves clients; there are no controllers to run"),
    ("security.inter.broker.protocol", frozenset({"plaintext"}), _NO_SECURITY),
    ("sasl.*", frozenset(), _NO_SECURITY),
    ("ssl.*", frozenset(), _NO_SECURITY),
    ("security.*", frozenset(), _NO_SECURITY),
    ("delete.topic.enable", frozenset({"true"}), "topics can always be deleted"),
    ("log.cleanup.policy", frozenset({"delete"}),
     "a topic is deleted from unless its own cleanup.policy says otherwise"),
    ("log.message.timestamp.type", frozenset({"createtime"}),
     "a record keeps its producer's time unless its topic's message.timestamp.type says otherwise"),
    ("compression.type", frozenset({"producer"}),
     "batches stay as they came unless their topic's compression.type says otherwise"),
    ("remote.log.storage.system.enable", frozenset({"false"}),
     "history lies in catchwater.objects, and no plug-in stores it"),
    ("max.connections.per.ip.overrides", frozenset({""}), "all addresses have one bound"),
    ("quota.*", frozenset(), "quotas are set over the protocol: kafka-configs"),
    ("client.quota.callback.class", frozenset({""}),
     "quotas are set over the protocol: kafka-configs"),
)  # fmt: skip
_NO_RULES = "there are rules as soon as super.users names somebody (docs/security.md)"
_WITH_RULES = "what no rule allows is denied as soon as super.users names somebody"
_OF_RULES: Mapping[bool, Sequence[tuple[str, frozenset[str], str]]] = {
    False: (
        ("allow.everyone.if.no.acl.found", frozenset({"true"}), _NO_RULES),
        ("authorizer.class.name", frozenset({""}), _NO_RULES),
    ),
    True: (
        ("allow.everyone.if.no.acl.found", frozenset({"false"}), _WITH_RULES),
        ("authorizer.class.name",
         frozenset({"org.apache.kafka.metadata.authorizer.standardauthorizer"}), _WITH_RULES),
    ),
}  # fmt: skip
"""Without super users, and with some."""
_WITH_SECRETS = re.compile(r"pass?w|secret|jaas|token|key$")
"""No message shows the values of such keys."""
_RETENTION_MS = {"log.retention.hours": 3_600_000, "log.retention.minutes": 60_000}


class Understood(NamedTuple):
    """The settings that are left, in our words; those left out; why some cannot be had."""

    settings: list[Setting]
    left_out: list[str]
    refusals: list[str]


def understood(settings: Sequence[Setting], known: Iterable[str]) -> Understood:
    """Sort the settings; what is in `known` is ours, and what nothing is known of is left in."""
    found, ours = Understood([], [], []), frozenset(known)
    texts = {setting.key: str(setting.value) for setting in settings}
    for setting in settings:
        key, value = setting.key, str(setting.value).strip()
        if key in _RETENTION_MS:
            if "log.retention.ms" not in texts and not (
                key == "log.retention.hours" and "log.retention.minutes" in texts
            ):
                found.settings.append(_in_ms(setting))
        elif key in ours or key.startswith("listener.name."):
            found.settings.append(setting)
        elif (
            reason := _refusal(key, value, bool(texts.get("super.users", "").strip()))
        ) is not None:
            if reason:
                shown = key if _WITH_SECRETS.search(key) else f"{key}={value}"
                found.refusals.append(f"{setting.where}: {shown}: {reason}.")
        elif any(fnmatchcase(key, pattern) for pattern in _WITHOUT_MEANING):
            found.left_out.append(key)
        else:
            found.settings.append(setting)
    return found


def _refusal(key: str, value: str, has_rules: bool) -> str | None:
    """Why this cannot be had; empty: it is so anyway; None: nothing is said about the key."""
    for pattern, accepted, reason in (*_ONLY, *_OF_RULES[has_rules]):
        if fnmatchcase(key, pattern):
            is_accepted = value.lower().replace(" ", "") in accepted
            return "" if is_accepted else reason
    return None


def _in_ms(setting: Setting) -> Setting:
    text = str(setting.value).strip()
    if text.isdecimal():
        text = str(int(text) * _RETENTION_MS[setting.key])
    return Setting("log.retention.ms", text, f"{setting.where} ({setting.key})")
