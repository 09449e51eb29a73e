"""A checkpoint belongs to one pipeline."""

from pathlib import Path

import msgspec
import pytest

from catchwater.pipeline.run.versions import Identity, OtherPipeline, claim

CARDS = Identity("cards", ["card-risk"], 4, ["payments"], {"alerts": "alerts"})


def test_the_same_pipeline_may_come_back(tmp_path: Path) -> None:
    claim(tmp_path, CARDS)
    claim(tmp_path, CARDS)
    assert Identity.read(tmp_path) == CARDS


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"functions": ["other"]}, "the chain of functions was ['card-risk'] and is now ['other']"),
        ({"shards": 8}, "the number of shards was 4 and is now 8"),
        ({"topics": ["x"]}, "the input was"),
        ({"sinks": {}}, "the set of sinks was"),
    ],
)
def test_another_one_is_refused_before_anything_is_touched(
    tmp_path: Path, change: dict[str, object], told: str
) -> None:
    claim(tmp_path, CARDS)
    with pytest.raises(OtherPipeline) as error:
        claim(tmp_path, msgspec.structs.replace(CARDS, **change))
    assert told in str(error.value)
    assert error.value.exit_code == 5
    claim(tmp_path, CARDS)
