// When a wait for a step ends: step_mark.h. The steps are those of other threads, so no answer depends on a clock.
#include "../../step_mark.h"

#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

constexpr double SOON = 1e-5;

TEST(a_wait_ends_at_once_where_no_step_goes_on) {
    StepMark one, two;
    CHECK(!wait_for_step({}, SOON));
    CHECK(!wait_for_step({&one, &two}, SOON));
}

TEST(a_wait_ends_at_a_step_that_goes_on) {
    StepMark idle, busy;
    busy.begin(7);
    CHECK(wait_for_step({&idle, &busy}, SOON));
    CHECK(wait_for_step({&idle, &busy}, SOON));
    busy.stepping.store(0);
    CHECK(!wait_for_step({&idle, &busy}, SOON));
}

TEST(a_wait_ends_at_what_a_coroutine_did_between_steps_and_only_once) {
    StepMark mark;
    mark.woken.store(true);
    CHECK(wait_for_step({&mark}, SOON));
    CHECK(!wait_for_step({&mark}, SOON));
}

}  // namespace
