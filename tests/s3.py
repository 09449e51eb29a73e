"""S3 servers for tests, on loopback: moto in this process, and versitygw as a second opinion.

`make_bucket(endpoint)` gives the URL of a fresh bucket, for `open_store`. Credentials are the
same made-up ones everywhere and stand in the environment while a server runs.

versitygw (S3_SECOND=1) is compiled once by `go install` into `.cache/versitygw`.
"""

import logging
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "catchwater-test",
    "AWS_SECRET_ACCESS_KEY": "catchwater-test-secret",
    "AWS_REGION": "us-east-1",
    # Whatever else the machine has configured must not reach a test.
    "AWS_ENDPOINT_URL": "",
    "AWS_EC2_METADATA_DISABLED": "true",
}
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
CACHE = Path(__file__).parent.parent / ".cache" / "versitygw"
START_S = 20.0


@contextmanager
def moto() -> Iterator[str]:
    """The endpoint of a moto server in a thread of this process."""
    from moto.server import ThreadedMotoServer  # a second of imports

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def versitygw(folder: Path) -> Iterator[str]:
    """The endpoint of a versitygw process that keeps its objects as files in `folder`."""
    command = CACHE / "versitygw"
    if not command.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["go", "install", VERSITYGW], env={**os.environ, "GOBIN": str(CACHE)}, check=True
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--access", CREDENTIALS["AWS_ACCESS_KEY_ID"]]
    arguments += ["--secret", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
    arguments += ["--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    process = subprocess.Popen([command, *arguments])
    try:
        _await(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_S)


def _await(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
