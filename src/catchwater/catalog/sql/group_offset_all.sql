SELECT group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM group_offset
ORDER BY group_id, topic, partition;
