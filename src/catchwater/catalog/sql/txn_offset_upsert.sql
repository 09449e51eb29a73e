INSERT INTO txn_offset
  (producer_id, group_id, topic, partition, "offset", leader_epoch, metadata, committed_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (producer_id, group_id, topic, partition) DO UPDATE SET
  "offset" = excluded."offset",
  leader_epoch = excluded.leader_epoch,
  metadata = excluded.metadata,
  committed_ms = excluded.committed_ms;
