// The arena: one open-addressing table for the entries of all expiry buckets. Every slot carries the tag of its bucket,
// so one probe finds a root whatever its bucket, and moving an entry to the nursery changes four bits.
//
// A line is one cache line of four slots. Words (which root) and ack vals (what is open) are hot; message id, task id
// and start tick are cold and lie in a second array, line by line at a fixed distance. Root ids are not stored: the
// hash is bijective, its low 57 bits are in the word and its high 7 bits follow from the line.
//
// Sizes. While there is one small segment, a full line makes the segment double, and no entry ever leaves its home
// line. A segment of LINES_MAX lines (512 kB; four share a huge page) no longer doubles: a full line overflows into the
// next ones, and the arena grows by linear hashing, one segment split at a time, so no batch waits for the whole table
// to move.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codes.h"
#include "hash.h"
#include "memory.h"
#include "slot_list.h"

namespace acker {

constexpr unsigned SLOTS = 4;           // a line
constexpr unsigned LINE_BITS_MIN = 7;   // the 7 bits of the hash that the word does not hold
constexpr unsigned LINE_BITS_MAX = 12;  // those and 5 more, from which a displaced entry's home line is read
constexpr size_t LINES_MAX = size_t{1} << LINE_BITS_MAX;
constexpr size_t DISPLACEMENT_MAX = 31;  // lines past home: what 5 bits can hold
constexpr size_t LISTED_LINES = 1024;    // lines whose slots are listed at once

struct Line {
    uint64_t word[SLOTS];
    uint64_t val[SLOTS];
};

// Which fields of a cold part to replace: the spout's task and message id, the start.
struct ColdMask {
    int64_t message_id = 0;  // all ones or 0, as are the others
    int32_t task_id = 0;
    uint32_t start = 0;

    constexpr ColdMask() noexcept = default;
    constexpr ColdMask(bool spout, bool begins) noexcept
        : message_id(-int64_t{spout}), task_id(-int32_t{spout}), start(uint32_t{0} - begins) {}
};

struct Cold {
    int64_t message_id;
    int32_t task_id;
    uint32_t start;  // milliseconds modulo 2^32

    // This one with some fields of another, without a branch.
    Cold blend(int64_t other_message_id, int32_t other_task_id, uint32_t other_start,
               const ColdMask& mask) const noexcept {
        return Cold{message_id ^ ((message_id ^ other_message_id) & mask.message_id),
                    task_id ^ ((task_id ^ other_task_id) & mask.task_id), start ^ ((start ^ other_start) & mask.start)};
    }
};

// An empty slot of a line that has not overflowed is all zeros, so one comparison finds a slot for a new hash. In an
// overflowed line the hash may be further on.
static_assert(sizeof(Line) == LINE_BYTES, "a line is one cache line");
static_assert(SLOTS * sizeof(Cold) == LINE_BYTES, "the cold part of a line is one cache line too");
static_assert(BUCKETS_MAX < (1u << (64 - TAG_SHIFT)), "every bucket has a tag besides 0");
static_assert(LINE_BITS_MIN + HASH_BITS == 64, "word and line number hold the whole hash between them");

struct Ref {
    Line* line = nullptr;
    unsigned slot = 0;

    explicit operator bool() const noexcept { return line != nullptr; }
    uint64_t& word() const noexcept { return line->word[slot]; }
    uint64_t& val() const noexcept { return line->val[slot]; }
    unsigned tag() const noexcept { return static_cast<unsigned>(word() >> TAG_SHIFT); }
};

class Arena {
  public:
    explicit Arena(uint64_t seed) noexcept : seed_(seed), hash_(Hash::from_seed(seed)) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena() { clear(); }

    uint64_t hash(uint64_t root_id) const noexcept { return hash_.of(root_id); }
    size_t count() const noexcept { return count_; }
    size_t lines_a_segment() const noexcept { return lines_; }
    size_t segments() const noexcept { return segment_count_; }
    Line* segment(size_t number) const noexcept { return segments_[number]; }
    size_t slots() const noexcept { return segment_count_ * lines_ * SLOTS; }
    size_t bytes() const noexcept {
        size_t pages = pages_for(segment_count_);
        size_t blocks = lines_ == LINES_MAX ? pages * HUGE_PAGE_BYTES : segment_count_ * segment_bytes(lines_);
        return blocks + segment_capacity_ * sizeof(Line*);
    }

    // The line after one that is overflowed; nullptr: it is not, or it is the last of its segment.
    Line* next_of_marked(Line* line) const noexcept {
        return (line->word[0] & OVERFLOWED) == 0 || number_of(line) == LINES_MAX - 1 ? nullptr : line + 1;
    }

    // For callers that fill and empty slots on home lines themselves.
    void adjust_count(int64_t by) noexcept { count_ += static_cast<size_t>(by); }
    bool has_room(size_t extra) const noexcept { return count_ + extra <= limit_; }

    // Finds the home lines of many entries: copies of all that stays the same until the arena grows.
    struct Homes {
        Hash hash;
        Line* const* segments;
        size_t segment_count;
        size_t segment_mask;
        unsigned line_shift;

        Line* of(uint64_t h) const noexcept {
            return segments[segment_number(h, segment_mask, segment_count)] + (h >> line_shift);
        }
    };

    // The arena must hold at least one segment.
    Homes homes() const noexcept { return {hash_, segments_, segment_count_, segment_mask_, 64 - line_bits_}; }

    // How far behind a line its cold part lies, in bytes.
    size_t cold_distance() const noexcept { return lines_ * LINE_BYTES; }

    Cold* cold(Ref ref) const noexcept {
        return reinterpret_cast<Cold*>(reinterpret_cast<char*>(ref.line) + cold_distance()) + ref.slot;
    }

    static Ref find_in(Line* line, uint64_t h) noexcept {
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            uint64_t word = line->word[slot];
            if (((word ^ h) & HASH_MASK) == 0 && (word >> TAG_SHIFT) != 0) return Ref{line, slot};
        }
        return Ref{};
    }

    // Where the entry of `h` is, or an empty Ref. Equal stored bits on one line mean equal displacement, so equal keys.
    Ref find(uint64_t h) const noexcept {
        if (segment_count_ == 0) return Ref{};
        Line* lines = segment_of(h);
        size_t number = home_number(h);
        for (;;) {
            Ref ref = find_in(lines + number, h);
            if (ref || (lines[number].word[0] & OVERFLOWED) == 0) return ref;
            number = (number + 1) & (lines_ - 1);
        }
    }

    // Call it when an entry is gone that was one line past its home, and not on the first line of a segment.
    void clear_mark_before(Line* line) noexcept {
        size_t number = number_of(line);
        Line* lines = line - number;
        if (!is_passed_over(lines, number - 1)) clear_mark(line - 1);
    }

    // Inserts a new hash with `flags` (tag, TRACKED, FAILED) and val 0. Empty Ref: make room first by `grow` or
    // `relieve`.
    Ref insert(uint64_t h, uint64_t flags) noexcept {
        if (segment_count_ == 0) return Ref{};
        Line* lines = segment_of(h);
        size_t first = home_number(h), reach = lines_ == LINES_MAX ? DISPLACEMENT_MAX : 0;
        for (size_t distance = 0; distance <= reach; ++distance) {
            Line* line = lines + ((first + distance) & (lines_ - 1));
            for (unsigned slot = 0; slot < SLOTS; ++slot) {
                if ((line->word[slot] >> TAG_SHIFT) != 0) continue;
                line->word[slot] = (line->word[slot] & OVERFLOWED) | (h & HASH_MASK) | flags;
                line->val[slot] = 0;
                mark(lines, first, distance);
                ++count_;
                return Ref{line, slot};
            }
        }
        return Ref{};
    }

    // Makes room where no line in the reach of a hash has a slot for it; compute hashes anew afterwards. False: no
    // memory, nothing changed.
    //
    // Near the load limit lines fill up by chance, and growing comes a little early. Far from it they do not: somebody
    // who knows the seed has chosen the root ids. Growing could then go on for ever, since a split does not separate
    // hashes whose low bits agree; but they agree under one seed only.
    bool relieve(uint64_t h) noexcept {
        if (make_way(h)) return true;
        if (count_ * (lines_ == LINES_MAX ? 2 : 8) >= limit_) return grow();
        return rehash() || (lines_ != LINES_MAX && grow());
    }

    // Frees a slot in the reach of a hash by moving an entry of another home further on, until growth splits this
    // segment. False: nothing can be moved.
    bool make_way(uint64_t h) noexcept {
        if (lines_ != LINES_MAX) return false;
        Line* lines = segment_of(h);
        size_t first = home_number(h);
        for (size_t ahead = DISPLACEMENT_MAX + 1; ahead <= 2 * DISPLACEMENT_MAX; ++ahead) {
            size_t free = (first + ahead) & (LINES_MAX - 1);
            for (size_t back = DISPLACEMENT_MAX; back >= ahead - DISPLACEMENT_MAX; --back)
                if (move_on(lines, (first + back) & (LINES_MAX - 1), free)) return true;
        }
        return false;
    }

    void erase(uint64_t h, Ref ref) noexcept {
        Line* lines = segment_of(h);
        erase_at(lines, static_cast<size_t>(ref.line - lines), ref);
    }

    // The same for an entry on line `number` of a segment.
    void erase_at(Line* lines, size_t number, Ref ref) noexcept {
        size_t home = home_of(number, ref.word());
        ref.word() &= OVERFLOWED;
        ref.val() = 0;
        --count_;
        while (number != home) {  // from the last line it passed over back to the first
            number = (number - 1) & (lines_ - 1);
            if (!is_passed_over(lines, number)) clear_mark(lines + number);
        }
    }

    // One step of growth: the first segment, a doubled small one, or one segment split. False: no memory, nothing
    // changed.
    bool grow() noexcept {
        if (segment_count_ == 0 && !enlarge(&segments_, &segment_capacity_, 0, 1)) return false;
        if (lines_ == LINES_MAX) return split();
        unsigned bits = segment_count_ == 0 ? LINE_BITS_MIN : line_bits_ + 1;
        return widen(bits) || (reserve_.held() > 0 && widen(LINE_BITS_MAX));
    }

    // Makes room for many entries at once, which costs less than growing step by step. False, with nothing changed: no
    // memory, or an entry finds no slot in the new table.
    bool make_room(size_t entries) noexcept {
        Arena fresh(seed_);
        while (!fresh.has_room(entries))
            if (!fresh.grow()) return false;
        return move_to(&fresh);
    }

    // Reserves the memory that growth for `extra` more entries needs; false: there is not enough. It cannot foresee
    // what entries that crowd on one line may need, see `relieve`.
    bool reserve(size_t extra) noexcept {
        if (has_reserve(extra)) return true;
        size_t pages = pages_for(segments_for(count_ + extra)), have = pages_for(full_segments());
        if (!enlarge(&segments_, &segment_capacity_, segment_count_, pages * SEGMENTS_A_PAGE)) return false;
        if (!reserve_.hold(pages > have ? pages - have : 0)) return false;
        set_reserved();
        return true;
    }

    bool has_reserve(size_t extra) const noexcept { return count_ + extra <= reserved_; }

    // Releases what the growth of usual calls does not need.
    void trim_reserve() noexcept {
        if (reserve_.held() <= RESERVE_PAGES_KEPT) return;
        reserve_.keep(RESERVE_PAGES_KEPT);
        set_reserved();
    }

    // Calls visit(h, ref, cold) for every entry while it returns true. It may erase that entry.
    template <typename Visit>
    void each(Visit visit) noexcept {
        for (size_t s = 0; s < segment_count_; ++s)
            if (!each_in(segments_[s], visit)) return;
    }

    // The whole hash of an entry from its word and the number of the line it stands on.
    uint64_t hash_at(size_t number, uint64_t word) const noexcept {
        uint64_t high = static_cast<uint64_t>(home_of(number, word)) >> (line_bits_ - LINE_BITS_MIN);
        return (high << HASH_BITS) | (word & HASH_MASK);
    }

    uint64_t root_of(uint64_t h) const noexcept { return hash_.key_of(h); }

    // Releases memory after a peak: up to `steps` segments while most slots are empty, the last ones first. If an
    // allocation fails, the arena stays as it is. It grows again only when it holds four times as much.
    void shrink(size_t steps) noexcept {
        if (count_ * 8 > limit_) return;
        while (segment_count_ > 1 && count_ * 4 <= limit_ && steps > 0 && merge()) --steps;
        if (segment_count_ == 1 && line_bits_ > LINE_BITS_MIN && count_ * 4 <= limit_) rebuild();
        reserved_ = 0;  // what is in reserve suffices for less from here
    }

    void clear() noexcept {
        for (size_t s = 0; s < segment_count_; s += SEGMENTS_A_PAGE) release(segments_[s]);
        release(segments_);
        segments_ = nullptr;
        segment_count_ = segment_capacity_ = lines_ = count_ = limit_ = reserved_ = 0;
        line_bits_ = 0;
    }

    // How many lines a look-up of every entry visits: a count that shows how well the hash spreads.
    int64_t probes() noexcept {
        int64_t visited = 0;
        each([&](uint64_t h, Ref ref, Cold*) {
            size_t number = static_cast<size_t>(ref.line - segment_of(h));
            visited += 1 + static_cast<int64_t>((number - home_number(h)) & (lines_ - 1));
            return true;
        });
        return visited;
    }

    // Returns whether all invariants hold, as they must between calls. For tests.
    bool check_invariants() noexcept {
        size_t seen = 0;
        bool good = true;
        each([&](uint64_t h, Ref ref, Cold*) {
            ++seen;
            Ref found = find(h);
            good = good && found.line == ref.line && found.slot == ref.slot;
            return good;
        });
        return good && seen == count_ && lines_are_sound();
    }

  private:
    static constexpr size_t RESERVE_PAGES_KEPT = 4;
    static constexpr int SEEDS_TRIED = 64;
    static constexpr size_t SEGMENTS_A_PAGE = HUGE_PAGE_BYTES / (LINES_MAX * 2 * LINE_BYTES);

    template <typename Visit>
    bool each_in(Line* lines, Visit visit) noexcept {
        for (size_t number = 0; number < lines_; ++number) {
            for (unsigned slot = 0; slot < SLOTS; ++slot) {
                Ref ref{lines + number, slot};
                if (ref.tag() == 0) continue;
                if (!visit(hash_at(number, ref.word()), ref, cold(ref))) return false;
            }
        }
        return true;
    }

    // Lines and, behind them, their cold parts.
    static constexpr size_t segment_bytes(size_t lines) noexcept { return lines * 2 * LINE_BYTES; }

    static size_t segment_number(uint64_t h, size_t mask, size_t count) noexcept {
        // A shift and not a choice: compilers turn a choice into a branch, and the bit behind it is random.
        size_t not_split_yet = (h & mask) >= count;
        return h & (mask >> not_split_yet);
    }

    Line* segment_of(uint64_t h) const noexcept { return segments_[segment_number(h, segment_mask_, segment_count_)]; }

    size_t home_number(uint64_t h) const noexcept { return static_cast<size_t>(h >> (64 - line_bits_)); }

    // The number of the home line of an entry that stands on another line, or on that one.
    size_t home_of(size_t number, uint64_t word) const noexcept {
        return line_bits_ == LINE_BITS_MAX ? (number - displacement(number, word)) & (LINES_MAX - 1) : number;
    }

    // Marks `count` lines, from number `first` on, as overflowed: an entry stands beyond them.
    void mark(Line* lines, size_t first, size_t count) const noexcept {
        for (size_t passed = 0; passed < count; ++passed)
            for (uint64_t& word : lines[(first + passed) & (lines_ - 1)].word) word |= OVERFLOWED;
    }

    // Moves an entry of one line of a full segment to another line, if that is in the entry's reach and has room.
    bool move_on(Line* lines, size_t from, size_t to) noexcept {
        for (unsigned slot = 0; slot < SLOTS; ++slot) {
            Ref old{lines + from, slot};
            size_t home = home_of(from, old.word()), distance = (to - home) & (LINES_MAX - 1);
            if (distance > DISPLACEMENT_MAX) continue;
            for (unsigned free = 0; free < SLOTS; ++free) {
                Ref fresh{lines + to, free};
                if (fresh.tag() != 0) continue;
                fresh.word() = (fresh.word() & OVERFLOWED) | (old.word() & ~OVERFLOWED);
                fresh.val() = old.val();
                *cold(fresh) = *cold(old);
                old.word() &= OVERFLOWED;
                old.val() = 0;
                mark(lines, home, distance);
                return true;
            }
        }
        return false;
    }

    // Of a full segment. Four of them share an aligned huge page, and each is its lines and their cold parts.
    static size_t number_of(const Line* line) noexcept {
        return reinterpret_cast<uintptr_t>(line) / LINE_BYTES % (2 * LINES_MAX);
    }

    static void clear_mark(Line* line) noexcept {
        for (uint64_t& word : line->word) word &= ~OVERFLOWED;
    }

    // Whether an entry stands beyond a line at or after its home. Behind a line that is not marked no entry has come
    // from here. Only full segments overflow.
    static bool is_passed_over(const Line* lines, size_t number) noexcept {
        for (size_t distance = 1; distance <= DISPLACEMENT_MAX; ++distance) {
            size_t at = (number + distance) & (LINES_MAX - 1);
            for (uint64_t word : lines[at].word)
                if ((word >> TAG_SHIFT) != 0 && displacement(at, word) >= distance) return true;
            if ((lines[at].word[0] & OVERFLOWED) == 0) return false;
        }
        return false;
    }

    // Clears the unneeded marks of a full segment after many of its entries have gone. From the last line to the first,
    // so that each search ends early.
    static void clear_marks(Line* lines) noexcept {
        for (size_t number = LINES_MAX; number-- > 0;)
            if ((lines[number].word[0] & OVERFLOWED) != 0 && !is_passed_over(lines, number)) clear_mark(lines + number);
    }

    // How many lines past its home an entry of a full segment stands: five bits of the home line are in the word.
    static size_t displacement(size_t number, uint64_t word) noexcept {
        return (number - static_cast<size_t>(word >> (64 - LINE_BITS_MAX))) & DISPLACEMENT_MAX;
    }

    // An empty segment to stand behind the last one, or nullptr.
    Line* make_segment(size_t lines) noexcept {
        size_t in_page = lines_ == LINES_MAX ? segment_count_ % SEGMENTS_A_PAGE : 0;
        void* block = in_page != 0         ? segments_[segment_count_ - 1] + LINES_MAX * 2
                      : lines == LINES_MAX ? make_page()
                                           : acquire(segment_bytes(lines));
        if (block != nullptr) std::memset(block, 0, segment_bytes(lines));
        return static_cast<Line*>(block);
    }

    void* make_page() noexcept {
        void* page = reserve_.take();
        return page != nullptr ? page : acquire_huge_pages(HUGE_PAGE_BYTES);
    }

    void set_lines(unsigned bits) noexcept {
        line_bits_ = bits;
        lines_ = size_t{1} << bits;
        set_limit();
    }

    // How many entries the segments may hold before the next step of growth. Segments not yet split carry up to twice
    // the load of split ones, so splitting is paced by them: at most 67.5 % of their slots are taken.
    static constexpr size_t limit_of(size_t segments, size_t lines) noexcept {
        size_t whole = 1;
        while (whole * 2 <= segments) whole *= 2;
        return (whole * 90 + (segments - whole) * 45) * lines * SLOTS / 200;
    }

    void set_limit() noexcept {
        limit_ = limit_of(segment_count_, lines_);
        segment_mask_ = 1;
        while (segment_mask_ < segment_count_) segment_mask_ = segment_mask_ * 2 + 1;
    }

    // How many full segments it takes for so many entries.
    static size_t segments_for(size_t entries) noexcept {
        size_t most = 1;
        while (limit_of(most, LINES_MAX) < entries) most *= 2;
        for (size_t least = most / 2; most - least > 1;) {
            size_t middle = least + (most - least) / 2;
            (limit_of(middle, LINES_MAX) < entries ? least : most) = middle;
        }
        return most;
    }

    static size_t pages_for(size_t segments) noexcept { return (segments + SEGMENTS_A_PAGE - 1) / SEGMENTS_A_PAGE; }
    size_t full_segments() const noexcept { return lines_ == LINES_MAX ? segment_count_ : 0; }

    // Growth takes from the reserve what it adds to the segments, so this stays true until memory is given back.
    void set_reserved() noexcept {
        size_t pages = pages_for(full_segments()) + reserve_.held();
        reserved_ = pages == 0 ? 0 : limit_of(pages * SEGMENTS_A_PAGE, LINES_MAX);
    }

    // The first segment, or a larger one in its place, whose lines have numbers of so many bits. None of its lines can
    // be overfull: the entries of each come from one line of four slots.
    bool widen(unsigned bits) noexcept {
        size_t lines = size_t{1} << bits;
        Line* wide = make_segment(lines);
        if (wide == nullptr) return false;
        Cold* to_cold = reinterpret_cast<Cold*>(wide + lines);
        each([&](uint64_t h, Ref ref, Cold* from) {
            size_t number = static_cast<size_t>(h >> (64 - bits));
            unsigned slot = 0;
            while ((wide[number].word[slot] >> TAG_SHIFT) != 0) ++slot;
            wide[number].word[slot] = ref.word();
            wide[number].val[slot] = ref.val();
            to_cold[number * SLOTS + slot] = *from;
            return true;
        });
        if (segment_count_ > 0) release(segments_[0]);
        segments_[0] = wide;
        segment_count_ = 1;
        set_lines(bits);
        return true;
    }

    // Linear hashing: the next segment in turn gives about half of its entries to a new one. They keep line and slot.
    bool split() noexcept {
        if (!enlarge(&segments_, &segment_capacity_, segment_count_, segment_count_ + 1)) return false;
        Line* fresh = make_segment(lines_);
        if (fresh == nullptr) return false;
        size_t whole = (segment_mask_ + 1) / 2;
        Line* old = segments_[segment_count_ - whole];
        if (count_ > 0) move_half(old, fresh, whole);  // there is nothing yet where room is made in advance
        segments_[segment_count_++] = fresh;
        set_limit();
        return true;
    }

    void move_half(Line* old, Line* fresh, size_t whole) noexcept {
        auto moves = [whole](uint64_t word) { return ((word & whole) != 0) & ((word >> TAG_SHIFT) != 0); };
        uint16_t list[LISTED_LINES * SLOTS];
        for (size_t first = 0; first < lines_; first += LISTED_LINES) {
            size_t listed = list_slots(old + first, LISTED_LINES, moves, list);
            for (size_t i = 0; i < listed; ++i) {
                size_t number = first + list[i] / SLOTS;
                move_across(fresh, number, Ref{old + number, list[i] % SLOTS});
            }
        }
        clear_marks(old);
    }

    void move_across(Line* fresh, size_t number, Ref from) noexcept {
        Ref to{fresh + number, from.slot};
        size_t distance = displacement(number, from.word());
        to.word() = (from.word() & ~OVERFLOWED) | (to.word() & OVERFLOWED);
        to.val() = from.val();
        *cold(to) = *cold(from);
        from.word() &= OVERFLOWED;
        from.val() = 0;
        mark(fresh, (number - distance) & (LINES_MAX - 1), distance);
    }

    // The inverse of a split: the last segment gives its entries back to the one it got them from. False, with nothing
    // changed, where one of them finds no slot there.
    bool merge() noexcept {
        Line* last = segments_[--segment_count_];
        size_t count = count_;
        set_limit();
        size_t whole = (segment_mask_ + 1) / 2;
        bool fits = each_in(last, [&](uint64_t h, Ref ref, Cold* from) { return copy(h, ref, from); });
        if (!fits) {
            Line* into = segments_[segment_count_ - whole];
            each_in(into, [&](uint64_t h, Ref ref, Cold*) {
                if ((h & whole) != 0) erase(h, ref);
                return true;
            });
            ++segment_count_;
            set_limit();
        } else if (segment_count_ % SEGMENTS_A_PAGE == 0) {
            release(last);
        }
        count_ = count;
        return fits;
    }

    // Copies an entry of another segment, or arena, to its line here; false if there is none.
    bool copy(uint64_t h, Ref ref, const Cold* from) noexcept {
        Ref to = insert(h, ref.word() & ~(HASH_MASK | OVERFLOWED));
        if (!to) return false;
        to.val() = ref.val();
        *cold(to) = *from;
        return true;
    }

    // Replaces the only segment by one that has room for twice its entries and no more, unless lines are too crowded.
    void rebuild() noexcept {
        Arena smaller(seed_);
        while (!smaller.has_room(count_ * 2))
            if (!smaller.grow()) return;
        bool moved = true;
        each([&](uint64_t h, Ref ref, Cold* from) {
            while (!(moved = smaller.copy(h, ref, from)) && smaller.lines_ < lines_ && smaller.grow()) {
            }
            return moved;
        });
        if (moved) swap(smaller);
    }

    // Moves all entries to the next seed under which each finds a slot, in a table of the same size. Few seeds in a
    // hundred are of no use, and nobody can choose root ids that crowd under many. False: no memory, nothing changed.
    bool rehash() noexcept {
        uint64_t seed = seed_;
        for (int tried = 0; tried < SEEDS_TRIED; ++tried) {
            Arena fresh(seed = Hash::seed_after(seed));
            if (!enlarge(&fresh.segments_, &fresh.segment_capacity_, 0, segment_capacity_)) return false;
            while (fresh.slots() < slots())
                if (!fresh.grow()) return false;
            if (move_to(&fresh)) return true;
        }
        return false;
    }

    // Exchanges this table for another one, to which all entries go; false, with this one unchanged, where one of them
    // finds no slot there.
    bool move_to(Arena* fresh) noexcept {
        bool moved = true;
        each([&](uint64_t h, Ref ref, Cold* from) { return moved = fresh->copy(fresh->hash(root_of(h)), ref, from); });
        if (moved) swap(*fresh);
        return moved;
    }

    // Whether the marks are right and empty slots are zero.
    bool lines_are_sound() const noexcept {
        for (size_t s = 0; s < segment_count_; ++s) {
            for (size_t number = 0; number < lines_; ++number) {
                const Line& line = segments_[s][number];
                bool passed = lines_ == LINES_MAX && is_passed_over(segments_[s], number);
                for (unsigned slot = 0; slot < SLOTS; ++slot) {
                    uint64_t word = line.word[slot];
                    if (((word & OVERFLOWED) != 0) != passed) return false;
                    if ((word >> TAG_SHIFT) == 0 && ((word & ~OVERFLOWED) != 0 || line.val[slot] != 0)) return false;
                }
            }
        }
        return true;
    }

    // Swaps everything but the reserve, which stays valid for a table of the same size.
    void swap(Arena& other) noexcept {
        uint64_t seed = seed_;
        seed_ = other.seed_;
        other.seed_ = seed;
        Hash hash = hash_;
        hash_ = other.hash_;
        other.hash_ = hash;
        Line** segments = segments_;
        segments_ = other.segments_;
        other.segments_ = segments;
        size_t mine[] = {segment_count_, segment_capacity_, segment_mask_, lines_, count_, limit_, line_bits_};
        segment_count_ = other.segment_count_;
        segment_capacity_ = other.segment_capacity_;
        segment_mask_ = other.segment_mask_;
        lines_ = other.lines_;
        count_ = other.count_;
        limit_ = other.limit_;
        line_bits_ = other.line_bits_;
        other.segment_count_ = mine[0];
        other.segment_capacity_ = mine[1];
        other.segment_mask_ = mine[2];
        other.lines_ = mine[3];
        other.count_ = mine[4];
        other.limit_ = mine[5];
        other.line_bits_ = static_cast<unsigned>(mine[6]);
    }

    uint64_t seed_;
    Hash hash_;
    Line** segments_ = nullptr;  // owned, as are their blocks; the first of a huge page owns the page
    size_t segment_count_ = 0;
    size_t segment_capacity_ = 0;
    size_t segment_mask_ = 0;
    size_t lines_ = 0;  // a segment
    size_t count_ = 0;
    size_t limit_ = 0;
    unsigned line_bits_ = 0;
    PageReserve reserve_;  // for new segments
    size_t reserved_ = 0;  // how many entries there may be before growth needs more memory than is held
};

}  // namespace acker
