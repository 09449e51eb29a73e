SELECT 1 FROM topic WHERE name = ?;
