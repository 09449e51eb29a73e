"""What Spark's executor does with a task description, in a process that has no credentials.

Takes a pickled reader and its partitions on stdin; gives on stdout, pickled, the offsets and values
read, the environment, and the modules loaded. It can reach nothing but loopback: the endpoint of a
machine's metadata, which hands out credentials, is far from it.
"""

import os
import pickle
import socket
import sys
from typing import Any


class Loopback(socket.socket):
    """A socket that connects to this machine only."""

    def connect(self, address: Any) -> None:
        if address[0] != "127.0.0.1":
            raise PermissionError(f"{address} is out of reach")
        super().connect(address)


def main() -> None:
    socket.socket = Loopback  # type: ignore[misc]
    reader, partitions = pickle.load(sys.stdin.buffer)
    rows = [
        (row["offset"], row["value"])
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    pickle.dump((rows, dict(os.environ), sorted(sys.modules)), sys.stdout.buffer)


if __name__ == "__main__":
    main()
