// The entries of ackers as the blocks of a snapshot (docs/snapshot.md): a writer that sweeps the tables, and a reader
// that checks blocks and fills tables. Several ackers may write one sequence of blocks, and several may share what is
// read, each root in the one that `acker_of` names: the snapshot of a sharded acker looks like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codes.h"
#include "ingest.h"
#include "shard_of.h"
#include "slot_list.h"
#include "xxh64.h"

namespace acker {

constexpr size_t BLOCK_ENTRIES = 8192;  // of every block but the last: 278 kB, still cached for its checksum
constexpr size_t ENTRY_BYTES = 34;
constexpr size_t CHECKSUM_BYTES = 8;

constexpr size_t block_bytes(size_t entries) { return entries * ENTRY_BYTES + CHECKSUM_BYTES; }

// Turns a number of this machine into a little-endian one, or back.
template <typename Number>
ACKER_ALWAYS_INLINE Number little_endian(Number number) noexcept {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    uint8_t bytes[sizeof(Number)];
    std::memcpy(bytes, &number, sizeof(Number));
    return static_cast<Number>(xxh64::word_at(bytes, sizeof(Number)));
#else
    return number;
#endif
}

// Columns need not be aligned: a block may lie anywhere in a buffer.
template <typename Number>
ACKER_ALWAYS_INLINE void store(uint8_t* column, size_t row, Number number) noexcept {
    number = little_endian(number);
    std::memcpy(column + row * sizeof(Number), &number, sizeof(Number));
}

template <typename Number>
ACKER_ALWAYS_INLINE Number load(const uint8_t* column, size_t row) noexcept {
    Number number;
    std::memcpy(&number, column + row * sizeof(Number), sizeof(Number));
    return little_endian(number);
}

// The columns of a block. Age counts the rotations since an entry was in the nursery.
template <typename Byte>
struct BlockColumns {
    Byte* root_id;
    Byte* ack_val;
    Byte* message_id;
    Byte* task_id;
    Byte* start;
    Byte* state;
    Byte* age;

    BlockColumns(Byte* block, size_t entries) noexcept
        : root_id(block),
          ack_val(block + 8 * entries),
          message_id(block + 16 * entries),
          task_id(block + 24 * entries),
          start(block + 28 * entries),
          state(block + 32 * entries),
          age(block + 33 * entries) {}
};

// A cursor over the entries of an acker, which must not change meanwhile. It goes through the table line by line.
class Cursor {
  public:
    explicit Cursor(const AckerCore& core) noexcept : arena_(&core.arena) {
        for (unsigned tag = 1; tag <= core.buckets(); ++tag)
            age_of_[tag] = static_cast<uint8_t>((core.nursery() + core.buckets() - tag) % core.buckets());
    }

    // Writes the next entries into rows [first, end) of a block; returns the end of the rows written, which is before
    // `end` only if no entries are left.
    size_t write(BlockColumns<uint8_t> columns, size_t first, size_t end) noexcept {
        size_t row = first;
        while (row < end && (written_ < listed_ || list_more())) {
            size_t last = listed_ - written_ < end - row ? listed_ : written_ + (end - row);
            for (; written_ < last; ++written_) write_entry(columns, row++, list_[written_]);
        }
        return row;
    }

  private:
    static constexpr size_t GROUP_LINES = 64;  // small enough for hot and cold parts to stay in the nearest cache
    static_assert((size_t{1} << LINE_BITS_MIN) % GROUP_LINES == 0, "a segment is a number of groups");

    // Lists the occupied slots of the next group of lines that has any.
    bool list_more() noexcept {
        written_ = listed_ = 0;
        while (listed_ == 0 && next_segment_ < arena_->segments()) {
            group_ = arena_->segment(next_segment_) + next_line_;
            group_number_ = next_line_;
            listed_ = list_slots(group_, GROUP_LINES, [](uint64_t word) { return word >> TAG_SHIFT != 0; }, list_);
            next_line_ = (next_line_ + GROUP_LINES) % arena_->lines_a_segment();
            next_segment_ += next_line_ == 0;
        }
        return listed_ > 0;
    }

    ACKER_ALWAYS_INLINE void write_entry(BlockColumns<uint8_t> columns, size_t row, size_t slot_index) noexcept {
        Ref ref{group_ + slot_index / SLOTS, static_cast<unsigned>(slot_index % SLOTS)};
        uint64_t word = ref.word(), tracked = word / TRACKED & 1, failed = word / FAILED & 1;
        const Cold cold = *arena_->cold(ref);
        store(columns.root_id, row, arena_->root_of(arena_->hash_at(group_number_ + slot_index / SLOTS, word)));
        store(columns.ack_val, row, ref.val());
        // Without a TRACK these fields are undefined, and written as 0.
        store(columns.message_id, row, static_cast<uint64_t>(cold.message_id) & (0 - tracked));
        store(columns.task_id, row, static_cast<uint32_t>(cold.task_id) & static_cast<uint32_t>(0 - tracked));
        store(columns.start, row, cold.start);
        columns.state[row] = static_cast<uint8_t>(tracked * ENTRY_TRACKED + failed * ENTRY_FAILED);
        columns.age[row] = age_of_[word >> TAG_SHIFT];
    }

    const Arena* arena_;
    uint8_t age_of_[BUCKETS_MAX + 1] = {};
    uint16_t list_[GROUP_LINES * SLOTS] = {};  // the taken slots of a group, from its first line on
    size_t listed_ = 0;
    size_t written_ = 0;  // of those listed
    Line* group_ = nullptr;
    size_t group_number_ = 0;  // of its first line, in its segment
    size_t next_segment_ = 0;
    size_t next_line_ = 0;
};

// Writes the entries of some ackers as blocks, one acker after the other. They must not change meanwhile.
class SnapshotWriter {
  public:
    // The checksum is that of the header. There is at least one acker.
    SnapshotWriter(AckerCore* const* cores, size_t count, uint64_t checksum) noexcept
        : cores_(cores), cores_left_(count), cursor_(*cores[0]), checksum_(checksum) {
        for (size_t core = 0; core < count; ++core) entries_left_ += cores[core]->arena.count();
    }

    // Bytes of the blocks that are not written yet.
    size_t bytes() const noexcept {
        return entries_left_ * ENTRY_BYTES + (entries_left_ + BLOCK_ENTRIES - 1) / BLOCK_ENTRIES * CHECKSUM_BYTES;
    }

    // Entries of the next block; 0: all are written.
    size_t next_entries() const noexcept { return entries_left_ < BLOCK_ENTRIES ? entries_left_ : BLOCK_ENTRIES; }

    // Writes the next block, of block_bytes(next_entries()).
    void write(uint8_t* block) noexcept {
        size_t entries = next_entries(), row = 0;
        BlockColumns<uint8_t> columns(block, entries);
        for (;;) {
            row = cursor_.write(columns, row, entries);
            if (row == entries || cores_left_ == 1) break;
            --cores_left_;
            cursor_ = Cursor(**++cores_);
        }
        checksum_ = xxh64::of_bytes(block, entries * ENTRY_BYTES, checksum_);
        store(block + entries * ENTRY_BYTES, 0, checksum_);
        entries_left_ -= entries;
    }

  private:
    AckerCore* const* cores_;  // the one that is being written, and those after it
    size_t cores_left_;
    size_t entries_left_ = 0;
    Cursor cursor_;
    uint64_t checksum_;
};

// What is wrong with a block. The first seven concern one entry, in the order of the checks in acker._engine.snapshot.
enum Fault : int {
    STATE_UNKNOWN,
    AGE_TOO_HIGH,
    TASK_NEGATIVE,
    TASK_WITHOUT_TRACK,
    MESSAGE_WITHOUT_TRACK,
    TRACK_MISSING,
    FINISHED_ALREADY,
    ROOT_TWICE,
    CHECKSUM_WRONG,
    NO_MEMORY,
    NO_FAULT,
};

// Fills new ackers of equal options with the entries of a snapshot, block by block. After a fault they hold a part of
// them.
class SnapshotReader {
  public:
    // The checksum and the number of entries are those of the header. There is at least one acker.
    SnapshotReader(AckerCore* const* cores, size_t count, uint64_t checksum, uint64_t entries) noexcept
        : cores_(cores),
          count_(count),
          shard_of_(count),
          checksum_(checksum),
          entries_(entries),
          buckets_(cores[0]->buckets()),
          needs_track_(cores[0]->protocol() == Protocol::fsshelter) {
        for (unsigned age = 0; age < buckets_; ++age)
            tag_of_[age] = (cores[0]->nursery() + 2 * buckets_ - 1 - age) % buckets_ + 1;
    }

    // Reads a block of block_bytes(entries). `row` is the first entry with a fault.
    Fault read(const uint8_t* block, size_t entries, size_t* row) noexcept {
        *row = 0;
        checksum_ = xxh64::of_bytes(block, entries * ENTRY_BYTES, checksum_);
        if (load<uint64_t>(block + entries * ENTRY_BYTES, 0) != checksum_) return CHECKSUM_WRONG;
        const BlockColumns<const uint8_t> columns(block, entries);
        if (looks_wrong(columns, entries)) {
            for (; *row < entries; ++*row) {
                unsigned faults = faults_of(columns, *row);
                if (faults != 0) return static_cast<Fault>(ACKER_LOWEST_BIT(faults));
            }
        }
        read_ += entries;
        Fault fault = NO_FAULT;
        for (size_t first = 0; fault == NO_FAULT && first < entries; first += STRETCH_ROWS) {
            size_t end = entries - first < STRETCH_ROWS ? entries : first + STRETCH_ROWS;
            fault = insert(columns, first, end, row);
        }
        return fault;
    }

  private:
    // The rows that are hashed together, so that their lines are fetched while earlier ones are filled.
    struct Stretch {
        AckerCore* core[STRETCH_ROWS];
        uint64_t hash[STRETCH_ROWS];
        Line* line[STRETCH_ROWS + FETCH_AHEAD];
    };

    // A header may claim any number of entries: room is made for at most this many times those of the good blocks.
    static constexpr uint64_t ROOM_TIMES = 8;

    bool make_room(Arena* arena, size_t more) noexcept {
        if (arena->has_room(more)) return true;
        uint64_t foreseen = (entries_ / ROOM_TIMES < read_ ? entries_ : read_ * ROOM_TIMES) / count_;
        if (foreseen > arena->count() + more && arena->make_room(static_cast<size_t>(foreseen))) return true;
        while (!arena->has_room(more))
            if (!arena->grow()) return false;
        return true;
    }

    // Whether some entry may fail a check of `faults_of`; by columns, which takes half the time.
    bool looks_wrong(BlockColumns<const uint8_t> columns, size_t entries) const noexcept {
        uint8_t state_max = 0, age_max = 0;
        uint32_t signs = 0;
        uint64_t strays = 0, finished = 0;
        for (size_t row = 0; row < entries; ++row) {
            state_max = columns.state[row] > state_max ? columns.state[row] : state_max;
            age_max = columns.age[row] > age_max ? columns.age[row] : age_max;
        }
        for (size_t row = 0; row < entries; ++row) signs |= load<uint32_t>(columns.task_id, row);
        for (size_t row = 0; row < entries; ++row) {
            uint64_t tracked = columns.state[row] == ENTRY_TRACKED,
                     message_id = load<uint64_t>(columns.message_id, row);
            strays |= (tracked - 1) & (message_id | load<uint32_t>(columns.task_id, row) | needs_track_);
            finished |= tracked & (load<uint64_t>(columns.ack_val, row) == 0);
        }
        return state_max > ENTRY_FAILED || age_max >= buckets_ || signs >> 31 != 0 || strays != 0 ||
               (finished & (needs_track_ ^ 1)) != 0;
    }

    // One bit for each check that an entry fails.
    ACKER_ALWAYS_INLINE unsigned faults_of(BlockColumns<const uint8_t> columns, size_t row) const noexcept {
        uint64_t ack_val = load<uint64_t>(columns.ack_val, row), message_id = load<uint64_t>(columns.message_id, row);
        uint32_t task_id = load<uint32_t>(columns.task_id, row);
        unsigned state = columns.state[row], tracked = state == ENTRY_TRACKED, untracked = 1 - tracked;
        auto bit = [](bool fails, Fault fault) { return static_cast<unsigned>(fails) << fault; };
        return bit(state > ENTRY_FAILED, STATE_UNKNOWN) | bit(columns.age[row] >= buckets_, AGE_TOO_HIGH) |
               bit(task_id >> 31 != 0, TASK_NEGATIVE) | bit(untracked & (task_id != 0), TASK_WITHOUT_TRACK) |
               bit(untracked & (message_id != 0), MESSAGE_WITHOUT_TRACK) |
               bit(untracked & needs_track_, TRACK_MISSING) |
               bit(tracked & (needs_track_ ^ 1) & (ack_val == 0), FINISHED_ALREADY);
    }

    // Inserts checked rows [first, end).
    Fault insert(BlockColumns<const uint8_t> columns, size_t first, size_t end, size_t* row) noexcept {
        Stretch stretch;
        size_t rows = end - first;
        for (size_t core = 0; core < count_; ++core)
            if (!make_room(&cores_[core]->arena, rows)) return NO_MEMORY;
        for (size_t i = 0; i < rows; ++i) {
            int64_t root_id = load<int64_t>(columns.root_id, first + i);
            stretch.core[i] = cores_[count_ == 1 ? 0 : shard_of_(root_id)];
        }
        find_homes(&stretch, columns.root_id + first * sizeof(int64_t), 0, rows);
        for (size_t i = 0; i < rows; ++i) {
            *row = first + i;
            AckerCore* core = stretch.core[i];
            ACKER_PREFETCH(stretch.line[i + FETCH_AHEAD]);
            ACKER_PREFETCH(stretch.line[i + FETCH_AHEAD] + core->arena.lines_a_segment());
            unsigned state = columns.state[*row];
            uint64_t flags = static_cast<uint64_t>(tag_of_[columns.age[*row]]) << TAG_SHIFT;
            flags |= (state == ENTRY_TRACKED) * TRACKED | (state == ENTRY_FAILED) * FAILED;
            const uint64_t h = stretch.hash[i];
            Ref ref{stretch.line[i], free_slot(*stretch.line[i], h)};
            if (ACKER_UNLIKELY(ref.slot == SLOTS)) {
                if (core->arena.find(h)) return ROOT_TWICE;
                while (!(ref = core->arena.insert(stretch.hash[i], flags))) {
                    if (!core->arena.relieve(stretch.hash[i])) return NO_MEMORY;
                    find_homes(&stretch, columns.root_id + first * sizeof(int64_t), i, rows);
                }
            } else {
                ref.word() = (h & HASH_MASK) | flags;
                core->arena.adjust_count(1);
            }
            ref.val() = load<uint64_t>(columns.ack_val, *row);
            *core->arena.cold(ref) = Cold{load<int64_t>(columns.message_id, *row), load<int32_t>(columns.task_id, *row),
                                          load<uint32_t>(columns.start, *row)};
            core->count_in(flags);
        }
        return NO_FAULT;
    }

    // Hashes and lines of the rows from `first` on; root ids are those of the stretch.
    static void find_homes(Stretch* stretch, const uint8_t* root_id, size_t first, size_t rows) noexcept {
        for (size_t i = first; i < rows; ++i) {
            const Arena& arena = stretch->core[i]->arena;
            stretch->hash[i] = arena.hash(load<uint64_t>(root_id, i));
            stretch->line[i] = arena.homes().of(stretch->hash[i]);
        }
        for (size_t i = 0; i < FETCH_AHEAD; ++i) stretch->line[rows + i] = stretch->line[first];  // any that exists
    }

    // The slot for a hash on its home line. SLOTS if that takes a closer look: the line is full, overflowed or has
    // holes, or may hold the same hash.
    static ACKER_ALWAYS_INLINE unsigned free_slot(const Line& line, uint64_t h) noexcept {
        unsigned taken = 0;
        for (uint64_t word : line.word) {
            if (ACKER_UNLIKELY(((word ^ h) & HASH_MASK) == 0)) return SLOTS;
            taken += word >> TAG_SHIFT != 0;
        }
        return taken < SLOTS && line.word[taken] == 0 ? taken : SLOTS;
    }

    AckerCore* const* cores_;
    size_t count_;
    ShardOf shard_of_;
    uint64_t checksum_;
    uint64_t entries_;
    uint64_t read_ = 0;  // entries of good blocks
    unsigned buckets_;
    unsigned needs_track_;
    unsigned tag_of_[BUCKETS_MAX] = {};
};

}  // namespace acker
