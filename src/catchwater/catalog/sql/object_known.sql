SELECT key FROM object WHERE key = ?;
