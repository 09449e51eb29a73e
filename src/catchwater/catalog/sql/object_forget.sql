DELETE FROM object WHERE key = ? AND state = 'deleting';
