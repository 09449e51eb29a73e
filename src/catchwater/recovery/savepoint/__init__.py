"""Savepoints: named copies of a checkpoint's state and offsets that are kept until deleted.

Complete or invisible, checked to the byte, readable without Spark and without the user's class.
"""
