UPDATE log SET applied_sequence = ? WHERE applied_sequence < ?;
