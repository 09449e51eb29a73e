INSERT INTO pin (id, owner, positions, lease_until_ms, created_ms, max_bytes, state)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  owner = excluded.owner,
  positions = excluded.positions,
  lease_until_ms = excluded.lease_until_ms,
  created_ms = excluded.created_ms,
  max_bytes = excluded.max_bytes,
  state = excluded.state;
