SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE transactional_id = ?
FOR UPDATE;
