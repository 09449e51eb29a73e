SELECT epoch, topic, records, offsets, checksum
FROM sink_epoch
WHERE pipeline = ? AND sink = ? AND epoch = ?;
