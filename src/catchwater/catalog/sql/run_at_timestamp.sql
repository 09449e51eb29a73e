SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ? AND partition = ? AND reach_timestamp >= ?
ORDER BY topic_id, partition, reach_timestamp, last_offset
LIMIT 1;
