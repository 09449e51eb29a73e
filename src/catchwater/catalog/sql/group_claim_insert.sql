INSERT INTO group_claim (group_id, epoch, generation) VALUES (?, ?, ?);
