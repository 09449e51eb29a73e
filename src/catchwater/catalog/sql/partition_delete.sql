DELETE FROM partition WHERE topic_id = ?;
