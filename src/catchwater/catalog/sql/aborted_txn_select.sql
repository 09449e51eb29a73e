SELECT topic_id, partition, producer_id, first_offset, last_offset
FROM aborted_txn
WHERE topic_id = ? AND partition = ? AND last_offset >= ? AND first_offset < ?
ORDER BY last_offset;
