INSERT INTO group_claim (group_id, epoch, generation) VALUES (?, ?, 0)
ON CONFLICT (group_id) DO UPDATE SET epoch = excluded.epoch
RETURNING epoch, generation, state, emptied_ms;
