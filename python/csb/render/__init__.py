"""Turns records into text. Nothing else in csb prints results."""
