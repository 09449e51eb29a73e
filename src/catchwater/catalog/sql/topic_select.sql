SELECT id, name, partitions, config FROM topic ORDER BY name;
