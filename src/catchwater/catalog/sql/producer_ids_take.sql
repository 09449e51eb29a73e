UPDATE log SET next_producer_id = next_producer_id + ? RETURNING next_producer_id;
