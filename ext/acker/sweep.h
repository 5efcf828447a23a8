// The sweep that empties a bucket: it visits and erases the bucket's entries, and reads each line of the arena once.
#pragma once

#include "arena.h"
#include "probe.h"
#include "slot_list.h"

namespace acker {

constexpr size_t SWEEP_AHEAD = 16;  // entries between the fetch of a cold part and its use

// Calls visit(h, word, cold) for each of the `held` entries of a bucket, and erases them.
template <typename Visit>
void sweep(Arena& arena, unsigned tag, size_t held, Visit visit) noexcept {
    const bool everything = held == arena.count();  // then all memory is released at once
    const size_t lines = arena.lines_a_segment(), step = lines < LISTED_LINES ? lines : LISTED_LINES;
    auto expires = [tag](uint64_t word) { return word >> TAG_SHIFT == tag; };
    uint16_t list[LISTED_LINES * SLOTS + SWEEP_AHEAD] = {};
    for (size_t s = 0; held > 0; ++s) {
        Line* segment = arena.segment(s);
        for (size_t first = 0; first < lines; first += step) {
            size_t listed = list_slots(segment + first, step, expires, list);
            const Cold* cold = arena.cold(Ref{segment + first, 0});
            for (size_t i = 0; i < listed; ++i) {
                ACKER_PREFETCH(cold + list[i + SWEEP_AHEAD]);
                size_t number = first + list[i] / SLOTS;
                Ref ref{segment + number, list[i] % SLOTS};
                visit(arena.hash_at(number, ref.word()), ref.word(), cold[list[i]]);
                if (!everything) arena.erase_at(segment, number, ref);
            }
            held -= listed;
        }
    }
    if (everything) arena.clear();
}

}  // namespace acker
