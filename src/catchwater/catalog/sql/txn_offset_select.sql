SELECT group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM txn_offset
WHERE producer_id = ?
ORDER BY group_id, topic, partition;
