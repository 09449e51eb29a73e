DELETE FROM broker WHERE id = ? AND epoch = ? RETURNING id;
