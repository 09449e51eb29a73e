UPDATE object SET state = 'deleting'
WHERE key = ? AND state = 'live'
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.object_id = object.id)
  AND NOT EXISTS (SELECT 1 FROM run WHERE run.parquet_id = object.id)
RETURNING key;
