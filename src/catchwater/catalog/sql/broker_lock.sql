SELECT state FROM broker WHERE id = ? AND epoch = ?;
