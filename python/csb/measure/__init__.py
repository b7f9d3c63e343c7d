"""Measuring: the only part above csb.native that decodes. What it returns is plain data."""
