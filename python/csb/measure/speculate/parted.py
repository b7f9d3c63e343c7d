"""The rows of an audited parting in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from csb.measure.speculate.audit import Audit
from csb.measure.speculate.replay import Replay
from csb.native.context import Rows
from csb.speculation.partings import Parting


def parting(audit: Audit, ar: Sequence[int], replay: Replay | None) -> Parting:
    """replay: of the text up to this parting; None where the texts had parted before."""
    assert audit.single is not None
    x, y = ar[audit.pos], audit.token

    def of(row: Rows) -> float:
        return float(row[0, x]) - float(row[0, y])

    return Parting(
        audit.pos,
        x,
        y,
        audit.offset,
        audit.alone,
        of(replay.row) if replay is not None else None,
        of(audit.single),
        of(audit.loop),
    )
