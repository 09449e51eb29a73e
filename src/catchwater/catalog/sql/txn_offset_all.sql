SELECT producer_id, group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM txn_offset
ORDER BY producer_id, group_id, topic, partition;
