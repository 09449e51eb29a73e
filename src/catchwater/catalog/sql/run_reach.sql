SELECT last_offset, max_timestamp, reach_timestamp
FROM run
WHERE topic_id = ? AND partition = ? AND last_offset >= ?
ORDER BY last_offset
LIMIT ?;
