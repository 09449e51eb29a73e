UPDATE log SET next_epoch = next_epoch + 1 RETURNING next_epoch - 1;
