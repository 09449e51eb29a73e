SELECT DISTINCT group_id FROM group_offset ORDER BY group_id;
