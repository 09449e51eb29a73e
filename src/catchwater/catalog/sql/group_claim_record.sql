UPDATE group_claim SET generation = ? WHERE group_id = ? AND epoch = ? RETURNING group_id;
