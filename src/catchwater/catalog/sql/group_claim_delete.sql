DELETE FROM group_claim WHERE group_id = ? RETURNING group_id;
