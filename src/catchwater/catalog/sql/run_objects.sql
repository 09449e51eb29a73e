WITH of_topic AS (SELECT object_id, parquet_id FROM run WHERE topic_id = ?)
SELECT key FROM object
WHERE id IN (SELECT object_id FROM of_topic UNION SELECT parquet_id FROM of_topic);
