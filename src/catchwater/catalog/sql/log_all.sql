SELECT cluster_id, applied_sequence, next_producer_id, next_epoch FROM log;
