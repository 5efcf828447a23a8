"""Files of messages on a disk, which tests copy to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path


def write_messages(folder: Path) -> list[str]:
    """Write three files of messages, of which a third end no tree; return their names below the folder."""
    names = []
    for number in range(3):
        ids = range(10 * number, 10 * number + 10)
        kinds = [0, 1] * 10
        table = pa.table(
            {
                "root_id": pa.array([each + 1 for each in ids for _ in range(2)], pa.int64()),
                "kind": pa.array(kinds, pa.int8()),
                "value": pa.array([7 if each % 3 or kind == 0 else 8 for each in ids for kind in (0, 1)], pa.int64()),
                "message_id": pa.array([each for each in ids for _ in range(2)], pa.int64()),
                "task_id": pa.array([1] * 20, pa.int32()),
            }
        )
        names.append(f"day={number}/part-{number}.parquet")
        path = folder / names[-1]
        path.parent.mkdir(parents=True)
        pq.write_table(table, path)
    return names
