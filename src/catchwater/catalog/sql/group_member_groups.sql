SELECT DISTINCT group_id FROM group_member ORDER BY group_id;
