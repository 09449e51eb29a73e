SELECT id, owner, positions, lease_until_ms, created_ms FROM pin ORDER BY id;
