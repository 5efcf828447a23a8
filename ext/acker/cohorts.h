// Cohorts: groups of entries that expire together. A cohort covers a time span and expires a fixed number of cohorts
// later.
#pragma once

#include <cstdint>

namespace acker {

struct Cohorts {
    int64_t timeout_ms = 0;  // 0: nothing expires, and all time is one cohort
    int64_t buckets = 2;

    // floor(ms / P) for P = timeout / (buckets - 1), which need not be a whole number.
    int64_t of(int64_t ms) const noexcept {
        if (timeout_ms == 0) return 0;
        int64_t whole = ms / timeout_ms, rest = ms % timeout_ms;
        if (rest < 0) {
            --whole;
            rest += timeout_ms;
        }
        // Wraps only beyond all legal times.
        const uint64_t begin = static_cast<uint64_t>(whole) * static_cast<uint64_t>(buckets - 1);
        return static_cast<int64_t>(begin + static_cast<uint64_t>(rest * (buckets - 1) / timeout_ms));
    }
};

}  // namespace acker
