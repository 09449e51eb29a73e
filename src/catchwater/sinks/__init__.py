"""Chapter 10: an epoch is written once.

Every sink commits data and the mark (pipeline, sink, generation, epoch) together; writing an epoch
again is a no-op.
"""
