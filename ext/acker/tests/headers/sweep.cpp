// slot_list.h, sweep.h: taking a bucket out of the arena.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(the_wanted_slots_are_listed_in_order) {
    Random random(17);
    for (int round = 0; round < 200; ++round) {
        std::vector<Line> lines(1 + random.below(40));
        std::vector<uint16_t> list(lines.size() * SLOTS), expected;
        for (Line& line : lines)
            for (uint64_t& word : line.word) word = random.below(static_cast<uint64_t>(round % 5 + 1));
        for (size_t slot = 0; slot < list.size(); ++slot)
            if (lines[slot / SLOTS].word[slot % SLOTS] == 0) expected.push_back(static_cast<uint16_t>(slot));
        size_t listed = list_slots(lines.data(), lines.size(), [](uint64_t word) { return word == 0; }, list.data());
        list.resize(listed);
        CHECK(list == expected);
    }
}

// Buckets of an arena that is small, or large, or crowded, and from which one after the other is swept.
TEST(a_sweep_takes_one_bucket_and_leaves_the_others) {
    for (size_t keys : {0u, 90u, 2500u, 30000u}) {
        Arena arena(SEED);
        std::vector<uint64_t> all = crowd(150, LINES_MAX - 3);
        for (uint64_t key = 0; key < keys; ++key) all.push_back(arena.hash(key));
        for (size_t i = 0; i < all.size(); ++i) {
            insert(&arena, all[i]);
            Ref ref = arena.find(all[i]);
            ref.word() = (ref.word() & ~(uint64_t{15} << TAG_SHIFT)) | (1 + i * i % 7 % 3) << TAG_SHIFT;
        }
        for (unsigned tag : {2u, 1u, 3u}) {
            std::vector<uint64_t> expected, seen;
            for (uint64_t h : all)
                if (Ref ref = arena.find(h); ref && ref.tag() == tag) expected.push_back(h);
            size_t left = arena.count() - expected.size();
            sweep(arena, tag, expected.size(), [&](uint64_t h, uint64_t word, const Cold& cold) {
                CHECK(word >> TAG_SHIFT == tag && cold.message_id == static_cast<int64_t>(h));
                seen.push_back(h);
            });
            std::sort(expected.begin(), expected.end());
            std::sort(seen.begin(), seen.end());
            CHECK(!seen.empty() && seen == expected);
            CHECK(arena.count() == left && arena.check_invariants());
            for (uint64_t h : seen) CHECK(!arena.find(h));
        }
        CHECK(arena.bytes() == 0);  // the last bucket took the memory with it
    }
}

TEST(a_sweep_of_a_part_keeps_every_count_of_who_has_passed) {
    for (size_t share : {2u, 3u, 30u}) {
        Arena arena(SEED);
        std::vector<uint64_t> all = crowd(120, 50), stay;
        for (uint64_t h : all) insert(&arena, h);
        for (size_t i = 0; i < all.size(); ++i) {
            if (i % share != 0) {
                stay.push_back(all[i]);
                continue;
            }
            Ref ref = arena.find(all[i]);
            ref.word() ^= uint64_t{3} << TAG_SHIFT;  // from bucket 1 to bucket 2
        }
        sweep(arena, 2, all.size() - stay.size(), [](uint64_t, uint64_t, const Cold&) {});
        check_holds(&arena, stay);
    }
}

}  // namespace
