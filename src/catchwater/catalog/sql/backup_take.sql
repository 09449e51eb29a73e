UPDATE log SET last_backup = last_backup + 1 RETURNING last_backup;
