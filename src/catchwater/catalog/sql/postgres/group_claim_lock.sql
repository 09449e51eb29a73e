SELECT epoch FROM group_claim WHERE group_id = ? FOR SHARE;
