"""The conformance kit for environment plugins."""
