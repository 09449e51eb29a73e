SELECT id, owner, positions, lease_until_ms, created_ms, max_bytes, state FROM pin ORDER BY id;
