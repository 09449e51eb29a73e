INSERT INTO topic (id, name, partitions, config) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO NOTHING
RETURNING id;
