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
