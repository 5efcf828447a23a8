"""The work for whole blocks of rows: messages to ackers, ids, and the tasks that rows go to."""


def xor_at(int64_t[::1] values not None, const int64_t[::1] positions not None, const int64_t[::1] ids not None):
    """Xor each id into the value at its position; a position may come several times."""
    cdef Py_ssize_t index
    cdef int64_t position
    if positions.shape[0] != ids.shape[0]:
        raise ValueError(f"{ids.shape[0]} ids for {positions.shape[0]} positions")
    for index in range(positions.shape[0]):
        position = positions[index]
        if not 0 <= position < values.shape[0]:
            raise IndexError(f"position {position} of {values.shape[0]}")
        values[position] ^= ids[index]


def rows_by_task(const uint32_t[::1] hashes not None, Py_ssize_t tasks):
    """Return the rows in the order of their tasks, hash % tasks: (n,) int64; and where those of each task begin."""
    cdef Py_ssize_t row, task, count = hashes.shape[0]
    if tasks < 1:
        raise ValueError(f"tasks: expected 1 or more, got {tasks}")
    order_array, begin_array = np.empty(count, np.int64), np.zeros(tasks + 1, np.int64)
    cdef int64_t[::1] order = order_array
    cdef int64_t[::1] begin = begin_array
    cdef vector[int64_t] next_of
    for row in range(count):
        begin[<Py_ssize_t>(hashes[row] % <uint32_t>tasks) + 1] += 1
    for task in range(tasks):
        begin[task + 1] += begin[task]
        next_of.push_back(begin[task])
    for row in range(count):
        task = hashes[row] % <uint32_t>tasks
        order[next_of[task]] = row
        next_of[task] += 1
    return order_array, begin_array
