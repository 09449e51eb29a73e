"""kcat, the command-line client people have at hand."""

import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")


def kcat(*arguments, text=""):
    run = subprocess.run(
        ["kcat", *arguments], input=text, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_what_is_written_is_read(broker, codec, wanted, assert_read):
    topic = f"kcat-{codec}"
    lines = "".join(f"{key}\t{value}\n" for key, value in wanted)
    kcat("-b", broker.bootstrap, "-P", "-t", topic, "-K", "\t", "-z", codec, text=lines)
    out = kcat(
        *("-b", broker.bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q"),
        *("-f", r"%o\t%k\t%s\n"),
    )
    rows = (line.split("\t") for line in out.splitlines())
    assert_read(((int(offset), key, value) for offset, key, value in rows), wanted)


def test_it_lists_the_cluster(broker):
    out = kcat("-b", broker.bootstrap, "-L")
    assert f"broker 1 at {broker.bootstrap} (controller)" in out
