// The two functions through which the core takes and gives back memory, so that a test can make any one of them fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(_MSC_VER)
#include <malloc.h>
#endif

namespace acker {

constexpr size_t LINE_BYTES = 64;

// How many more requests succeed before every further one fails; negative: all succeed. Tests alone set it.
inline int64_t& allocations_left() noexcept {
    static int64_t left = -1;
    return left;
}

inline size_t whole_lines(size_t bytes) noexcept { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

// Memory of `bytes`, aligned to a cache line, or nullptr. The caller frees it with `release`.
inline void* acquire(size_t bytes) noexcept {
    int64_t& left = allocations_left();
    if (left == 0) return nullptr;
    if (left > 0) --left;
#if defined(_MSC_VER)
    return _aligned_malloc(whole_lines(bytes), LINE_BYTES);
#else
    return std::aligned_alloc(LINE_BYTES, whole_lines(bytes));
#endif
}

inline void* acquire_zeroed(size_t bytes) noexcept {
    void* memory = acquire(bytes);
    if (memory != nullptr) std::memset(memory, 0, bytes);
    return memory;
}

inline void release(void* memory) noexcept {
#if defined(_MSC_VER)
    _aligned_free(memory);
#else
    std::free(memory);
#endif
}

// Grows an array of T to at least `wanted` items, keeping the first `used`. False leaves the array as it was.
template <typename T>
bool enlarge(T** items, size_t* capacity, size_t used, size_t wanted) noexcept {
    if (wanted <= *capacity) return true;
    size_t enlarged = *capacity * 2 > wanted ? *capacity * 2 : wanted;
    T* fresh = static_cast<T*>(acquire(enlarged * sizeof(T)));
    if (fresh == nullptr) return false;
    if (used > 0) std::memcpy(fresh, *items, used * sizeof(T));
    release(*items);
    *items = fresh;
    *capacity = enlarged;
    return true;
}

}  // namespace acker
