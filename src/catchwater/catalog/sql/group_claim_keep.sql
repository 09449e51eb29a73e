UPDATE group_claim
SET state = ?, emptied_ms = CASE WHEN ? THEN coalesce(emptied_ms, ?) END
WHERE group_id = ?;
