SELECT key, kind, state, size_bytes, created_ms FROM object WHERE state = ? ORDER BY key;
