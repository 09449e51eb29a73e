DELETE FROM group_member WHERE group_id = ? AND member_id = ?;
