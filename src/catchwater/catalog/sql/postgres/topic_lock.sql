SELECT partitions, config FROM topic WHERE id = ? FOR UPDATE;
