INSERT INTO open_txn (topic_id, partition, producer_id, first_offset) VALUES (?, ?, ?, ?)
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE SET first_offset = excluded.first_offset;
