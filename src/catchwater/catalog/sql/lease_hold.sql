-- Changes nothing: whoever would take the lease waits until this transaction has ended.
UPDATE lease SET deadline_ms = deadline_ms
WHERE name = ? AND broker_id = ? AND broker_epoch = ? AND deadline_ms >= ?
RETURNING name;
