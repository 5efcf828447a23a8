// arena.h: growing, shrinking, and doing either without memory.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(growth_that_fails_changes_nothing) {
    Arena arena(SEED);
    std::vector<uint64_t> hashes;
    size_t failures = 0;
    for (uint64_t key = 0; key < 40000; ++key) {
        uint64_t h = arena.hash(key);
        if (!arena.has_room(1)) {
            size_t slots = arena.slots(), bytes = arena.bytes();
            for (int64_t budget = 0;; ++budget) {
                Allocations allocations(budget);
                if (arena.grow()) break;
                CHECK(arena.slots() == slots && arena.count() == hashes.size() && arena.bytes() <= bytes + 4096);
                if (++failures < 12) check_holds(&arena, hashes);
            }
        }
        insert(&arena, h);
        hashes.push_back(h);
    }
    CHECK(failures >= 5);
    check_holds(&arena, hashes);
}

// An arena that has held 60,000 entries and holds the first `left` of them, told in `hashes`.
void fill_past_a_peak(Arena* arena, size_t left, std::vector<uint64_t>* hashes) {
    for (uint64_t key = 0; key < 60000; ++key) insert(arena, arena->hash(key));
    for (uint64_t key = 0; key < 60000; ++key) {
        uint64_t h = arena->hash(key);
        if (key < left)
            hashes->push_back(h);
        else
            arena->erase(h, arena->find(h));
    }
}

TEST(shrinking_keeps_every_entry_and_gives_memory_back) {
    for (size_t left : {0u, 1u, 50u, 900u, 3000u, 6000u}) {
        Arena arena(SEED);
        std::vector<uint64_t> hashes;
        fill_past_a_peak(&arena, left, &hashes);
        size_t before = arena.bytes();
        arena.shrink(SIZE_MAX);
        check_holds(&arena, hashes);
        CHECK(arena.bytes() * 2 < before && arena.has_room(left));
        CHECK(arena.segments() == (left == 0 ? 0 : left < 6000 ? 1 : 3));  // not so few that it soon grows again
    }
}

TEST(shrinking_goes_step_by_step_and_needs_no_memory_for_it) {
    Arena arena(SEED);
    std::vector<uint64_t> hashes;
    fill_past_a_peak(&arena, 2000, &hashes);
    Allocations none(0);
    for (size_t segments = arena.segments(); segments > 2; --segments) {
        arena.shrink(1);
        CHECK(arena.segments() == segments - 1);
        check_holds(&arena, hashes);
    }
    size_t bytes = arena.bytes();
    arena.shrink(SIZE_MAX);
    CHECK(arena.segments() == 2 && arena.bytes() == bytes);
    // Entries that leave and come back do not make it grow and shrink in turn.
    for (int turn = 0; turn < 3; ++turn) {
        for (size_t i = 0; i < 1500; ++i) arena.erase(hashes[i], arena.find(hashes[i]));
        for (size_t i = 0; i < 1500; ++i) insert(&arena, hashes[i]);
        arena.shrink(SIZE_MAX);
        CHECK(arena.segments() == 2);
    }
    check_holds(&arena, hashes);
}

TEST(segments_that_do_not_fit_into_one_stay_apart) {
    for (uint64_t line : {uint64_t{7}, uint64_t{LINES_MAX - 7}}) {
        Arena arena(SEED);
        std::vector<uint64_t> hashes = crowd(300, line);
        for (uint64_t h : hashes) insert(&arena, h);
        size_t segments = arena.segments();
        CHECK(segments >= 3);
        for (int turn = 0; turn < 3; ++turn) arena.shrink(SIZE_MAX);
        CHECK(arena.segments() <= segments && arena.segments() >= 3);
        check_holds(&arena, hashes);
        while (hashes.size() > 100) {
            arena.erase(hashes.back(), arena.find(hashes.back()));
            hashes.pop_back();
        }
        arena.shrink(SIZE_MAX);
        CHECK(arena.segments() == 1);
        check_holds(&arena, hashes);
    }
}

TEST(shrinking_survives_every_failing_allocation) {
    for (int64_t budget = 0; budget < 12; ++budget) {
        Arena arena(SEED);
        std::vector<uint64_t> hashes = crowd(60, 5);
        for (uint64_t key = 0; key < 30000; ++key) insert(&arena, arena.hash(key));
        for (uint64_t h : hashes) insert(&arena, h);
        for (uint64_t key = 0; key < 30000; ++key) arena.erase(arena.hash(key), arena.find(arena.hash(key)));
        Allocations allocations(budget);
        arena.shrink(SIZE_MAX);
        check_holds(&arena, hashes);
    }
}

TEST(growth_takes_what_is_in_reserve) {
    for (uint64_t before : {uint64_t{0}, uint64_t{100}, uint64_t{20000}}) {
        for (size_t extra : {size_t{1}, size_t{700}, size_t{40000}}) {
            Arena arena(SEED);
            std::vector<uint64_t> hashes;
            // Here first, or what is left of many more when the arena has shrunk.
            for (uint64_t peak : {before, before + 100000}) {
                for (uint64_t key = hashes.size(); key < peak; ++key) insert(&arena, arena.hash(key));
                hashes.clear();
                for (uint64_t key = 0; key < peak; ++key) {
                    uint64_t h = arena.hash(key);
                    if (key < before)
                        hashes.push_back(h);
                    else
                        arena.erase(h, arena.find(h));
                }
                arena.shrink(1000);
                CHECK(arena.reserve(extra) && arena.has_reserve(extra));
                Allocations none(0);
                for (uint64_t key = peak; key < peak + extra; ++key) insert(&arena, arena.hash(key));
                for (uint64_t key = peak; key < peak + extra; ++key) hashes.push_back(arena.hash(key));
                check_holds(&arena, hashes);
                for (uint64_t key = peak; key < peak + extra; ++key)
                    arena.erase(arena.hash(key), arena.find(arena.hash(key)));
                hashes.resize(before);
            }
            arena.trim_reserve();
            check_holds(&arena, hashes);
        }
    }
}

}  // namespace
