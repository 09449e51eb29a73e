SELECT topic_id, partition, producer_id, first_offset
FROM unnest(?::bytea[], ?::integer[]) AS wanted (topic_id, partition)
JOIN open_txn USING (topic_id, partition)
ORDER BY first_offset;
