SELECT partition,
       sum(CASE kind WHEN 'chunk' THEN byte_size ELSE 0 END),
       sum(CASE kind WHEN 'segment' THEN byte_size ELSE 0 END),
       count(*)
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ?
GROUP BY partition
ORDER BY partition;
