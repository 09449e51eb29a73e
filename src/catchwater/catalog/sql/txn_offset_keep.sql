INSERT INTO group_offset (group_id, topic, partition, "offset", leader_epoch, metadata)
SELECT group_id, topic, partition, "offset", leader_epoch, metadata
FROM txn_offset
WHERE producer_id = ?
ORDER BY group_id, topic, partition
ON CONFLICT (group_id, topic, partition) DO UPDATE SET
  "offset" = excluded."offset",
  leader_epoch = excluded.leader_epoch,
  metadata = excluded.metadata;
