"""What the programs in Python share: which records are written, and how steps are told.

A program is given bootstrap address, prefix and steps; how it comes in stands in its environment
(`conformance/security.py`). A step passes by returning; whatever it raises ends the process with
its message on stderr, and the runner starts another for the rest.
"""

import base64
import json
import os
import ssl
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

Step = Callable[[], None] | str
"""A function, or the reason why the client cannot take the step."""

DEADLINE_S = 40.0
WRITTEN = [(f"k{i % 7}".encode(), f"{i}:{'water' * 8}".encode()) for i in range(100)]
BOOTSTRAP, PREFIX = [*sys.argv, "", ""][1:3]
SESSION_S = float(os.environ.get("SESSION_S", "3"))
MECHANISM = os.environ.get("SASL_MECHANISM", "")


def for_librdkafka() -> dict[str, str]:
    """How to come in, by librdkafka's settings."""
    found = {
        "security.protocol": os.environ.get("SECURITY_PROTOCOL"),
        "ssl.ca.location": os.environ.get("SSL_CA"),
        "ssl.certificate.location": os.environ.get("SSL_CERTIFICATE"),
        "ssl.key.location": os.environ.get("SSL_CERTIFICATE"),
        "sasl.mechanism": MECHANISM,
    }
    user, password = os.environ.get("SASL_USERNAME"), os.environ.get("SASL_PASSWORD")
    if MECHANISM == "OAUTHBEARER":
        found |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": user,
            "sasl.oauthbearer.client.secret": password,
            "sasl.oauthbearer.token.endpoint.url": os.environ["TOKEN_ENDPOINT"],
        }
    else:
        found |= {"sasl.username": user, "sasl.password": password}
    return {name: value for name, value in found.items() if value}


def for_python() -> dict[str, Any]:
    """The same for kafka-python and aiokafka, but for their providers of tokens."""
    protocol = os.environ.get("SECURITY_PROTOCOL")
    if protocol is None:
        return {}
    context = ssl.create_default_context(cafile=os.environ["SSL_CA"])
    if own := os.environ.get("SSL_CERTIFICATE"):
        context.load_cert_chain(own)
    found: dict[str, Any] = {"security_protocol": protocol, "ssl_context": context}
    if MECHANISM:
        found["sasl_mechanism"] = MECHANISM
    if MECHANISM and MECHANISM != "OAUTHBEARER":
        found["sasl_plain_username"] = os.environ["SASL_USERNAME"]
        found["sasl_plain_password"] = os.environ["SASL_PASSWORD"]
    return found


def token() -> str:
    """A new token from the provider, by client credentials."""
    who = f"{os.environ['SASL_USERNAME']}:{os.environ['SASL_PASSWORD']}".encode()
    request = urllib.request.Request(
        os.environ["TOKEN_ENDPOINT"],
        b"grant_type=client_credentials",
        {"Authorization": f"Basic {base64.b64encode(who).decode()}"},
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        return str(json.load(reply)["access_token"])


def main(steps: Mapping[str, Step]) -> None:
    """Take the steps that the command line names, one line each."""
    sys.excepthook = _end
    for name in sys.argv[3:]:
        step = steps.get(name, "the library has no such call")
        if isinstance(step, str):
            print(f"skip {name} {step}", flush=True)
        else:
            step()
            print(f"pass {name}", flush=True)
    os._exit(0)  # some libraries have threads that outlive their clients


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    where = traceback.extract_tb(trace)[-1]
    text = str(error).splitlines()[0] if str(error) else ""
    print(f"{kind.__name__}: {text} ({where.name}: {where.line})", file=sys.stderr, flush=True)
    os._exit(1)


def until(is_so: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Ask again until it is so. The question should take some of the time itself."""
    deadline = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {deadline_s:.0f} s")
        time.sleep(0.02)


def same(found: object, wanted: object, what: str) -> None:
    """Raise unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {str(found)[:80]} instead of {str(wanted)[:80]}")
