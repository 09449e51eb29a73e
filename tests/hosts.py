"""Hosts of a network on one machine: network namespaces around a bridge, which can be cut off.

Needs root and iproute2 (`ip netns`). All hosts see this machine's disks, but for folders of which
a command has its own (`Host.apart`); this process itself is at the network's first address, and
others of its own can be added for servers.
"""

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_NOBODY = "02:00:00:00:00:01"
"""A network card that no host has."""


class NoNetwork(Exception):
    """This process may not make network namespaces."""


@dataclass
class Host:
    """One host; `prefix` runs a command there."""

    name: str
    link: str
    """Its end of the cable in the bridge."""
    address: str = ""

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def apart(self, *folders: Path) -> tuple[str, ...]:
        """Runs a command there under the host's own name and with disks of its own.

        What it has in these folders no other host sees, and it sees nothing of theirs.
        """
        mounts = "".join(f'mount -t tmpfs tmpfs "{folder}" && ' for folder in folders)
        # Java looks its own host's name up.
        named = (
            f"hosts=$(mktemp) && printf '127.0.0.1 localhost\\n{self.address} {self.name}\\n' "
            f'> "$hosts" && mount --bind "$hosts" /etc/hosts && rm "$hosts"'
        )
        own = f'hostname {self.name} && {named} && {mounts}exec "$@"'
        return (*self.prefix, "unshare", "--uts", "--mount", "sh", "-c", own, "sh")

    def kill(self) -> None:
        """Turn it off: all of its processes."""
        for pid in _ip("netns", "pids", self.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def cut_off(self) -> None:
        """Pull the cable."""
        _ip("link", "set", self.link, "down")

    def connect(self) -> None:
        """Put it back."""
        _ip("link", "set", self.link, "up")

    def lose(self, address: str) -> None:
        """Drop what is sent to this address, without a word to the sender."""
        at = (address, "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0")
        _ip("-n", self.name, "neigh", "replace", *at)

    def find(self, address: str) -> None:
        """Reach it again."""
        _ip("-n", self.name, "neigh", "del", address, "dev", "eth0")


class Network:
    """Some hosts. Raises `NoNetwork`."""

    def __init__(self) -> None:
        number = os.getpid()
        self._bridge = f"cwb{number}"
        self._prefix = f"10.{200 + number % 50}.{number // 50 % 250}"
        self._names = f"cw{number}"
        self.hosts: dict[str, Host] = {}
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        self.here = self.address(1)
        """This process's own address."""

    def address(self, number: int) -> str:
        """An address of this process's, for a server to listen at."""
        address = f"{self._prefix}.{number}"
        _ip("address", "add", f"{address}/24", "dev", self._bridge)
        return address

    def host(self, name: str) -> Host:
        """A host of this name, of a letter or two."""
        number = 100 + len(self.hosts)
        space, link = f"{self._names}-{name}", f"{self._names}{name}"
        _ip("netns", "add", space)
        host = self.hosts[name] = Host(space, link, f"{self._prefix}.{number}")
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", link, "master", self._bridge, "up")
        _ip("-n", space, "address", "add", f"{self._prefix}.{number}/24", "dev", "eth0")
        for each in ("lo", "eth0"):
            _ip("-n", space, "link", "set", each, "up")
        return host

    def close(self) -> None:
        """Take all of it away; nothing may run there any more."""
        for host in self.hosts.values():
            subprocess.run(["ip", "netns", "del", host.name], check=False)
        subprocess.run(["ip", "link", "del", self._bridge], check=False)


def _ip(*arguments: str) -> str:
    try:
        command = ["ip", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise NoNetwork("iproute2 is not installed") from error
    except subprocess.CalledProcessError as error:
        raise NoNetwork(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from error
