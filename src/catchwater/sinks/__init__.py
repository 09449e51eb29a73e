"""Chapter 10: an epoch is written once.

Every sink commits data and the mark (pipeline, epoch) together; writing an epoch again is a no-op.
"""
