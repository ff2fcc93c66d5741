"""Calling reward plugins over HTTP."""
