INSERT INTO broker (id, epoch, zone, host, port, control_url, wal, wal_is_shared, state,
                    deadline_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  epoch = excluded.epoch,
  zone = excluded.zone,
  host = excluded.host,
  port = excluded.port,
  control_url = excluded.control_url,
  wal = excluded.wal,
  wal_is_shared = excluded.wal_is_shared,
  state = excluded.state,
  deadline_ms = excluded.deadline_ms;
