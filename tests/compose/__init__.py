"""The compose demo under a real container engine, in a network namespace of its own.

`make test-compose` runs it and writes what came of it into `results.json`. Nothing of it is left
behind but images in .cache/compose, so that the next run builds only what has changed.
"""
