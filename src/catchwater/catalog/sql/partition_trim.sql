UPDATE partition
SET log_start = CASE WHEN log_start < ? THEN ? ELSE log_start END,
    bytes = bytes - ?,
    earliest_timestamp = ?
WHERE topic_id = ? AND partition = ?
RETURNING topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp;
