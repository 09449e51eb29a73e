"""OAUTHBEARER: a token of an OAuth 2 provider in the place of a password (RFC 7628, KIP-255).

The token is asked for at a token endpoint with the client's id and secret (client credentials, RFC
6749 4.4), as Kafka's own client does it (KIP-768, KIP-1139), and by the same options. A process
keeps it until four fifths of its time are over, so that no login begins with one that is about to
end. `opening` is the message that shows it to a broker, together with SASL extensions (KIP-342).

Promises that neither secret nor token stands in a `repr` or in an error. Redirects are not
followed: they would take the secret elsewhere.
"""

import base64
import binascii
import http.client
import json
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError

_KEPT_FOR = 0.8  # of a token's time, as sasl.login.refresh.window.factor
_LONGEST_ANSWER_BYTES = 2**20
_TOKEN = re.compile(r"[\x21-\x7e]+")


_STEM = "kafka.sasl.oauthbearer."
ENDPOINT = f"{_STEM}token.endpoint.url"
_ID = (f"{_STEM}client.credentials.client.id", f"{_STEM}client.id")
_SECRET = (f"{_STEM}client.credentials.client.secret", f"{_STEM}client.secret")
_SCOPE = (f"{_STEM}scope",)
_EXTENSIONS = f"{_STEM}extensions"
_HANDLER = "kafka.sasl.login.callback.handler.class"
_METHOD = f"{_STEM}method"
OPTIONS = (ENDPOINT, *_ID, *_SECRET, *_SCOPE, _EXTENSIONS, _HANDLER, _METHOD)

EXTENSION = "extension_"
"""What the names of an OAuth login's SASL extensions begin with."""
_EXTENSION = re.compile(r"(?!auth=)[A-Za-z]+=[\x21-\x7e \t]*")  # RFC 7628 3.1


class TokenUnavailable(CatchwaterError):
    """The token endpoint cannot be reached, or not just now: it may be asked again."""


class TokenRefused(CatchwaterError):
    """The token endpoint does not take the client, or answers what is no token."""


@dataclass(frozen=True, slots=True)
class OAuth:
    """Who asks where for a token, and for what."""

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and for how many seconds it holds; 0 if that is not known."""

    text: str = field(repr=False)
    lifetime_s: float


class Tokens:
    """One token for each login; never one that has less than a fifth of its time left."""

    def __init__(self, request: Callable[[OAuth, Clock, float], Token]) -> None:
        self._request = request
        # With the time on the monotonic clock after which it is not shown any more.
        self._kept: dict[OAuth, tuple[str, float]] = {}

    def of(self, oauth: OAuth, clock: Clock, timeout_s: float) -> str:
        """A token that may be shown now. Raises `TokenUnavailable`, `TokenRefused`."""
        now_s = clock.monotonic_s()
        text, until_s = self._kept.get(oauth, ("", now_s))
        if now_s >= until_s:
            token = self._request(oauth, clock, timeout_s)
            text = token.text
            self._kept[oauth] = text, now_s + _KEPT_FOR * token.lifetime_s
        return text

    def forget(self, oauth: OAuth) -> None:
        """A broker did not take it: the next login asks for another."""
        self._kept.pop(oauth, None)


def opening(oauth: OAuth, token: str) -> bytes:
    """The first and only message of the client (RFC 7628 3.1)."""
    pairs = (("auth", f"Bearer {token}"), *oauth.extensions)
    return "\x01".join(("n,,", *(f"{name}={value}" for name, value in pairs), "", "")).encode()


def request_token(oauth: OAuth, clock: Clock, timeout_s: float) -> Token:
    """Ask the endpoint, once. Raises `TokenUnavailable`, `TokenRefused`."""
    status, content = _post(oauth, timeout_s)
    try:
        answer: Any = json.loads(content)
    except ValueError:
        answer = None
    said: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    who = f"The token endpoint {oauth.endpoint} answered the client {oauth.client_id!r}"
    if status == 429 or status >= 500:
        raise TokenUnavailable(f"{who} {status}.", hint="It may be overloaded: try again later.")
    if status != 200:
        reason = f" ({str(said['error'])[:100]})" if "error" in said else ""
        raise TokenRefused(
            f"{who} {status}{reason}.",
            hint="Are sasl.oauthbearer.token.endpoint.url, client id, client secret and scope "
            "right, and may the client ask by its own credentials?",
        )
    text = said.get("access_token")
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        raise TokenRefused(
            f"{who} with something that holds no access_token.",
            hint="Is sasl.oauthbearer.token.endpoint.url right?",
        )
    return Token(text, _lifetime_s(said, text, clock))


def _post(oauth: OAuth, timeout_s: float) -> tuple[int, bytes]:
    """The answer's status and content."""
    url = urlsplit(oauth.endpoint)
    form = {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})}
    who = base64.b64encode(f"{oauth.client_id}:{oauth.client_secret}".encode()).decode()
    headers = {
        "authorization": f"Basic {who}",
        "content-type": "application/x-www-form-urlencoded",
        "accept": "application/json",
    }
    connection = _connection(url, timeout_s)
    try:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", target, urlencode(form), headers)
        response = connection.getresponse()
        return response.status, response.read(_LONGEST_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise TokenRefused(
            f"The certificate of the token endpoint {oauth.endpoint} is not trusted: "
            f"{error.verify_message}.",
            hint="This machine has to trust who signed it; the environment's SSL_CERT_FILE names "
            "a file of authorities.",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise TokenUnavailable(
            f"The token endpoint {oauth.endpoint} cannot be asked: {error}.",
            hint="Is sasl.oauthbearer.token.endpoint.url right, and can this machine reach it?",
        ) from error
    finally:
        connection.close()


def _connection(url: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "https":
        trusted = ssl.create_default_context()
        return http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=trusted)
    return http.client.HTTPConnection(host, url.port, timeout=timeout_s)


def _lifetime_s(said: Mapping[str, Any], token: str, clock: Clock) -> float:
    """By the answer and by the claim `exp` of a token that is a JWT: what is over first counts."""
    expires_in = said.get("expires_in")
    known = [float(expires_in)] if isinstance(expires_in, int | float) else []
    claims = token.split(".")[1] if token.count(".") == 2 else ""
    with suppress(binascii.Error, ValueError, KeyError, TypeError):
        padded = claims + "=" * (-len(claims) % 4)
        ends = json.loads(base64.urlsafe_b64decode(padded))["exp"]
        known.append(float(ends) - clock.now_ms() / 1000)
    return max(0.0, min(known, default=0.0))


TOKENS = Tokens(request_token)
"""Of this process, for all its connections."""


# The options, by the names of Kafka's Java client and by those of librdkafka.


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
