SELECT id, epoch, zone, host, port, control_url, wal, wal_is_shared, state, deadline_ms
FROM broker
WHERE deadline_ms >= ?
ORDER BY id;
