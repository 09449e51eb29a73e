DELETE FROM group_offset WHERE topic = ?;
