DELETE FROM open_txn WHERE topic_id = ? AND partition = ? AND producer_id = ?;
