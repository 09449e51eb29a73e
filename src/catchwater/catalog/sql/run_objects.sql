SELECT DISTINCT object.key
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ?;
