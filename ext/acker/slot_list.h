// Lists of matching slots, so that the caller can process them without a branch for each slot.
#pragma once

#include <cstddef>
#include <cstdint>

namespace acker {

// For each set of a line's four slots: their numbers in ascending order, and their count.
struct SlotSets {
    uint16_t slot[16][4];
    uint8_t count[16];

    constexpr SlotSets() noexcept : slot(), count() {
        for (unsigned set = 0; set < 16; ++set)
            for (uint16_t number = 0; number < 4; ++number)
                if ((set >> number & 1) != 0) slot[set][count[set]++] = number;
    }
};

// Lists the slots whose word matches, numbered from the first line's first slot; returns how many. The list needs room
// for four slots a line: it is overwritten beyond its end.
template <typename Line, typename Wanted>
size_t list_slots(const Line* lines, size_t count, Wanted wanted, uint16_t* list) noexcept {
    static constexpr SlotSets SLOT_SETS;
    size_t listed = 0;
    for (size_t number = 0; number < count; ++number) {
        unsigned set = 0;
        for (unsigned slot = 0; slot < 4; ++slot)
            set |= static_cast<unsigned>(wanted(lines[number].word[slot])) << slot;
        for (unsigned slot = 0; slot < 4; ++slot)
            list[listed + slot] = static_cast<uint16_t>(number * 4 + SLOT_SETS.slot[set][slot]);
        listed += SLOT_SETS.count[set];
    }
    return listed;
}

}  // namespace acker
