SELECT DISTINCT group_id FROM group_offset WHERE committed_ms <= ? ORDER BY group_id;
