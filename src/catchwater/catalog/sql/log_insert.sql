INSERT INTO log (cluster_id, applied_sequence, next_producer_id) VALUES (?, 0, 1);
