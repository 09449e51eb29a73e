"""Savepoints: a checkpoint's state and positions copied to where they outlive it, by name.

Complete or invisible, checked to the byte, readable without Spark and without the user's class.
"""
