DELETE FROM aborted_txn WHERE topic_id = ? AND partition = ? AND last_offset < ?;
