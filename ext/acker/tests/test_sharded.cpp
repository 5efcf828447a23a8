// Tests of the headers that make one acker of several: which shard owns a root id, the threads, and the acker itself.
// Run under ThreadSanitizer too, where the compiler has it.
#include <algorithm>
#if !defined(_WIN32)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "../sharded.h"
#include "harness.h"

using namespace acker;
using namespace acker::testing;

namespace {

constexpr uint64_t SEED = 42;
constexpr std::chrono::microseconds NO_TIME{0};  // who waits goes to sleep at once

// As docs/protocol.md has it, in whole numbers of any size.
uint64_t remainder_of(int64_t root_id, uint64_t n) {
    uint64_t size = root_id < 0 ? uint64_t{0} - static_cast<uint64_t>(root_id) : static_cast<uint64_t>(root_id);
    return size % n;
}

std::vector<int64_t> extreme_roots(uint64_t n) {
    std::vector<int64_t> roots = {0, 1, -1, INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1};
    for (uint64_t times : {uint64_t{1}, uint64_t{2}, (uint64_t{1} << 63) / n, ((uint64_t{1} << 63) - 1) / n}) {
        for (uint64_t around : {uint64_t{0} - 1, uint64_t{0}, uint64_t{1}}) {
            roots.push_back(static_cast<int64_t>(times * n + around));
            roots.push_back(static_cast<int64_t>(0 - times * n + around));
        }
    }
    return roots;
}

// Finished trees by root, those of one root in their order: the same for any number of shards.
std::vector<Completion> by_root(std::vector<Completion> rows) {
    std::stable_sort(rows.begin(), rows.end());
    return rows;
}

std::vector<Message> stream(size_t rows, uint64_t roots, uint64_t seed) {
    Random random(seed);
    std::vector<Message> messages;
    for (size_t row = 0; row < rows; ++row) {
        int64_t root = static_cast<int64_t>(random.below(roots)) - static_cast<int64_t>(roots / 2);
        messages.push_back({static_cast<int8_t>(random.below(KINDS)), root, static_cast<int64_t>(random.below(8)),
                            static_cast<int32_t>(random.below(100)), static_cast<int64_t>(random.word())});
    }
    return messages;
}

// A batch of messages and what it does to a model.
struct Batch {
    int64_t now;
    Columns columns;
    Model after;
    std::vector<Completion> expected;

    Batch(const Model& before, const std::vector<Message>& messages, int64_t now_ms = 0, bool with_ids = true)
        : now(now_ms), columns(messages, with_ids), after(before) {
        for (Message message : messages) {
            if (!with_ids) message.task_id = 0, message.message_id = 0;
            after.apply(message, now, &expected);
        }
        expected = by_root(std::move(expected));
    }
};

// A sharded acker and a model of it, compared after every call.
struct Checked {
    ShardedCore core;
    Model model;

    explicit Checked(unsigned shards, unsigned threads, Protocol protocol = Protocol::storm,
                     std::optional<int64_t> high_water = std::nullopt)
        : core(shards, threads, NO_TIME), model(protocol, 3, high_water) {
        CHECK(core.start(protocol, 3, high_water.value_or(-1), SEED, true));
    }

    std::vector<Completion> finished() {
        size_t rows = core.finished_rows();
        std::vector<int64_t> roots(rows), messages(rows), elapsed(rows);
        std::vector<int32_t> tasks(rows);
        std::vector<int8_t> outcomes(rows);
        core.copy_finished(roots.data(), messages.data(), tasks.data(), outcomes.data(), elapsed.data());
        std::vector<Completion> found;
        for (size_t row = 0; row < rows; ++row)
            found.push_back({roots[row], messages[row], tasks[row], outcomes[row], elapsed[row]});
        return found;
    }

    void ingest(const std::vector<Message>& messages, int64_t now = 0, bool with_ids = true) {
        ingest(Batch(model, messages, now, with_ids));
    }

    void ingest(const Batch& batch) {
        CHECK(core.ingest(batch.columns.from<Messages>(0), batch.now) == ShardedCore::Applied::all);
        model = batch.after;
        std::vector<Completion> before = finished();
        CHECK(by_root(before) == batch.expected);
        CHECK(core.cores()[0]->finished.capacity >= before.size());
        const Finished* gathered = core.gather_finished();
        CHECK(gathered->rows == before.size() && core.finished_rows() == before.size());
        CHECK(finished() == before);
        core.give_back();
        CHECK(core.finished_rows() == 0);
        check();
    }

    void rotate(int64_t now) {
        size_t rows = core.expiring();
        std::vector<int64_t> roots(rows), messages(rows), elapsed(rows);
        std::vector<int32_t> tasks(rows);
        core.rotate(now, roots.data(), messages.data(), tasks.data(), elapsed.data());
        std::vector<Completion> found;
        for (size_t row = 0; row < rows; ++row)
            found.push_back({roots[row], messages[row], tasks[row], OUTCOME_TIMED_OUT, elapsed[row]});
        std::sort(found.begin(), found.end());
        CHECK(found == model.rotate(now));
        check();
    }

    void check() {
        CHECK(core.check_invariants());
        CHECK(same(core.counters(), model.counters));
        CHECK(core.open() == model.open && core.count() == model.trees.size());
    }
};

// ---- shard_of.h ----

TEST(a_root_id_has_the_shard_of_the_protocol) {
    Random random(1);
    std::vector<uint64_t> counts = {uint64_t{INT64_MAX},     uint64_t{INT64_MAX} - 1, uint64_t{1} << 62,
                                    (uint64_t{1} << 62) + 1, (uint64_t{1} << 32) - 1, (uint64_t{1} << 32) + 1};
    for (uint64_t n = 1; n <= 300; ++n) counts.push_back(n);
    for (int i = 0; i < 300; ++i) counts.push_back((random.word() >> (1 + random.below(62))) + 1);
    for (uint64_t n : counts) {
        ShardOf shard_of(n);
        CHECK(shard_of.count() == n);
        for (int64_t root : extreme_roots(n)) CHECK(shard_of(root) == remainder_of(root, n));
        for (int i = 0; i < 200; ++i) {
            int64_t root = static_cast<int64_t>(random.word() >> random.below(64));
            CHECK(shard_of(root) == remainder_of(root, n));
            CHECK(shard_of(-root) == remainder_of(-root, n));
        }
    }
    CHECK(ShardOf(3)(INT64_MIN) == 2 && ShardOf(5)(INT64_MIN) == 3 && ShardOf(7)(INT64_MIN) == 1);
}

TEST(the_rows_of_a_shard_are_selected_in_order) {
    Random random(2);
    for (uint64_t n : {1u, 2u, 3u, 4u, 7u, 64u}) {
        for (size_t rows : {0u, 1u, 7u, 8u, 9u, 100u}) {
            std::vector<int64_t> roots = extreme_roots(n);
            while (roots.size() < rows) roots.push_back(static_cast<int64_t>(random.word()));
            for (uint64_t shard = 0; shard < n; ++shard) {
                std::vector<uint32_t> expected;
                for (size_t row = 0; row < rows; ++row)
                    if (remainder_of(roots[row], n) == shard) expected.push_back(static_cast<uint32_t>(row));
                for (bool avx2 : {machine_has_avx2(), false}) {
                    std::vector<uint32_t> found(rows);  // as long as it has to be, for the sanitizer
                    found.resize(select_rows(ShardOf(n), roots.data(), rows, shard, found.data(), avx2));
                    CHECK(found == expected);
                }
            }
        }
    }
}

// ---- workers.h ----

TEST(every_part_of_every_job_is_done_once) {
    for (unsigned parts : {1u, 2u, 3u, 8u}) {
        for (auto spin_time : {NO_TIME, SPIN_TIME}) {
            Workers workers(parts, spin_time);
            // Not atomic: that run() returns orders what the parts did. And slow, so that a helper has begun its own.
            std::vector<uint64_t> done(parts * 16), expected(parts * 16);
            auto work = [](uint64_t* state) {
                for (int step = 0; step < 2000; ++step) *state ^= mix_seed(state);
            };
            for (int job = 0; job < 300; ++job) {
                workers.run([&](unsigned part) { work(&done[part * 16]); });
                for (unsigned part = 0; part < parts; ++part) work(&expected[part * 16]);
                CHECK(done == expected);
            }
            CHECK(workers.helpers() == parts - 1);
        }
    }
}

// Runs jobs until a helper has done a part of one.
void run_until_helped(Workers* workers) {
    std::thread::id caller = std::this_thread::get_id();
    for (std::atomic<bool> helped{false}; !helped;)
        workers->run([&](unsigned) { helped = helped || std::this_thread::get_id() != caller; });
}

TEST(helpers_do_parts) {
    Workers workers(2, SPIN_TIME);
    run_until_helped(&workers);
    CHECK(workers.helpers() == 1);
}

TEST(workers_that_are_never_used_start_no_thread) {
    Workers workers(8, NO_TIME);
    CHECK(workers.helpers() == 0 && workers.parts() == 8);
}

TEST(with_fewer_helpers_the_caller_does_the_rest) {
    for (int64_t budget = 0; budget < 4; ++budget) {
        Workers workers(4, NO_TIME);
        Allocations allocations(budget);
        for (int job = 0; job < 100; ++job) {
            std::atomic<int> done[4] = {};
            workers.run([&](unsigned part) { ++done[part]; });
            for (auto& times : done) CHECK(times == 1);
        }
        CHECK(workers.helpers() == std::min<int64_t>(budget, 3));
    }
}

#if !defined(_WIN32) && !defined(__SANITIZE_THREAD__)
TEST(a_forked_child_makes_helpers_of_its_own) {
    Workers workers(3, NO_TIME);
    std::atomic<int> done{0};
    workers.run([&](unsigned) { ++done; });
    pid_t child = fork();
    if (child == 0) {
        for (int job = 0; job < 50; ++job) workers.run([&](unsigned) { ++done; });
        alarm(60);  // the end of a child whose helpers stay away
        run_until_helped(&workers);
        _exit(done == 3 * 51 && workers.helpers() == 2 ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    workers.run([&](unsigned) { ++done; });
    CHECK(done == 6);
}
#endif

// ---- sharded.h ----

TEST(any_number_of_shards_and_threads_gives_the_same_trees) {
    for (Protocol protocol : {Protocol::storm, Protocol::storm_09, Protocol::fsshelter}) {
        for (auto [shards, threads] : {std::pair{1u, 1u}, {2u, 2u}, {2u, 1u}, {3u, 3u}, {5u, 2u}, {8u, 3u}}) {
            Checked acker(shards, threads, protocol);
            for (uint64_t batch = 0; batch < 12; ++batch) {
                size_t rows = batch % 4 == 3 ? 20000 : batch * 97;  // more than are picked at once, and none at all
                acker.ingest(stream(rows, 400, batch), static_cast<int64_t>(batch), batch % 5 != 4);
                if (batch % 3 == 2) acker.rotate(static_cast<int64_t>(batch));
            }
        }
    }
}

TEST(shards_together_hold_no_more_than_one_acker) {
    for (int64_t high_water : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{50}}) {
        for (unsigned shards : {1u, 2u, 3u, 7u}) {
            ShardedCore core(shards, 1, NO_TIME);
            CHECK(core.start(Protocol::storm, 3, high_water, SEED, true));
            Random random(3);
            for (int batch = 0; batch < 8; ++batch) {
                std::vector<Message> messages;
                for (int row = 0; row < 1000; ++row) {
                    int8_t kind = random.one_in(2) ? TRACK : OK;
                    messages.push_back({kind, static_cast<int64_t>(random.word()), 1, 0, 0});
                }
                CHECK(core.ingest(Columns(messages).from<Messages>(0), 0) == ShardedCore::Applied::all);
                CHECK(core.open() == 2 * high_water + 1);  // evenly spread root ids take every seat
                CHECK(static_cast<int64_t>(core.count()) - core.open() <= 4 * high_water + 1);
                CHECK(core.check_invariants());
            }
        }
    }
}

TEST(a_batch_is_applied_by_all_shards_or_by_none) {
    const Model empty(Protocol::storm, 3, std::nullopt);
    const Batch first(empty, stream(5000, 900, 1));
    for (size_t rows : {60u, 90000u}) {
        const Batch second(first.after, stream(rows, 100000, 2));
        int failures = 0;
        for (int64_t budget = 0;; ++budget) {
            Checked acker(3, 2);
            acker.ingest(first);
            allocations_left() = budget;
            bool applied = acker.core.ingest(second.columns.from<Messages>(0), 0) == ShardedCore::Applied::all;
            allocations_left() = -1;
            if (applied) break;
            ++failures;
            CHECK(acker.core.finished_rows() == 0 && !acker.core.broken());
            acker.check();
            acker.ingest(second);
        }
        CHECK(failures >= (rows > 1000 ? 6 : 0));
    }
}

// The root ids of shard 0 whose hashes have one home line in a full segment.
std::vector<Message> crowd(size_t count, const ShardOf& shard_of) {
    Hash hash = Hash::from_seed(SEED);
    std::vector<Message> messages;
    for (uint64_t i = 0; messages.size() < count; ++i) {
        int64_t root = static_cast<int64_t>(hash.key_of((uint64_t{0xABC} << 52) | i));
        if (shard_of(root) == 0) messages.push_back({TRACK, root, 1, 0, 0});
    }
    return messages;
}

TEST(an_acker_that_no_memory_could_save_says_so_for_good) {
    for (unsigned threads : {1u, 2u}) {
        Checked acker(2, threads);
        std::vector<Message> messages;
        for (int64_t root = 0; root < 30000; ++root) messages.push_back({TRACK, root, 1, 0, 0});
        acker.ingest(messages);
        Columns columns(crowd(2000, ShardOf(2)));
        // First the memory that the rows need, as anyone can count them; then none, and they crowd on one line.
        CHECK(acker.core.reserve_for(columns.from<Messages>(0)));
        {
            Allocations none(0);
            CHECK(acker.core.ingest(columns.from<Messages>(0), 0) == ShardedCore::Applied::unknown);
        }
        CHECK(acker.core.broken());
        CHECK(acker.core.ingest(columns.from<Messages>(0), 0) == ShardedCore::Applied::unknown);
        CHECK(acker.core.finished_rows() == 0 && !acker.core.check_invariants());
    }
}

TEST(one_shard_may_finish_everything) {
    Checked acker(2, 2);
    std::vector<Message> messages;
    for (int64_t root = 1; root < 150000; root += 2) messages.push_back({TRACK, root, 0, 7, root});
    acker.ingest(messages);
}

TEST(memory_for_a_large_batch_is_given_back) {
    Checked acker(2, 2);
    acker.ingest(stream(200, 100, 1));
    size_t before = acker.core.bytes();
    acker.ingest(stream(300000, 100, 2));
    CHECK(acker.core.bytes() <= before + 2 * 32768 * 29);
}

}  // namespace

int main(int count, char** arguments) { return run_tests(count, arguments); }
