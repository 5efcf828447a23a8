// memory.h, and the memory of an acker over time.
#include <array>
#include <thread>

#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(memory_is_aligned_and_can_be_made_to_fail) {
    for (size_t bytes : {size_t{1}, size_t{64}, size_t{100}}) {
        void* memory = acquire_zeroed(bytes);
        CHECK(reinterpret_cast<uintptr_t>(memory) % LINE_BYTES == 0);
        CHECK(*static_cast<char*>(memory) == 0);
        release(memory);
    }
    Allocations allocations(1);
    void* memory = acquire_huge_pages(1);
    CHECK(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % HUGE_PAGE_BYTES == 0);
    CHECK(acquire(1) == nullptr && acquire_huge_pages(1) == nullptr);
    release(memory);
}

TEST(an_array_that_cannot_grow_stays_as_it_was) {
    int* items = nullptr;
    size_t capacity = 0;
    CHECK(enlarge(&items, &capacity, 0, 3) && capacity >= 3);
    for (int i = 0; i < 3; ++i) items[i] = i;
    CHECK(enlarge(&items, &capacity, 3, 4) && capacity >= 6);  // doubles
    int* before = items;
    {
        Allocations none(0);
        CHECK(enlarge(&items, &capacity, 3, capacity));
        CHECK(!enlarge(&items, &capacity, 3, capacity + 1));
    }
    CHECK(items == before && items[0] == 0 && items[1] == 1 && items[2] == 2);
    release(items);
}

TEST(threads_share_one_budget_of_allocations) {
    constexpr int64_t BUDGET = 1000;
    Allocations allocations(BUDGET);
    std::array<int64_t, 4> granted = {};
    std::vector<std::thread> threads;
    for (int64_t& count : granted)
        threads.emplace_back([&count] {
            for (int64_t turn = 0; turn < BUDGET; ++turn) {
                void* memory = acquire(1);
                count += memory != nullptr;
                release(memory);
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(granted[0] + granted[1] + granted[2] + granted[3] == BUDGET && allocations_left() == 0);
}

TEST(memory_is_given_back_after_a_peak_and_stays_flat_after_it) {
    AckerCore core(Protocol::storm, 3, -1, SEED, true);
    ingest(&core, Columns(stream(200000, 100000, 1)), 0);
    size_t peak = core.arena.bytes();
    for (int turn = 0; turn < 3; ++turn) rotate(&core, 0);
    CHECK(core.arena.count() == 0 && core.arena.bytes() * 50 < peak);
    size_t most = 0, most_after = 0;
    for (uint64_t round = 0; round < 600; ++round) {
        ingest(&core, Columns(stream(300, 1000000, round)), 0);
        rotate(&core, 0);
        (round < 300 ? most : most_after) = std::max(round < 300 ? most : most_after, core.arena.bytes());
    }
    CHECK(most_after <= most * 2);
    CHECK(core.check_invariants());
}

}  // namespace
