"""Model files: which one is used without -m, where it is kept, and what its bytes hash to."""
