SELECT member_id, state FROM group_member WHERE group_id = ? ORDER BY member_id;
