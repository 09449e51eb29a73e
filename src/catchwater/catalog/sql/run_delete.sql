DELETE FROM run WHERE topic_id = ?;
