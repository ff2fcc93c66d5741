"""Runs read from their own files, without a manager."""
