-- One that is just committing is left to the next heartbeat, which must not wait for it.
DELETE FROM broker
WHERE id IN (SELECT id FROM broker WHERE deadline_ms < ? FOR UPDATE SKIP LOCKED)
RETURNING id;
