SELECT transactional_id, producer_id, epoch, state, timeout_ms, started_ms, version,
       last_epoch, updated_ms, partitions
FROM txn
WHERE state IN ('ongoing', 'prepare_commit', 'prepare_abort')
ORDER BY transactional_id;
