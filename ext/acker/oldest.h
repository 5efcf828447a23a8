// The oldest entries of some ackers, which help to find trees that do not finish.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ingest.h"
#include "memory.h"

namespace acker {

struct OldEntry {
    int64_t root_id;
    int64_t ack_val;
    int64_t message_id;
    int64_t age_ms;
    int32_t task_id;
    uint8_t state;           // Found
    uint8_t rotations_left;  // 1: the next rotation removes it

    // The oldest first. No ties: an acker holds a root id once.
    bool operator<(const OldEntry& other) const noexcept {
        if (age_ms != other.age_ms) return age_ms > other.age_ms;
        if (rotations_left != other.rotations_left) return rotations_left < other.rotations_left;
        return root_id < other.root_id;
    }
};

// Collects the `most` oldest entries of several ackers in a heap whose top is the youngest of them.
class Oldest {
  public:
    explicit Oldest(size_t most) noexcept : most_(most) {}
    Oldest(const Oldest&) = delete;
    Oldest& operator=(const Oldest&) = delete;
    ~Oldest() { release(entries_); }

    // False: no memory.
    bool start() noexcept {
        entries_ = static_cast<OldEntry*>(acquire((most_ + 1) * sizeof(OldEntry)));
        return entries_ != nullptr;
    }

    // Looks at all entries of an acker. Without a known clock every age is 0.
    void look_at(AckerCore& core, bool clock_known, int64_t now_ms) noexcept {
        if (most_ == 0) return;
        const uint32_t now = static_cast<uint32_t>(static_cast<uint64_t>(now_ms));
        core.arena.each([&](uint64_t h, Ref ref, Cold* cold) {
            OldEntry entry;
            entry.root_id = static_cast<int64_t>(core.arena.root_of(h));
            entry.ack_val = static_cast<int64_t>(ref.val());
            entry.state = static_cast<uint8_t>(ref.word() >> STATE_SHIFT & 3);
            const bool tracked = entry.state == TRACKED_ENTRY;
            entry.message_id = tracked ? cold->message_id : 0;
            entry.task_id = tracked ? cold->task_id : 0;
            entry.age_ms = clock_known ? elapsed_ms(cold->start, now) : 0;
            const unsigned since = (core.nursery() + core.buckets() - ref.tag()) % core.buckets();
            entry.rotations_left = static_cast<uint8_t>(core.buckets() - since);
            take(entry);
            return true;
        });
    }

    // Returns the entries, the oldest first. Call it once, at the end.
    const OldEntry* sorted() noexcept {
        std::sort_heap(entries_, entries_ + rows_);
        return entries_;
    }

    size_t rows() const noexcept { return rows_; }

  private:
    void take(const OldEntry& entry) noexcept {
        if (rows_ == most_ && !(entry < entries_[0])) return;
        entries_[rows_++] = entry;
        std::push_heap(entries_, entries_ + rows_);
        if (rows_ <= most_) return;
        std::pop_heap(entries_, entries_ + rows_);
        --rows_;
    }

    size_t most_;
    size_t rows_ = 0;
    OldEntry* entries_ = nullptr;
};

}  // namespace acker
