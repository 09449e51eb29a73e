SELECT group_id, topic, partition, "offset", leader_epoch, metadata
FROM group_offset
ORDER BY group_id, topic, partition;
