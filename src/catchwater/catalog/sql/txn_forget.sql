DELETE FROM txn
WHERE updated_ms < ? AND state IN ('empty', 'complete_commit', 'complete_abort')
RETURNING producer_id;
