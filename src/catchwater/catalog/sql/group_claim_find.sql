-- The epoch there is, of a new row if need be: a broker alone claims nothing.
INSERT INTO group_claim (group_id, epoch, generation) VALUES (?, 0, 0)
ON CONFLICT (group_id) DO UPDATE SET epoch = group_claim.epoch
RETURNING epoch;
