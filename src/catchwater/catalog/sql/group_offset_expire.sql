DELETE FROM group_offset
WHERE group_id = ? AND topic = ? AND "partition" = ? AND committed_ms <= ?
RETURNING topic, "partition";
