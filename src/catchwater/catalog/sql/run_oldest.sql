SELECT topic_id, partition, max_timestamp, reach_timestamp
FROM run
WHERE topic_id = ? AND partition = ?
ORDER BY last_offset
LIMIT 1;
