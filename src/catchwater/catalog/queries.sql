-- The statements of the catalog, each under its name. `?` stands for a parameter.
--
-- Both databases run them; `postgres.sql` has a second version of those that PostgreSQL needs
-- otherwise.

-- ==== The log itself, and its backups ===========================================================

-- log_insert --
INSERT INTO log (cluster_id, applied_sequence, next_producer_id) VALUES (?, 0, 1);

-- log_select --
SELECT cluster_id, applied_sequence FROM log;

-- log_advance --
UPDATE log SET applied_sequence = ? WHERE applied_sequence < ?;

-- log_all --
SELECT cluster_id, applied_sequence, next_producer_id, next_epoch FROM log;

-- log_restore --
UPDATE log
SET cluster_id = ?, applied_sequence = ?, next_producer_id = ?, next_epoch = ?, last_backup = ?;

-- epoch_take --
UPDATE log SET next_epoch = next_epoch + 1 RETURNING next_epoch - 1;

-- producer_ids_take --
UPDATE log SET next_producer_id = next_producer_id + ? RETURNING next_producer_id;

-- backup_begin --
-- SQLite reads everything of one transaction at one moment anyway.
SELECT 1;

-- backup_take --
UPDATE log SET last_backup = last_backup + 1 RETURNING last_backup;

-- backup_last --
SELECT last_backup FROM log;

-- name_lock --
-- Two transactions about one name that has no row yet. In SQLite writers are alone anyway.
SELECT ?;

-- ==== Topics and partitions =====================================================================

-- topic_collision --
SELECT name FROM topic WHERE replace(name, '.', '_') = ? ORDER BY name;

-- topic_configure --
UPDATE topic SET config = ? WHERE id = ? RETURNING id;

-- topic_delete --
DELETE FROM topic WHERE id = ? RETURNING name;

-- topic_grow --
UPDATE topic SET partitions = ? WHERE id = ?;

-- topic_insert --
INSERT INTO topic (id, name, partitions, config) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO NOTHING
RETURNING id;

-- topic_lock --
SELECT partitions, config FROM topic WHERE id = ?;

-- topic_select --
SELECT id, name, partitions, config FROM topic ORDER BY name;

-- partition_delete --
DELETE FROM partition WHERE topic_id = ?;

-- partition_find --
SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM partition
WHERE topic_id = ? AND partition = ?;

-- partition_lock --
SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM partition
WHERE topic_id = ? AND partition = ?;

-- partition_resize --
UPDATE partition
SET bytes = bytes + ?, earliest_timestamp = ?
WHERE topic_id = ? AND partition = ?
RETURNING topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp;

-- partition_select --
SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM partition
ORDER BY topic_id, partition;

-- partition_trim --
UPDATE partition
SET log_start = CASE WHEN log_start < ? THEN ? ELSE log_start END,
    bytes = bytes - ?,
    earliest_timestamp = ?
WHERE topic_id = ? AND partition = ?
RETURNING topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp;

-- partition_upsert --
INSERT INTO partition (topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (topic_id, partition) DO UPDATE SET
  log_start = excluded.log_start,
  high_watermark = excluded.high_watermark,
  bytes = excluded.bytes,
  earliest_timestamp = excluded.earliest_timestamp;

-- ==== Producers and their transactions ==========================================================

-- producer_delete --
DELETE FROM producer WHERE topic_id = ?;

-- producer_find --
SELECT topic_id, partition, producer_id, epoch, batches, last_ms
FROM producer
WHERE topic_id = ? AND partition = ? AND producer_id = ?;

-- producer_forget --
DELETE FROM producer WHERE last_ms < ?;

-- producer_of_partition --
SELECT topic_id, partition, producer_id, epoch, batches, last_ms
FROM producer
WHERE topic_id = ? AND partition = ?
ORDER BY producer_id;

-- producer_select --
SELECT topic_id, partition, producer_id, epoch, batches, last_ms FROM producer;

-- producer_upsert --
INSERT INTO producer (topic_id, partition, producer_id, epoch, batches, last_ms)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE SET
  epoch = excluded.epoch,
  batches = excluded.batches,
  last_ms = excluded.last_ms;

-- txn_select --
SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
ORDER BY transactional_id;

-- txn_unfinished --
SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE state IN ('ongoing', 'prepare_commit', 'prepare_abort')
ORDER BY transactional_id;

-- txn_lock_name --
SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE transactional_id = ?;

-- txn_lock_producer --
SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE producer_id = ?;

-- txn_upsert --
INSERT INTO txn (transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
                 last_epoch, updated_ms, partitions)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (transactional_id) DO UPDATE SET
  producer_id = excluded.producer_id,
  epoch = excluded.epoch,
  state = excluded.state,
  timeout_ms = excluded.timeout_ms,
  started_ms = excluded.started_ms,
  version = excluded.version,
  last_epoch = excluded.last_epoch,
  updated_ms = excluded.updated_ms,
  partitions = excluded.partitions;

-- txn_forget --
DELETE FROM txn
WHERE updated_ms < ? AND state IN ('empty', 'complete_commit', 'complete_abort')
RETURNING producer_id;

-- open_txn_close --
DELETE FROM open_txn WHERE topic_id = ? AND partition = ? AND producer_id = ?;

-- open_txn_delete --
DELETE FROM open_txn WHERE topic_id = ?;

-- open_txn_of_partition --
SELECT topic_id, partition, producer_id, first_offset
FROM open_txn
WHERE topic_id = ? AND partition = ?
ORDER BY first_offset;

-- open_txn_of_producer --
SELECT topic_id, partition, producer_id, first_offset
FROM open_txn
WHERE producer_id = ?
ORDER BY topic_id, partition;

-- open_txn_select --
SELECT topic_id, partition, producer_id, first_offset
FROM open_txn
ORDER BY topic_id, partition, producer_id;

-- open_txn_upsert --
INSERT INTO open_txn (topic_id, partition, producer_id, first_offset) VALUES (?, ?, ?, ?)
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE SET first_offset = excluded.first_offset;

-- aborted_txn_all --
SELECT topic_id, partition, producer_id, first_offset, last_offset
FROM aborted_txn
ORDER BY topic_id, partition, last_offset;

-- aborted_txn_delete --
DELETE FROM aborted_txn WHERE topic_id = ?;

-- aborted_txn_insert --
INSERT INTO aborted_txn (topic_id, partition, producer_id, first_offset, last_offset)
VALUES (?, ?, ?, ?, ?);

-- aborted_txn_select --
SELECT topic_id, partition, producer_id, first_offset, last_offset
FROM aborted_txn
WHERE topic_id = ? AND partition = ? AND last_offset >= ? AND first_offset < ?
ORDER BY last_offset;

-- aborted_txn_trim --
DELETE FROM aborted_txn WHERE topic_id = ? AND partition = ? AND last_offset < ?;

-- txn_offset_all --
SELECT producer_id, group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM txn_offset
ORDER BY producer_id, group_id, topic, partition;

-- txn_offset_delete --
DELETE FROM txn_offset WHERE producer_id = ?;

-- txn_offset_delete_group --
DELETE FROM txn_offset WHERE group_id = ?;

-- txn_offset_delete_topic --
DELETE FROM txn_offset WHERE topic = ?;

-- txn_offset_keep --
INSERT INTO group_offset
  (group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms)
SELECT group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM txn_offset
WHERE producer_id = ?
ORDER BY group_id, topic, partition
ON CONFLICT (group_id, topic, partition) DO UPDATE SET
  "offset" = excluded."offset",
  leader_epoch = excluded.leader_epoch,
  metadata = excluded.metadata,
  committed_ms = excluded.committed_ms;

-- txn_offset_select --
SELECT group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM txn_offset
WHERE producer_id = ?
ORDER BY group_id, topic, partition;

-- txn_offset_unstable --
SELECT DISTINCT topic, partition FROM txn_offset WHERE group_id = ?;

-- txn_offset_upsert --
INSERT INTO txn_offset
  (producer_id, group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (producer_id, group_id, topic, partition) DO UPDATE SET
  "offset" = excluded."offset",
  leader_epoch = excluded.leader_epoch,
  metadata = excluded.metadata,
  committed_ms = excluded.committed_ms;

-- ==== Runs, and the objects they lie in =========================================================

-- run_at_timestamp --
SELECT topic_id, partition, base_offset, last_offset,
       (SELECT key FROM object WHERE object.id = run.object_id),
       byte_offset, byte_size, max_timestamp, record_count
FROM run
WHERE topic_id = ? AND partition = ? AND reach_timestamp >= ?
ORDER BY topic_id, partition, reach_timestamp, last_offset
LIMIT 1;

-- run_chunks --
-- CROSS JOIN keeps the order of the tables: the chunks are few, the runs are not.
SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count
FROM object CROSS JOIN run ON run.object_id = object.id
WHERE object.kind = 'chunk'
ORDER BY topic_id, partition, last_offset
LIMIT ?;

-- run_delete --
DELETE FROM run WHERE topic_id = ?;

-- run_in_object --
SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count
FROM object JOIN run ON run.object_id = object.id
WHERE object.key = ?
ORDER BY byte_offset, topic_id, partition;

-- run_append --
-- A run whose object's number and reach are known.
INSERT INTO run (topic_id, partition, base_offset, last_offset, object_id, byte_offset, byte_size,
                 max_timestamp, record_count, reach_timestamp)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- run_insert --
WITH new (topic_id, partition, base_offset, last_offset, object, byte_offset, byte_size,
          max_timestamp, record_count) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO run (topic_id, partition, base_offset, last_offset, object_id, byte_offset, byte_size,
                 max_timestamp, record_count, reach_timestamp)
SELECT topic_id, partition, base_offset, last_offset,
       (SELECT id FROM object WHERE key = new.object),
       byte_offset, byte_size, max_timestamp, record_count,
       max(max_timestamp, coalesce((
         SELECT run.reach_timestamp FROM run
         WHERE run.topic_id = new.topic_id AND run.partition = new.partition
           AND run.last_offset < new.last_offset
         ORDER BY run.last_offset DESC
         LIMIT 1
       ), -1))
FROM new;

-- run_objects --
WITH of_topic AS (SELECT object_id, parquet_id FROM run WHERE topic_id = ?)
SELECT key FROM object
WHERE id IN (SELECT object_id FROM of_topic UNION SELECT parquet_id FROM of_topic);

-- run_of_chunks --
SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count
FROM object JOIN run ON run.object_id = object.id
WHERE object.kind = 'chunk'
ORDER BY topic_id, partition, last_offset;

-- run_oldest --
SELECT topic_id, partition, max_timestamp, reach_timestamp
FROM run
WHERE topic_id = ? AND partition = ?
ORDER BY last_offset
LIMIT 1;

-- run_parquet --
SELECT segment.key, parquet.key, parquet_records, parquet_crc, parquet_schema
FROM run
JOIN object AS segment ON segment.id = run.object_id
JOIN object AS parquet ON parquet.id = run.parquet_id
WHERE topic_id = ? AND partition = ? AND last_offset >= ? AND base_offset < ?
ORDER BY last_offset;

-- run_reach --
SELECT last_offset, max_timestamp, reach_timestamp
FROM run
WHERE topic_id = ? AND partition = ? AND last_offset >= ?
ORDER BY last_offset
LIMIT ?;

-- run_reach_before --
SELECT reach_timestamp
FROM run
WHERE topic_id = ? AND partition = ? AND last_offset < ?
ORDER BY last_offset DESC
LIMIT 1;

-- run_select --
-- The key by a query of its own, so that no plan ever reads the objects of more than these runs.
SELECT topic_id, partition, base_offset, last_offset,
       (SELECT key FROM object WHERE object.id = run.object_id),
       byte_offset, byte_size, max_timestamp, record_count
FROM run
WHERE topic_id = ? AND partition = ? AND last_offset >= ?
ORDER BY last_offset
LIMIT ?;

-- run_set_parquet --
UPDATE run
SET parquet_id = (SELECT id FROM object WHERE key = ?),
    parquet_records = ?, parquet_crc = ?, parquet_schema = ?
WHERE topic_id = ? AND partition = ? AND base_offset = ? AND last_offset = ?
  AND object_id = (SELECT id FROM object WHERE key = ?)
RETURNING base_offset;

-- run_set_reach --
UPDATE run SET reach_timestamp = ? WHERE topic_id = ? AND partition = ? AND last_offset = ?;

-- run_storage --
SELECT partition,
       CAST(sum(CASE kind WHEN 'chunk' THEN byte_size ELSE 0 END) AS BIGINT),
       CAST(sum(CASE kind WHEN 'segment' THEN byte_size ELSE 0 END) AS BIGINT),
       count(*)
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ?
GROUP BY partition
ORDER BY partition;

-- run_take_out --
DELETE FROM run
WHERE topic_id = ? AND partition = ? AND base_offset = ? AND last_offset = ?
  AND object_id = (SELECT id FROM object WHERE key = ?)
RETURNING base_offset;

-- run_trim --
DELETE FROM run
WHERE topic_id = ? AND partition = ? AND last_offset < ?
RETURNING topic_id, partition, byte_size;

-- run_without_parquet --
SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count, object.created_ms
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ? AND partition = ? AND last_offset >= ?
  AND parquet_id IS NULL AND object.kind = 'segment'
ORDER BY last_offset
LIMIT ?;

-- object_chunks --
SELECT key, kind, state, size_bytes, created_ms FROM object WHERE kind = 'chunk' ORDER BY key;

-- object_oldest_chunk --
SELECT min(created_ms) FROM object
WHERE kind = 'chunk' AND state = 'live'
  AND EXISTS (SELECT 1 FROM run WHERE run.object_id = object.id);

-- object_forget --
DELETE FROM object WHERE key = ? AND state = 'deleting';

-- object_id --
SELECT id FROM object WHERE key = ?;

-- object_known --
SELECT key FROM object WHERE key = ?;

-- object_mark_deleting --
UPDATE object SET state = 'deleting'
WHERE key = ? AND state = 'live'
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.object_id = object.id)
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.parquet_id = object.id)
RETURNING key;

-- object_select --
SELECT key, kind, state, size_bytes, created_ms FROM object WHERE state = ? ORDER BY key;

-- object_unreferenced --
SELECT key, kind, state, size_bytes, created_ms
FROM object
WHERE state = ?
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.object_id = object.id)
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.parquet_id = object.id)
ORDER BY key;

-- object_upsert --
INSERT INTO object (key, kind, state, size_bytes, created_ms)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET size_bytes = excluded.size_bytes
WHERE object.size_bytes < excluded.size_bytes;

-- payload_delete --
DELETE FROM payload WHERE object_key = ?;

-- payload_insert --
INSERT INTO payload (object_key, data) VALUES (?, ?);

-- payload_select --
SELECT substr(data, ?, ?) FROM payload WHERE object_key = ?;

-- ==== Consumer groups ===========================================================================

-- group_claim_all --
SELECT group_id, epoch, generation, state, emptied_ms FROM group_claim ORDER BY group_id;

-- group_claim_delete --
DELETE FROM group_claim WHERE group_id = ? RETURNING group_id;

-- group_claim_find --
-- The epoch there is, of a new row if need be: a broker alone claims nothing.
INSERT INTO group_claim (group_id, epoch, generation) VALUES (?, 0, 0)
ON CONFLICT (group_id) DO UPDATE SET epoch = group_claim.epoch
RETURNING epoch;

-- group_claim_forget --
DELETE FROM group_claim
WHERE group_id = ?
  AND NOT EXISTS (SELECT 1 FROM group_offset o WHERE o.group_id = group_claim.group_id)
  AND NOT EXISTS (SELECT 1 FROM txn_offset t WHERE t.group_id = group_claim.group_id)
  AND NOT EXISTS (SELECT 1 FROM group_member m WHERE m.group_id = group_claim.group_id);

-- group_claim_insert --
INSERT INTO group_claim (group_id, epoch, generation, state, emptied_ms) VALUES (?, ?, ?, ?, ?);

-- group_claim_keep --
UPDATE group_claim
SET state = ?, emptied_ms = CASE WHEN ? THEN coalesce(emptied_ms, ?) END
WHERE group_id = ?;

-- group_claim_lock --
SELECT epoch FROM group_claim WHERE group_id = ?;

-- group_claim_record --
UPDATE group_claim SET generation = ? WHERE group_id = ? AND epoch = ? RETURNING group_id;

-- group_claim_select --
SELECT epoch, generation, state, emptied_ms FROM group_claim WHERE group_id = ?;

-- group_claim_set --
INSERT INTO group_claim (group_id, epoch, generation) VALUES (?, ?, 0)
ON CONFLICT (group_id) DO UPDATE SET epoch = excluded.epoch
RETURNING epoch, generation, state, emptied_ms;

-- group_claim_vacant --
SELECT group_id FROM group_claim
WHERE NOT EXISTS (SELECT 1 FROM group_offset o WHERE o.group_id = group_claim.group_id)
  AND NOT EXISTS (SELECT 1 FROM txn_offset t WHERE t.group_id = group_claim.group_id)
  AND NOT EXISTS (SELECT 1 FROM group_member m WHERE m.group_id = group_claim.group_id)
ORDER BY group_id;

-- group_member_delete --
DELETE FROM group_member WHERE group_id = ? AND member_id = ?;

-- group_member_delete_all --
DELETE FROM group_member WHERE group_id = ?;

-- group_member_groups --
SELECT DISTINCT group_id FROM group_member ORDER BY group_id;

-- group_member_select --
SELECT member_id, state FROM group_member WHERE group_id = ? ORDER BY member_id;

-- group_member_upsert --
INSERT INTO group_member (group_id, member_id, state) VALUES (?, ?, ?)
ON CONFLICT (group_id, member_id) DO UPDATE SET state = excluded.state;

-- group_offset_all --
SELECT group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM group_offset
ORDER BY group_id, topic, partition;

-- group_offset_count --
SELECT count(*) FROM group_offset;

-- group_offset_first --
SELECT group_id, topic, partition, "offset"
FROM group_offset
ORDER BY group_id, topic, partition
LIMIT ?;

-- group_offset_delete --
DELETE FROM group_offset WHERE group_id = ? RETURNING group_id;

-- group_offset_delete_topic --
DELETE FROM group_offset WHERE topic = ?;

-- group_offset_expire --
DELETE FROM group_offset
WHERE group_id = ? AND topic = ? AND "partition" = ? AND committed_ms <= ?
RETURNING topic, "partition";

-- group_offset_forget --
DELETE FROM group_offset WHERE group_id = ? AND topic = ? AND "partition" = ?;

-- group_offset_old --
SELECT DISTINCT group_id FROM group_offset WHERE committed_ms <= ? ORDER BY group_id;

-- group_offset_select --
SELECT topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM group_offset
WHERE group_id = ?
ORDER BY topic, partition;

-- group_offset_upsert --
INSERT INTO group_offset
  (group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (group_id, topic, partition) DO UPDATE SET
  "offset" = excluded."offset",
  leader_epoch = excluded.leader_epoch,
  metadata = excluded.metadata,
  committed_ms = excluded.committed_ms;

-- group_select --
SELECT DISTINCT group_id FROM group_offset ORDER BY group_id;

-- ==== Pins, reports and sink epochs =============================================================

-- pin_delete --
DELETE FROM pin WHERE id = ? RETURNING id;

-- pin_select --
SELECT id, owner, positions, lease_until_ms, created_ms, max_bytes, state FROM pin ORDER BY id;

-- pin_set_state --
UPDATE pin SET state = ? WHERE id = ?;

-- pin_upsert --
INSERT INTO pin (id, owner, positions, lease_until_ms, created_ms, max_bytes, state)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  owner = excluded.owner,
  positions = excluded.positions,
  lease_until_ms = excluded.lease_until_ms,
  created_ms = excluded.created_ms,
  max_bytes = excluded.max_bytes,
  state = excluded.state;

-- report_forget --
DELETE FROM pipeline_report WHERE received_ms < ?;

-- report_others --
SELECT count(*) FROM pipeline_report WHERE name <> ?;

-- report_select --
SELECT name, received_ms, report FROM pipeline_report ORDER BY name;

-- report_upsert --
INSERT INTO pipeline_report (name, received_ms, report)
VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET received_ms = excluded.received_ms, report = excluded.report;

-- sink_epoch_all --
SELECT pipeline, sink, epoch, topic, records, offsets, checksum
FROM sink_epoch
ORDER BY pipeline, sink, epoch;

-- sink_epoch_insert --
INSERT INTO sink_epoch (pipeline, sink, epoch, topic, records, offsets, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- sink_epoch_last --
SELECT epoch, topic, records, offsets, checksum
FROM sink_epoch
WHERE pipeline = ? AND sink = ?
ORDER BY epoch DESC
LIMIT 1;

-- sink_epoch_select --
SELECT epoch, topic, records, offsets, checksum
FROM sink_epoch
WHERE pipeline = ? AND sink = ? AND epoch = ?;

-- ==== Brokers' sessions and leases ==============================================================

-- broker_expire --
DELETE FROM broker WHERE deadline_ms < ? RETURNING id;

-- broker_leave --
DELETE FROM broker WHERE id = ? AND epoch = ? RETURNING id;

-- broker_lock --
SELECT state FROM broker WHERE id = ? AND epoch = ?;

-- broker_renew --
UPDATE broker SET state = ?, deadline_ms = ? WHERE id = ? AND epoch = ?;

-- broker_select --
SELECT id, epoch, zone, host, port, control_url, wal, wal_is_shared, state, deadline_ms, listeners
FROM broker
WHERE deadline_ms >= ?
ORDER BY id;

-- broker_upsert --
INSERT INTO broker (id, epoch, zone, host, port, control_url, wal, wal_is_shared, state,
                    deadline_ms, listeners)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  epoch = excluded.epoch,
  zone = excluded.zone,
  host = excluded.host,
  port = excluded.port,
  control_url = excluded.control_url,
  wal = excluded.wal,
  wal_is_shared = excluded.wal_is_shared,
  state = excluded.state,
  deadline_ms = excluded.deadline_ms,
  listeners = excluded.listeners;

-- lease_hold --
-- Changes nothing, but makes another taker of the lease wait until this transaction has ended.
UPDATE lease SET deadline_ms = deadline_ms
WHERE name = ? AND broker_id = ? AND broker_epoch = ? AND deadline_ms >= ?
RETURNING name;

-- lease_take --
INSERT INTO lease (name, broker_id, broker_epoch, deadline_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
  broker_id = excluded.broker_id,
  broker_epoch = excluded.broker_epoch,
  deadline_ms = excluded.deadline_ms
WHERE (lease.broker_id = excluded.broker_id AND lease.broker_epoch = excluded.broker_epoch)
   OR lease.deadline_ms < ?
   OR NOT EXISTS (
     SELECT 1 FROM broker
     WHERE broker.id = lease.broker_id AND broker.epoch = lease.broker_epoch
       AND broker.deadline_ms >= ?
   )
RETURNING name;

-- ==== Users and rules ===========================================================================

-- access_version --
SELECT access_version FROM log;

-- access_version_take --
UPDATE log SET access_version = access_version + 1 RETURNING access_version;

-- access_rule_select --
SELECT principal, permission, operation, type, name, pattern, host
FROM access_rule
ORDER BY principal, type, name, pattern, host, operation, permission;

-- access_rule_insert --
INSERT INTO access_rule (principal, permission, operation, type, name, pattern, host)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- access_rule_delete --
DELETE FROM access_rule
WHERE principal = ? AND permission = ? AND operation = ? AND type = ? AND name = ?
  AND pattern = ? AND host = ?;

-- access_verifier_select --
SELECT name, mechanism, salt, iterations, stored_key, server_key
FROM access_verifier
ORDER BY name, mechanism;

-- access_verifier_insert --
INSERT INTO access_verifier (name, mechanism, salt, iterations, stored_key, server_key)
VALUES (?, ?, ?, ?, ?, ?);

-- access_verifier_delete --
DELETE FROM access_verifier WHERE name = ? AND mechanism = ?;

-- client_quota_select --
SELECT user_name, client_id, key, value
FROM client_quota
ORDER BY user_name, client_id, key;

-- client_quota_upsert --
INSERT INTO client_quota (user_name, client_id, key, value)
VALUES (?, ?, ?, ?)
ON CONFLICT (user_name, client_id, key) DO UPDATE SET value = excluded.value;

-- client_quota_delete --
DELETE FROM client_quota WHERE user_name = ? AND client_id = ? AND key = ?;
