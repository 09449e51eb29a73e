SELECT topic_id, partition, producer_id, first_offset
FROM open_txn
WHERE topic_id = ? AND partition = ?
ORDER BY first_offset;
