"""What ctypes and numpy would pass on wrong: numbers cut to 32 bits, texts cut at a NUL."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError

_INT32 = np.iinfo(np.int32)


def whole(value: Any, name: str) -> int:
    """A whole number of 32 bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} = {value!r}: must be a whole number") from None
    if not _INT32.min <= number <= _INT32.max:
        raise ArgumentError(f"{name} = {number}: is beyond 32 bits")
    return number


def whole_array(values: Any, name: str) -> npt.NDArray[np.int32]:
    """A row of whole numbers of 32 bits."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ArgumentError(f"{name} has shape {array.shape}: must be a row of whole numbers")
    if array.size and array.dtype != np.int32:
        if array.dtype.kind not in "iu":
            raise ArgumentError(f"{name} are {array.dtype}: must be whole numbers of 32 bits")
        for value in (array.min(), array.max()):
            whole(value, name)
    return np.ascontiguousarray(array, dtype=np.int32)


def float_rows(rows: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
    """Rows of logits, contiguous; never converted, which could change their bits."""
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise ArgumentError(
            f"{name} is {rows.dtype} of shape {rows.shape}: must be float32 [rows, n_vocab]"
        )
    return np.ascontiguousarray(rows)


def text(value: str | bytes, name: str) -> bytes:
    """UTF-8 without a NUL, at which C would end it."""
    try:
        data = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} = {value!r}: is no valid Unicode text") from None
    if b"\0" in data:
        raise ArgumentError(f"{name} = {value!r}: must not contain a NUL")
    return data
