DELETE FROM aborted_txn WHERE topic_id = ?;
