"""Envelopes that every binding reads and writes alike: bytes to values of `things`, and back."""
