"""A checkpoint's objects: beside it, or in a folder of its own in a store."""

from pathlib import Path

import pytest

from catchwater.clock import Clock
from catchwater.objects.open import join
from catchwater.recovery.folder import StateElsewhere, claim_home, home_of, key_part
from catchwater.recovery.ledger import Ledger, SourceOffset


def test_without_a_store_they_lie_beside_the_ledger_wherever_that_is(tmp_path: Path) -> None:
    assert claim_home(tmp_path, None, "p", Clock(1)) == (tmp_path / "catchwater").as_uri()
    assert home_of(tmp_path) == (tmp_path / "catchwater").as_uri()


def test_two_checkpoints_of_one_pipeline_never_share_a_folder(tmp_path: Path) -> None:
    store = "s3://bucket/states?endpoint=http://h:1"
    homes = {claim_home(tmp_path / name, store, "p", Clock(n)) for n, name in enumerate("ab")}
    assert len(homes) == 2
    assert all(home.startswith("s3://bucket/states/p-") for home in homes)
    assert all(home.endswith("?endpoint=http://h:1") for home in homes)
    assert home_of(tmp_path / "a") in homes


def test_a_store_is_chosen_once(tmp_path: Path) -> None:
    first = claim_home(tmp_path, "s3://bucket", "p", Clock(1))
    assert claim_home(tmp_path, "s3://bucket", "p", Clock(2)) == first
    with pytest.raises(StateElsewhere, match="lies in s3://bucket, and"):
        claim_home(tmp_path, "s3://other", "p", Clock(1))
    with pytest.raises(StateElsewhere, match="says nothing"):
        claim_home(tmp_path, None, "p", Clock(1))


def test_a_checkpoint_that_has_begun_is_not_moved_by_its_file(tmp_path: Path) -> None:
    Ledger(tmp_path).begin(SourceOffset(-1, {}, [0], 0))
    with pytest.raises(StateElsewhere, match="the checkpoint itself"):
        claim_home(tmp_path, "s3://bucket", "p", Clock(1))


def test_any_name_can_be_a_part_of_a_key() -> None:
    assert key_part("card-risk") == "card-risk"
    assert key_part("../a_b é") == "_2e_2e_2fa_5fb_20_c3_a9"
    assert len({key_part(name) for name in ("a.b", "a_b", "a_2eb")}) == 3
    assert join("file:///x/", "y") == "file:///x/y"
