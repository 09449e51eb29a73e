DELETE FROM broker WHERE deadline_ms < ? RETURNING id;
