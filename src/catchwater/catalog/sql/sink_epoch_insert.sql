INSERT INTO sink_epoch (pipeline, sink, epoch, topic, records, offsets, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?);
