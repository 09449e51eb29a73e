INSERT INTO object (key, kind, state, size_bytes, created_ms)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET size_bytes = max(size_bytes, excluded.size_bytes);
