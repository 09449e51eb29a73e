INSERT INTO producer (topic_id, partition, producer_id, epoch, batches, last_ms)
SELECT * FROM unnest(
  ?::bytea[], ?::integer[], ?::bigint[], ?::integer[], ?::text[], ?::bigint[]
)
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE SET
  epoch = excluded.epoch,
  batches = excluded.batches,
  last_ms = excluded.last_ms;
