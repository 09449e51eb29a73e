SELECT topic, partition, "offset", leader_epoch, metadata, committed_ms
FROM group_offset
WHERE group_id = ?
ORDER BY topic, partition;
