DELETE FROM producer WHERE last_ms < ?;
