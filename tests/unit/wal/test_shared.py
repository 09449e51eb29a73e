"""The directory of several brokers: whose it is, and whether it is the one the others see."""

from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.wal.shared import PEER_WAIT_S, WalDirectoryRefused, make_session_folder


def made(root: Path, prefix: str, *peers: str, cluster: str = "ours") -> None:
    make_session_folder(root, prefix, ManualClock(), cluster_id=cluster, peers=peers)


def test_the_first_broker_marks_the_directory_and_others_join_it(tmp_path: Path) -> None:
    made(tmp_path, "1-1/")
    made(tmp_path, "2-1/", "1-1/")
    assert (tmp_path / "cluster").read_text() == "ours\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "wal"]
    assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == ["1-1", "2-1"]


def test_another_clusters_directory_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    made(tmp_path, "1-1/")
    with pytest.raises(WalDirectoryRefused, match=r"cluster 'ours'.*belongs to 'theirs'"):
        made(tmp_path, "2-1/", cluster="theirs")
    assert not (tmp_path / "wal" / "2-1").exists()


def test_a_directory_that_does_not_show_a_live_broker_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "shared", "1-1/")
    with pytest.raises(WalDirectoryRefused, match="does not show wal/1-1/"):
        made(tmp_path / "forgotten-mount", "2-1/", "1-1/")
    assert list((tmp_path / "forgotten-mount" / "wal").iterdir()) == []


def test_a_broker_that_joins_at_the_same_moment_is_waited_for(tmp_path: Path) -> None:
    class Later(ManualClock):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            if (tmp_path / "wal" / "2-1").exists():  # for it looks for us as well
                (tmp_path / "wal" / "1-1").mkdir(exist_ok=True)

    clock = Later()
    make_session_folder(tmp_path, "2-1/", clock, cluster_id="ours", peers=["1-1/"])
    assert clock.monotonic_s() - ManualClock().monotonic_s() < PEER_WAIT_S


def test_a_session_that_wrote_before_tells_that_the_catalog_is_old(tmp_path: Path) -> None:
    made(tmp_path, "1-1/")
    with pytest.raises(WalDirectoryRefused, match="the catalog is older than the log"):
        made(tmp_path, "1-1/")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WalDirectoryRefused, match="cannot be used: Not a directory"):
        made(tmp_path / "file" / "below", "1-1/")
