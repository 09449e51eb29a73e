"""Java's form of a login, `sasl.jaas.config`: a module and its options. No error quotes a value."""

import re

from catchwater.config import ConfigError

JAAS = "kafka.sasl.jaas.config"
OAUTH_MODULE = "OAuthBearerLoginModule"

_LOGIN = re.compile(
    r"\s*(?:\w+\.)*(\w+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.S
)
_OPTION = re.compile(r'\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.S)
_BY_PASSWORD = ("username", "password")
_MODULES = {
    "PlainLoginModule": _BY_PASSWORD,
    "ScramLoginModule": _BY_PASSWORD,
    OAUTH_MODULE: ("clientId", "clientSecret", "scope"),
}
EXTENSION = "extension_"
"""What the names of an OAuth login's SASL extensions begin with."""


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """The module's name without its package, and its options. Raises `ConfigError`."""
    login = _LOGIN.fullmatch(text)
    if login is None:
        raise ConfigError(
            f"{JAAS} is not of the form of one login module with its options.",
            hint="Write: org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="…" password="…";',
        )
    module, rest = login[1], login[2]
    if module not in _MODULES:
        raise ConfigError(
            f"{JAAS} names the login module {module}, which is not supported.",
            hint=f"Supported are: {', '.join(_MODULES)}.",
        )
    options, at = {}, 0
    while found := _OPTION.match(rest, at):
        quoted, bare = found[2], found[3]
        options[found[1]] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.S)
        at = found.end()
    known = _MODULES[module]
    others = [name for name in options if name not in known]
    if module == OAUTH_MODULE:
        others = [name for name in others if not name.startswith(EXTENSION)]
    if others or rest[at:].strip():
        what = f"the option {min(others)}" if others else "something that is not of the form a=b"
        raise ConfigError(
            f"{JAAS} has {what}, which is not supported.",
            hint=f'It takes {", ".join(known)}, each as name="…"; quotes within them as \\".',
        )
    return module, options
