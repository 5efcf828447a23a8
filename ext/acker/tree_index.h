// An index from hashes to positions in an array of trees: open addressing by lines. A line holds eight tags, which one
// search compares at once, and their positions. Nothing is removed, so the free slots of a line are its last ones, and
// an entry that is not on its home line has only full lines before it. OpenTreesTable, which removes entries, says why
// its index is another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory.h"
#include "probe.h"

#if !defined(ACKER_PORTABLE) && (defined(__SSE2__) || defined(_M_X64))
#define ACKER_HAS_SSE2 1
#include <emmintrin.h>
#else
#define ACKER_HAS_SSE2 0
#endif

namespace acker {

class TreeIndex {
  public:
    static constexpr unsigned SLOTS = 8;
    static constexpr size_t LOAD = 5;  // entries a line at most, on average: few lines overflow

    // 0 marks a free slot. The tag holds the number of the home line in its upper bits, whatever the number of lines.
    static uint32_t tag_of(uint64_t hash) noexcept { return static_cast<uint32_t>(hash >> 32) | 1; }

    TreeIndex() noexcept = default;
    TreeIndex(const TreeIndex&) = delete;
    TreeIndex& operator=(const TreeIndex&) = delete;
    ~TreeIndex() noexcept { release(lines_); }

    size_t nbytes() const noexcept { return lines_ == nullptr ? 0 : count() * sizeof(Line); }

    void fetch(uint32_t tag) const noexcept { ACKER_PREFETCH(&lines_[home(tag)]); }

    // Where the tree with this tag probably is, if it is in the index: a position to fetch.
    uint32_t guess(uint32_t tag) const noexcept {
        const Line& line = lines_[home(tag)];
        return line.position[ACKER_LOWEST_BIT(matches(line, tag) | 1u << (2 * SLOTS)) % SLOTS];
    }

    // Returns the position for which `is_same(position)` holds, among those with this tag; otherwise makes `next` the
    // position of a new entry, and returns that.
    template <class IsSame>
    ACKER_ALWAYS_INLINE uint32_t find_or_insert(uint32_t tag, uint32_t next, IsSame is_same) noexcept {
        for (size_t number = home(tag);; number = (number + 1) & mask_) {
            Line& line = lines_[number];
            const unsigned found = matches(line, tag);
            for (unsigned same = found & ALL_SLOTS; same != 0; same &= same - 1) {
                const uint32_t position = line.position[ACKER_LOWEST_BIT(same)];
                if (is_same(position)) return position;
            }
            if (found > ALL_SLOTS) {
                put(line, ACKER_LOWEST_BIT(found >> SLOTS), tag, next);
                return next;
            }
        }
    }

    // Makes room for so many entries. Builds the new lines beside the old ones; false leaves the index as it was.
    bool reserve(size_t entries) noexcept {
        unsigned bits = lines_ == nullptr ? BITS_MIN : 32 - shift_;
        while (LOAD << bits < entries) ++bits;
        return (lines_ != nullptr && bits == 32 - shift_) || grow(bits);
    }

  private:
    struct Line {
        uint32_t tag[SLOTS];
        uint32_t position[SLOTS];
    };
    static_assert(sizeof(Line) == LINE_BYTES, "a line is one cache line");

    static constexpr unsigned BITS_MIN = 8;
    static constexpr unsigned ALL_SLOTS = (1u << SLOTS) - 1;

    size_t count() const noexcept { return mask_ + 1; }
    size_t home(uint32_t tag) const noexcept { return tag >> shift_; }

    // Bits 0 to 7 are the slots with this tag, bits 8 to 15 the free slots.
#if ACKER_HAS_SSE2
    static ACKER_ALWAYS_INLINE unsigned matches(const Line& line, uint32_t tag) noexcept {
        const __m128i first = _mm_load_si128(reinterpret_cast<const __m128i*>(line.tag));
        const __m128i second = _mm_load_si128(reinterpret_cast<const __m128i*>(line.tag + 4));
        const __m128i sought = _mm_set1_epi32(static_cast<int>(tag)), zero = _mm_setzero_si128();
        const __m128i same = _mm_packs_epi32(_mm_cmpeq_epi32(first, sought), _mm_cmpeq_epi32(second, sought));
        const __m128i free = _mm_packs_epi32(_mm_cmpeq_epi32(first, zero), _mm_cmpeq_epi32(second, zero));
        return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(same, free)));
    }
#else
    static ACKER_ALWAYS_INLINE unsigned matches(const Line& line, uint32_t tag) noexcept {
        unsigned same = 0, free = 0;
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            same |= static_cast<unsigned>(line.tag[slot] == tag) << slot;
            free |= static_cast<unsigned>(line.tag[slot] == 0) << slot;
        }
        return same | free << SLOTS;
    }
#endif

    // Old lines are read in order, and the new homes of their entries follow the same order.
    bool grow(unsigned bits) noexcept {
        Line* fresh = static_cast<Line*>(acquire_zeroed(sizeof(Line) << bits));
        if (fresh == nullptr) return false;
        const size_t old_count = lines_ == nullptr ? 0 : count();
        Line* old = lines_;
        lines_ = fresh;
        mask_ = (size_t{1} << bits) - 1;
        shift_ = 32 - bits;
        for (size_t number = 0; number < old_count; ++number) {
            for (unsigned slot = 0; slot < SLOTS && old[number].tag[slot] != 0; ++slot) {
                const uint32_t tag = old[number].tag[slot];
                size_t to = home(tag);
                while (lines_[to].tag[SLOTS - 1] != 0) to = (to + 1) & mask_;
                put(lines_[to], ACKER_LOWEST_BIT(matches(lines_[to], 0) >> SLOTS), tag, old[number].position[slot]);
            }
        }
        release(old);
        return true;
    }

    static void put(Line& line, unsigned slot, uint32_t tag, uint32_t position) noexcept {
        line.tag[slot] = tag;
        line.position[slot] = position;
    }

    Line* lines_ = nullptr;  // owned
    size_t mask_ = 0;
    unsigned shift_ = 0;  // of a tag, to its home line
};

}  // namespace acker
