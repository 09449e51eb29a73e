DELETE FROM txn
WHERE transactional_id IN (
  SELECT transactional_id
  FROM txn
  WHERE updated_ms < ? AND state IN ('empty', 'complete_commit', 'complete_abort')
  FOR UPDATE SKIP LOCKED  -- somebody has just begun to use it
)
RETURNING producer_id;
