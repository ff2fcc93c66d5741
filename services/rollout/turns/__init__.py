"""Turns of an episode: messages -> given tokens behind a prefix, sampled tokens -> a message."""
