SELECT state FROM broker WHERE id = ? AND epoch = ? FOR KEY SHARE;
