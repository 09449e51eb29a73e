SELECT last_backup FROM log;
