UPDATE partition
SET bytes = bytes + ?, earliest_timestamp = ?
WHERE topic_id = ? AND partition = ?
RETURNING topic_id, partition, log_start, high_watermark, bytes, earliest_timestamp;
