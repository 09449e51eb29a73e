DELETE FROM run
WHERE topic_id = ? AND partition = ? AND last_offset < ?
RETURNING topic_id, partition, byte_size;
