"""Capture from files: growing and rotated ones, and new ones in a folder, as lines, JSON, CSV or Parquet."""
