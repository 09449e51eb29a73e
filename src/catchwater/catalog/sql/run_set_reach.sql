UPDATE run SET reach_timestamp = ? WHERE topic_id = ? AND partition = ? AND last_offset = ?;
