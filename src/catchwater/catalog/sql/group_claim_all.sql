SELECT group_id, epoch, generation FROM group_claim ORDER BY group_id;
