"""Base of the classes that own a native handle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

from csb.errors import ArgumentError


class Handle:
    """Owns one native handle: close() twice is fine, use after it raises ArgumentError."""

    _close: Callable[[Any], None]
    _pointer: Any = None  # also on objects whose __init__ failed

    @property
    def pointer(self) -> Any:
        if not self._pointer:
            raise ArgumentError(f"this {type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer:
            self._close(pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter shutdown nothing may be left to call
            self.close()
