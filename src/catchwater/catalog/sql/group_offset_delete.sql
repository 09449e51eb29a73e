DELETE FROM group_offset WHERE group_id = ? RETURNING group_id;
