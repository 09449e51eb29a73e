SELECT partitions FROM topic WHERE id = ? FOR UPDATE;
