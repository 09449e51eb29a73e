SELECT topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp
FROM partition
WHERE topic_id = ? AND partition = ?;
