"""Runs speculative decoding's loop beside the AR run, and looks for what is not rounding."""
