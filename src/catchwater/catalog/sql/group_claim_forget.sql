DELETE FROM group_claim
WHERE group_id = ?
  AND NOT EXISTS (SELECT 1 FROM group_offset o WHERE o.group_id = group_claim.group_id)
  AND NOT EXISTS (SELECT 1 FROM txn_offset t WHERE t.group_id = group_claim.group_id)
  AND NOT EXISTS (SELECT 1 FROM group_member m WHERE m.group_id = group_claim.group_id);
