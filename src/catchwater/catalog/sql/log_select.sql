SELECT cluster_id, applied_sequence FROM log;
