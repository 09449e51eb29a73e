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
    assert options.starting is None and options.ending is None
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
    each = {"startingOffsetsByTimestamp": '{"a": {"0": 7}}'}
    options = parse(startingOffsets="earliest", startingTimestamp="5", endingTimestamp="9", **each)
    assert options.starting == Position(timestamp_ms=5)
    assert options.ending == Position(timestamp_ms=9, or_latest=True)


def test_a_timestamp_for_each_partition_goes_before_offsets() -> None:
    options = parse(
        startingOffsets="earliest",
        startingOffsetsByTimestamp='{"a": {"0": 7, "1": 0}}',
        endingOffsets="latest",
        endingOffsetsByTimestamp='{"a": {"0": 8, "1": 9}}',
    )
    assert options.starting == Position(each_timestamp_ms={("a", 0): 7, ("a", 1): 0})
    end = Position(each_timestamp_ms={("a", 0): 8, ("a", 1): 9}, or_latest=True)
    assert options.ending == end


def test_a_time_after_the_last_record_is_an_error_or_the_end() -> None:
    for given in ({"startingTimestamp": "5"}, {"startingOffsetsByTimestamp": '{"a": {"0": 7}}'}):
        strict = parse(**given, startingOffsetsByTimestampStrategy="error").starting
        lax = parse(**given, startingOffsetsByTimestampStrategy="LATEST").starting
        assert strict and lax and strict == parse(**given).starting
        assert (strict.or_latest, lax.or_latest) == (False, True)


def test_a_micro_batch_has_a_least_size_and_a_longest_wait() -> None:
    assert parse().min_offsets_per_trigger is None
    assert parse().max_trigger_delay_ms == 15 * 60 * 1000
    options = parse(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10", maxTriggerDelay="90s")
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (10, 90_000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250", 250),
        ("250ms", 250),
        ("2 S", 2000),
        ("3min", 180_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_a_wait_is_written_as_in_spark(text: str, ms: int) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay_ms == ms


def test_the_pin_of_a_batch_query_has_a_lease() -> None:
    assert parse().pin_lease_ms == 600_000
    for text, ms in (("90s", 90_000), ("0", 0)):
        assert parse_options({**LEAST, "catchwater.pin.lease": text}).pin_lease_ms == ms


def test_a_catalog_takes_the_place_of_brokers() -> None:
    by_catalog = parse_options({"subscribe": "a", "catchwater.catalog": "/data"})
    assert (by_catalog.catalog, by_catalog.objects, by_catalog.bootstrap) == ("/data", "", "")
    shared = parse_options(
        {**LEAST, "catchwater.catalog": "postgresql://h/d", "catchwater.objects": "s3://b"}
    )
    assert (shared.catalog, shared.objects) == ("postgresql://h/d", "s3://b")
    assert parse().catalog is None
    for bad in ({"catchwater.objects": "s3://b"},
                {"catchwater.catalog": "/data", "catchwater.read": "kafka"}):  # fmt: skip
        with pytest.raises(BadOption, match=r"catchwater\.catalog"):
            parse_options({**LEAST, **bad})


def test_tasks_have_a_largest_size() -> None:
    assert parse(maxRecordsPerPartition="500").max_records_per_partition == 500


def test_what_a_consumer_group_and_its_retries_need_has_no_effect() -> None:
    assert parse(groupIdPrefix="g", kafka__group__id="h") == parse()
    names = ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
    assert parse_options({**LEAST, **dict.fromkeys(names, "7")}) == parse()


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


def test_a_pattern_leaves_kafka_s_own_topics_out() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    every = parse_options({**servers, "subscribePattern": ".*"})
    assert every.wants("__mine", 0) and not every.wants("__consumer_offsets", 0)
    assert parse_options({**servers, "subscribe": "__consumer_offsets"}).wants(
        "__consumer_offsets", 0
    )


def test_an_end_at_the_start_is_an_end() -> None:
    parse(startingTimestamp="5", endingTimestamp="5")
    for ending in ('{"a": {"0": 5}}', '{"a": {"0": -1}}', '{"a": {"1": 1}}'):
        parse(startingOffsets='{"a": {"0": 5}}', endingOffsets=ending)


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
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"startingOffsets": '{"a": {"0": 1.5}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "startingOffsets is"),
        ({"startingOffsets": f'{{"a": {{"0": {2**63}}}}}'}, "startingOffsets is"),
        ({"startingTimestamp": str(2**63)}, "startingTimestamp is '9223372036854775808'"),
        ({"minPartitions": "\u00b2"}, "minPartitions is"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "must end behind its start"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'"),
        ({"subscribe": " , "}, "subscribe is ' , ', which names no topic"),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "endingTimestamp 4 is before startingTimestamp 5",
        ),
        (
            {"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
            "would end at 4 in a-0, before 5",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"a": {"0": 4}}',
            },
            "would end at 4 in a-0, before 5",
        ),
        ({"minOffsetsPerTrigger": "-1"}, "minOffsetsPerTrigger is '-1'"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "minOffsetsPerTrigger 9 is more than maxOffsetsPerTrigger 8",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon'"),
        ({"maxTriggerDelay": "1.5h"}, "maxTriggerDelay is '1.5h'"),
        ({"maxTriggerDelay": "3 weeks"}, "maxTriggerDelay is '3 weeks'"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition is '0'"),
        ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp is '5'"),
        ({"endingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "endingOffsetsByTimestamp holds a time"),
        (
            {"startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy is 'earliest', but takes one of: error, latest",
        ),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset is not supported"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is not supported"),
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
    ],
)
def test_a_mistake_is_named(more: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadOption, match=sentence) as caught:
        parse_options({**LEAST, **more})
    assert caught.value.exit_code == 2


def test_options_on_security_are_obeyed_and_never_shown() -> None:
    options = parse(
        kafka__security__protocol="sasl_ssl",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__username="reader",
        kafka__sasl__password="s3cret",
    )
    assert (options.security.mechanism, options.security.password) == ("SCRAM-SHA-512", "s3cret")
    assert "reader" in repr(options) and "s3cret" not in repr(options)


def test_the_nearest_option_is_suggested() -> None:
    with pytest.raises(BadOption) as caught:
        parse(startingOffset="earliest")
    assert caught.value.hint == "Did you mean startingOffsets?"


RANGED = {"kafka.bootstrap.servers": "h:1"}


def test_exact_ranges_name_partitions_and_offsets() -> None:
    text = '{"b": {"1": [[7, 9]]}, "a": {"0": [[5, 6], [0, 5]]}}'
    options = parse_options({**RANGED, "assignRanges": text})
    assert options.ranges == (("a", 0, 0, 5), ("a", 0, 5, 6), ("b", 1, 7, 9))
    assert options.assigned == (("a", 0), ("b", 1))
    assert options.wants("a", 0) and not options.wants("a", 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": {"0": [[5, 5]]}}', "offsets 5 to 5 of a-0, which are none"),
        ('{"a": {"0": [[-2, 5]]}}', "offsets -2 to 5 of a-0"),
        ('{"a": {"0": [[0, 5], [4, 8]]}}', "offsets 4 to 8 of a-0, which are none, or partly"),
        ('{"a": {"0": []}}', "a-0, which are none"),
        ('{"a": {"0": [[1, 2, 3]]}}', "not of the form"),
        ('{"a": {"0": [[0, 2.5]]}}', "not of the form"),
        (f'{{"a": {{"0": [[0, {2**63}]]}}}}', "not of the form"),
        ('{"a": {"0": 5}}', "not of the form"),
        ('["a"]', "not of the form"),
        ("{}", "names no range"),
    ],
)
def test_a_range_that_says_nothing_or_the_same_twice_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        parse_options({**RANGED, "assignRanges": text})


def test_exact_ranges_take_the_place_of_every_position() -> None:
    ranges = {"assignRanges": '{"a": {"0": [[0, 5]]}}'}
    with pytest.raises(BadOption, match="so startingOffsets is not taken"):
        parse_options({**RANGED, **ranges, "startingOffsets": "earliest"})
    with pytest.raises(BadOption, match="exactly one of the options"):
        parse_options({**LEAST, **ranges})


@pytest.mark.parametrize("text", ["{}", '{"a": []}'])
def test_assigned_are_some_partitions(text: str) -> None:
    with pytest.raises(BadOption, match="names no partition"):
        parse_options({**RANGED, "assign": text})


@pytest.mark.parametrize("number", ["0.5", '"01"', "true"])
def test_a_partition_is_a_whole_number(number: str) -> None:
    with pytest.raises(BadOption, match="not of the form"):
        parse_options({**RANGED, "assign": f'{{"a": [{number}]}}'})


def test_a_word_that_offsets_do_not_take_gets_those_that_they_do() -> None:
    with pytest.raises(BadOption) as caught:
        parse(startingOffsets="soon")
    assert caught.value.hint == "Or say earliest, latest or table."
