"""The only part of csb that touches the native library: csrc/csb.h is its contract."""
