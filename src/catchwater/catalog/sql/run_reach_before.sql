SELECT reach_timestamp
FROM run
WHERE topic_id = ? AND partition = ? AND last_offset < ?
ORDER BY last_offset DESC
LIMIT 1;
