"""Tokens of an OAuth 2 provider, checked by its published keys (OAUTHBEARER, bearer tokens).

A token is a JWT (RFC 7519), signed by one of the provider's keys (JWKS, RFC 7517) with one of the
algorithms that the settings list: public-key ones alone, so that a public key never passes for a
shared secret. Issuer, audience, end and subject have to be there and to be right.

Promises to refuse where keys are not known: while the provider is away, those it published last
count. They are asked for again every hour, and when a token names a key that is not among them,
every `_SOONEST_S` at most. Blocks; used from any thread.
"""

import json
import logging
import re
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from catchwater.broker_config import BrokerConfig
from catchwater.clock import Clock
from catchwater.config import ConfigError
from catchwater.objects.urls import NoRedirect
from catchwater.wire.security.verifiers import NotProved

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Those by public keys; `none` and HS256 are not among them."""
_FRESH_S = 3600.0
_SOONEST_S = 10.0
_PATIENCE_S = 10.0
_MOST_BYTES = 1024 * 1024
_MESSAGE = re.compile(
    rb"[ny],(?:a=[^,\x01]*)?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?auth=Bearer +([A-Za-z0-9._~+/=-]+)\x01"
    rb"(?:[A-Za-z]+=[^\x01]*\x01)*\x01",
    re.IGNORECASE,
)

_LOG = logging.getLogger("catchwater.broker")


class TokenUser(NamedTuple):
    """The user a token names, and for how long."""

    user: str
    left_s: float


class Tokens:
    """Checks tokens by the settings `sasl.oauthbearer.…`."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        """Raises `ConfigError`."""
        try:
            from joserfc import jwt
            from joserfc.errors import JoseError
            from joserfc.jwk import KeySet
        except ImportError as error:
            raise ConfigError(
                "Logins by tokens need the package joserfc.",
                hint="Install it: pip install 'catchwater[oauth]'.",
            ) from error
        self._jwt, self._errors, self._key_set = jwt, (JoseError, ValueError, KeyError), KeySet
        self._url = config.sasl_oauthbearer_jwks_endpoint_url
        self._issuer = config.sasl_oauthbearer_expected_issuer
        self._audience = {
            each.strip() for each in config.sasl_oauthbearer_expected_audience.split(",")
        }
        self._skew_s = config.sasl_oauthbearer_clock_skew_seconds
        self._claim = config.sasl_oauthbearer_sub_claim_name
        self._algorithms = [each.strip() for each in config.catchwater_oauth_algorithms.split(",")]
        self._authority = config.catchwater_oauth_ca_location
        self._clock = clock
        self._keys: Any = None
        self._asked_s = float("-inf")
        self._asking = threading.Lock()
        self.refresh()

    def check_message(self, message: bytes) -> TokenUser:
        """As `check`, of a client's first message (RFC 7628 3.1)."""
        found = _MESSAGE.fullmatch(message)
        if found is None:
            raise NotProved("What came is not of the form of OAUTHBEARER.")
        return self.check(found[1].decode())

    def check(self, token: str) -> TokenUser:
        """The user that the token names. Raises `NotProved`."""
        if self._clock.monotonic_s() - self._asked_s > _FRESH_S:
            self.refresh()
        try:
            return self._checked(token)
        except NotProved:
            if self._clock.monotonic_s() - self._asked_s < _SOONEST_S:
                raise
        self.refresh()  # the provider may have new keys
        return self._checked(token)

    def _checked(self, token: str) -> TokenUser:
        if self._keys is None:
            raise NotProved("The provider's keys are not known.")
        try:
            claims = self._jwt.decode(token, self._keys, algorithms=self._algorithms).claims
        except self._errors as error:
            raise NotProved("The token is signed by nobody we know.") from error
        now_s = self._clock.now_ms() / 1000
        ends, begins, user = claims.get("exp"), claims.get("nbf", 0), claims.get(self._claim)
        said: Any = claims.get("aud")
        audience = {str(each) for each in said} if isinstance(said, list) else {said}
        if not (isinstance(ends, int | float) and isinstance(begins, int | float)):
            raise NotProved("The token has no end, or a beginning that is no time.")
        if not begins - self._skew_s <= now_s <= ends + self._skew_s:
            raise NotProved("The token has ended, or not begun.")
        if claims.get("iss") != self._issuer or not audience & self._audience:
            raise NotProved("The token is another issuer's, or for somebody else.")
        if not isinstance(user, str) or not user or len(user) > 1_000 or not user.isprintable():
            raise NotProved("The token names nobody.")
        return TokenUser(user, max(0.0, ends - now_s))

    def refresh(self) -> None:
        """Ask for the provider's keys, unless that was done just now; those before stay else."""
        with self._asking:
            if self._clock.monotonic_s() - self._asked_s < _SOONEST_S:
                return  # by another thread, while this one waited
            self._asked_s = self._clock.monotonic_s()
            try:
                found = json.loads(self._fetch())
                # Shared secrets have no place in a published set.
                keys = [key for key in found["keys"] if key.get("kty") != "oct"]
                self._keys = self._key_set.import_key_set({"keys": keys})
            except (OSError, *self._errors, TypeError) as error:
                _LOG.error("The keys of tokens in %s are not to be had: %s", self._url, error)

    def _fetch(self) -> bytes:
        parts = urlsplit(self._url)
        if parts.scheme == "file":
            return Path(parts.path).read_bytes()
        context = ssl.create_default_context(cafile=self._authority)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler({}),
            NoRedirect(),
        )
        with opener.open(self._url, timeout=_PATIENCE_S) as reply:
            data: bytes = reply.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError("the answer is too long")
        return data


def check_settings(config: BrokerConfig) -> None:
    """Refuse settings by which tokens of others would be let in. Raises `ConfigError`."""
    url = urlsplit(config.sasl_oauthbearer_jwks_endpoint_url)
    if url.scheme not in ("https", "file"):
        raise ConfigError(
            "With OAUTHBEARER, sasl.oauthbearer.jwks.endpoint.url has to say where the provider's "
            "keys are.",
            hint="Name an https:// URL, or a file: file:///etc/kafka/jwks.json.",
        )
    for key in ("expected.issuer", "expected.audience"):
        name = f"sasl.oauthbearer.{key}"
        if not getattr(config, name.replace(".", "_")):
            raise ConfigError(
                f"With OAUTHBEARER, {name} has to be set: tokens for others would be let in.",
                hint="Both stand in the provider's tokens, as iss and aud.",
            )
    wrong = [
        each.strip()
        for each in config.catchwater_oauth_algorithms.split(",")
        if each.strip() not in ALGORITHMS
    ]
    if wrong:
        raise ConfigError(
            f"catchwater.oauth.algorithms cannot have {wrong[0] or 'nothing'}.",
            hint=f"Choose of {', '.join(ALGORITHMS)}.",
        )
