"""How far away a host is: this machine, its network, or anywhere."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple


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


HERE, LINK, PRIVATE, ANYWHERE = range(4)
"""This machine, link-local, addresses that are not routed, and all others."""


def nearest(host: str | None) -> int:
    """How far away the nearest address of this name is."""
    return min(_distances(host))


def farthest(host: str | None) -> int:
    """How far away the farthest address of this name is."""
    return max(_distances(host))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what listens at this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _distances(host: str | None) -> list[int]:
    """Of every address; a name that is not known is far away. Asks the resolver."""
    if not host:
        return [HERE]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [ANYWHERE]  # connecting will say so, or a proxy knows it
    return [_how_far(ip_address(str(at[0]).partition("%")[0])) for *_, at in found]


def _how_far(address: IPv4Address | IPv6Address) -> int:
    plain = getattr(address, "ipv4_mapped", None) or address
    if plain.is_loopback or plain.is_unspecified or _is_ours(plain):
        return HERE
    if plain.is_link_local:
        return LINK
    return ANYWHERE if plain.is_global else PRIVATE


def _is_ours(address: IPv4Address | IPv6Address) -> bool:
    """Whether this machine has the address: only then can it be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
