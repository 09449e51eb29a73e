SELECT topic, partition, "offset", leader_epoch, metadata
FROM group_offset
WHERE group_id = ?
ORDER BY topic, partition;
