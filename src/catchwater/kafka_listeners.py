"""The Kafka listeners of a broker, by Kafka's settings: their names, addresses and security.

A setting of one listener stands under `listener.name.NAME.…` (NAME in small letters) and wins over
the one for all. Controllers' listeners are left out. Pure; `ListenerRefused` says what cannot be.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CLIENT_AUTH = ("none", "requested", "required")
PREFIX = "listener.name."
DEFAULT_HANDSHAKE_RATE = 300
OF_A_LISTENER = (
    "sasl.enabled.mechanisms", "ssl.keystore.location", "ssl.keystore.type",
    "ssl.truststore.location", "ssl.truststore.type", "ssl.client.auth",
    "ssl.principal.mapping.rules", "max.connections", "connections.max.reauth.ms",
    "catchwater.max.handshake.rate",
)  # fmt: skip
"""Each listener may have its own."""
_MODULES = {
    "scram-sha-256": "scram.ScramLoginModule",
    "scram-sha-512": "scram.ScramLoginModule",
    "oauthbearer": "oauthbearer.OAuthBearerLoginModule",
}


class Address(NamedTuple):
    """A host and a TCP port; port 0 asks the operating system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> "Address":
        """From `host:port` or Kafka's `SASL_SSL://host:port`; an IPv6 host is in brackets.

        Raises ValueError with what it should be.
        """
        match = re.fullmatch(r"(?:\w+://)?(\[[0-9a-fA-F:]+\]|[^:/\[\],]+):(\d{1,5})", text)
        if match is None or int(match[2]) > 65_535:
            raise ValueError("one address like PLAINTEXT://127.0.0.1:9092")
        return cls(match[1].strip("[]"), int(match[2]))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what listens at this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ListenerRefused(ValueError):
    """A listener that cannot be had, and what to do."""

    def __init__(self, message: str, hint: str = "", key: str = "listeners") -> None:
        super().__init__(message)
        self.hint = hint
        self.key = key
        """The setting that is wrong."""


@dataclass(frozen=True)
class Listener:
    """One address where Kafka's clients connect."""

    name: str
    protocol: str
    address: Address
    advertised: Address | None = None
    """Where clients are told to connect; None: where it listens."""
    mechanisms: tuple[str, ...] = ()
    """By which clients have to log in; none: they do not."""
    keystore: Path | None = None
    truststore: Path | None = None
    client_auth: str = "none"
    principal_rules: str = "DEFAULT"
    max_connections: int | None = None
    reauth_ms: int = 0
    """After so long a login has to be repeated; 0: never."""
    max_handshake_rate: int = DEFAULT_HANDSHAKE_RATE
    """TLS handshakes a second."""

    @property
    def is_encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def asks_for_certificates(self) -> bool:
        """Of clients."""
        return self.client_auth != "none"


def listeners(texts: Mapping[str, str]) -> tuple[Listener, ...]:
    """The listeners, one at least, of settings by Kafka's keys. Raises `ListenerRefused`."""
    controllers = set(_split(texts.get("controller.listener.names", "")))
    protocols = dict.fromkeys(PROTOCOLS, "") | {name: name for name in PROTOCOLS}
    for pair in _split(texts.get("listener.security.protocol.map", "")):
        name, _, protocol = pair.partition(":")
        protocols[name.strip()] = protocol.strip()
    is_insecure = texts.get("catchwater.insecure", "").lower() == "true"
    named = [each for each in _named(texts["listeners"]) if each[0] not in controllers]
    advertised = dict(_named(texts.get("advertised.listeners", "")))
    if not named:
        raise ListenerRefused("listeners names nowhere where clients can connect.")
    found = []
    for name, place in named:
        protocol = protocols.get(name, "")
        if protocol not in PROTOCOLS:
            raise ListenerRefused(
                f"There is no listener of {protocol or name}.",
                f"Clients may use {', '.join(PROTOCOLS)}; a listener of another name stands in "
                "listener.security.protocol.map.",
            )
        found.append(_listener(name, protocol, place, advertised, is_insecure, texts))
    _check_names(found, [name for name in advertised if name not in controllers])
    _check_own(texts, {each.name for each in found}, controllers)
    return tuple(found)


def _listener(
    name: str, protocol: str, place: str, advertised: Mapping[str, str], is_insecure: bool,
    texts: Mapping[str, str],
) -> Listener:  # fmt: skip
    def own(key: str, default: str = "") -> str:
        mine = texts.get(f"{PREFIX}{name.lower()}.{key}")
        return (mine if mine is not None else texts.get(key, default)).strip()

    is_encrypted = protocol.endswith("SSL")
    if place.startswith(":"):  # as Kafka's own file has it
        place = f"{'0.0.0.0' if is_encrypted or is_insecure else '127.0.0.1'}{place}"
    address = _address(place)
    shown = advertised.get(name)
    mechanisms = tuple(_split(own("sasl.enabled.mechanisms")))
    wrong = [each for each in mechanisms if each not in MECHANISMS]
    if wrong or not mechanisms:
        raise ListenerRefused(
            f"sasl.enabled.mechanisms cannot have {', '.join(wrong) or 'nothing'}.",
            f"Choose of {', '.join(MECHANISMS)}.",
            "sasl.enabled.mechanisms",
        )
    # Of a listener with logins only its own setting counts, as in Kafka (KIP-684).
    is_own = f"{PREFIX}{name.lower()}.ssl.client.auth" in texts
    client_auth = own("ssl.client.auth", "none") if protocol == "SSL" or is_own else "none"
    listener = Listener(
        name,
        protocol,
        address,
        None if shown is None else _address(shown, "advertised.listeners"),
        mechanisms if protocol.startswith("SASL_") else (),
        _path(own("ssl.keystore.location")) if is_encrypted else None,
        _path(own("ssl.truststore.location")) if is_encrypted else None,
        client_auth.lower() or "none",
        own("ssl.principal.mapping.rules") or "DEFAULT",
        _number(own("max.connections"), f"{name}'s max.connections")
        if f"{PREFIX}{name.lower()}.max.connections" in texts
        else None,
        _number(own("connections.max.reauth.ms", "0"), "connections.max.reauth.ms"),
        _number(
            own("catchwater.max.handshake.rate", str(DEFAULT_HANDSHAKE_RATE)),
            "catchwater.max.handshake.rate",
        ),
    )
    for kind in ("ssl.keystore.type", "ssl.truststore.type"):
        if own(kind, "PEM").upper() != "PEM":
            raise ListenerRefused(f"{kind} must be PEM.", "openssl pkcs12 -nodes converts.")
    _check(listener, is_insecure)
    return listener


def _check(listener: Listener, is_insecure: bool) -> None:
    """Refuse what would let everybody in, or nobody."""
    where = f"listeners={listener.protocol}://{listener.address}"
    if not (listener.is_encrypted or is_insecure or is_loopback(listener.address.host)):
        raise ListenerRefused(
            f"{where} can be reached from other machines, and is not encrypted.",
            "Use SASL_SSL:// or https://, or let only trusted machines reach it and say so: "
            "catchwater.insecure=true, or broker run --insecure.",
        )
    if listener.is_encrypted and listener.keystore is None:
        raise ListenerRefused(
            f"{where}: listeners is to be encrypted, but there is no certificate.",
            "Set ssl.keystore.location to a PEM file with the private key and the chain.",
        )
    if listener.max_handshake_rate < 1:
        raise ListenerRefused(
            f"{where}: catchwater.max.handshake.rate is 0, so that nobody could connect.",
            "It is a number of TLS handshakes a second.",
        )
    if listener.client_auth not in CLIENT_AUTH:
        raise ListenerRefused(
            f"ssl.client.auth cannot be {listener.client_auth!r}.",
            f"It is one of {', '.join(CLIENT_AUTH)}.",
        )
    if listener.asks_for_certificates and not (listener.is_encrypted and listener.truststore):
        raise ListenerRefused(
            f"{where}: clients are to show certificates, but nobody is said to sign them.",
            "Set ssl.truststore.location to a PEM file with the authorities, and use SSL:// or "
            "SASL_SSL://.",
        )


def _check_names(found: Sequence[Listener], advertised: Sequence[str]) -> None:
    names = [listener.name for listener in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ListenerRefused(
            f"listeners names {twice} twice.",
            "Give each a name of its own, which listener.security.protocol.map maps to a protocol.",
        )
    if unknown := next((name for name in advertised if name not in names), None):
        raise ListenerRefused(
            f"advertised.listeners names {unknown}, which is none of the listeners.",
            f"There are {', '.join(names)}.",
        )


def _check_own(texts: Mapping[str, str], names: set[str], controllers: set[str]) -> None:
    """Refuse settings of listeners that nobody would obey."""
    ours, theirs = ({name.lower() for name in each} for each in (names, controllers))
    for key, value in texts.items():
        if not key.startswith(PREFIX):
            continue
        name, _, rest = key.removeprefix(PREFIX).partition(".")
        if name in theirs or (rest in OF_A_LISTENER and name in ours):
            continue
        mechanism, _, what = rest.partition(".")
        module = _MODULES.get(mechanism)
        login = f"org.apache.kafka.common.security.{module} required ?;"
        if name in ours and what == "sasl.jaas.config" and module:
            if re.fullmatch(login, " ".join(value.split())):
                continue
            raise ListenerRefused(
                f"{key}: users do not stand in settings here.",
                "Make them with catchwater access user, or kafka-configs.",
            )
        if name not in ours:
            raise ListenerRefused(
                f"{key}: there is no listener of this name.",
                f"There are {', '.join(sorted(ours))}; the name stands in small letters.",
            )
        raise ListenerRefused(
            f"{key}: a listener has no setting {rest} of its own.",
            f"It may have {', '.join(OF_A_LISTENER)}.",
        )


def _named(text: str) -> list[tuple[str, str]]:
    """Names and places; an address alone is PLAINTEXT."""
    found = []
    for each in _split(text):
        name, separator, place = each.rpartition("://")
        found.append((name if separator else "PLAINTEXT", place))
    return found


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise ListenerRefused(f"{what} must be a whole number, not {text!r}.")
    return int(text)


def _address(text: str, key: str = "listeners") -> Address:
    try:
        return Address.of(text)
    except ValueError as error:
        raise ListenerRefused(f"{key} must be {error}, not {text!r}.", "", key) from None
