UPDATE log
SET cluster_id = ?, applied_sequence = ?, next_producer_id = ?, next_epoch = ?, last_backup = ?;
