"""The work for whole blocks of rows: messages to ackers, ids, and the tasks that rows go to."""


@cython.boundscheck(False)
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


@cython.boundscheck(False)
def output_ids(int64_t[::1] left not None, const int64_t[::1] positions not None, take):
    """Return a tuple id for each output, whose input is at its position: (n,) int64.

    `left` has the tuple ids of the inputs, and becomes what their OKs have to say: an input's id xor those of its
    outputs. The last output of an input gets what is left then, so that an input with outputs says nothing: as its id
    ends with it, the outputs of one input take its place, and all other ids come from `take(count)`.
    """
    cdef Py_ssize_t index, count = positions.shape[0], inputs = left.shape[0], others = 0, taken = 0
    cdef int64_t position, new, before, mask
    cdef bint ascends = True
    cdef vector[char] seen
    found_array = np.empty(count, np.int64)
    cdef int64_t[::1] found = found_array
    cdef const int64_t[::1] fresh
    # 1 for an output that another one of its input follows, 0 for the last one.
    for index in range(count - 1):
        ascends &= positions[index] <= positions[index + 1]
        found[index] = positions[index] == positions[index + 1]
        others += found[index]
    if count:
        found[count - 1] = 0
    if not ascends:
        others = 0
        seen.resize(inputs)
        for index in range(count - 1, -1, -1):
            position = positions[index]
            if not 0 <= position < inputs:
                raise IndexError(f"position {position} of {inputs}")
            found[index] = seen[position]
            others += seen[position]
            seen[position] = 1
    fresh = take(others + 1)  # and one to read behind the last
    if fresh.shape[0] != others + 1:
        raise ValueError(f"{fresh.shape[0]} ids, expected {others + 1}")
    for index in range(count):
        position = positions[index]
        if not 0 <= position < inputs:
            raise IndexError(f"position {position} of {inputs}")
        # Without a branch that depends on the data: which output is the last one is random.
        new, before, mask = fresh[taken], left[position], -found[index]
        taken += found[index]
        found[index] = (new & mask) | (before & ~mask)
        left[position] = (before ^ new) & mask
        if found[index] == 0:  # With chance 2^-64: no tuple has the id 0.
            found[index] = left[position] = take(1)[0]
    return found_array


@cython.boundscheck(False)
def close_rows(uint8_t[::1] is_open not None, const int64_t[::1] rows not None):
    """Close some rows; return those that were open, in their order, each once."""
    cdef Py_ssize_t index, found = 0
    cdef int64_t row
    closed_array = np.empty(rows.shape[0], np.int64)
    cdef int64_t[::1] closed = closed_array
    for index in range(rows.shape[0]):
        row = rows[index]
        if not 0 <= row < is_open.shape[0]:
            raise IndexError(f"row {row} of {is_open.shape[0]}")
        closed[found] = row
        found += is_open[row] != 0
        is_open[row] = 0
    return closed_array[:found]


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
