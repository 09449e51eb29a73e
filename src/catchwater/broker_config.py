"""The configuration of a log and of a broker, and how a broker's is read.

A broker's file is Kafka's `server.properties` syntax or, where its name ends in `.toml`, TOML.
Kafka's keys keep Kafka's names; ours stand under `catchwater.`. Every key may also be set in the
environment, where it wins: `num.partitions` is `CATCHWATER_BROKER__NUM_PARTITIONS`. A key we do
not know stops the start, because a setting that is silently ignored is worse than none; what of
Kafka's own may be left out says `kafka_settings`. A value may refer to a secret (`config`).
"""

import logging
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from catchwater.config import (
    SHOWN,
    BadReference,
    ConfigError,
    duration_ms,
    flatten,
    has_reference,
    is_secret,
    nearest,
    refuse_readable,
    resolve,
    toml_line,
)
from catchwater.kafka_listeners import (
    CLIENT_AUTH,
    DEFAULT_HANDSHAKE_RATE,
    PREFIX,
    Address,
    Listener,
    ListenerRefused,
    is_loopback,
    listeners,
)
from catchwater.kafka_settings import Setting, understood

_LOG = logging.getLogger("catchwater.broker")

ENVIRONMENT_PREFIX = "CATCHWATER_BROKER__"

TABLES = "catchwater.tables.catalog."
"""How the keys begin of the properties of the tables' catalog."""


@dataclass(frozen=True)
class LogConfig:
    """The settings of one log; bytes and milliseconds, -1 = without limit.

    The defaults apply to brokers without such settings and to logs opened without a broker.
    """

    wal_segment_bytes: int = 64 * 1024 * 1024
    reserve_bytes: int = 16 * 1024 * 1024
    """The reserve on a lone broker's disk for operations that free space; see `catchwater.room`."""
    pending_bytes: int = 64 * 1024 * 1024
    """Bound on appends that wait for the WAL; more are refused with a retriable error."""
    cache_bytes: int = 256 * 1024 * 1024
    """The cache of bytes that were just written."""
    lagging_cache_bytes: int = 64 * 1024 * 1024
    """The cache for consumers that lag behind."""
    catalog_lag_ms: int = 1000
    """How far the catalog of a lone broker may lag behind its write-ahead log."""
    session_ms: int = 1000
    """How long one of many brokers may send no heartbeat before it counts as dead."""
    pack_interval_ms: int = 10_000
    """Pack when something has waited for so long …"""
    pack_min_bytes: int = 16 * 1024 * 1024
    """… or as soon as this much waits and producers are quiet …"""
    pack_backlog_bytes: int = 512 * 1024 * 1024
    """… or this much, though they are not."""
    segment_bytes: int = 64 * 1024 * 1024
    """How large a segment may become."""
    parquet_after_ms: int = 6 * 60 * 60 * 1000
    """The age at which a small segment is written as Parquet, if its topic asks for it; one of more
    than half of `segment_bytes` is written at once."""
    retention_interval_ms: int = 10_000
    """The interval of retention, compaction and sweeping."""
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    retention_bytes: int = -1
    """The bound of each partition."""
    transactional_id_expiry_ms: int = 7 * 24 * 60 * 60 * 1000
    """How long a transactional id may be unused before it is deleted."""
    delete_grace_ms: int = 60_000
    backup_interval_ms: int = 60_000
    """The interval of catalog backups; creating or deleting a topic makes one at once."""
    tables: tuple[tuple[str, str], ...] = ()
    """The properties of the Iceberg catalog in which topics are tables; none: no topic can be."""
    schema_registry: str = ""
    """The URL of the schema registry that tables are read by, where a topic says so."""
    schema_registry_login: str = field(default="", repr=False)
    """`user:password`."""
    background: bool = True
    """Whether the jobs run by themselves; tests and simulations turn this off and call them."""


DEFAULT_LISTENER = Address("127.0.0.1", 9092)
DEFAULT_CONTROL_LISTENER = Address("127.0.0.1", 9644)


@dataclass(frozen=True)
class BrokerConfig:
    """One broker's settings. Times are milliseconds, sizes bytes; -1 means without limit.

    A field's key in files is its name with dots for underscores.

    `catchwater.catalog` makes it one of several: a PostgreSQL URL, empty for a broker alone with
    SQLite in `log.dirs`. `catchwater.objects` is a store's URL, empty for a folder in `log.dirs`;
    `catchwater.wal` a kind, by default `file` alone and `object` among several.
    `catchwater.replay.quota.overrides` is a list as `replay_quotas` reads it,
    `catchwater.group.max.staleness` as `group_promises` does.

    `super.users` may do everything; with it there are users and rules, which the catalog has and
    `catchwater.access.file`. Without it everybody may do everything.
    `catchwater.audit.dir` is where its audit trail lies, by default in `log.dirs` if there are
    rules; `catchwater.insecure` lets the ports be reached from other machines without TLS.
    `catchwater.control.hosts` are further names by which clients may call the control API.
    """

    listeners: str = f"PLAINTEXT://{DEFAULT_LISTENER}"
    advertised_listeners: str = ""
    listener_security_protocol_map: str = ""
    controller_listener_names: str = ""
    listener_name: tuple[tuple[str, str], ...] = ()
    """The settings of single listeners, by their whole keys."""
    node_id: int = 1
    log_dirs: Path = Path("catchwater-data")
    num_partitions: int = 1
    auto_create_topics_enable: bool = True
    log_retention_ms: int = LogConfig.retention_ms
    log_retention_bytes: int = LogConfig.retention_bytes
    message_max_bytes: int = 1_048_588
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1_000
    socket_request_max_bytes: int = 104_857_600
    max_connections: int = 4_096
    max_connections_per_ip: int = 2_048
    max_connection_creation_rate: int = 1_000
    catchwater_max_connection_creation_rate_per_ip: int = 200
    catchwater_max_handshake_rate: int = DEFAULT_HANDSHAKE_RATE
    catchwater_max_control_connections: int = 512
    queued_max_request_bytes: int = 50_331_648
    connections_max_idle_ms: int = 600_000
    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 10_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 10_000
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    transactional_id_expiration_ms: int = LogConfig.transactional_id_expiry_ms
    catchwater_control_listener: Address = DEFAULT_CONTROL_LISTENER
    catchwater_wal_segment_bytes: int = LogConfig.wal_segment_bytes
    catchwater_pack_interval_ms: int = LogConfig.pack_interval_ms
    catchwater_pack_min_bytes: int = LogConfig.pack_min_bytes
    catchwater_pack_backlog_bytes: int = LogConfig.pack_backlog_bytes
    catchwater_segment_bytes: int = LogConfig.segment_bytes
    catchwater_history_parquet_after_ms: int = LogConfig.parquet_after_ms
    catchwater_retention_interval_ms: int = LogConfig.retention_interval_ms
    catchwater_delete_grace_ms: int = LogConfig.delete_grace_ms
    catchwater_reserve_bytes: int = LogConfig.reserve_bytes
    catchwater_cache_bytes: int = LogConfig.cache_bytes
    catchwater_ready_file: Path | None = None
    broker_rack: str = ""
    catchwater_catalog: str = ""
    catchwater_objects: str = ""
    catchwater_wal: str = ""
    catchwater_wal_dir: Path | None = None
    catchwater_wal_linger_ms: int = 150
    catchwater_session_timeout_ms: int = LogConfig.session_ms
    catchwater_lagging_quota_bytes_per_second: int = 256 * 1024 * 1024
    catchwater_replay_quota_bytes_per_second: int = -1
    catchwater_replay_quota_overrides: str = ""
    catchwater_metrics_max_lags: int = 20_000
    catchwater_metrics_max_groups: int = 1_000
    catchwater_group_max_staleness: str = ""
    catchwater_traces_every: int = 0
    catchwater_control_protocol: str = "http"
    """Of `catchwater.control.listener`, in the same way."""
    catchwater_control_ssl_client_auth: str = "none"
    """Whether callers of the control API show certificates: none, requested, required."""
    catchwater_control_hosts: str = ""
    catchwater_drills_dir: Path | None = None
    """Where `catchwater drill` keeps its results, to be shown on the page."""
    catchwater_insecure: bool = False
    catchwater_access_file: Path | None = None
    catchwater_location: str = ""
    """Where the log lies, in the words of `catchwater.residency` of its topics."""
    catchwater_tables_warehouse: str = ""
    """Where topics' tables lie; empty: beside the objects."""
    catchwater_tables_catalog: tuple[tuple[str, str], ...] = ()
    """Properties of a pyiceberg catalog, by their keys; none: in the log's own database."""
    catchwater_schema_registry_url: str = ""
    """Asked for schemas by topics whose values are held against them."""
    catchwater_schema_registry_user: str = ""
    catchwater_schema_registry_password: str = ""
    catchwater_encryption_keys: str = ""
    """The keys that seal objects, see `objects.keys`; empty: they are not sealed."""
    catchwater_encryption_local: str = ""
    """`disk`: what lies beside the objects is on an encrypted disk."""
    catchwater_secret_folders: str = ""
    """Further folders in which references may name files, separated by commas."""
    catchwater_audit_dir: Path | None = None
    catchwater_audit_retention_ms: int = 365 * 24 * 60 * 60 * 1000
    super_users: str = ""
    sasl_enabled_mechanisms: str = "SCRAM-SHA-512,SCRAM-SHA-256"
    ssl_keystore_location: Path | None = None
    ssl_keystore_type: str = "PEM"
    ssl_truststore_location: Path | None = None
    ssl_truststore_type: str = "PEM"
    ssl_client_auth: str = "none"
    ssl_principal_mapping_rules: str = "DEFAULT"
    connections_max_reauth_ms: int = 0
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_oauthbearer_sub_claim_name: str = "sub"
    catchwater_oauth_algorithms: str = "RS256,ES256"
    catchwater_oauth_ca_location: Path | None = None

    @cached_property
    def kafka_listeners(self) -> tuple[Listener, ...]:
        """Where Kafka's clients connect, one at least. Raises `ConfigError`."""
        texts = {f.name.replace("_", "."): getattr(self, f.name) for f in fields(self)}
        shown = {key: str(value) for key, value in texts.items() if value not in (None, ())}
        try:
            return listeners(shown | dict(self.listener_name))
        except ListenerRefused as refused:
            raise ConfigError(str(refused), hint=refused.hint or None) from refused

    @property
    def super_user_names(self) -> list[str]:
        """As principals: `User:alice`."""
        return [each.strip() for each in self.super_users.split(";") if each.strip()]

    @property
    def takes_tokens(self) -> bool:
        """Whether clients may log in by tokens of an OAuth 2 provider."""
        asking = any("OAUTHBEARER" in listener.mechanisms for listener in self.kafka_listeners)
        return asking or bool(self.sasl_oauthbearer_jwks_endpoint_url)

    @property
    def is_guarded(self) -> bool:
        """Whether there are users and rules, and not everybody may do everything."""
        return bool(self.super_user_names or self.catchwater_access_file)

    @property
    def audit_folder(self) -> Path | None:
        """Where the audit trail lies: there is one where there are rules, or where it is named."""
        if self.catchwater_audit_dir is None and not self.is_guarded:
            return None
        return self.catchwater_audit_dir or self.log_dirs / "audit"

    @property
    def schema_registry_login(self) -> str:
        """`user:password` at the schema registry; empty: it asks for none."""
        user = self.catchwater_schema_registry_user
        return f"{user}:{self.catchwater_schema_registry_password}" if user else ""

    @property
    def is_shared(self) -> bool:
        """Whether there may be several brokers: the catalog is a server that all can reach."""
        return bool(self.catchwater_catalog)


_LEAST = {
    "log.retention.ms": -1,
    "log.retention.bytes": -1,
    "num.partitions": 1,
    "message.max.bytes": 1,
    "fetch.max.bytes": 1024,
    "socket.request.max.bytes": 1024,
    "max.connections": 1,
    "max.connections.per.ip": 1,
    "max.connection.creation.rate": 1,
    "catchwater.max.connection.creation.rate.per.ip": 1,
    "catchwater.max.handshake.rate": 1,
    "catchwater.max.control.connections": 1,
    "queued.max.request.bytes": 1_048_576,
    "connections.max.idle.ms": 1,
    "group.max.size": 1,
    "group.consumer.session.timeout.ms": 2,
    "group.consumer.heartbeat.interval.ms": 1,
    "group.consumer.max.size": 1,
    "offsets.retention.minutes": 1,
    "offsets.retention.check.interval.ms": 1,
    "transactional.id.expiration.ms": 1,
    "catchwater.wal.segment.bytes": 4096,
    "catchwater.pack.interval.ms": 1,
    "catchwater.segment.bytes": 1_048_576,
    "catchwater.retention.interval.ms": 1,
    "catchwater.session.timeout.ms": 100,
    "catchwater.replay.quota.bytes.per.second": -1,
    "catchwater.metrics.max.lags": 0,
    "catchwater.metrics.max.groups": 0,
    "catchwater.lagging.quota.bytes.per.second": -1,
    "catchwater.audit.retention.ms": 60_000,
}
"""The smallest value of each key; 0 if it is not listed."""

_FIELDS = {f.name.replace("_", "."): f for f in fields(BrokerConfig)}


def load_broker_config(
    path: Path | None, environment: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> BrokerConfig:
    """The settings of a file, then the environment's, then `overrides` (the command line's).

    Raises `ConfigError` for a file that cannot be read, an unknown or repeated key, a value of
    the wrong type or out of range, settings that cannot go together, and settings of Apache Kafka
    whose users would get something else; what means nothing here is named in one warning.
    """
    values: dict[str, Any] = {}
    settings = [*(_read_file(path) if path else ()), *_environment(environment)]
    settings += [Setting(k, v, "the command line") for k, v in (overrides or {}).items()]
    settings = _resolved(settings, path, environment, overrides or {})
    found = understood(settings, _FIELDS)
    unknown = [
        setting
        for setting in found.settings
        if setting.key not in _FIELDS and not setting.key.startswith((PREFIX, TABLES))
    ]
    if found.refusals:
        raise _refused([*found.refusals, *(str(_unknown_key(setting)) for setting in unknown)])
    if unknown:
        raise _unknown_key(*unknown)
    values["listener_name"] = tuple(
        (setting.key, str(setting.value))
        for setting in found.settings
        if setting.key.startswith(PREFIX)
    )
    values["catchwater_tables_catalog"] = tuple(
        (setting.key.removeprefix(TABLES), str(setting.value))
        for setting in found.settings
        if setting.key.startswith(TABLES)
    )
    for setting in found.settings:
        if setting.key.startswith((PREFIX, TABLES)):
            continue
        target = _FIELDS[setting.key]
        values[target.name] = _convert(setting, target.type)
        if setting.key in _PROTOCOLS and "://" in str(setting.value):
            values[_PROTOCOLS[setting.key]] = str(setting.value).partition("://")[0]
    if found.left_out:
        _LOG.warning(
            "These settings of Apache Kafka have no meaning here: %s.", ", ".join(found.left_out)
        )
    config = BrokerConfig(**values)
    _check_listeners(config, found.settings)
    _check_security(config)
    if "://:" in config.listeners and any(
        listener.address.host == "127.0.0.1" for listener in config.kafka_listeners
    ):
        _LOG.warning(
            "listeners names no host and is not encrypted: only this machine can connect. Use "
            "SASL_SSL://, or let only trusted machines reach it and set catchwater.insecure=true."
        )
    _check_stores(config)
    _check_encryption(config)
    _check_quotas(config)
    group_promises(config.catchwater_group_max_staleness)
    _check_groups(config)
    return config


def _check_listeners(config: BrokerConfig, settings: Iterable[Setting]) -> None:
    """Refuse listeners that cannot be had, with the place of the setting."""
    try:
        _ = config.kafka_listeners
    except ConfigError as error:
        key = getattr(error.__cause__, "key", "")
        where = [setting.where for setting in settings if setting.key == key]
        if not where:
            raise
        raise ConfigError(f"{where[-1]}: {error}", hint=error.hint) from None


SECRET_FOLDERS = "catchwater.secret.folders"
_SECRET_FOLDERS = (Path("/run/secrets"), Path("/var/run/secrets"), Path("/etc/catchwater"))
"""Where references may name files, beside the configuration's own folder."""


def _resolved(
    settings: list[Setting],
    path: Path | None,
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
) -> list[Setting]:
    """The settings with what they refer to; refuses secrets where others may see them."""
    for key, value in overrides.items():
        if is_secret(key, value):
            raise ConfigError(
                f"{key} holds a secret, and everybody on this machine sees a command line.",
                hint=f"Write it into a file for nobody else to read, or set "
                f"{ENVIRONMENT_PREFIX}{key.upper().replace('.', '_')}.",
            )
    named = ",".join(str(each.value) for each in settings if each.key == SECRET_FOLDERS)
    here = path.parent if path is not None else Path()
    more = [here / each.strip() for each in named.split(",") if each.strip()]
    folders = [here, *_SECRET_FOLDERS, *more]
    return [_with_secret(each, path, environment, folders) for each in settings]


def _with_secret(
    setting: Setting, path: Path | None, environment: Mapping[str, str], folders: Sequence[Path]
) -> Setting:
    value = setting.value
    try:
        if isinstance(value, str) and has_reference(value):
            found = resolve(value, environment, folders[0], folders)
            return setting._replace(value=found)
        if path is not None and is_secret(setting.key, value) and str(path) in setting.where:
            refuse_readable(path)
    except BadReference as error:
        raise ConfigError(f"{setting.where}: {setting.key}: {error}", hint=error.hint) from None
    return setting


def masked(key: str, value: Any) -> Any:
    """The value as it may be shown."""
    return SHOWN if is_secret(key, value) else value


def replay_quotas(overrides: str) -> dict[str, int]:
    """Bytes per second by account; -1 means no limit. Raises `ConfigError`.

    From `User:alice=50000000, client-id:nightly=-1`; an account's name may contain `=`.
    """
    quotas = {}
    for entry in filter(None, (each.strip() for each in overrides.split(","))):
        account, _, rate = entry.rpartition("=")
        if not re.match(r"(User|client-id):.", account) or not re.fullmatch(r"-1|\d{1,18}", rate):
            raise ConfigError(
                f"catchwater.replay.quota.overrides holds {entry!r}, which is not of the form "
                "User:name=bytes or client-id:name=bytes.",
                hint="Bytes are a whole number for a second, or -1 for no limit; entries are "
                "separated by commas.",
            )
        quotas[account] = int(rate)
    return quotas


def group_promises(text: str) -> dict[str, float]:
    """Group → how old the oldest record may be that it has not read, seconds; `*` is all others.

    From `billing=30s, *=1h`. Raises `ConfigError`.
    """
    promises = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        group, _, duration = entry.rpartition("=")
        try:
            if not group:
                raise ValueError("it names no group")
            promises[group] = duration_ms(duration) / 1000
        except ValueError as problem:
            raise ConfigError(
                f"catchwater.group.max.staleness holds {entry!r}: {problem}.",
                hint="It is a list such as billing=30s, reports=1h, *=1d.",
            ) from None
    return promises


def _check_quotas(config: BrokerConfig) -> None:
    """Refuse a rate of 0, at which nothing could be read."""
    if config.catchwater_lagging_quota_bytes_per_second == 0:
        raise ConfigError(
            "catchwater.lagging.quota.bytes.per.second is 0: who lags behind could read nothing.",
            hint="Set it to -1 for no limit, or to what may be read in a second.",
        )
    named = {"everybody": config.catchwater_replay_quota_bytes_per_second}
    for account, rate in (named | replay_quotas(config.catchwater_replay_quota_overrides)).items():
        if rate == 0:
            raise ConfigError(
                f"The replay quota of {account} is 0 bytes per second: nothing could be read.",
                hint="Set it to -1 for no limit, or to what may be read in a second.",
            )


def _check_groups(config: BrokerConfig) -> None:
    """Refuse a session timeout that ends between two heartbeats."""
    session_ms = config.group_consumer_session_timeout_ms
    interval_ms = config.group_consumer_heartbeat_interval_ms
    if interval_ms >= session_ms:
        raise ConfigError(
            f"group.consumer.heartbeat.interval.ms is {interval_ms}, not less than "
            f"group.consumer.session.timeout.ms, {session_ms}.",
            hint="Let a session last for several heartbeats; Kafka's defaults are 5000 and 45000.",
        )


_PROTOCOLS = {"catchwater.control.listener": "catchwater_control_protocol"}


def _check_security(config: BrokerConfig) -> None:
    """Refuse what would let everybody in, or nobody."""
    address, protocol = config.catchwater_control_listener, config.catchwater_control_protocol
    if protocol not in ("http", "https"):
        raise ConfigError(
            f"There is no control API of {protocol}.", hint="It may use http or https."
        )
    is_encrypted = protocol == "https"
    if not (is_encrypted or config.catchwater_insecure or is_loopback(address.host)):
        raise ConfigError(
            f"catchwater.control.listener={address} can be reached from other machines, and is not "
            "encrypted.",
            hint="Use https://, or let only trusted machines reach it and say so: "
            "catchwater.insecure=true, or broker run --insecure.",
        )
    if is_encrypted and config.ssl_keystore_location is None:
        raise ConfigError(
            "catchwater.control.listener is to be encrypted, but there is no certificate.",
            hint="Set ssl.keystore.location to a PEM file with the private key and the chain.",
        )
    client_auth = config.catchwater_control_ssl_client_auth
    if client_auth not in CLIENT_AUTH:
        raise ConfigError(
            f"catchwater.control.ssl.client.auth cannot be {client_auth!r}.",
            hint=f"It is one of {', '.join(CLIENT_AUTH)}.",
        )
    if client_auth != "none" and not (is_encrypted and config.ssl_truststore_location):
        raise ConfigError(
            "Callers of the control API are to show certificates, but nobody is said to sign them.",
            hint="Set ssl.truststore.location to a PEM file with the authorities, and use https://.",
        )
    _check_access(config)


def _check_access(config: BrokerConfig) -> None:
    asking = [
        each for each in config.kafka_listeners if each.mechanisms or each.asks_for_certificates
    ]
    if config.is_guarded:
        if not config.super_user_names or not all(
            re.fullmatch(r"User:.+", each) for each in config.super_user_names
        ):
            raise ConfigError(
                "There are to be users and rules, but super.users names nobody: nobody could do "
                "anything.",
                hint="Set super.users=User:admin; several are separated by semicolons.",
            )
    elif asking or config.catchwater_control_ssl_client_auth != "none":
        where = f"the listener {asking[0].name}" if asking else "the control API"
        raise ConfigError(
            f"At {where} clients say who they are, but there are no users and no rules.",
            hint="Set super.users=User:admin, and catchwater.access.file; "
            "catchwater access user admin --file FILE makes the first user.",
        )


def _check_encryption(config: BrokerConfig) -> None:
    """Refuse to encrypt the objects and leave beside them what they are made of."""
    local = config.catchwater_encryption_local
    if local not in ("", "disk"):
        raise ConfigError(
            f"catchwater.encryption.local is {local!r}, which says nothing.",
            hint="Write disk where the machine's disks are encrypted, or leave it out.",
        )
    is_plain = config.catchwater_wal == "postgres" and local != "disk"
    if config.catchwater_encryption_keys and is_plain:
        raise ConfigError(
            "catchwater.encryption.keys encrypts objects and files, and the write-ahead log "
            "(postgres) would lie beside them unencrypted.",
            hint="Use catchwater.wal=object or file, or an encrypted disk below the database, and "
            "say so: catchwater.encryption.local=disk.",
        )


WAL_KINDS = ("file", "object", "postgres")


def _check_stores(config: BrokerConfig) -> None:
    """Refuse settings that several brokers cannot share, or that a lone broker cannot use."""
    wal = config.catchwater_wal
    if config.catchwater_catalog and not re.match(r"postgres(ql)?://", config.catchwater_catalog):
        raise ConfigError(
            # The value may hold a password.
            "catchwater.catalog must be the URL of a PostgreSQL database.",
            hint="Write postgresql://user@host/database, or leave it out for a broker alone.",
        )
    if wal not in ("", *WAL_KINDS):
        raise ConfigError(
            f"catchwater.wal must be one of {', '.join(WAL_KINDS)}, not {wal!r}.",
            hint=f"The nearest is {nearest(wal, WAL_KINDS)}.",
        )
    if config.is_shared:
        _check_shared(config, wal)
    elif wal not in ("", "file"):
        raise ConfigError(
            f"catchwater.wal={wal} is for several brokers, but catchwater.catalog is not set.",
            hint="Set catchwater.catalog=postgresql://user@host/database, or leave it at file.",
        )
    elif config.catchwater_wal_dir is not None:
        raise ConfigError(
            "catchwater.wal.dir is for several brokers, but catchwater.catalog is not set.",
            hint="A broker alone keeps its write-ahead log in log.dirs.",
        )


def _check_shared(config: BrokerConfig, wal: str) -> None:
    # Other kinds may name a directory, too: what was written there before is still read.
    if not config.catchwater_objects:
        raise ConfigError(
            "catchwater.catalog is set, but catchwater.objects is not: brokers that share a "
            "catalog share an object store.",
            hint="Set catchwater.objects=s3://bucket/prefix, or file:///directory that all see.",
        )
    if wal == "file" and config.catchwater_wal_dir is None:
        raise ConfigError(
            "catchwater.wal=file with catchwater.catalog needs catchwater.wal.dir: the other "
            "brokers could not read a write-ahead log in log.dirs.",
            hint="Name a directory that all brokers see, or use the WAL kind object or postgres.",
        )


def _read_file(path: Path) -> list[Setting]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            f"The configuration file {path} cannot be read: {problem}.",
            hint="Name an existing UTF-8 text file.",
        ) from problem
    if path.suffix == ".toml":
        return list(_toml_settings(path, text))
    return list(_properties_settings(path, text))


def _properties_settings(path: Path, text: str) -> Iterator[Setting]:
    """Java's properties syntax as far as Kafka's files use it: `key=value`, `#` and `!` remarks."""
    lines_of: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = (part.strip() for part in stripped.partition("="))
        if not separator or not key:
            raise ConfigError(
                f"{path}, line {number}: expected key=value, found a line of another form.",
                hint="Write one key=value a line; remarks begin with #.",
            )
        if key in lines_of:
            raise ConfigError(
                f"{path}, line {number}: {key} was already set in line {lines_of[key]}.",
                hint="Keep one of the two lines.",
            )
        lines_of[key] = number
        yield Setting(key, value, f"{path}, line {number}")


def _toml_settings(path: Path, text: str) -> Iterator[Setting]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path}: not valid TOML: {problem}.") from problem
    for key, value in flatten(document):
        yield Setting(key, value, f"{path}, line {toml_line(text, key)}")


def _environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            yield Setting(key, value, f"the environment variable {name}")


def _unknown_key(*settings: Setting) -> ConfigError:
    unknown = [f"{setting.where}: there is no setting {setting.key}." for setting in settings]
    near = ", ".join(nearest(setting.key, _FIELDS) for setting in settings)
    return ConfigError(
        "\n".join(unknown), hint=f"The nearest {'is' if len(settings) == 1 else 'are'} {near}."
    )


def _refused(reasons: Sequence[str]) -> ConfigError:
    return ConfigError(
        "\n".join(reasons),
        hint="Take these lines out, or change them to what they are here; see docs/operations.md.",
    )


def _convert(setting: Setting, wanted: Any) -> Any:
    """The setting's value in the field's type."""
    try:
        if wanted is bool:
            return _boolean(setting.value)
        if wanted is int:
            return _integer(setting.value, _LEAST.get(setting.key, 0))
        if not isinstance(setting.value, str) or not (setting.value or wanted is str):
            raise ValueError("a text")
        if wanted is str:
            return setting.value
        if wanted in (Path, Path | None):
            return Path(setting.value)
        return Address.of(setting.value)
    except ValueError as expected:
        raise ConfigError(
            f"{setting.where}: {setting.key} must be {expected}, not "
            f"{masked(setting.key, setting.value)!r}."
        ) from None


def _boolean(value: Any) -> bool:
    match value:
        case bool():
            return value
        case str() if value.lower() in ("true", "false"):
            return value.lower() == "true"
    raise ValueError("true or false")


def _integer(value: Any, least: int) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", text) or int(text) < least:
        raise ValueError(f"a whole number of at least {least}")
    return int(text)
