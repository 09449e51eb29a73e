INSERT INTO object (key, kind, state, size_bytes, created_ms)
SELECT * FROM unnest(?::text[], ?::text[], ?::text[], ?::bigint[], ?::bigint[])
ON CONFLICT (key) DO UPDATE SET size_bytes = excluded.size_bytes
WHERE object.size_bytes < excluded.size_bytes;
