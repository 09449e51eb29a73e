"""`make hops` follows a request through a real broker, and says on its last line what it found."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_requests_are_followed_from_the_socket_to_the_answer() -> None:
    command = [sys.executable, "-m", "benchmarks.hops", "--only", "requests", "--files"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *told, last = done.stdout.splitlines()
    found = json.loads(last)
    assert list(found) == ["produce", "fetch", "end_txn"]
    starts = [told.index(line) for line in told if not line.startswith(" ")]
    for (name, count), at in zip(found.items(), starts, strict=True):
        assert told[at].startswith(f"{name}: {count} files")
        files = [line.strip() for line in told[at + 1 : at + 1 + count]]
        assert all((ROOT / "src" / "catchwater" / file).is_file() for file in files)
        assert files[0].startswith("broker/") and any(f.startswith("log/") for f in files)
