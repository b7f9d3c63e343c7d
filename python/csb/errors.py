"""What can go wrong, by meaning. The command line turns every one into a line and an exit code."""

from __future__ import annotations


class CsbError(Exception):
    """Base of csb's own errors. Its text is one line that says what to do where that is known."""


class ArgumentError(CsbError, ValueError):
    """A bad argument; nothing was done. The text names the argument and its value."""


class FileError(CsbError):
    """A file that can't be read, or is not what it should be."""


class UnsupportedError(CsbError):
    """This model, memory or build can't do that; nothing was done."""


class DeviceError(CsbError):
    """A device or a server that does not answer, or has no room; nothing was done."""


class DecodeError(CsbError):
    """llama_decode failed. `status` is its own code: 1 no slot, -1 batch, -2 memory, -3 compute.

    After -2 and -3 the ubatches that were done before stay in the context's memory.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CancelledError(CsbError):
    """A decode was cancelled; ubatches that were done before stay in the context's memory."""


class LibraryError(CsbError):
    """The native library is missing, of another version, or failed in an unexpected way."""


class InvalidMeasurement(CsbError):
    """The measurement can't be trusted: a control failed, or there was nothing to compare."""
