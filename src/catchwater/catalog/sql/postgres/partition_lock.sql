SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM unnest(?::bytea[], ?::integer[]) AS wanted (topic_id, partition)
JOIN partition USING (topic_id, partition)
ORDER BY topic_id, partition
FOR UPDATE OF partition;
