// gups.h: the limit that benchmarks compare with.
#include "../../gups.h"
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(the_limit_does_every_update) {
    std::vector<int64_t> roots, values;
    Random random(31);
    int64_t sum = 0;
    for (int i = 0; i < 1000; ++i) {
        roots.push_back(static_cast<int64_t>(random.word()));
        values.push_back(static_cast<int64_t>(random.word()));
        sum ^= values.back();
    }
    Gups gups;
    CHECK(gups.start(100000, SEED));
    gups.update(roots.data(), values.data(), roots.size());
    CHECK(gups.checksum() == static_cast<uint64_t>(sum));
    gups.update(roots.data(), values.data(), roots.size());
    CHECK(gups.checksum() == 0);
    Gups none;
    Allocations failing(0);
    CHECK(!none.start(100000, SEED));
}

}  // namespace
