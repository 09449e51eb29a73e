DELETE FROM txn_offset WHERE producer_id = ?;
