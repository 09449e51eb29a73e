INSERT INTO run (topic_id, partition, base_offset, last_offset, object_id, byte_offset, byte_size,
                 max_timestamp, record_count)
VALUES (?, ?, ?, ?, (SELECT id FROM object WHERE key = ?), ?, ?, ?, ?);
