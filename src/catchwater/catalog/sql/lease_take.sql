INSERT INTO lease (name, broker_id, broker_epoch, deadline_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
  broker_id = excluded.broker_id,
  broker_epoch = excluded.broker_epoch,
  deadline_ms = excluded.deadline_ms
WHERE (lease.broker_id = excluded.broker_id AND lease.broker_epoch = excluded.broker_epoch)
   OR lease.deadline_ms < ?
   OR NOT EXISTS (
     SELECT 1 FROM broker
     WHERE broker.id = lease.broker_id AND broker.epoch = lease.broker_epoch
       AND broker.deadline_ms >= ?
   )
RETURNING name;
