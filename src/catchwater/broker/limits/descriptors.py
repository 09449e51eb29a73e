"""How many of the process's file descriptors its connections may have; the rest is kept back.

A connection costs a descriptor as a file does, so a broker whose clients could take all of them
would have none left to write with. `RESERVE` is what its own work needs at the worst; what the
limit of open files leaves above it is shared out to the ports, which together never get more.
"""

import resource
from dataclasses import replace

from catchwater.config import BrokerConfig, CatchwaterError

MOST_PEERS = 32
"""Other brokers to which a connection is kept."""
AT_ONCE = 16
"""Connections of one port that are accepted and not yet judged."""

_STANDING = 32
"""The ports, the event loop, the log's files, the catalog, the connections to PostgreSQL."""
_THREADS, _OF_A_THREAD = 32, 3
"""asyncio's threads at their most, each with a catalog connection (two files) and a file."""

RESERVE = _STANDING + _THREADS * _OF_A_THREAD + MOST_PEERS + 2 * AT_ONCE
_LEAST_ROOM = 32
_CONTROL_SHARE = 8
"""Of what is left an eighth is the control port's."""
_ENOUGH = 2**30


class TooFewDescriptors(CatchwaterError):
    """The limit of open files leaves nothing for clients."""


def raise_limit(config: BrokerConfig) -> int:
    """Raise the soft limit of open files as far as this configuration may need; what it is then.

    The hard limit bounds it (setrlimit(2)).
    """
    soft, hard = (
        _ENOUGH if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    wanted = RESERVE + config.max_connections + config.catchwater_max_control_connections
    limit = min(wanted, hard)
    if limit <= soft:
        return soft
    _, told = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, told))
    return limit


def fitted(config: BrokerConfig, limit: int) -> BrokerConfig:
    """The configuration with its bounds on connections as low as this limit of open files asks.

    The bound on those of one address shrinks with that on all. Raises `TooFewDescriptors`.
    """
    room = limit - RESERVE
    if room < _LEAST_ROOM:
        raise TooFewDescriptors(
            f"The limit of open files is {limit}; a broker needs {RESERVE} for itself and at "
            f"least {_LEAST_ROOM} for its clients.",
            hint=f"Raise it to {RESERVE + _LEAST_ROOM} or more, better 8192: `ulimit -n`, or "
            "LimitNOFILE= of a systemd unit.",
        )
    all_wanted = config.max_connections + config.catchwater_max_control_connections
    if all_wanted <= room:
        return config
    control = min(config.catchwater_max_control_connections, room // _CONTROL_SHARE)
    kafka = min(config.max_connections, room - control)
    of_one = config.max_connections_per_ip * kafka // config.max_connections
    return replace(
        config,
        max_connections=kafka,
        max_connections_per_ip=max(1, of_one),
        catchwater_max_control_connections=control,
    )
