"""Speculative decoding as plain data: plans, texts, counts, limits, verdicts. No native code."""
