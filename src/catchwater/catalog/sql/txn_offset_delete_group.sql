DELETE FROM txn_offset WHERE group_id = ?;
