SELECT topic_id, partition, producer_id, first_offset, last_offset
FROM aborted_txn
ORDER BY topic_id, partition, last_offset;
