UPDATE topic SET partitions = ? WHERE id = ?;
