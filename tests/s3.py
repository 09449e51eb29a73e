"""S3 servers for tests and benchmarks, as processes on loopback.

`moto` always, `versitygw` as a second opinion where S3_SECOND=1 is set: it is compiled once by
`go install` into `.cache/versitygw`, and keeps objects as files. Both accept the made-up
credentials of `CREDENTIALS`, which belong in the environment of whoever talks to them.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.ports import free_port

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "catchwater-test",
    "AWS_SECRET_ACCESS_KEY": "catchwater-test-secret",
    "AWS_REGION": "us-east-1",
}
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
CACHE = Path(__file__).parent.parent / ".cache" / "versitygw"
START_S = 180.0
"""Starting takes two seconds; not on a machine that others keep busy."""


@contextmanager
def moto(host: str = "127.0.0.1") -> Iterator[str]:
    """The endpoint of a moto server, which keeps its objects in memory."""
    port = free_port()
    script = "from moto.server import main; main()"
    with _running([sys.executable, "-c", script, "-H", host, "-p", str(port)], port, host):
        yield f"http://{host}:{port}"


@contextmanager
def versitygw(folder: Path) -> Iterator[str]:
    """The endpoint of a versitygw that keeps its objects as files in `folder`."""
    command = CACHE / "versitygw"
    if not command.exists():
        install = ["go", "install", VERSITYGW]
        subprocess.run(install, env={**os.environ, "GOBIN": str(CACHE)}, check=True)
    port = free_port()
    arguments = ["--access", CREDENTIALS["AWS_ACCESS_KEY_ID"]]
    arguments += ["--secret", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
    arguments += ["--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    with _running([str(command), *arguments], port):
        yield f"http://127.0.0.1:{port}"


def make_bucket(endpoint: str, name: str) -> str:
    """Create a bucket; its URL for `open_store`. CREDENTIALS are in the environment."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(name, endpoint=endpoint, client_options={"allow_http": True})
    # Behind the bucket's name the signed path has a slash, which both servers accept.
    url = obstore.sign(store, "PUT", "", timedelta(minutes=1))
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    return f"s3://{name}?endpoint={endpoint}"


@contextmanager
def _running(command: Sequence[str], port: int, host: str = "127.0.0.1") -> Iterator[None]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        _await(process, host, port)
        yield
    finally:
        process.terminate()
        process.wait(START_S)


def _await(process: "subprocess.Popen[bytes]", host: str, port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((host, port), 10).close()
        except (ConnectionRefusedError, TimeoutError):
            assert process.poll() is None, f"{process.args!r} ended by itself"
            assert time.monotonic() < deadline, f"{process.args!r} does not listen"
            time.sleep(0.05)
        else:
            return
