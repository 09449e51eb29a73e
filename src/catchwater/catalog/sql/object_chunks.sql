SELECT key, kind, state, size_bytes, created_ms FROM object WHERE kind = 'chunk' ORDER BY key;
