INSERT INTO topic (id, name, partitions, config) VALUES (?, ?, ?, ?);
