// The table of trees that stay open across micro-batches, for one shard. It lies in a flat piece of memory that the
// caller owns and holds no pointers, so one process can pass it on to another. Messages come combined by root, with one
// row for each root.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codes.h"
#include "cohorts.h"
#include "columns.h"
#include "hash.h"
#include "probe.h"

namespace acker {

// Entries stand at fixed positions; an index of open addressing finds them. A slot of the index holds the upper half
// of the root's hash besides the position, so that neither a miss nor a removal has to look at an entry. Neighbouring
// entries form groups, and of each group the table knows a chunk of the log before which it has no logged entry.
//
// The index is no TreeIndex, although both take their tag and home from the upper half of a hash. This one removes
// entries, and by event time a root has several of them in one run: both go slot by slot, where a later entry can move
// up. The lines of a TreeIndex are searched whole because nothing leaves them. And the size of this one is fixed with
// the memory, which the caller owns: more room is another table, while a TreeIndex grows by itself.
class OpenTreesTable {
  public:
    static constexpr uint64_t MAGIC = 0x32524744454C4B41;  // "AKLEDGR2" in memory
    static constexpr size_t TOKEN_BYTES = 16;
    static constexpr uint32_t UNLOGGED = 0;  // chunk of an entry that the log does not know
    static constexpr uint64_t NO_LIMIT = UINT64_MAX;
    static constexpr size_t CAPACITY_MAX = size_t{1} << 31;

    struct Rules {
        int64_t time_ms;      // of the micro-batch
        uint64_t high_water;  // or NO_LIMIT
        bool every_message_refreshes;
        Cohorts cohorts = Cohorts{};  // for merge_timed
    };

    // What the log keeps of an entry.
    struct Columns {
        int64_t* root_id;
        int64_t* value;
        int64_t* message_id;
        int64_t* start_ms;
        int64_t* since_ms;
        int32_t* task_id;
    };

    // Positions of entries that differ from the log, and entries that are gone but still in the log.
    struct Changes {
        uint32_t* position;
        size_t positions;
        int64_t* root_id;
        int64_t* start_ms;
        size_t gone;
    };

    static size_t bytes_for(size_t capacity) noexcept {
        return sizeof(Header) + capacity * sizeof(Entry) + slots_for(capacity) * sizeof(uint64_t) +
               groups_for(capacity) * sizeof(uint32_t);
    }

    // Makes an empty table in `bytes_for(capacity)` bytes of zeros.
    void create(uint8_t* memory, size_t capacity, uint64_t seed) noexcept {
        Header* header = reinterpret_cast<Header*>(memory);
        *header = Header{};
        header->magic = MAGIC;
        header->capacity = capacity;
        header->slots = slots_for(capacity);
        header->seed = seed;
        header->free_position = NOWHERE;
        map(memory);
    }

    // Opens a table that `create` made, perhaps in another process, which left it between two calls. False: the memory
    // holds none. O(1), as a look at all entries would take longer than a micro-batch; check_invariants is for tests.
    bool attach(uint8_t* memory, size_t bytes) noexcept {
        const Header* header = reinterpret_cast<const Header*>(memory);
        if (bytes < sizeof(Header) || header->magic != MAGIC || header->capacity > CAPACITY_MAX ||
            header->slots != slots_for(header->capacity) || bytes < bytes_for(header->capacity) ||
            header->top > header->capacity || header->size > header->top || header->open > header->size)
            return false;
        map(memory);
        return true;
    }

    // Whether there is an entry at each of these positions.
    bool holds(const uint32_t* position, size_t rows) const noexcept {
        for (size_t i = 0; i < rows; ++i) {
            if (i + AHEAD < rows && position[i + AHEAD] < header_->top) ACKER_PREFETCH(&entries_[position[i + AHEAD]]);
            if (position[i] >= header_->top || entries_[position[i]].task_id == VACANT) return false;
        }
        return true;
    }

    size_t size() const noexcept { return header_->size; }
    size_t open() const noexcept { return header_->open; }
    size_t capacity() const noexcept { return header_->capacity; }
    uint64_t seed() const noexcept { return header_->seed; }
    uint8_t* token() noexcept { return header_->token; }

    bool contains(int64_t root_id) const noexcept { return find(static_cast<uint64_t>(root_id)) != nullptr; }

    // How many entries a merge of these partials makes at most: one for each root that is not known and that the
    // partials do not finish.
    size_t room_for(const Partials& in) const noexcept {
        size_t needed = 0;
        each_row(in.root_id, in.rows, [&](size_t row, uint64_t hash) noexcept {
            const bool finished = (in.flags[row] & HAS_TRACK) != 0 && in.value[row] == in.track_value[row];
            if (!finished) needed += index_[search(hash, static_cast<uint64_t>(in.root_id[row]))] == 0;
        });
        return needed;
    }

    // The same for merge_timed, in which a row that finishes a tree takes room for as long as it is applied.
    static size_t room_for_timed(const Partials& in) noexcept {
        size_t needed = 1;
        for (size_t row = 0; row < in.rows; ++row) {
            needed += (in.flags[row] & HAS_TRACK) == 0 || in.value[row] != in.track_value[row];
        }
        return needed < in.rows ? needed : in.rows;
    }

    // Applies partials, no two of one root. The caller ensures that size() + room_for(in) <= capacity(), and that
    // `done` and `changes` have room for in.rows rows.
    void merge(const Partials& in, const Rules& rules, Completions* done, Changes* changes, Counters* counts) noexcept {
        each_row(in.root_id, in.rows,
                 [&](size_t row, uint64_t hash) noexcept { merge_row(in, row, hash, rules, done, changes, counts); });
    }

    // Applies partials with event times: those of one root are neighbours, sorted by event time, no two of one cohort.
    // A tree takes the messages of its cohorts whenever they come; others become entries that wait. `done` and
    // `changes` have room for in.rows rows, `changes` for size() more entries that are gone.
    void merge_timed(const Partials& in, const Rules& rules, Completions* done, Changes* changes,
                     Counters* counts) noexcept {
        for (size_t first = 0; first < in.rows;) {
            const uint64_t root_id = static_cast<uint64_t>(in.root_id[first]);
            Timed job{rules, hash_.of(root_id), root_id, done, changes, counts};
            for (; first < in.rows && static_cast<uint64_t>(in.root_id[first]) == root_id; ++first) {
                if (first + AHEAD < in.rows) {
                    const uint64_t ahead = hash_.of(static_cast<uint64_t>(in.root_id[first + AHEAD]));
                    ACKER_PREFETCH(&index_[home_of(ahead >> 32)]);
                }
                merge_timed_row(in, first, job);
            }
            finish_root(job);
        }
    }

    // Counts of open trees by age: `count` has a place for each bound, where the age is below it, and one more.
    struct Ages {
        const int64_t* bound_ms;  // ascending
        size_t bounds;
        int64_t* count;
    };

    // Removes every entry placed before a moment: tracked ones time out, the others are orphans. Returns the start of
    // the oldest entry that stays, or `now_ms`, and counts the tracked ones that stay. `done` has room for open() rows.
    int64_t expire(int64_t before_ms, int64_t now_ms, Completions* done, Counters* counts, const Ages& ages) noexcept {
        int64_t oldest = now_ms;
        for (size_t i = 0; i < header_->top; ++i) {
            Entry& entry = entries_[i];
            if (entry.task_id == VACANT) continue;
            if (entry.since_ms >= before_ms) {
                if (entry.start_ms < oldest) oldest = entry.start_ms;
                if (entry.task_id >= 0) {
                    size_t place = 0;
                    for (size_t k = 0; k < ages.bounds; ++k) place += now_ms - entry.start_ms >= ages.bound_ms[k];
                    ++ages.count[place];
                }
                continue;
            }
            if (entry.task_id >= 0) {
                ++counts->timed_out;
                report(entry, OUTCOME_TIMED_OUT, now_ms, done);
            } else {
                ++(entry.task_id == UNTRACKED_RESET && entry.value == 0 ? counts->unknown : counts->orphans);
            }
            remove(slot_of(i), i);
        }
        return oldest;
    }

    // Writes entries to columns, and notes in which chunk of the log they will be.
    void take(const uint32_t* position, size_t rows, uint32_t chunk, const Columns& out) noexcept {
        for (size_t i = 0; i < rows; ++i) {
            if (i + AHEAD < rows) ACKER_PREFETCH(&entries_[position[i + AHEAD]]);
            Entry& entry = entries_[position[i]];
            entry.chunk = chunk;
            note_logged(position[i], chunk);
            out.root_id[i] = static_cast<int64_t>(entry.root_id);
            out.value[i] = static_cast<int64_t>(entry.value);
            out.message_id[i] = entry.message_id;
            out.start_ms[i] = entry.start_ms;
            out.since_ms[i] = entry.since_ms;
            out.task_id[i] = entry.task_id;
        }
    }

    // Finds the entries that the log shows, but in no chunk from this one on; returns how many, their positions in
    // `position`, which has room for `most`. Looks into the groups that may have one, so the work depends on the chunks
    // that are removed and not on the table.
    size_t logged_before(uint32_t chunk, uint32_t* position, size_t most) noexcept {
        size_t found = 0;
        const size_t groups = groups_for(header_->top);
        for (size_t group = 0; group < groups && found < most; ++group) {
            if (oldest_[group] >= chunk) continue;
            const size_t first = group * GROUP;
            const size_t end = first + GROUP < header_->top ? first + GROUP : header_->top;
            uint32_t oldest = NEVER;
            for (size_t i = first; i < end; ++i) {
                const Entry& entry = entries_[i];
                if (entry.task_id == VACANT || entry.chunk == UNLOGGED) continue;
                if (entry.chunk < oldest) oldest = entry.chunk;
                if (entry.chunk >= chunk) continue;
                if (found == most) return found;
                position[found++] = static_cast<uint32_t>(i);
            }
            oldest_[group] = oldest;
        }
        return found;
    }

    // Puts entries as a chunk of the log shows them, over what is there. Room as for `merge`.
    void put(const Columns& in, size_t rows, uint32_t chunk) noexcept {
        each_row(in.root_id, rows, [&](size_t row, uint64_t hash) noexcept {
            const uint64_t root_id = static_cast<uint64_t>(in.root_id[row]);
            const size_t slot = search(hash, root_id, in.start_ms[row]);
            Entry& entry = index_[slot] == 0 ? insert(slot, hash, root_id) : entries_[position_in(slot)];
            header_->open += static_cast<size_t>(in.task_id[row] >= 0) - static_cast<size_t>(entry.task_id >= 0);
            entry = Entry{root_id,
                          static_cast<uint64_t>(in.value[row]),
                          in.message_id[row],
                          in.start_ms[row],
                          in.since_ms[row],
                          in.task_id[row],
                          chunk};
            note_logged(position_in(slot), chunk);
        });
    }

    // Removes entries that a chunk of the log says are gone; unknown ones do not matter.
    void erase(const int64_t* root_id, const int64_t* start_ms, size_t rows) noexcept {
        each_row(root_id, rows, [&](size_t row, uint64_t hash) noexcept {
            const size_t slot = search(hash, static_cast<uint64_t>(root_id[row]), start_ms[row]);
            if (index_[slot] != 0) remove(slot, position_in(slot));
        });
    }

    // Copies everything into an empty table of at least the size.
    void copy_to(OpenTreesTable* other) const noexcept {
        for (size_t i = 0; i < header_->top; ++i) {
            if (entries_[i].task_id == VACANT) continue;
            const uint64_t hash = other->hash_.of(entries_[i].root_id);
            Entry& copy = other->insert(other->vacant_slot(hash), hash, entries_[i].root_id);
            copy = entries_[i];
            if (copy.chunk != UNLOGGED) other->note_logged(static_cast<size_t>(&copy - other->entries_), copy.chunk);
        }
        other->header_->open = header_->open;
    }

    // Whether index, entries, free positions, groups and counts agree, and so every call ends and stays within the
    // memory. O(capacity).
    bool check_invariants() const noexcept {
        if (!index_is_sound()) return false;
        size_t size = 0, open = 0, vacant = 0, in_index = 0;
        for (size_t i = 0; i < header_->top; ++i) {
            if (i + INDEX_AHEAD < header_->top)
                ACKER_PREFETCH(&index_[home_of(hash_.of(entries_[i + INDEX_AHEAD].root_id) >> 32)]);
            if (entries_[i].task_id == VACANT) continue;
            ++size;
            open += entries_[i].task_id >= 0;
            const size_t slot = slot_of(i);
            if (index_[slot] == 0 || index_[slot] >> 32 != hash_.of(entries_[i].root_id) >> 32) return false;
            if (entries_[i].chunk != UNLOGGED && entries_[i].chunk < oldest_[i / GROUP]) return false;
        }
        for (uint32_t i = header_->free_position; i != NOWHERE; i = entries_[i].chunk) {
            if (i >= header_->top || entries_[i].task_id != VACANT || ++vacant > header_->top) return false;
        }
        for (size_t slot = 0; slot < header_->slots; ++slot) in_index += index_[slot] != 0;
        return size == header_->size && open == header_->open && size + vacant == header_->top && in_index == size;
    }

  private:
    struct Header {
        uint64_t magic;
        uint64_t capacity;  // of entries
        uint64_t slots;     // of the index, a power of two
        uint64_t seed;
        uint64_t size;
        uint64_t open;           // those with a TRACK
        uint64_t top;            // positions from here on were never used
        uint32_t free_position;  // the first of those given back, or NOWHERE
        uint32_t zero;
        uint8_t token[TOKEN_BYTES];
        uint8_t reserved[48];
    };
    struct Entry {
        uint64_t root_id;
        uint64_t value;
        int64_t message_id;
        int64_t start_ms;
        int64_t since_ms;
        int32_t task_id;
        uint32_t chunk;  // of the log, the newest with this entry; of a vacant one the next free position
    };
    static_assert(sizeof(Header) == 128 && sizeof(Entry) == 48, "the layout is shared between processes");

    static constexpr uint32_t NOWHERE = UINT32_MAX;
    static constexpr size_t SLOTS_MIN = 64;
    static constexpr size_t CHUNK_ROWS = 256;
    static constexpr size_t INDEX_AHEAD = 24, AHEAD = 12;
    static constexpr size_t GROUP = 32;
    static constexpr uint32_t NEVER = UINT32_MAX;

    // Whether a search in the index ends, and finds nothing but positions that were used.
    bool index_is_sound() const noexcept {
        size_t in_index = 0;
        bool good = true;
        for (size_t slot = 0; slot < header_->slots; ++slot) {
            in_index += index_[slot] != 0;
            good = good && (index_[slot] == 0 || position_in(slot) < header_->top);
        }
        return good && in_index == header_->size;
    }

    // A load between a third and two thirds.
    static size_t slots_for(size_t capacity) noexcept {
        size_t slots = SLOTS_MIN;
        while (2 * slots < 3 * capacity) slots *= 2;
        return slots;
    }

    static size_t groups_for(size_t entries) noexcept { return (entries + GROUP - 1) / GROUP; }

    void note_logged(size_t position, uint32_t chunk) noexcept {
        if (chunk < oldest_[position / GROUP]) oldest_[position / GROUP] = chunk;
    }

    void map(uint8_t* memory) noexcept {
        header_ = reinterpret_cast<Header*>(memory);
        entries_ = reinterpret_cast<Entry*>(memory + sizeof(Header));
        index_ = reinterpret_cast<uint64_t*>(entries_ + header_->capacity);
        oldest_ = reinterpret_cast<uint32_t*>(index_ + header_->slots);
        hash_ = Hash::from_seed(header_->seed);
        shift_ = 32;
        for (size_t slots = header_->slots; slots > 1; slots /= 2) --shift_;
    }

    size_t home_of(uint64_t half) const noexcept { return static_cast<size_t>(half >> shift_); }
    size_t after(size_t slot) const noexcept { return (slot + 1) & (header_->slots - 1); }
    uint32_t position_in(size_t slot) const noexcept { return static_cast<uint32_t>(index_[slot]) - 1; }

    // The slot that holds the root, the first of them with event times, or the empty one where it would be.
    size_t search(uint64_t hash, uint64_t root_id) const noexcept {
        const uint64_t half = hash >> 32;
        size_t slot = home_of(half);
        for (; index_[slot] != 0; slot = after(slot)) {
            if (index_[slot] >> 32 == half && entries_[position_in(slot)].root_id == root_id) break;
        }
        return slot;
    }

    // The same for the one entry of the root that began at a moment: no two of them began in one cohort.
    size_t search(uint64_t hash, uint64_t root_id, int64_t start_ms) const noexcept {
        size_t slot = search(hash, root_id);
        while (index_[slot] != 0 && !is_entry_of(slot, hash, root_id, start_ms)) slot = after(slot);
        return slot;
    }

    bool is_entry_of(size_t slot, uint64_t hash, uint64_t root_id, int64_t start_ms) const noexcept {
        if (index_[slot] >> 32 != hash >> 32) return false;
        const Entry& entry = entries_[position_in(slot)];
        return entry.root_id == root_id && entry.start_ms == start_ms;
    }

    size_t vacant_slot(uint64_t hash) const noexcept {
        size_t slot = home_of(hash >> 32);
        while (index_[slot] != 0) slot = after(slot);
        return slot;
    }

    const Entry* find(uint64_t root_id) const noexcept {
        const size_t slot = search(hash_.of(root_id), root_id);
        return index_[slot] == 0 ? nullptr : &entries_[position_in(slot)];
    }

    size_t slot_of(size_t position) const noexcept {
        size_t slot = home_of(hash_.of(entries_[position].root_id) >> 32);
        while (index_[slot] != 0 && position_in(slot) != position) slot = after(slot);
        return slot;
    }

    Entry& insert(size_t slot, uint64_t hash, uint64_t root_id) noexcept {
        uint32_t position = header_->free_position;
        if (position == NOWHERE) {
            position = static_cast<uint32_t>(header_->top++);
        } else {
            header_->free_position = entries_[position].chunk;
        }
        index_[slot] = (hash >> 32 << 32) | (position + 1);
        ++header_->size;
        entries_[position] = Entry{root_id, 0, 0, 0, 0, UNTRACKED, UNLOGGED};
        return entries_[position];
    }

    // Later entries of the run move up, so that searches need no tombstones (Knuth 6.4, algorithm R).
    void remove(size_t slot, size_t position) noexcept {
        header_->open -= entries_[position].task_id >= 0;
        --header_->size;
        entries_[position].task_id = VACANT;
        entries_[position].chunk = header_->free_position;
        header_->free_position = static_cast<uint32_t>(position);
        const size_t mask = header_->slots - 1;
        for (size_t next = after(slot); index_[next] != 0; next = after(next)) {
            const size_t home = home_of(index_[next] >> 32);
            if (((next - home) & mask) < ((next - slot) & mask)) continue;
            index_[slot] = index_[next];
            slot = next;
        }
        index_[slot] = 0;
    }

    template <class Apply>
    void each_row(const int64_t* root_id, size_t rows, Apply apply) const noexcept {
        uint64_t hashes[CHUNK_ROWS + INDEX_AHEAD];
        for (size_t first = 0; first < rows; first += CHUNK_ROWS) {
            const size_t count = rows - first < CHUNK_ROWS ? rows - first : CHUNK_ROWS;
            for (size_t i = 0; i < count; ++i) hashes[i] = hash_.of(static_cast<uint64_t>(root_id[first + i]));
            for (size_t i = 0; i < INDEX_AHEAD; ++i) hashes[count + i] = hashes[count - 1];
            for (size_t i = 0; i < INDEX_AHEAD; ++i) ACKER_PREFETCH(&index_[home_of(hashes[i] >> 32)]);
            for (size_t i = 0; i < count; ++i) {
                ACKER_PREFETCH(&index_[home_of(hashes[i + INDEX_AHEAD] >> 32)]);
                const uint64_t half = hashes[i + AHEAD] >> 32;
                const size_t guess = home_of(half);
                if (index_[guess] >> 32 == half && index_[guess] != 0) ACKER_PREFETCH(&entries_[position_in(guess)]);
                apply(first + i, hashes[i]);
            }
        }
    }

    static void report(const Entry& entry, Outcome outcome, int64_t now_ms, Completions* done) noexcept {
        const size_t row = done->rows++;
        done->root_id[row] = static_cast<int64_t>(entry.root_id);
        done->message_id[row] = entry.message_id;
        done->task_id[row] = entry.task_id;
        done->outcome[row] = outcome;
        const uint64_t elapsed = static_cast<uint64_t>(now_ms) - static_cast<uint64_t>(entry.start_ms);
        const uint64_t most = INT64_MAX;
        done->elapsed_ms[row] = now_ms > entry.start_ms ? static_cast<int64_t>(elapsed < most ? elapsed : most) : 0;
    }

    // Applies one row to the entry of its root, or to a new one, which is stored if it has to wait.
    void merge_row(const Partials& in, size_t row, uint64_t hash, const Rules& rules, Completions* done,
                   Changes* changes, Counters* counts) noexcept {
        const uint64_t root_id = static_cast<uint64_t>(in.root_id[row]);
        const uint8_t flags = in.flags[row];
        uint64_t value = static_cast<uint64_t>(in.value[row]);
        const size_t slot = search(hash, root_id);
        const bool known = index_[slot] != 0;
        if (!known && flags == HAS_RESET && value == 0) {
            ++counts->unknown;
            return;
        }
        counts->resets += (flags & HAS_RESET) != 0;
        const bool tracked = (flags & HAS_TRACK) != 0;
        Entry fresh{root_id, 0, 0, rules.time_ms, rules.time_ms, UNTRACKED, UNLOGGED};
        // All of the tree is here, so there is nothing to hold, whatever the limits.
        if (!known && tracked && in.value[row] == in.track_value[row]) {
            set_track(in, row, &fresh);
            fresh.value = 0;
            ++counts->tracked;
            counts->empty += (flags & HAS_FAIL) == 0 && value == 0;
            end(fresh, rules.time_ms, done, counts);
            return;
        }
        Entry& entry = known ? entries_[position_in(slot)] : fresh;
        bool failed = (flags & HAS_FAIL) != 0 || entry.task_id == UNTRACKED_FAILED;
        bool changed = value != 0 || (known ? (flags & (HAS_FAIL | HAS_RESET)) != 0 : failed || !tracked);
        bool refreshed = (flags & (HAS_FAIL | HAS_RESET)) != 0 || (rules.every_message_refreshes && value != 0);
        // The TRACK is taken as the last of its messages: the others meet the limits first.
        if (!known && changed && beyond(header_->size, 4, rules)) {
            ++counts->dropped;
            value = 0;
            changed = failed = false;
        }
        entry.value ^= value;
        if (tracked && entry.task_id >= 0) {
            ++counts->duplicates;
        } else if (tracked && beyond(header_->open, 2, rules)) {
            ++counts->rejected;
            Entry refused = entry;
            set_track(in, row, &refused);
            refused.start_ms = rules.time_ms;
            report(refused, OUTCOME_REJECTED, rules.time_ms, done);
        } else if (tracked) {
            set_track(in, row, &entry);
            ++counts->tracked;
            header_->open += known;  // a new entry counts once it is stored
            changed = true;
            refreshed = refreshed || rules.every_message_refreshes;
        }
        if (entry.task_id < 0 && failed) entry.task_id = UNTRACKED_FAILED;
        if (refreshed) entry.since_ms = rules.time_ms;
        if (entry.task_id >= 0 && (entry.value == 0 || failed)) {
            end(entry, rules.time_ms, done, counts);
            if (!known) return;
            if (entry.chunk != UNLOGGED) note_gone(entry, changes);
            remove(slot, position_in(slot));
        } else if (changed) {
            if (!known) {
                insert(slot, hash, root_id) = entry;
                header_->open += entry.task_id >= 0;
            }
            changes->position[changes->positions++] = position_in(slot);
        }
    }

    // Counts and reports a tree that ends: ACKED if its ack val is 0, also if it has a FAIL.
    static void end(const Entry& tree, int64_t now_ms, Completions* done, Counters* counts) noexcept {
        ++(tree.value == 0 ? counts->acked : counts->failed);
        report(tree, tree.value == 0 ? OUTCOME_ACKED : OUTCOME_FAILED, now_ms, done);
    }

    static void note_gone(const Entry& entry, Changes* changes) noexcept {
        changes->root_id[changes->gone] = static_cast<int64_t>(entry.root_id);
        changes->start_ms[changes->gone++] = entry.start_ms;
    }

    // The state of merge_timed for one root.
    struct Timed {
        const Rules& rules;
        uint64_t hash;
        uint64_t root_id;
        Completions* done;
        Changes* changes;
        Counters* counts;
    };

    // While a root is being merged, flags in the chunk of its entries mark changed ones and new trees.
    static constexpr uint32_t CHANGED = uint32_t{1} << 31, BEGUN = uint32_t{1} << 30;
    static constexpr uint32_t CHUNK_MASK = BEGUN - 1;

    template <class Visit>
    void each_entry(const Timed& job, Visit visit) noexcept {
        for (size_t slot = search(job.hash, job.root_id); index_[slot] != 0; slot = after(slot)) {
            if (index_[slot] >> 32 != job.hash >> 32) continue;
            Entry& entry = entries_[position_in(slot)];
            if (entry.root_id == job.root_id) visit(entry);
        }
    }

    // Whether a message of a cohort belongs to a tree: it had not expired before the TRACK, and came in the tree's
    // time.
    static bool takes(const Entry& tree, int64_t cohort, const Cohorts& cohorts) noexcept {
        return cohort < cohorts.of(tree.since_ms) + cohorts.buckets &&
               cohort > cohorts.of(tree.start_ms) - cohorts.buckets;
    }

    void merge_timed_row(const Partials& in, size_t row, const Timed& job) noexcept {
        const Cohorts& cohorts = job.rules.cohorts;
        const uint8_t flags = in.flags[row];
        const uint64_t value = static_cast<uint64_t>(in.value[row]);
        const int64_t event_ms = in.event_ms[row], cohort = cohorts.of(event_ms);
        const bool tracked = (flags & HAS_TRACK) != 0;
        bool failed = (flags & HAS_FAIL) != 0;
        const bool refreshes = (flags & HAS_RESET) != 0 || (job.rules.every_message_refreshes && value != 0);
        Entry* tree = nullptr;
        Entry* waiting = nullptr;
        each_entry(job, [&](Entry& entry) noexcept {
            if (entry.task_id >= 0) {
                if (takes(entry, cohort, cohorts) && (tree == nullptr || entry.start_ms < tree->start_ms))
                    tree = &entry;
            } else if (cohorts.of(entry.start_ms) == cohort) {
                waiting = &entry;
            }
        });
        job.counts->resets += (flags & HAS_RESET) != 0;
        if (tree != nullptr) {
            job.counts->duplicates += tracked;
            if (value == 0 && !failed && !refreshes) return;
            tree->value ^= value;
            if (refreshes && event_ms > tree->since_ms) tree->since_ms = event_ms;
            tree->chunk |= CHANGED;
            settle_timed(tree, failed, event_ms, job);
            return;
        }
        if (waiting == nullptr) {
            waiting = &insert(vacant_slot(job.hash), job.hash, job.root_id);
            waiting->start_ms = waiting->since_ms = event_ms;
        }
        failed |= waiting->task_id == UNTRACKED_FAILED;
        waiting->value ^= value;
        waiting->chunk |= CHANGED;
        if (!tracked) {
            if (failed) waiting->task_id = UNTRACKED_FAILED;
            if (!failed && refreshes) waiting->task_id = UNTRACKED_RESET;
            return;
        }
        set_track(in, row, waiting);
        waiting->chunk |= BEGUN;
        ++header_->open;
        ++job.counts->tracked;
        // What came before the TRACK is taken first, so that the tree is judged by all of it.
        while (const Entry* earlier = next_waiting(*waiting, job)) {
            if (earlier->start_ms > waiting->start_ms) break;
            failed |= take_waiting(waiting, *earlier, job);
        }
        job.counts->empty += !failed && waiting->value == 0 && in.track_value[row] == 0;
        settle_timed(waiting, failed, event_ms, job);
    }

    // Ends a tree, or lets it take what waits for it cohort by cohort until it ends.
    void settle_timed(Entry* tree, bool failed, int64_t event_ms, const Timed& job) noexcept {
        while (tree->value != 0 && !failed) {
            const Entry* waiting = next_waiting(*tree, job);
            if (waiting == nullptr) return;
            if (waiting->start_ms > event_ms) event_ms = waiting->start_ms;
            failed = take_waiting(tree, *waiting, job);
        }
        end(*tree, event_ms, job.done, job.counts);
        forget(*tree, job);
    }

    // The earliest waiting entry that belongs to a tree, or nullptr.
    const Entry* next_waiting(const Entry& tree, const Timed& job) noexcept {
        const Entry* first = nullptr;
        each_entry(job, [&](Entry& entry) noexcept {
            if (entry.task_id >= 0 || !takes(tree, job.rules.cohorts.of(entry.start_ms), job.rules.cohorts)) return;
            if (first == nullptr || entry.start_ms < first->start_ms) first = &entry;
        });
        return first;
    }

    // Adds a waiting entry to its tree; returns whether the tree fails by it.
    bool take_waiting(Entry* tree, const Entry& waiting, const Timed& job) noexcept {
        const bool failed = waiting.task_id == UNTRACKED_FAILED;
        const bool refreshes = waiting.task_id == UNTRACKED_RESET || job.rules.every_message_refreshes;
        tree->value ^= waiting.value;
        if (refreshes && waiting.start_ms > tree->since_ms) tree->since_ms = waiting.start_ms;
        forget(waiting, job);
        return failed;
    }

    void forget(const Entry& entry, const Timed& job) noexcept {
        if ((entry.chunk & CHUNK_MASK) != UNLOGGED) note_gone(entry, job.changes);
        const size_t position = static_cast<size_t>(&entry - entries_);
        remove(slot_of(position), position);
    }

    // Applies the limits to the new entries of a root, and notes the changed ones.
    void finish_root(const Timed& job) noexcept {
        for (;;) {
            Entry* refused = nullptr;
            each_entry(job, [&](Entry& entry) noexcept {
                const bool is_new = (entry.chunk & CHUNK_MASK) == UNLOGGED;
                const bool is_beyond = (entry.chunk & BEGUN) != 0 ? beyond(header_->open - 1, 2, job.rules)
                                                                  : is_new && beyond(header_->size - 1, 4, job.rules);
                // The latest, whatever the order in which they stand.
                if (is_beyond && (refused == nullptr || entry.start_ms > refused->start_ms)) refused = &entry;
            });
            if (refused == nullptr) break;
            if (refused->task_id >= 0) {
                --job.counts->tracked;
                ++job.counts->rejected;
                report(*refused, OUTCOME_REJECTED, refused->start_ms, job.done);
            } else {
                ++job.counts->dropped;
            }
            forget(*refused, job);
        }
        each_entry(job, [&](Entry& entry) noexcept {
            if ((entry.chunk & CHANGED) == 0) return;
            entry.chunk &= CHUNK_MASK;
            job.changes->position[job.changes->positions++] = static_cast<uint32_t>(&entry - entries_);
        });
    }

    static void set_track(const Partials& in, size_t row, Entry* entry) noexcept {
        entry->value ^= static_cast<uint64_t>(in.track_value[row]);
        entry->task_id = in.task_id[row];
        entry->message_id = in.message_id[row];
    }

    static bool beyond(uint64_t held, uint64_t times, const Rules& rules) noexcept {
        return rules.high_water != NO_LIMIT && held > times * rules.high_water;
    }

    Header* header_ = nullptr;
    Entry* entries_ = nullptr;
    uint64_t* index_ = nullptr;   // 0, or the upper half of the hash and the position + 1
    uint32_t* oldest_ = nullptr;  // of each group: no logged entry is in an earlier chunk; 0 where nobody has looked
    unsigned shift_ = 0;
    Hash hash_;
};

}  // namespace acker
