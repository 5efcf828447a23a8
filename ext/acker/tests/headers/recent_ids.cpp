// The memory of acknowledged tuples against a queue and a set: recent_ids.h.
#include "../../recent_ids.h"

#include <deque>
#include <set>
#include <utility>

#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(the_last_ids_are_known_and_no_others) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        Random random(seed);
        RecentIds recent;
        CHECK(!recent.contains(0, 0));
        CHECK(recent.start() && recent.start());
        std::deque<std::pair<int64_t, int64_t>> order;
        std::set<std::pair<int64_t, int64_t>> known;
        const uint64_t width = seed % 2 == 0 ? 4096 : 0;  // some ids come again and again, or none ever
        for (size_t turn = 0; turn < 20 * RecentIds::KEPT; ++turn) {
            std::pair<int64_t, int64_t> id = {static_cast<int64_t>(random.below(7)),
                                              static_cast<int64_t>(width ? random.below(width) : random.word())};
            CHECK(recent.contains(id.first, id.second) == (known.count(id) == 1));
            if (known.insert(id).second) {
                recent.add(id.first, id.second);
                order.push_back(id);
            }
            CHECK(recent.contains(id.first, id.second));
            if (order.size() > RecentIds::KEPT) {
                CHECK(!recent.contains(order.front().first, order.front().second));
                known.erase(order.front());
                order.pop_front();
            }
            if (turn % 4096 != 0) continue;
            for (const auto& each : known) CHECK(recent.contains(each.first, each.second));
        }
    }
}

TEST(without_memory_no_ids_are_kept) {
    RecentIds recent;
    allocations_left() = 0;
    CHECK(!recent.start() && !recent.contains(1, 2));
    allocations_left() = -1;
    CHECK(recent.start());
    recent.add(1, 2);
    CHECK(recent.contains(1, 2) && !recent.contains(2, 1));
}

}  // namespace
