"""Runs long native calls so that the main thread can take signals meanwhile.

Python handles Ctrl-C only between bytecodes of the main thread, and a native call is one. So the
main thread gives its calls to one worker thread and waits where a signal can reach it. One worker
for the whole process, because OpenMP keeps a pool of threads for each thread that calls it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

GRACE = 10.0  # seconds that a device has to come back after an interrupt
LITTLE = 1.0  # and after a second one

# Called when cancelled work has not ended within GRACE: the command line leaves the process then.
# Without it the wait goes on.
stuck: Callable[[], object] | None = None


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.claim = threading.Lock()  # whoever takes it decides whether the work is done
        self.done = threading.Lock()  # a plain lock: waiting for it can be interrupted
        self.done.acquire()
        self.ended = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
        try:
            self.result = self.work()
        except BaseException as error:  # handed to the thread that waits
            self.error = error
        finally:
            self.ended = True
            self.done.release()

    def stop(self, cancel: Callable[[], object]) -> None:
        """Returns when the work has ended, or will never begin."""
        if self.claim.acquire(blocking=False):
            return
        latest = time.monotonic() + GRACE
        while not self.ended:
            try:
                while not self.ended:
                    if stuck is not None and time.monotonic() > latest:
                        stuck()
                    cancel()  # again and again: the work may be just about to start
                    self.done.acquire(timeout=0.01)
            except BaseException:  # a second Ctrl-C: whoever waits has little patience left
                latest = min(latest, time.monotonic() + LITTLE)


_jobs: queue.SimpleQueue[_Job[object]] = queue.SimpleQueue()
_started = threading.Lock()
_thread: threading.Thread | None = None


def _serve() -> None:
    while True:
        _jobs.get().run()


def _ensure_thread() -> None:
    global _thread
    with _started:
        if _thread is None or not _thread.is_alive():  # a forked child has none
            _thread = threading.Thread(target=_serve, name="csb-worker", daemon=True)
            _thread.start()


def run(work: Callable[[], T], cancel: Callable[[], object]) -> T:
    """work() on the worker thread if this is the main thread, else right here.

    If a signal handler raises meanwhile (Ctrl-C), cancel() is called until the work has ended and
    the handler's exception goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    _ensure_thread()
    job = _Job(work)
    try:
        _jobs.put(job)  # type: ignore[arg-type]
        job.done.acquire()
    except BaseException:
        job.stop(cancel)
        raise
    if job.error is not None:
        raise job.error
    return job.result  # type: ignore[return-value]
