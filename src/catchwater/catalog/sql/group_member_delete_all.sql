DELETE FROM group_member WHERE group_id = ?;
