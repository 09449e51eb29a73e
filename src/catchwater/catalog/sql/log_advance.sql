UPDATE log SET applied_sequence = max(applied_sequence, ?);
