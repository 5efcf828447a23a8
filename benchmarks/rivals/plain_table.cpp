// The plain design: one open-addressing table per bucket, entries of 32 bytes, linear probing, deletion by shifting
// back, at most half full, doubled when that is reached, fetched 16 rows ahead, on huge pages. Protocol "storm" without
// the moves of FAIL and RESET_TIMEOUT; no capacity, no statistics, no checks.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

enum Kind : int8_t { TRACK, ANCHOR, OK };

struct Entry {
    uint64_t root_id;
    uint64_t ack_val;
    int64_t message_id;
    int32_t task_id;
    uint8_t used, tracked;
};
static_assert(sizeof(Entry) == 32);

// Large tables on huge pages where the system has them, as the acker's.
template <typename T>
struct HugePages {
    using value_type = T;
    static constexpr size_t PAGE_BYTES = size_t{1} << 21;

    HugePages() = default;
    template <typename U>
    HugePages(const HugePages<U>&) {}

    T* allocate(size_t items) {
        size_t bytes = items * sizeof(T);
        if (bytes < PAGE_BYTES) return static_cast<T*>(std::malloc(bytes));
        void* memory = std::aligned_alloc(PAGE_BYTES, (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
#if defined(__linux__)
        madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        return static_cast<T*>(memory);
    }
    void deallocate(T* memory, size_t) { std::free(memory); }
    bool operator==(const HugePages&) const { return true; }
    bool operator!=(const HugePages&) const { return false; }
};

struct Table {
    using Entries = std::vector<Entry, HugePages<Entry>>;
    Entries entries = Entries(16);
    size_t count = 0;

    static uint64_t hash(uint64_t key) {
        key *= 0x9E3779B97F4A7C15ull;
        key ^= key >> 32;
        key *= 0xBF58476D1CE4E5B9ull;
        return key ^ (key >> 32);
    }
    size_t mask() const { return entries.size() - 1; }
    size_t home(uint64_t root_id) const { return hash(root_id) & mask(); }
    void fetch(uint64_t root_id) const { __builtin_prefetch(&entries[home(root_id)], 1); }

    // The entry's place, or that of the free one where it belongs.
    size_t find(uint64_t root_id) const {
        size_t place = home(root_id);
        while (entries[place].used && entries[place].root_id != root_id) place = (place + 1) & mask();
        return place;
    }
    Entry* add(uint64_t root_id) {
        if (2 * (count + 1) > entries.size()) {
            Entries old(2 * entries.size());
            old.swap(entries);
            for (const Entry& entry : old)
                if (entry.used) entries[find(entry.root_id)] = entry;
        }
        ++count;
        Entry* entry = &entries[find(root_id)];
        *entry = Entry{root_id, 0, 0, 0, 1, 0};
        return entry;
    }
    void erase(size_t hole) {
        for (size_t place = (hole + 1) & mask(); entries[place].used; place = (place + 1) & mask()) {
            if (((place - home(entries[place].root_id)) & mask()) < ((place - hole) & mask())) continue;
            entries[hole] = entries[place];
            hole = place;
        }
        entries[hole].used = 0;
        --count;
    }
};

struct Acker {
    std::deque<Table> buckets;  // from the nursery to death row
};

}  // namespace

extern "C" {

Acker* rival_new(size_t buckets) { return new Acker{std::deque<Table>(buckets)}; }

void rival_delete(Acker* acker) { delete acker; }

size_t rival_bytes(const Acker* acker) {
    size_t sum = 0;
    for (const Table& table : acker->buckets) sum += table.entries.size() * sizeof(Entry);
    return sum;
}

// Returns how many trees expired.
size_t rival_rotate(Acker* acker) {
    size_t expired = 0;
    for (const Entry& entry : acker->buckets.back().entries) expired += entry.used & entry.tracked;
    acker->buckets.pop_back();
    acker->buckets.emplace_front();
    return expired;
}

// Writes the finished trees and returns their number.
size_t rival_ingest(Acker* acker, size_t rows, const int8_t* kind, const uint64_t* root_id, const uint64_t* value,
                    const int32_t* task_id, const int64_t* message_id, uint64_t* done_root, int64_t* done_message,
                    int32_t* done_task) {
    size_t done = 0;
    for (size_t row = 0; row < rows; ++row) {
        if (row + 16 < rows)
            for (const Table& table : acker->buckets) table.fetch(root_id[row + 16]);
        Table* table = nullptr;
        Entry* entry = nullptr;
        for (Table& bucket : acker->buckets) {
            Entry* found = &bucket.entries[bucket.find(root_id[row])];
            if (!found->used) continue;
            table = &bucket;
            entry = found;
            break;
        }
        if (entry == nullptr) {
            table = &acker->buckets.front();
            entry = table->add(root_id[row]);
        } else if (kind[row] == TRACK && entry->tracked) {
            continue;
        }
        entry->ack_val ^= value[row];
        if (kind[row] == TRACK) {
            entry->tracked = 1;
            entry->task_id = task_id[row];
            entry->message_id = message_id[row];
        }
        if (!entry->tracked || entry->ack_val != 0) continue;
        done_root[done] = entry->root_id;
        done_message[done] = entry->message_id;
        done_task[done++] = entry->task_id;
        table->erase(static_cast<size_t>(entry - table->entries.data()));
    }
    return done;
}
}
