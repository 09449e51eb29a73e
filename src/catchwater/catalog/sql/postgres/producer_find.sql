SELECT topic_id, partition, producer_id, epoch, batches, last_ms
FROM unnest(?::bytea[], ?::integer[], ?::bigint[]) AS wanted (topic_id, partition, producer_id)
JOIN producer USING (topic_id, partition, producer_id);
