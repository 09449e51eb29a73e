SELECT topic_id, partition, base_offset, last_offset,
       (SELECT key FROM object WHERE object.id = run.object_id),
       byte_offset, byte_size, max_timestamp, record_count
FROM run
WHERE topic_id = ? AND partition = ? AND reach_timestamp >= ?
ORDER BY topic_id, partition, reach_timestamp, last_offset
LIMIT 1;
