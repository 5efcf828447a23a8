"""Files of messages, as the tests write them."""

import pyarrow as pa
import pyarrow.parquet as pq

from acker._files import reader


def write(table, path, kind=reader.PARQUET, piece_rows=50):
    """Write a table in pieces: row groups or record batches."""
    if kind == reader.PARQUET:
        pq.write_table(table, path, row_group_size=piece_rows)
        return
    with (pa.ipc.new_file if kind == reader.ARROW_FILE else pa.ipc.new_stream)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=piece_rows)
