INSERT INTO group_member (group_id, member_id, state) VALUES (?, ?, ?)
ON CONFLICT (group_id, member_id) DO UPDATE SET state = excluded.state;
