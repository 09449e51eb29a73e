SELECT topic_id, partition, base_offset, last_offset, object.key, byte_offset, byte_size,
       max_timestamp, record_count
FROM object JOIN run ON run.object_id = object.id
WHERE object.kind = 'chunk'
ORDER BY topic_id, partition, last_offset;
