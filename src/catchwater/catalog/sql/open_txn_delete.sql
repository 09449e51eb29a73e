DELETE FROM open_txn WHERE topic_id = ?;
