// single_entry.h and what else several threads share.
#include <array>
#include <thread>

#include "../../single_entry.h"
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(one_thread_at_a_time_is_let_in) {
    SingleEntry single_entry;
    CHECK(single_entry.enter() && !single_entry.enter());
    single_entry.leave();
    int inside = 0, entered = 0;
    auto visit = [&] {
        for (int turn = 0; turn < 2000; ++turn) {
            while (!single_entry.enter()) std::this_thread::yield();
            CHECK(++inside == 1);
            ++entered;
            --inside;
            single_entry.leave();
        }
    };
    std::thread other(visit);
    visit();
    other.join();
    CHECK(entered == 4000);
}

TEST(published_stats_belong_together) {
    PublishedStats published;
    auto numbers_of = [](const Stats& stats) {
        std::array<int64_t, sizeof(Stats) / sizeof(int64_t)> numbers;
        std::memcpy(numbers.data(), &stats, sizeof(Stats));
        return numbers;
    };
    std::thread writer([&] {
        for (int64_t turn = 1; turn <= 2000; ++turn) {
            auto numbers = numbers_of(Stats{});
            numbers.fill(turn);
            Stats stats;
            std::memcpy(static_cast<void*>(&stats), numbers.data(), sizeof(Stats));
            published.write(stats);
        }
    });
    int64_t last = 0;
    while (last < 2000) {
        auto numbers = numbers_of(published.read());
        CHECK(std::count(numbers.begin(), numbers.end(), numbers[0]) == static_cast<int>(numbers.size()));
        CHECK(numbers[0] >= last);
        last = numbers[0];
    }
    writer.join();
}

}  // namespace
