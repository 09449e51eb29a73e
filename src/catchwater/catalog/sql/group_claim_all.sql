SELECT group_id, epoch, generation, state, emptied_ms FROM group_claim ORDER BY group_id;
