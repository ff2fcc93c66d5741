"""The conformance kit for reward plugins."""
