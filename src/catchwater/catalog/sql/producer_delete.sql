DELETE FROM producer WHERE topic_id = ?;
