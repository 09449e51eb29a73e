INSERT INTO group_claim (group_id, epoch, generation, state, emptied_ms) VALUES (?, ?, ?, ?, ?);
