"""Which files and hosts a reader may use that a server names: in plans, or as its control API.

The server may be anybody's, and the reader can reach what the server cannot: files of its machine,
and servers of its network that ask for no password. So a server may name nothing that is nearer to
the reader than the server is: one on this machine may name files and ports of it; one in a private
network hosts of such networks, but not this machine; one on the internet neither. Where that is too
strict (a directory that brokers on other machines share with this one), `catchwater.locations`
lists the log's stores, and nothing else is read.

Names are resolved once, here. No redirect is followed.
"""

from collections.abc import Sequence
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, unquote, urlsplit

from catchwater.config import CatchwaterError, Restart
from catchwater.hosts import HERE, farthest, nearest

LOCATIONS = "catchwater.locations"
"""The option with the URLs of the stores that may be read; without it the rule above holds."""


class SentAstray(CatchwaterError):
    """A server names a place that is nearer to this machine than the server is."""

    restart = Restart.NEVER


def check_location(url: str, named_by: str, allowed: Sequence[str] = ()) -> None:
    """Raise `SentAstray` unless `url`, of an object or a store, may be used because of `named_by`.

    `allowed` are the prefixes that count alone, if there are any.
    """
    if not url:
        return
    parts = urlsplit(url)
    if allowed:
        if not any(_lies_in(url, each) for each in allowed):
            raise _astray(url, named_by, f"lies in no store that {LOCATIONS} names")
        return
    if parts.scheme == "s3":
        endpoint = dict(parse_qsl(parts.query)).get("endpoint", "")
        if not endpoint:
            return  # what the environment says, or Amazon's own
        parts = urlsplit(endpoint)
    if parts.scheme == "file":
        if farthest(urlsplit(named_by).hostname) != HERE:
            raise _astray(url, named_by, "is a file, and they are another machine")
    elif parts.scheme in ("http", "https"):
        check_host(parts.hostname, named_by)


def check_host(host: str | None, named_by: str) -> None:
    """Raise `SentAstray` if the host is nearer than that of the URL `named_by`."""
    if nearest(host) < farthest(urlsplit(named_by).hostname):
        raise _astray(str(host), named_by, "is nearer to this machine than they are")


def _astray(what: str, named_by: str, why: str) -> SentAstray:
    return SentAstray(
        f"{named_by} sends readers to {what.partition('?')[0]}, which {why}: nothing was read.",
        hint=f"If it is the log's own, name its store: {LOCATIONS}=file:///directory or "
        "https://host/bucket. Or read from the leaders: catchwater.read=kafka.",
    )


def _lies_in(url: str, store: str) -> bool:
    """Whether the object or store lies in this one; a path cannot climb out of it."""
    has, wanted = urlsplit(url), urlsplit(store)
    if (has.scheme, has.netloc) != (wanted.scheme, wanted.netloc):
        return False
    path = PurePosixPath(unquote(has.path) or "/")
    return ".." not in path.parts and path.is_relative_to(unquote(wanted.path) or "/")
