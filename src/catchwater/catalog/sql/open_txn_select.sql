SELECT topic_id, partition, producer_id, first_offset
FROM open_txn
ORDER BY topic_id, partition, producer_id;
