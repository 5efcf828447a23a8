// What one message does to one entry. The rules of docs/protocol.md stand in `effect_of`, to be read; the compiler
// turns them into a table, and the batch loop looks up what to do instead of deciding it. The order of kinds in a
// stream is random to a branch predictor, and a wrong guess costs more than all of the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "arena.h"

namespace acker {

enum Kind : int8_t { TRACK = 0, ANCHOR = 1, OK = 2, FAIL = 3, RESET_TIMEOUT = 4 };
constexpr unsigned KINDS = 5;
constexpr unsigned KIND_CODES = 8;

enum Outcome : int8_t { ACKED = 0, FAILED_TREE = 1, TIMED_OUT = 2, REJECTED = 3 };

enum class Protocol : int { storm = 0, storm_09 = 1, fsshelter = 2 };

// What a message finds. The first three are the word's TRACKED and FAILED bits read as a number.
enum Found : unsigned { UNTRACKED_ENTRY = 0, FAILED_ENTRY = 1, TRACKED_ENTRY = 2, NO_ENTRY = 4 };
constexpr unsigned FOUND_BITS = 3;
constexpr unsigned STATE_SHIFT = 58;
static_assert(FAILED == uint64_t{1} << STATE_SHIFT && TRACKED == FAILED << 1, "Found is read off the word");

constexpr uint64_t ALL = ~uint64_t{0};
constexpr uint64_t TAGS = uint64_t{15} << TAG_SHIFT;

// Counts of a chunk of rows side by side in one word, eight bits each.
enum Tally : unsigned {
    CREATED = 0,
    TRACKS = 8,
    ENDED = 16,
    ENDED_FAILED = 24,
    DUPLICATES = 32,
    UNKNOWN = 40,
    RESETS = 48
};
constexpr size_t TALLY_ROWS_MAX = 255;
constexpr uint64_t one(Tally count) noexcept { return uint64_t{1} << count; }

// What happens to the cold part, and what is reported.
enum EventBits : uint32_t { START = 1, KEEP = 2, REPORT = 4, OUTCOME_SHIFT = 4 };

struct alignas(64) Effect {
    uint64_t keep = ALL;      // of the word as it was
    uint64_t take = 0;        // of the word a new entry would get: its hash and the nursery's tag
    uint64_t set = 0;         // flags
    uint64_t keep_val = ALL;  // of the ack val
    uint64_t tally = 0;
    uint32_t event = 0;
    uint32_t noted = 0;  // 1: the event must be worked off
};

constexpr bool ignores_unknown(Protocol protocol, Kind kind) noexcept {
    return kind == RESET_TIMEOUT || (protocol == Protocol::fsshelter && kind != TRACK);
}

// Whether the message's value enters the ack val.
constexpr bool takes_value(Protocol protocol, Kind kind, unsigned found) noexcept {
    if (kind == TRACK) return protocol != Protocol::fsshelter && found != TRACKED_ENTRY;
    return (kind == ANCHOR || kind == OK) && !(found == NO_ENTRY && ignores_unknown(protocol, kind));
}

constexpr bool refreshes(Protocol protocol, Kind kind) noexcept {
    if (protocol == Protocol::storm_09) return true;
    return kind == RESET_TIMEOUT || (kind == FAIL && protocol == Protocol::storm);
}

// Whether the message finishes its tree; `zero`: the ack val reads 0 after it.
constexpr bool finishes(Protocol protocol, Kind kind, unsigned found, bool zero) noexcept {
    if (protocol == Protocol::fsshelter) return found != NO_ENTRY && (kind == FAIL || (kind == OK && zero));
    bool tracked = kind == TRACK || found == TRACKED_ENTRY;
    bool failed = kind == FAIL || found == FAILED_ENTRY;
    return tracked && (zero || failed);
}

constexpr Effect effect_of(Protocol protocol, Kind kind, unsigned found, bool zero) noexcept {
    Effect effect;
    bool known = found != NO_ENTRY;
    if (!known && ignores_unknown(protocol, kind)) {
        effect.tally = one(UNKNOWN);
        return effect;
    }
    if (kind == TRACK && found == TRACKED_ENTRY) {
        effect.tally = one(DUPLICATES);
        return effect;
    }
    if (!known) {
        effect.take = ALL;
        effect.tally += one(CREATED);
        effect.event |= START;
        effect.noted = 1;
    } else if (refreshes(protocol, kind)) {
        effect.keep = ~TAGS;
        effect.take = TAGS;
        effect.noted = 1;
    }
    if (kind == RESET_TIMEOUT) {
        effect.tally += one(RESETS);
        return effect;
    }
    if (kind == TRACK) {
        effect.set = TRACKED;
        effect.tally += one(TRACKS);
        effect.event |= KEEP;
        effect.noted = 1;
    } else if (kind == FAIL && found != TRACKED_ENTRY) {
        effect.set = FAILED;
    }
    if (finishes(protocol, kind, found, zero)) {
        bool failed = protocol == Protocol::fsshelter ? kind == FAIL : !zero;
        effect.keep = OVERFLOWED;  // the slot is free again; whether others passed over the line is not this entry's
        effect.take = effect.set = effect.keep_val = 0;
        effect.tally += one(ENDED) + (failed ? one(ENDED_FAILED) : 0);
        effect.event |= REPORT | static_cast<uint32_t>(failed ? FAILED_TREE : ACKED) << OUTCOME_SHIFT;
        effect.noted = 1;
    }
    return effect;
}

// One protocol's rules as tables. Codes 5 to 7 have no effect: columns are checked before, but another thread may write
// to a column while it is read, and then a batch may come out wrong but no memory may.
struct Rules {
    uint64_t value_mask[KIND_CODES << FOUND_BITS] = {};  // ALL or 0
    Effect effect[(KIND_CODES << FOUND_BITS) * 2] = {};

    constexpr explicit Rules(Protocol protocol) noexcept {
        for (unsigned code = 0; code < KINDS; ++code) {
            for (unsigned found : {UNTRACKED_ENTRY, FAILED_ENTRY, TRACKED_ENTRY, NO_ENTRY}) {
                unsigned index = (code << FOUND_BITS) + found;
                Kind kind = static_cast<Kind>(code);
                value_mask[index] = takes_value(protocol, kind, found) ? ALL : 0;
                effect[index * 2] = effect_of(protocol, kind, found, false);
                effect[index * 2 + 1] = effect_of(protocol, kind, found, true);
            }
        }
    }
};

template <Protocol P>
struct RulesOf {
    static constexpr Rules rules = Rules(P);
};

}  // namespace acker
