SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count, object.created_ms
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ? AND partition = ? AND last_offset >= ?
  AND parquet_id IS NULL AND object.kind = 'segment'
ORDER BY last_offset
LIMIT ?;
