INSERT INTO partition (topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp)
SELECT * FROM unnest(
  ?::bytea[], ?::integer[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[]
)
ON CONFLICT (topic_id, partition) DO UPDATE SET
  log_start = excluded.log_start,
  high_watermark = excluded.high_watermark,
  bytes = excluded.bytes,
  earliest_timestamp = excluded.earliest_timestamp;
