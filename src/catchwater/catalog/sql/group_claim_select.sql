SELECT epoch, generation, state, emptied_ms FROM group_claim WHERE group_id = ?;
