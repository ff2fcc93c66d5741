"""Configuration files of verl, EasyR1 and MindSpeed-RL as runs of ours: `trimaran import`.

One table a system says what becomes of each of its keys. docs/migrating.md has the keys that users set.
"""
