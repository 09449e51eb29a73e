-- The key by a query of its own, so that no plan ever reads the objects of more than these runs.
SELECT topic_id, partition, base_offset, last_offset,
       (SELECT key FROM object WHERE object.id = run.object_id),
       byte_offset, byte_size, max_timestamp, record_count
FROM run
WHERE topic_id = ? AND partition = ? AND last_offset >= ?
ORDER BY last_offset
LIMIT ?;
