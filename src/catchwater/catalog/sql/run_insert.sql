WITH new (topic_id, partition, base_offset, last_offset, object, byte_offset, byte_size,
          max_timestamp, record_count) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO run (topic_id, partition, base_offset, last_offset, object_id, byte_offset, byte_size,
                 max_timestamp, record_count, reach_timestamp)
SELECT topic_id, partition, base_offset, last_offset,
       (SELECT id FROM object WHERE key = new.object),
       byte_offset, byte_size, max_timestamp, record_count,
       max(max_timestamp, coalesce((
         SELECT run.reach_timestamp FROM run
         WHERE run.topic_id = new.topic_id AND run.partition = new.partition
           AND run.last_offset < new.last_offset
         ORDER BY run.last_offset DESC
         LIMIT 1
       ), -1))
FROM new;
