SELECT topic_id, partition, producer_id, epoch, batches, last_ms
FROM producer
WHERE topic_id = ? AND partition = ?
ORDER BY producer_id;
