SELECT DISTINCT topic, partition FROM txn_offset WHERE group_id = ?;
