SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM partition
ORDER BY topic_id, partition;
