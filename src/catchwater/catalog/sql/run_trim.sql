DELETE FROM run
WHERE topic_id = ? AND partition = ? AND last_offset < ?
RETURNING byte_size;
