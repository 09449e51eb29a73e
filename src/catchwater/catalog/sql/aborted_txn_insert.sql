INSERT INTO aborted_txn (topic_id, partition, producer_id, first_offset, last_offset)
VALUES (?, ?, ?, ?, ?);
