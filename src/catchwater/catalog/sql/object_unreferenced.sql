SELECT key, kind, state, size_bytes, created_ms
FROM object
WHERE state = ?
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.object_id = object.id)
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.parquet_id = object.id)
ORDER BY key;
