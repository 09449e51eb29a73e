SELECT segment.key, parquet.key, parquet_records, parquet_crc, parquet_schema
FROM run
JOIN object AS segment ON segment.id = run.object_id
JOIN object AS parquet ON parquet.id = run.parquet_id
WHERE topic_id = ? AND partition = ? AND last_offset >= ? AND base_offset < ?
ORDER BY last_offset;
