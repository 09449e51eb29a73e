"""The options of OAUTHBEARER, by the names of Kafka's Java client and by those of librdkafka."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from catchwater.config import ConfigError
from catchwater.wire.security.jaas import EXTENSION
from catchwater.wire.security.oauth import OAuth

_STEM = "kafka.sasl.oauthbearer."
ENDPOINT = f"{_STEM}token.endpoint.url"
_ID = (f"{_STEM}client.credentials.client.id", f"{_STEM}client.id")
_SECRET = (f"{_STEM}client.credentials.client.secret", f"{_STEM}client.secret")
_SCOPE = (f"{_STEM}scope",)
_EXTENSIONS = f"{_STEM}extensions"
_HANDLER = "kafka.sasl.login.callback.handler.class"
_METHOD = f"{_STEM}method"
OPTIONS = (ENDPOINT, *_ID, *_SECRET, *_SCOPE, _EXTENSIONS, _HANDLER, _METHOD)

_EXTENSION = re.compile(r"(?!auth=)[A-Za-z]+=[\x21-\x7e \t]*")  # RFC 7628 3.1


def parse_oauth(given: Mapping[str, str], login: Mapping[str, str]) -> OAuth:
    """What the options and those of the JAAS login say. Raises `ConfigError`, without secrets."""
    _check_way(given)
    endpoint = given.get(ENDPOINT, "").strip()
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise ConfigError(
            f"OAUTHBEARER needs {ENDPOINT}, the URL at which tokens are given.",
            hint="It begins with https:// or http://, and has no login in it.",
        )
    extensions = [pair.strip() for pair in given.get(_EXTENSIONS, "").split(",") if pair.strip()]
    extensions += [
        f"{name.removeprefix(EXTENSION)}={value}"
        for name, value in login.items()
        if name.startswith(EXTENSION)
    ]
    for pair in extensions:
        if not _EXTENSION.fullmatch(pair):
            raise ConfigError(
                f"The SASL extension {pair.partition('=')[0]!r} is not of the form name=value.",
                hint="A name has letters only, a value printable characters.",
            )
    return OAuth(
        endpoint,
        _one(given, _ID, login, "clientId"),
        _one(given, _SECRET, login, "clientSecret"),
        _one(given, _SCOPE, login, "scope", needed=False),
        tuple((name, value) for name, _, value in (pair.partition("=") for pair in extensions)),
    )


def _check_way(given: Mapping[str, str]) -> None:
    """Refuse other ways to come by a token than the one there is."""
    handler, method = given.get(_HANDLER, ""), given.get(_METHOD, "oidc")
    if handler and not handler.endswith(".OAuthBearerLoginCallbackHandler"):
        raise ConfigError(
            f"{_HANDLER} names {handler}, which is not supported.",
            hint="Leave it out: tokens come as by Kafka's OAuthBearerLoginCallbackHandler.",
        )
    if method != "oidc":
        raise ConfigError(f"{_METHOD} is {method!r}, but takes oidc, or is left out.")


def _one(
    given: Mapping[str, str],
    names: tuple[str, ...],
    login: Mapping[str, str],
    in_login: str,
    *,
    needed: bool = True,
) -> str:
    """The value of the one of these options that is given, or of the login's."""
    found = {name: given[name] for name in names if given.get(name)}
    if login.get(in_login):
        found[f"{in_login} of kafka.sasl.jaas.config"] = login[in_login]
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)} are given: choose one.")
    if needed and not found:
        raise ConfigError(
            f"OAUTHBEARER needs {names[0]}.",
            hint=f"Set it, or {in_login} in kafka.sasl.jaas.config.",
        )
    return next(iter(found.values()), "")
