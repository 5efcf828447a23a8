// The physical limit that ingest is measured against, after HPCC RandomAccess: one random xor read-modify-write for
// each row, with the acker's own hash, prefetched, and the columns streamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hash.h"
#include "ingest.h"
#include "memory.h"

namespace acker {

class Gups {
  public:
    static constexpr size_t FETCH_AHEAD_GUPS = 24;

    Gups() = default;
    Gups(const Gups&) = delete;
    Gups& operator=(const Gups&) = delete;
    ~Gups() { release(words_); }

    // A table of the most whole lines that fit into `bytes`. False: no memory.
    bool start(size_t bytes, uint64_t seed) noexcept {
        hash_ = Hash::from_seed(seed);
        lines_ = bytes / LINE_BYTES > 0 ? bytes / LINE_BYTES : 1;
        size_t whole = (lines_ * LINE_BYTES + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        words_ = static_cast<uint64_t*>(acquire_aligned(whole, HUGE_PAGE_BYTES));
        if (words_ == nullptr) return false;
#if defined(__linux__)
        madvise(words_, whole, MADV_HUGEPAGE);  // like the acker's tables
#endif
        std::memset(words_, 0, whole);
        return true;
    }

    void update(const int64_t* root_id, const int64_t* value, size_t rows) noexcept {
        uint64_t* ahead[FETCH_AHEAD_GUPS];
        for (size_t row = 0; row < rows + FETCH_AHEAD_GUPS; ++row) {
            uint64_t** slot = ahead + row % FETCH_AHEAD_GUPS;
            if (row >= FETCH_AHEAD_GUPS) **slot ^= static_cast<uint64_t>(value[row - FETCH_AHEAD_GUPS]);
            if (row >= rows) continue;
            *slot = word_of(static_cast<uint64_t>(root_id[row]));
            ACKER_PREFETCH(*slot);
        }
    }

    // The xor of all words, which checks a run: it does not depend on the order of the updates.
    uint64_t checksum() const noexcept {
        uint64_t sum = 0;
        for (size_t word = 0; word < lines_ * WORDS; ++word) sum ^= words_[word];
        return sum;
    }

  private:
    static constexpr size_t WORDS = LINE_BYTES / sizeof(uint64_t);

    // The high 32 bits of the hash choose the line, scaled to any number of lines; the low bits choose the word.
    uint64_t* word_of(uint64_t root_id) const noexcept {
        uint64_t h = hash_.of(root_id);
        return words_ + ((h >> 32) * lines_ >> 32) * WORDS + h % WORDS;
    }

    Hash hash_;
    size_t lines_ = 0;
    uint64_t* words_ = nullptr;
};

}  // namespace acker
