// One body that turns bytes into operations and holds the acker, or the combiner, against the model after each of them.
//
// With libFuzzer: -fsanitize=fuzzer -DACKER_LIBFUZZER. Without it this is a program that makes the bytes from seeds:
//     fuzz_acker [--seed FIRST] [--seeds COUNT] [--seconds BUDGET] [FILE...]
// It stops at the first of the two limits, prints what it has done, and names the seed where something does not hold. A
// FILE is run as it is: what libFuzzer has found, for example.
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>

#include "harness.h"

namespace acker::testing {
namespace {

uint64_t& operations() {
    static uint64_t count = 0;
    return count;
}

class Bytes {
  public:
    Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
    bool over() const { return at_ == end_; }
    uint8_t next() { return over() ? 0 : *at_++; }
    uint64_t word() {
        uint64_t word = 0;
        for (int byte = 0; byte < 8; ++byte) word = word << 8 | next();
        return word;
    }

  private:
    const uint8_t* at_;
    const uint8_t* end_;
};

// The root ids of a run: a few that meet often, and the extremes; or many, so that the arena grows; or such that their
// hashes crowd on one line, or on a few neighbours, so that lines overflow, wrap around, and force the arena to grow.
std::vector<int64_t> make_roots(uint8_t choice, uint64_t seed, Random* random) {
    std::vector<int64_t> roots = {0, -1, INT64_MIN, INT64_MAX};
    constexpr uint64_t LINES[] = {0, 2040, LINES_MAX - 20, LINES_MAX - 2, LINES_MAX - 1};
    uint64_t line = LINES[random->below(5)];
    Hash hash = Hash::from_seed(seed);
    auto crowd = [&](size_t count, uint64_t lines) {
        for (size_t i = 0; i < count; ++i) {
            uint64_t number = (line + random->below(lines)) % LINES_MAX;
            roots.push_back(static_cast<int64_t>(hash.key_of(number << (64 - LINE_BITS_MAX) | random->word() >> 12)));
        }
    };
    switch (choice % 16) {
        case 0:  // hashes that, in an empty slot, look as if they were there
            for (uint64_t line_number : {0u, 1u, 127u})
                roots.push_back(static_cast<int64_t>(hash.key_of(line_number << HASH_BITS)));
            break;
        case 1: crowd(12, 1); break;  // three lines
        case 2:
        case 3:
        case 4: crowd(100, 1); break;  // a segment takes 128 of one line
        case 5:
        case 6: crowd(180, 1); break;  // too many for one segment
        case 7:
        case 8:
        case 9: crowd(600, 60); break;
        case 10:
            for (uint64_t i = 0; i < 300; ++i) roots.push_back(static_cast<int64_t>(i << 40));
            break;
        case 11:
        case 12:
            for (int i = 0; i < 2000; ++i) roots.push_back(static_cast<int64_t>(random->word()));
            break;
        default:
            crowd(200, 40);
            for (int i = 0; i < 30000; ++i) roots.push_back(static_cast<int64_t>(random->word()));
            break;
    }
    return roots;
}

// How often each kind comes, in 16ths.
constexpr uint8_t MIXES[][KINDS] = {
    {4, 2, 8, 1, 1},                    // a busy stream
    {14, 1, 1, 0, 0},                   // a peak: the arena grows
    {1, 1, 14, 0, 0},                   // the peak goes
    {3, 3, 4, 3, 3},  {0, 5, 9, 2, 0},  // messages overtake their TRACKs
    {6, 0, 0, 8, 2},
};

Message random_message(const uint8_t* mix, int64_t root, uint64_t ack_val, Random* random) {
    uint64_t draw = random->below(16);
    int8_t kind = 0;
    for (uint64_t sum = mix[0]; sum <= draw; sum += mix[static_cast<size_t>(++kind)]) {
    }
    // What is open now ends the tree, if the message is the root's first of the batch; small values meet often.
    uint64_t choice = random->below(8), value = choice < 2 ? random->below(4) : choice < 3 ? random->word() : ack_val;
    if (kind == TRACK && choice >= 4) value = random->word();
    return {kind, root, static_cast<int64_t>(value), static_cast<int32_t>(random->below(uint64_t{1} << 31)),
            static_cast<int64_t>(random->word())};
}

class AckerFuzz {
  public:
    explicit AckerFuzz(Bytes* bytes)
        : bytes_(bytes),
          protocol_(static_cast<Protocol>(bytes->next() % 3)),
          buckets_(2 + bytes->next() % 14),
          high_water_(choose_high_water(bytes->next())),
          seed_(bytes->word()),
          random_(seed_),
          choice_(bytes->next()),
          roots_(make_roots(choice_, seed_, &random_)),
          model_(protocol_, buckets_, high_water_) {
        for (bool avx2 : {true, false}) cores_.push_back(make_core(avx2, seed_));
    }

    void run() {
        while (!bytes_->over()) {
            step();
            for (auto& core : cores_) check_numbers(*core, model_);
            ++operations();
        }
        check_all();
        // Whatever was left expires, and then the arena has given its memory back.
        for (unsigned turn = 0; turn < buckets_; ++turn) rotate_all();
        CHECK(model_.trees.empty());
        check_all();
    }

  private:
    static constexpr size_t MANY_ROOTS = 4000;

    static std::optional<int64_t> choose_high_water(uint8_t byte) {
        constexpr int64_t MARKS[] = {0, 2, 20, 300, 4000};
        if (byte < 170) return std::nullopt;
        return MARKS[byte % 5];
    }

    // Half of the ackers begin with a full segment, in which root ids that crowd overflow; a smaller one does not bear
    // them.
    std::unique_ptr<AckerCore> make_core(bool avx2, uint64_t seed) const {
        auto core = std::make_unique<AckerCore>(protocol_, buckets_, high_water_.value_or(-1), seed, avx2);
        while (choice_ / 16 % 2 == 0 && core->arena.lines_a_segment() < LINES_MAX && core->arena.grow()) {
        }
        return core;
    }

    void step() {
        uint8_t code = bytes_->next();
        if (code < 96) return ingest_few(code);
        if (code < 200) return ingest_many();
        if (code < 225) return rotate_all();
        if (code < 240) return move_clock(code);
        if (code < 245) return look_up();
        if (code < 250) return restore();
        if (code < 254) return fail_allocations();
        check_all();
    }

    // Rows as the bytes say them: what a fuzzer can change one by one.
    void ingest_few(uint8_t rows) {
        std::vector<Message> messages;
        for (uint8_t row = 0; row <= rows % 24; ++row) {
            uint8_t kind = bytes_->next(), root = bytes_->next();
            int64_t value = kind < 192 ? kind / 64 : static_cast<int64_t>(ack_val_of(roots_[root % roots_.size()]));
            messages.push_back({static_cast<int8_t>(kind % KINDS), roots_[root % roots_.size()], value, kind, root});
        }
        ingest_all(messages, true);
    }

    // Many rows from a few bytes, about a part of the roots.
    void ingest_many() {
        uint64_t rows = 1 + uint64_t{bytes_->next()} * 8, first = bytes_->next(), width = 1 + bytes_->next();
        const uint8_t* mix = MIXES[bytes_->next() % (sizeof(MIXES) / sizeof(MIXES[0]))];
        bool spread = width % 4 == 0 || (roots_.size() > MANY_ROOTS && width % 4 != 1);  // over all of them
        std::vector<Message> messages;
        for (uint64_t row = 0; row < rows; ++row) {
            uint64_t place = spread ? random_.word() : first * roots_.size() / 256 + random_.below(width);
            int64_t root = roots_[place % roots_.size()];
            messages.push_back(random_message(mix, root, ack_val_of(root), &random_));
        }
        ingest_all(messages, width % 8 != 7);
    }

    void ingest_all(const std::vector<Message>& messages, bool with_ids) {
        Columns columns(messages, with_ids);
        std::vector<Completion> expected;
        for (Message message : messages) {
            if (!with_ids) message.task_id = 0, message.message_id = 0;
            model_.apply(message, now_, &expected);
        }
        bool scatter = messages.size() % 2 == 0;
        for (auto& core : cores_) {
            std::vector<Completion> finished = scatter
                                                   ? ingest(core.get(), Scattered(messages, with_ids), now_, budget_)
                                                   : ingest(core.get(), columns, now_, budget_);
            CHECK(finished == expected);
            scatter = !scatter;
        }
        budget_ = -1;
        operations() += messages.size();
    }

    void rotate_all() {
        std::vector<Completion> expected = model_.rotate(now_);
        for (auto& core : cores_) CHECK(rotate(core.get(), now_, budget_) == expected);
        budget_ = -1;
    }

    void move_clock(uint8_t code) {
        uint64_t step = uint64_t{bytes_->next()} * 100, now = static_cast<uint64_t>(now_);
        if (code % 5 == 0) step <<= bytes_->next() % 32;
        if (code % 5 == 1) step = 0 - step;
        now_ = static_cast<int64_t>(code == 239 ? bytes_->word() : now + step);
    }

    void look_up() {
        for (size_t i = 0; i < 64; ++i) {
            int64_t root = roots_[(i + bytes_->next()) % roots_.size()];
            for (auto& core : cores_) {
                Ref ref = core->arena.find(core->arena.hash(static_cast<uint64_t>(root)));
                CHECK(static_cast<bool>(ref) == (model_.trees.count(root) == 1));
                CHECK(!ref || ref.val() == ack_val_of(root));
            }
        }
    }

    // Every acker's entries into one of the other kernel, now and then of another seed, or by way of some shards.
    void restore() {
        uint8_t choice = bytes_->next();
        uint64_t seed = choice % 8 == 0 ? seed_ + 1 : seed_;
        size_t shards = choice / 8 % 4;
        for (auto& core : cores_) {
            Counters counters = core->counters;
            auto make = [&] { return make_core(!core->avx2(), seed); };
            if (shards > 0) {
                auto parts = restored({core.get()}, shards, make, choice / 32 % 2 == 0, budget_);
                core = std::move(restored(pointers_to(parts), 1, make, true)[0]);
            } else {
                core = std::move(restored({core.get()}, 1, make, choice / 32 % 2 == 0, budget_)[0]);
            }
            core->counters = counters;
        }
        budget_ = -1;
        check_all();
    }

    void fail_allocations() { budget_ = bytes_->next() % 6; }

    void check_all() {
        for (auto& core : cores_) check_entries(core.get(), model_);
    }

    uint64_t ack_val_of(int64_t root) const {
        auto found = model_.trees.find(root);
        return found == model_.trees.end() ? 0 : found->second.ack_val;
    }

    Bytes* bytes_;
    Protocol protocol_;
    unsigned buckets_;
    std::optional<int64_t> high_water_;
    uint64_t seed_;
    Random random_;
    uint8_t choice_;
    std::vector<int64_t> roots_;
    Model model_;
    std::vector<std::unique_ptr<AckerCore>> cores_;
    int64_t now_ = 0;
    int64_t budget_ = -1;  // of allocations, for the next operation that takes memory
};

class CombineFuzz {
  public:
    explicit CombineFuzz(Bytes* bytes) : bytes_(bytes), seed_(bytes->word()), random_(seed_) {
        roots_ = make_roots(bytes->next(), seed_, &random_);
        for (size_t which : {size_t{0}, size_t{1}}) start(which);
    }

    void run() {
        while (!bytes_->over()) {
            uint8_t code = bytes_->next();
            size_t which = code % 2;
            if (code < 180)
                add(which);
            else if (code < 200)
                merge(which);
            else if (code < 230)
                settle(which);
            else if (code < 240)
                start(which);
            else
                budget_ = bytes_->next() % 4;
            CHECK(tables_[which]->size() == models_[which].trees.size());
            CHECK(tables_[which]->duplicates() == models_[which].duplicates);
            ++operations();
        }
        for (size_t which : {size_t{0}, size_t{1}}) settle(which);
    }

  private:
    void start(size_t which) {
        tables_[which] = std::make_unique<CombineTable>();
        tables_[which]->seed(seed_);
        models_[which] = CombinedModel{};
        models_[which].resets = random_.below(2) == 1;
        tables_[which]->gather_resets(models_[which].resets);
    }

    // Runs `some(first)` from the row at which it stopped, until all rows are done; at first within the budget.
    template <typename Some>
    void all_rows(size_t rows, Some some) {
        Allocations allocations(budget_);
        size_t done = 0;
        if (some(size_t{0}, &done) != CombineTable::DONE) {
            CHECK(budget_ >= 0 && allocations_left() == 0 && done < rows);
            allocations_left() = -1;
            size_t first = done;
            CHECK(some(first, &done) == CombineTable::DONE);
            done += first;
        }
        CHECK(done == rows);
        budget_ = -1;
        operations() += rows;
    }

    void add(size_t which) {
        uint64_t rows = uint64_t{bytes_->next()} * 12, width = 1 + bytes_->next();
        const uint8_t* mix = MIXES[bytes_->next() % (sizeof(MIXES) / sizeof(MIXES[0]))];
        std::vector<Message> messages;
        for (uint64_t row = 0; row < rows; ++row) {
            int64_t root = roots_[(width % 2 == 0 ? random_.word() : random_.below(width)) % roots_.size()];
            messages.push_back(random_message(mix, root, random_.below(4), &random_));
            // Nothing but equal TRACKs have one rank, and of those it is all the same which one counts.
            models_[which].add(messages.back());
        }
        Columns columns(messages);
        all_rows(rows,
                 [&](size_t first, size_t* done) { return tables_[which]->add(columns.from<Messages>(first), done); });
    }

    // What one has gathered, as partials in shards, into the other.
    void merge(size_t which) {
        const CombineTable& other = *tables_[1 - which];
        uint32_t shards = 1 + bytes_->next() % 7;
        std::vector<int64_t> counts(2 * shards), next(2 * shards);
        other.count_groups(shards, counts.data());
        for (size_t group = 1; group < next.size(); ++group) next[group] = next[group - 1] + counts[group - 1];
        size_t rows = other.size();
        std::vector<int64_t> root_id(rows), value(rows), track_value(rows), message_id(rows);
        std::vector<uint8_t> flags(rows);
        std::vector<int32_t> task_id(rows);
        other.write_partials(
            shards, next.data(),
            {root_id.data(), value.data(), flags.data(), track_value.data(), task_id.data(), message_id.data(), rows});
        std::vector<const CombinedModel::Tree*> trees;
        for (const CombinedModel::Tree& tree : models_[1 - which].trees) trees.push_back(&tree);
        // By shard, and in a shard those first that look finished.
        std::stable_sort(trees.begin(), trees.end(), [shards](const auto* a, const auto* b) {
            uint32_t shard_a = shard_of(a->root_id, shards), shard_b = shard_of(b->root_id, shards);
            return shard_a != shard_b ? shard_a < shard_b : a->looks_finished() > b->looks_finished();
        });
        for (size_t row = 0; row < rows; ++row) {
            const CombinedModel::Tree& tree = *trees[row];
            CHECK(root_id[row] == tree.root_id && static_cast<uint64_t>(value[row]) == tree.value);
            CHECK(flags[row] ==
                  (tree.track ? HAS_TRACK : 0) + (tree.failed ? HAS_FAIL : 0) + (tree.reset ? HAS_RESET : 0));
            CHECK(!tree.track || (track_value[row] == tree.track->value && task_id[row] == tree.track->task_id));
            CHECK(!tree.track || message_id[row] == tree.track->message_id);
            models_[which].merge(tree);
        }
        all_rows(rows, [&](size_t first, size_t* done) {
            Partials columns{
                root_id.data() + first, value.data() + first,      flags.data() + first, track_value.data() + first,
                task_id.data() + first, message_id.data() + first, rows - first};
            return tables_[which]->merge(columns, done);
        });
    }

    void settle(size_t which) {
        for (bool include_pending : {false, true}) {
            size_t trees = tables_[which]->size();
            std::vector<int64_t> root_id(trees), message_id(trees);
            std::vector<int32_t> task_id(trees);
            std::vector<int8_t> outcome(trees);
            size_t rows = tables_[which]->settle(
                include_pending, {root_id.data(), message_id.data(), task_id.data(), outcome.data(), nullptr, 0});
            std::vector<Completion> settled;
            for (size_t row = 0; row < rows; ++row)
                settled.push_back({root_id[row], message_id[row], task_id[row], outcome[row], 0});
            CHECK(settled == models_[which].settle(include_pending));
        }
    }

    Bytes* bytes_;
    uint64_t seed_;
    Random random_;
    std::vector<int64_t> roots_;
    std::unique_ptr<CombineTable> tables_[2];
    CombinedModel models_[2];
    int64_t budget_ = -1;
};

}  // namespace
}  // namespace acker::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    acker::testing::Bytes bytes(data, size);
    if (bytes.next() % 8 == 7)
        acker::testing::CombineFuzz(&bytes).run();
    else
        acker::testing::AckerFuzz(&bytes).run();
    return 0;
}

#if !defined(ACKER_LIBFUZZER)

// A sanitizer that finds something ends the run as a failed check does, so that the seed is told.
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void tell_and_die(int signal_number) {
    std::fprintf(stderr, "failed at: %s\n", acker::testing::now_running().c_str());
    std::signal(signal_number, SIG_DFL);
    std::raise(signal_number);
    std::_Exit(1);
}

void run_seed(uint64_t seed) {
    acker::testing::now_running() = "--seed " + std::to_string(seed) + " --seeds 1";
    acker::testing::Random random(seed);
    std::vector<uint8_t> bytes(128 + random.below(2048));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.word());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

void run_file(const char* path) {
    acker::testing::now_running() = path;
    std::ifstream file(path, std::ios::binary);
    CHECK(file.good());
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int count, char** arguments) {
    uint64_t first = 0, seeds = UINT64_MAX, files = 0;
    double seconds = -1;
    std::signal(SIGABRT, tell_and_die);
#if !defined(__SANITIZE_ADDRESS__)
    std::signal(SIGSEGV, tell_and_die);
#endif
    for (int i = 1; i < count; ++i) {
        const char* value = i + 1 < count ? arguments[i + 1] : "";
        if (std::strcmp(arguments[i], "--seed") == 0)
            first = std::strtoull(value, nullptr, 10), ++i;
        else if (std::strcmp(arguments[i], "--seeds") == 0)
            seeds = std::strtoull(value, nullptr, 10), ++i;
        else if (std::strcmp(arguments[i], "--seconds") == 0)
            seconds = std::strtod(value, nullptr), ++i;
        else
            run_file(arguments[i]), ++files;
    }
    if (seeds == UINT64_MAX && seconds < 0) seeds = files > 0 ? 0 : 100;
    Clock::time_point start = Clock::now();
    uint64_t done = 0;
    for (; done < seeds && (seconds < 0 || seconds_since(start) < seconds); ++done) run_seed(first + done);
    std::printf("operations=%llu seeds=%llu first=%llu seconds=%.1f\n",
                static_cast<unsigned long long>(acker::testing::operations()), static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(first), seconds_since(start));
    return 0;
}

#endif
