UPDATE run
SET parquet_id = (SELECT id FROM object WHERE key = ?),
    parquet_records = ?, parquet_crc = ?, parquet_schema = ?
WHERE topic_id = ? AND partition = ? AND base_offset = ? AND last_offset = ?
  AND object_id = (SELECT id FROM object WHERE key = ?)
RETURNING base_offset;
