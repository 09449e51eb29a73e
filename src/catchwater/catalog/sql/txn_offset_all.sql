SELECT producer_id, group_id, topic, partition, "offset", leader_epoch, metadata
FROM txn_offset
ORDER BY producer_id, group_id, topic, partition;
