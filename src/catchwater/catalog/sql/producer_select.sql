SELECT topic_id, partition, producer_id, epoch, batches, last_ms FROM producer;
