// The oracle of the native tests: docs/protocol.md in standard containers. Speed is no concern here, reading is; the
// numbers in comments are those of the rules.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "../combine.h"
#include "../ingest.h"

namespace acker::testing {

// Random numbers that are the same on every machine.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t word() { return mix_seed(&state_); }
    uint64_t below(uint64_t bound) { return word() % bound; }
    bool one_in(uint64_t chances) { return below(chances) == 0; }

  private:
    uint64_t state_;
};

struct Message {
    int8_t kind;
    int64_t root_id;
    int64_t value;
    int32_t task_id;
    int64_t message_id;
};

struct Completion {
    int64_t root_id;
    int64_t message_id;
    int32_t task_id;
    int8_t outcome;
    int64_t elapsed_ms;

    bool operator==(const Completion& other) const {
        return root_id == other.root_id && message_id == other.message_id && task_id == other.task_id &&
               outcome == other.outcome && elapsed_ms == other.elapsed_ms;
    }
    bool operator<(const Completion& other) const { return root_id < other.root_id; }
};

class Model {
  public:
    struct Tree {
        uint64_t ack_val = 0;
        int64_t message_id = 0;
        int32_t task_id = 0;
        uint64_t start = 0;
        bool tracked = false;
        bool failed = false;
        uint64_t nursed = 0;  // the rotation since which it has been in the nursery or grown old
    };

    Model(Protocol protocol, unsigned buckets, std::optional<int64_t> high_water)
        : protocol_(protocol), buckets_(buckets), high_water_(high_water) {}

    std::unordered_map<int64_t, Tree> trees;
    Counters counters = {};
    int64_t open = 0;

    unsigned age(const Tree& tree) const { return static_cast<unsigned>(rotations_ - tree.nursed); }

    void apply(const Message& message, int64_t now, std::vector<Completion>* finished) {
        auto found = trees.find(message.root_id);
        bool known = found != trees.end();
        if (message.kind == RESET_TIMEOUT) {  // storm 1, fsshelter 4 and 5
            ++(known ? counters.resets : counters.unknown);
            if (known) found->second.nursed = rotations_;
            return;
        }
        if (message.kind == TRACK && known && found->second.tracked) {  // storm 2, fsshelter 5
            ++counters.duplicates;
            return;
        }
        if (message.kind == TRACK && high_water_ && open > 2 * *high_water_) {  // capacity
            ++counters.rejected;
            finished->push_back({message.root_id, message.message_id, message.task_id, OUTCOME_REJECTED, 0});
            return;
        }
        if (message.kind != TRACK && !known && protocol_ == Protocol::fsshelter) {  // fsshelter 5
            ++counters.unknown;
            return;
        }
        if (message.kind != TRACK && !known && high_water_ && held() > 4 * *high_water_) {  // capacity
            ++counters.dropped;
            return;
        }
        if (!known) {  // storm 3, fsshelter 1
            found = trees.emplace(message.root_id, Tree{}).first;
            found->second.start = static_cast<uint64_t>(now);
            found->second.nursed = rotations_;
        }
        if (message.kind == TRACK) {  // storm 4, fsshelter 1
            found->second.tracked = true;
            found->second.message_id = message.message_id;
            found->second.task_id = message.task_id;
            ++counters.tracked;
            ++open;
        }
        std::optional<Outcome> outcome =
            protocol_ == Protocol::fsshelter ? fsshelter(message, &found->second) : storm(message, &found->second);
        if (outcome) {
            counters.empty += !known && *outcome == OUTCOME_ACKED;  // storm 4: by its TRACK alone
            finished->push_back(end(found->first, found->second, *outcome, now));
            trees.erase(found);
        }
    }

    // In the order of root ids.
    std::vector<Completion> rotate(int64_t now) {
        std::vector<Completion> finished;
        for (auto at = trees.begin(); at != trees.end();) {
            if (age(at->second) + 1 < buckets_) {
                ++at;
                continue;
            }
            if (at->second.tracked)
                finished.push_back(end(at->first, at->second, OUTCOME_TIMED_OUT, now));
            else
                ++counters.orphans;
            at = trees.erase(at);
        }
        ++rotations_;
        std::sort(finished.begin(), finished.end());
        return finished;
    }

    int64_t tracked_on_death_row() const {
        return std::count_if(trees.begin(), trees.end(), [this](const auto& item) {
            return item.second.tracked && age(item.second) + 1 == buckets_;
        });
    }

    int64_t held() const { return static_cast<int64_t>(trees.size()); }

  private:
    std::optional<Outcome> storm(const Message& message, Tree* tree) {
        if (message.kind == FAIL) {  // 6
            tree->failed = true;
            tree->nursed = rotations_;
        } else {  // 4, 5
            tree->ack_val ^= static_cast<uint64_t>(message.value);
        }
        if (protocol_ == Protocol::storm_09) tree->nursed = rotations_;
        if (tree->tracked && tree->ack_val == 0) return OUTCOME_ACKED;  // 7
        if (tree->tracked && tree->failed) return OUTCOME_FAILED;
        return std::nullopt;
    }

    std::optional<Outcome> fsshelter(const Message& message, Tree* tree) {
        if (message.kind == FAIL) return OUTCOME_FAILED;  // 4
        if (message.kind == ANCHOR || message.kind == OK)
            tree->ack_val ^= static_cast<uint64_t>(message.value);           // 2, 3
        if (message.kind == OK && tree->ack_val == 0) return OUTCOME_ACKED;  // 3
        return std::nullopt;
    }

    Completion end(int64_t root_id, const Tree& tree, Outcome outcome, int64_t now) {
        --open;
        ++(outcome == OUTCOME_ACKED       ? counters.acked
           : outcome == OUTCOME_TIMED_OUT ? counters.timed_out
                                          : counters.failed);
        constexpr uint64_t DAY_MS = 24 * 3600 * 1000;
        uint64_t elapsed = (static_cast<uint64_t>(now) - tree.start) % (uint64_t{1} << 32);
        return {root_id, tree.message_id, tree.task_id, outcome,
                elapsed > 49 * DAY_MS ? 0 : static_cast<int64_t>(elapsed)};
    }

    Protocol protocol_;
    unsigned buckets_;
    std::optional<int64_t> high_water_;
    uint64_t rotations_ = 0;
};

// The messages of each root as a set, roots in the order of their first messages.
class CombinedModel {
  public:
    struct Track {
        int64_t value;
        int32_t task_id;
        int64_t message_id;

        int64_t rank() const {
            return static_cast<int64_t>(static_cast<uint64_t>(value) ^ xxh64::of_int_and_long(task_id, message_id));
        }
    };
    struct Tree {
        int64_t root_id;
        uint64_t value = 0;
        bool failed = false;
        bool reset = false;
        std::optional<Track> track;

        bool looks_finished() const {
            return track && !failed && !reset && value == static_cast<uint64_t>(track->value);
        }
    };

    std::vector<Tree> trees;
    bool resets = false;
    uint64_t duplicates = 0;

    void add(const Message& message) {
        if (message.kind == RESET_TIMEOUT && !resets) return;
        Tree* tree = at(message.root_id);
        if (message.kind == TRACK)
            take(tree, Track{message.value, message.task_id, message.message_id});
        else if (message.kind == FAIL)
            tree->failed = true;
        else if (message.kind == RESET_TIMEOUT)
            tree->reset = true;
        else
            tree->value ^= static_cast<uint64_t>(message.value);
    }

    void merge(const Tree& other) {
        Tree* tree = at(other.root_id);
        tree->value ^= other.value;
        tree->failed |= other.failed;
        tree->reset |= other.reset;
        if (other.track) take(tree, *other.track);
    }

    std::vector<Completion> settle(bool include_pending) const {
        std::vector<Completion> settled;
        for (const Tree& tree : trees) {
            if (!tree.track) continue;
            bool acked = (tree.value ^ static_cast<uint64_t>(tree.track->value)) == 0;
            int8_t outcome = acked         ? static_cast<int8_t>(OUTCOME_ACKED)
                             : tree.failed ? static_cast<int8_t>(OUTCOME_FAILED)
                                           : static_cast<int8_t>(OUTCOME_PENDING);
            if (outcome != OUTCOME_PENDING || include_pending)
                settled.push_back({tree.root_id, tree.track->message_id, tree.track->task_id, outcome, 0});
        }
        return settled;
    }

  private:
    Tree* at(int64_t root_id) {
        auto [found, fresh] = places_.emplace(root_id, trees.size());
        if (fresh) trees.push_back(Tree{root_id, 0, false, false, std::nullopt});
        return &trees[found->second];
    }

    void take(Tree* tree, const Track& track) {
        duplicates += tree->track.has_value();
        if (!tree->track || track.rank() < tree->track->rank()) tree->track = track;
    }

    std::unordered_map<int64_t, size_t> places_;
};

// Messages as columns of exactly their length, so that a sanitizer sees a read past the end.
struct Columns {
    std::vector<int8_t> kind;
    std::vector<int64_t> root_id, value;
    std::vector<int32_t> task_id;
    std::vector<int64_t> message_id;
    bool has_ids = true;  // false: task_id and message_id are left out, and read 0

    explicit Columns(const std::vector<Message>& messages, bool with_ids = true) : has_ids(with_ids) {
        size_t rows = messages.size();
        kind.reserve(rows), root_id.reserve(rows), value.reserve(rows), task_id.reserve(rows), message_id.reserve(rows);
        for (const Message& message : messages) {
            kind.push_back(message.kind);
            root_id.push_back(message.root_id);
            value.push_back(message.value);
            task_id.push_back(message.task_id);
            message_id.push_back(message.message_id);
        }
    }

    size_t rows() const { return kind.size(); }

    // From `first` on, as the acker and as the combiner take them.
    template <typename Messages>
    Messages from(size_t first) const {
        return Messages{kind.data() + first,
                        root_id.data() + first,
                        value.data() + first,
                        has_ids ? task_id.data() + first : nullptr,
                        has_ids ? message_id.data() + first : nullptr,
                        kind.size() - first};
    }
};

// The same messages among others that nobody is to see, and the numbers of their rows.
struct Scattered {
    Columns columns;
    std::vector<uint32_t> selection;

    explicit Scattered(const std::vector<Message>& messages, bool with_ids = true) : columns({}, with_ids) {
        std::vector<Message> all;
        for (const Message& message : messages) {
            uint64_t word = static_cast<uint64_t>(message.root_id ^ message.value);
            for (uint64_t others = mix_seed(&word) % 4; others > 0; --others)
                all.push_back({TRACK, message.root_id, 0, 12345, 54321});
            selection.push_back(static_cast<uint32_t>(all.size()));
            all.push_back(message);
        }
        columns = Columns(all, with_ids);
    }

    size_t rows() const { return selection.size(); }

    template <typename Messages>
    Messages from(size_t first) const {
        Messages messages = columns.from<Messages>(0);
        messages.rows = rows() - first;
        messages.selection = selection.data() + first;
        return messages;
    }
};

}  // namespace acker::testing
