SELECT partitions FROM topic WHERE id = ?;
