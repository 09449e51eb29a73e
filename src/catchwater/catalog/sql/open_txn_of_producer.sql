SELECT topic_id, partition, producer_id, first_offset
FROM open_txn
WHERE producer_id = ?
ORDER BY topic_id, partition;
