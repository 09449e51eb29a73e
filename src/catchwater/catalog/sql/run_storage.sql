SELECT partition,
       CAST(sum(CASE kind WHEN 'chunk' THEN byte_size ELSE 0 END) AS BIGINT),
       CAST(sum(CASE kind WHEN 'segment' THEN byte_size ELSE 0 END) AS BIGINT),
       count(*)
FROM run JOIN object ON object.id = run.object_id
WHERE topic_id = ?
GROUP BY partition
ORDER BY partition;
