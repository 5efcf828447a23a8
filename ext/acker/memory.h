// Allocation for the core: every request passes through two functions here. Built for tests, any of them can fail.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#if defined(_MSC_VER)
#include <malloc.h>
#elif defined(__linux__)
#include <sys/mman.h>
#endif

namespace acker {

constexpr size_t LINE_BYTES = 64;
constexpr size_t HUGE_PAGE_BYTES = size_t{1} << 21;

#ifdef ACKER_TESTING
// How many more requests succeed before every further one fails; negative: all succeed.
inline std::atomic<int64_t>& allocations_left() noexcept {
    static std::atomic<int64_t> left{-1};
    return left;
}

inline bool may_allocate() noexcept {
    std::atomic<int64_t>& left = allocations_left();
    int64_t seen = left.load(std::memory_order_relaxed);
    while (seen > 0 && !left.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) {
    }
    return seen != 0;
}
#else
constexpr bool may_allocate() noexcept { return true; }
#endif

inline size_t whole_lines(size_t bytes) noexcept { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

// Memory of `bytes`, a multiple of `alignment`, or nullptr. The caller frees it with `release`.
inline void* acquire_aligned(size_t bytes, size_t alignment) noexcept {
    if (!may_allocate()) return nullptr;
#if defined(_MSC_VER)
    return _aligned_malloc(bytes, alignment);
#else
    return std::aligned_alloc(alignment, bytes);
#endif
}

// At least `bytes` on huge pages where the system has them: random access over small pages spends its time in page
// walks, and the first touch of a lot of memory in page faults.
inline void* acquire_huge_pages(size_t bytes) noexcept {
    bytes = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    void* memory = acquire_aligned(bytes, HUGE_PAGE_BYTES);
#if defined(__linux__)
    if (memory != nullptr) madvise(memory, bytes, MADV_HUGEPAGE);  // advice only: a refusal does no harm
#endif
    return memory;
}

// Advises huge pages for the part of a block that covers whole ones. Filling a fresh large block spends more time in
// page faults than in writing otherwise.
inline void prefer_huge_pages([[maybe_unused]] void* block, [[maybe_unused]] size_t bytes) noexcept {
#if defined(__linux__)
    constexpr uintptr_t PAGES = HUGE_PAGE_BYTES - 1;
    uintptr_t first = (reinterpret_cast<uintptr_t>(block) + PAGES) & ~PAGES;
    uintptr_t end = (reinterpret_cast<uintptr_t>(block) + bytes) & ~PAGES;
    if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// Memory of at least `bytes`, aligned to a cache line, or nullptr.
inline void* acquire(size_t bytes) noexcept {
    void* memory = acquire_aligned(whole_lines(bytes), LINE_BYTES);
    if (memory != nullptr && bytes >= HUGE_PAGE_BYTES) prefer_huge_pages(memory, bytes);
    return memory;
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

// Huge pages reserved for growth that must not fail. Nothing touches them, so they take address space but no memory.
class PageReserve {
  public:
    PageReserve() = default;
    PageReserve(const PageReserve&) = delete;
    PageReserve& operator=(const PageReserve&) = delete;
    ~PageReserve() {
        keep(0);
        release(pages_);
    }

    size_t held() const noexcept { return held_; }

    // Holds at least `pages`; false: there is not enough memory, and fewer are held.
    bool hold(size_t pages) noexcept {
        if (!enlarge(&pages_, &capacity_, held_, pages)) return false;
        for (; held_ < pages; ++held_)
            if ((pages_[held_] = acquire_huge_pages(HUGE_PAGE_BYTES)) == nullptr) return false;
        return true;
    }

    // Releases all but `pages`.
    void keep(size_t pages) noexcept {
        while (held_ > pages) release(pages_[--held_]);
    }

    // Hands a page to the caller; nullptr: none is held.
    void* take() noexcept { return held_ > 0 ? pages_[--held_] : nullptr; }

  private:
    void** pages_ = nullptr;
    size_t capacity_ = 0;
    size_t held_ = 0;
};

}  // namespace acker
