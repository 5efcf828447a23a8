"""The stable hashes of whole columns, each the same as that of `stable_hash` of the value."""

cdef extern from "stable_hash.h" namespace "acker":
    uint32_t stable_hash_of_bits(uint64_t bits) nogil
    uint32_t stable_hash_of_int "acker::stable_hash_of_number"(int64_t value) nogil
    uint32_t stable_hash_of_unsigned "acker::stable_hash_of_number"(uint64_t value) nogil
    uint32_t stable_hash_of_float "acker::stable_hash_of_number"(double value) nogil

cdef extern from "crc32.h" namespace "acker":
    uint32_t crc32_after "acker::crc32_of"(const char* text, size_t size, uint32_t start) nogil

ctypedef fused Number:
    int64_t
    uint64_t
    double


def hash_numbers(const Number[::1] values not None):
    """Return the stable hash of each number, (n,) uint32."""
    cdef Py_ssize_t position
    array = np.empty(values.shape[0], np.uint32)
    cdef uint32_t[::1] hashes = array
    with nogil:
        for position in range(values.shape[0]):
            if Number is int64_t:
                hashes[position] = stable_hash_of_int(values[position])
            elif Number is uint64_t:
                hashes[position] = stable_hash_of_unsigned(values[position])
            else:
                hashes[position] = stable_hash_of_float(values[position])
    return array


def hash_times(const int64_t[::1] microseconds not None):
    """Return the stable hash of each time, given in microseconds since 1970 or as a duration, (n,) uint32."""
    cdef Py_ssize_t position
    array = np.empty(microseconds.shape[0], np.uint32)
    cdef uint32_t[::1] hashes = array
    with nogil:
        for position in range(microseconds.shape[0]):
            hashes[position] = stable_hash_of_bits(<uint64_t>microseconds[position])
    return array


def hash_texts(const int64_t[::1] offsets not None, const uint8_t[::1] data not None):
    """Return the stable hash of each text or binary, (n,) uint32: value i is data[offsets[i]:offsets[i + 1]]."""
    cdef Py_ssize_t position, count = offsets.shape[0] - 1
    cdef int64_t begin, end
    cdef const char* text = <const char*>&data[0] if data.shape[0] else NULL
    if count < 0:
        raise ValueError("offsets: expected one more than there are values, got none")
    array = np.empty(count, np.uint32)
    cdef uint32_t[::1] hashes = array
    for position in range(count):
        begin, end = offsets[position], offsets[position + 1]
        if not 0 <= begin <= end <= data.shape[0]:
            raise IndexError(f"value {position}: bytes {begin} to {end} of {data.shape[0]}")
        hashes[position] = crc32_after(text + begin, <size_t>(end - begin), 0)
    return array


def chain_hashes(uint32_t[::1] hashes not None, const uint32_t[::1] following not None):
    """Replace each hash by that of the values before and of one more, as `stable_hash` does for several values."""
    cdef Py_ssize_t position
    cdef uint32_t each
    cdef char[4] piece
    if hashes.shape[0] != following.shape[0]:
        raise ValueError(f"{following.shape[0]} hashes, expected {hashes.shape[0]}")
    for position in range(hashes.shape[0]):
        each = following[position]
        piece[0], piece[1] = <char>(each & 0xFF), <char>((each >> 8) & 0xFF)
        piece[2], piece[3] = <char>((each >> 16) & 0xFF), <char>(each >> 24)
        hashes[position] = crc32_after(piece, 4, hashes[position])
