"""Options: Spark's names in any case, and one clear sentence for everything else."""

import pytest

from catchwater.replay.options import (
    COLUMNS,
    BadOption,
    Position,
    ReadPath,
    SourceOptions,
    parse_options,
)
from catchwater.wire.client import EARLIEST, LATEST

LEAST = {"kafka.bootstrap.servers": "h:1", "subscribe": "a, b"}


def parse(**more: str) -> SourceOptions:
    return parse_options({**LEAST, **{name.replace("__", "."): more[name] for name in more}})


def test_little_is_needed() -> None:
    options = parse_options(LEAST)
    assert options.topics == ("a", "b")
    assert options.columns == COLUMNS[:-1]
    assert options.fail_on_data_loss and not options.read_committed
    assert options.starting is None and options.ending == Position(LATEST)
    assert options.read_path is ReadPath.AUTO


def test_names_come_in_any_case() -> None:
    options = parse(STARTINGOFFSETS="Earliest", maxoffsetspertrigger="10", minPartitions="3")
    assert options.starting == Position(EARLIEST)
    assert (options.max_offsets_per_trigger, options.min_partitions) == (10, 3)


def test_offsets_are_given_one_by_one() -> None:
    options = parse(startingOffsets='{"a": {"0": 5, "1": -2}}', endingOffsets='{"a": {"0": -1}}')
    assert options.starting == Position(each={("a", 0): 5, ("a", 1): EARLIEST})
    assert options.ending == Position(each={("a", 0): LATEST})


def test_a_timestamp_goes_before_offsets() -> None:
    options = parse(startingOffsets="earliest", startingTimestamp="5", endingTimestamp="9")
    assert options.starting == Position(timestamp_ms=5)
    assert options.ending == Position(timestamp_ms=9)


def test_headers_are_a_column_only_when_asked_for() -> None:
    assert parse(includeHeaders="true").columns == COLUMNS
    assert parse(columns="value, offset").columns == ("value", "offset")


def test_partitions_are_subscribed_by_name_pattern_or_number() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    by_pattern = parse_options({**servers, "subscribePattern": "tx-.*"})
    assert by_pattern.wants("tx-1", 0) and not by_pattern.wants("a-tx-1", 0)
    assigned = parse_options({**servers, "assign": '{"a": [0, 2]}'})
    assert assigned.wants("a", 2) and not assigned.wants("a", 1)
    assert parse_options(LEAST).wants("b", 7) and not parse_options(LEAST).wants("c", 0)


def test_what_tunes_the_java_consumer_has_no_effect() -> None:
    assert parse(kafka__max__poll__records="5000") == parse()


def test_isolation_is_obeyed() -> None:
    assert parse(kafka__isolation__level="read_committed").read_committed


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"startingOffset": "earliest"}, "no option 'startingoffset'"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first'"),
        ({"startingOffsets": '{"a": 5}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "offset -3"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "must end behind its start"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"minPartitions": "many"}, "minPartitions is 'many'"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'"),
        ({"columns": "value,colour"}, "columns is"),
        ({"columns": "value,value"}, "each once"),
        ({"columns": " "}, "columns is"),
        ({"catchwater.read": "fast"}, "takes one of: auto, direct, kafka"),
        ({"assign": '{"a": [0]}'}, "exactly one of"),
        ({"subscribe": ""}, "exactly one of"),
        ({"subscribe": "", "assign": "[1]"}, "assign is"),
        ({"subscribe": "", "subscribePattern": "["}, "no pattern"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.security.protocol": "SSL"}, "kafka.security.protocol"),
    ],
)
def test_a_mistake_is_named(more: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence) as caught:
        parse_options({**LEAST, **more})
    assert caught.value.exit_code == 2


def test_the_nearest_option_is_suggested() -> None:
    with pytest.raises(BadOption) as caught:
        parse(startingOffset="earliest")
    assert caught.value.hint == "Did you mean startingOffsets?"
