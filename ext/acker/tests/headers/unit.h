// What several of the unit tests need: hashes and messages that crowd, and an acker next to the model of it.
#pragma once

#include "../harness.h"

namespace acker::testing {

inline constexpr Protocol PROTOCOLS[] = {Protocol::storm, Protocol::storm_09, Protocol::fsshelter};
inline constexpr uint64_t SEED = 42;
inline constexpr uint64_t FLAGS = uint64_t{1} << TAG_SHIFT;  // an entry of bucket 1

// Hashes whose home is one line of a full segment. The low bits, which choose the segment, run through 0 to 7.
inline std::vector<uint64_t> crowd(size_t count, uint64_t line, uint64_t seed = 1) {
    Random random(seed);
    std::vector<uint64_t> hashes;
    for (uint64_t i = 0; i < count; ++i)
        hashes.push_back(line << (64 - LINE_BITS_MAX) | (random.word() >> LINE_BITS_MAX & ~uint64_t{7}) | (i & 7));
    return hashes;
}

inline void insert(Arena* arena, uint64_t h) {
    Ref ref = arena->has_room(1) ? arena->insert(h, FLAGS) : Ref{};
    while (!ref) {
        CHECK(arena->grow());
        ref = arena->insert(h, FLAGS);
    }
    ref.val() = h * 3;
    *arena->cold(ref) = Cold{static_cast<int64_t>(h), static_cast<int32_t>(h & INT32_MAX), static_cast<uint32_t>(h)};
}

inline void check_holds(Arena* arena, const std::vector<uint64_t>& hashes) {
    CHECK(arena->check_invariants());
    CHECK(arena->count() == hashes.size());
    for (uint64_t h : hashes) {
        Ref ref = arena->find(h);
        CHECK(ref && ref.val() == h * 3 && ref.tag() == 1);
        Cold* cold = arena->cold(ref);
        CHECK(cold->message_id == static_cast<int64_t>(h) && cold->task_id == static_cast<int32_t>(h & INT32_MAX));
        CHECK(cold->start == static_cast<uint32_t>(h));
    }
}

// Messages about `roots` trees that leave some of every kind open.
inline std::vector<Message> stream(size_t rows, uint64_t roots, uint64_t seed) {
    Random random(seed);
    std::vector<Message> messages;
    for (size_t row = 0; row < rows; ++row)
        messages.push_back({static_cast<int8_t>(random.below(KINDS)), static_cast<int64_t>(random.below(roots)),
                            static_cast<int64_t>(random.below(8)), static_cast<int32_t>(random.below(100)),
                            static_cast<int64_t>(random.word())});
    return messages;
}

// An acker and the model of it, which every call holds against each other.
struct Checked {
    explicit Checked(Protocol protocol = Protocol::storm, unsigned buckets = 3,
                     std::optional<int64_t> high_water = std::nullopt, bool avx2 = true)
        : core(protocol, buckets, high_water.value_or(-1), SEED, avx2), model(protocol, buckets, high_water) {}

    AckerCore core;
    Model model;

    std::vector<Completion> ingest(const std::vector<Message>& messages, int64_t now = 0, int64_t budget = -1) {
        std::vector<Completion> expected;
        for (const Message& message : messages) model.apply(message, now, &expected);
        CHECK(acker::testing::ingest(&core, Columns(messages), now, budget) == expected);
        check();
        return expected;
    }

    std::vector<Completion> rotate(int64_t now = 0) {
        std::vector<Completion> expected = model.rotate(now);
        CHECK(acker::testing::rotate(&core, now) == expected);
        check();
        return expected;
    }

    void check() {
        check_numbers(core, model);
        check_entries(&core, model);
    }
};

// Root ids of one home line that no split can part, under the given seed.
inline std::vector<Message> chosen(size_t count, uint64_t seed, uint64_t line = 0xABC) {
    Hash hash = Hash::from_seed(seed);
    std::vector<Message> messages;
    for (uint64_t i = 0; i < count; ++i)
        messages.push_back({TRACK, static_cast<int64_t>(hash.key_of(line << (64 - LINE_BITS_MAX) | i << 24 | 5)), 6, 3,
                            static_cast<int64_t>(i)});
    return messages;
}

// What the table of so many entries may take that nobody has chosen: of a thousand it is a page at times.
inline size_t bytes_allowed(size_t entries) { return entries < 200 ? size_t{1} << 16 : HUGE_PAGE_BYTES + LINE_BYTES; }

}  // namespace acker::testing
