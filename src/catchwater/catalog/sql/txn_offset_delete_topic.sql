DELETE FROM txn_offset WHERE topic = ?;
