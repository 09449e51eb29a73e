SELECT pipeline, sink, epoch, topic, records, offsets, checksum
FROM sink_epoch
ORDER BY pipeline, sink, epoch;
