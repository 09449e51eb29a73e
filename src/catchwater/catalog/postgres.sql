-- What PostgreSQL runs in place of the statement of that name in `queries.sql`: it locks rows, and
-- takes whole columns (`unnest`) where many rows are read or written at once.

-- ==== The log itself, and its backups ===========================================================

-- backup_begin --
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;

-- name_lock --
SELECT pg_advisory_xact_lock(hashtextextended(?, 0));

-- ==== Topics and partitions =====================================================================

-- topic_lock --
SELECT partitions, config FROM topic WHERE id = ? FOR UPDATE;

-- partition_lock --
SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM unnest(?::bytea[], ?::integer[]) AS wanted (topic_id, partition)
JOIN partition USING (topic_id, partition)
ORDER BY topic_id, partition
FOR UPDATE OF partition;

-- partition_upsert --
INSERT INTO partition (topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp)
SELECT * FROM unnest(
  ?::bytea[], ?::integer[], ?::bigint[], ?::bigint[], ?::bigint[], ?::bigint[]
)
ON CONFLICT (topic_id, partition) DO UPDATE SET
  log_start = excluded.log_start,
  high_watermark = excluded.high_watermark,
  bytes = excluded.bytes,
  earliest_timestamp = excluded.earliest_timestamp;

-- ==== Producers and their transactions ==========================================================

-- producer_find --
SELECT topic_id, partition, producer_id, epoch, batches, last_ms
FROM unnest(?::bytea[], ?::integer[], ?::bigint[]) AS wanted (topic_id, partition, producer_id)
JOIN producer USING (topic_id, partition, producer_id);

-- producer_upsert --
INSERT INTO producer (topic_id, partition, producer_id, epoch, batches, last_ms)
SELECT * FROM unnest(
  ?::bytea[], ?::integer[], ?::bigint[], ?::integer[], ?::text[], ?::bigint[]
)
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE SET
  epoch = excluded.epoch,
  batches = excluded.batches,
  last_ms = excluded.last_ms;

-- txn_lock_name --
SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE transactional_id = ?
FOR UPDATE;

-- txn_lock_producer --
SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE producer_id = ?
FOR UPDATE;

-- txn_forget --
DELETE FROM txn
WHERE transactional_id IN (
  SELECT transactional_id
  FROM txn
  WHERE updated_ms < ? AND state IN ('empty', 'complete_commit', 'complete_abort')
  FOR UPDATE SKIP LOCKED  -- a producer has just begun to use it
)
RETURNING producer_id;

-- open_txn_of_partition --
SELECT topic_id, partition, producer_id, first_offset
FROM unnest(?::bytea[], ?::integer[]) AS wanted (topic_id, partition)
JOIN open_txn USING (topic_id, partition)
ORDER BY first_offset;

-- ==== Runs, and the objects they lie in =========================================================

-- run_chunks --
SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count
FROM object JOIN run ON run.object_id = object.id
WHERE object.kind = 'chunk'
ORDER BY topic_id, partition, last_offset
LIMIT ?;

-- run_insert --
INSERT INTO run (topic_id, partition, base_offset, last_offset, object_id, byte_offset, byte_size,
                 max_timestamp, record_count, reach_timestamp)
SELECT topic_id, partition, base_offset, last_offset,
       (SELECT id FROM object WHERE key = new.object),
       byte_offset, byte_size, max_timestamp, record_count,
       greatest(
         max(max_timestamp) OVER (PARTITION BY topic_id, partition ORDER BY last_offset),
         (
           SELECT run.reach_timestamp FROM run
           WHERE run.topic_id = new.topic_id AND run.partition = new.partition
             AND run.last_offset < new.last_offset
           ORDER BY run.last_offset DESC
           LIMIT 1
         )
       )
FROM unnest(
  ?::bytea[], ?::integer[], ?::bigint[], ?::bigint[], ?::text[], ?::bigint[], ?::bigint[],
  ?::bigint[], ?::bigint[]
) AS new (topic_id, partition, base_offset, last_offset, object, byte_offset, byte_size,
          max_timestamp, record_count);

-- object_upsert --
INSERT INTO object (key, kind, state, size_bytes, created_ms)
SELECT * FROM unnest(?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[])
ON CONFLICT (key) DO UPDATE SET size_bytes = excluded.size_bytes
WHERE object.size_bytes < excluded.size_bytes;

-- ==== Consumer groups ===========================================================================

-- group_claim_lock --
SELECT epoch FROM group_claim WHERE group_id = ? FOR SHARE;

-- ==== Brokers' sessions and leases ==============================================================

-- broker_expire --
-- One that is just committing is left to the next heartbeat, which must not wait for it.
DELETE FROM broker
WHERE id IN (SELECT id FROM broker WHERE deadline_ms < ? FOR UPDATE SKIP LOCKED)
RETURNING id;

-- broker_lock --
SELECT state FROM broker WHERE id = ? AND epoch = ? FOR KEY SHARE;
