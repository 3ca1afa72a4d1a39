"""Drives real engines and compares what they answer with what the collector joined from their streams."""
