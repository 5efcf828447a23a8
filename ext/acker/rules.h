// The rules of docs/protocol.md: the effect of one message on one entry. `effect_of` states them clearly. The compiler
// turns it into a table that the batch loop looks up, since the order of kinds in a stream is random to a branch
// predictor and a wrong guess costs more than the whole lookup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "arena.h"
#include "codes.h"

namespace acker {

constexpr uint64_t ALL = ~uint64_t{0};

// Counts of a chunk of rows side by side in one word, eight bits each.
enum Tally : unsigned {
    CREATED = 0,
    TRACKS = 8,
    ENDED = 16,
    ENDED_FAILED = 24,
    DUPLICATES = 32,
    UNKNOWN = 40,
    RESETS = 48,
    EMPTY = 56
};
constexpr size_t TALLY_ROWS_MAX = 255;
constexpr uint64_t one(Tally count) noexcept { return uint64_t{1} << count; }

// What happens to the cold part, and what is reported.
enum EventBits : uint32_t { START = 1, KEEP = 2, REPORT = 4, OUTCOME_SHIFT = 4 };

struct Effect {
    uint64_t keep = ALL;      // of the word as it was
    uint64_t take = 0;        // of the word a new entry would get: its hash and the nursery's tag
    uint64_t set = 0;         // flags
    uint64_t keep_val = ALL;  // of the ack val
    uint64_t tally = 0;
    uint32_t event = 0;
    uint32_t noted = 0;  // 1: the event has to be applied later
};

// The part of an effect that waits until the cold line is fetched.
struct Event {
    ColdMask mask;
    uint32_t reports = 0;  // 1: the tree is finished
    int8_t outcome = 0;
    uint8_t keep = 0, take = 0, set = 0;  // as in Effect, of the word's six highest bits
};

constexpr Event event_of(const Effect& effect) noexcept {
    Event event;
    event.mask = ColdMask{(effect.event & KEEP) != 0, (effect.event & START) != 0};
    event.reports = effect.event / REPORT & 1;
    event.outcome = static_cast<int8_t>(effect.event >> OUTCOME_SHIFT);
    event.keep = static_cast<uint8_t>(effect.keep >> STATE_SHIFT);
    event.take = static_cast<uint8_t>(effect.take >> STATE_SHIFT);
    event.set = static_cast<uint8_t>(effect.set >> STATE_SHIFT);
    return event;
}

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
        effect.keep = OVERFLOWED;  // frees the slot; the mark of the line stays
        effect.take = effect.set = effect.keep_val = 0;
        effect.tally += one(ENDED) + (failed ? one(ENDED_FAILED) : 0);
        if (!known) effect.tally += one(EMPTY);  // acked by its TRACK alone: the spout's tuple had no consumer
        effect.event |= REPORT | static_cast<uint32_t>(failed ? OUTCOME_FAILED : OUTCOME_ACKED) << OUTCOME_SHIFT;
        effect.noted = 1;
    }
    return effect;
}

constexpr unsigned FINDINGS = KIND_CODES << FOUND_BITS;  // what kind of message finds what
constexpr uint8_t finding_of(int8_t kind, unsigned found) noexcept {
    return static_cast<uint8_t>((static_cast<unsigned>(kind) % KIND_CODES) << FOUND_BITS | found);
}
constexpr unsigned EFFECTS = FINDINGS * 2;  // and whether the ack val reads 0 after it
constexpr unsigned REJECTION = EFFECTS;     // the event of a TRACK for which there is no capacity

// The rules of one protocol as tables, one for each part of an effect, which processors index fastest. Codes 5 to 7
// have no effect: columns are checked first, but if another thread writes to one meanwhile, the result may be wrong and
// no memory may be corrupted.
struct Rules {
    uint64_t value_mask[FINDINGS] = {};  // ALL or 0
    uint64_t keep[EFFECTS] = {};
    uint64_t take[EFFECTS] = {};
    uint64_t set[EFFECTS] = {};
    uint64_t keep_val[EFFECTS] = {};
    uint64_t tally[EFFECTS] = {};
    uint64_t noted[EFFECTS] = {};
    Event event[EFFECTS + 1] = {};

    constexpr explicit Rules(Protocol protocol) noexcept {
        for (unsigned effect = 0; effect < EFFECTS; ++effect) store(effect, Effect{});
        for (unsigned code = 0; code < KINDS; ++code) {
            for (unsigned found : {UNTRACKED_ENTRY, FAILED_ENTRY, TRACKED_ENTRY, NO_ENTRY}) {
                Kind kind = static_cast<Kind>(code);
                unsigned finding = finding_of(kind, found);
                value_mask[finding] = takes_value(protocol, kind, found) ? ALL : 0;
                store(finding * 2, effect_of(protocol, kind, found, false));
                store(finding * 2 + 1, effect_of(protocol, kind, found, true));
            }
        }
        Effect rejection;
        rejection.keep = 0;
        rejection.event = START | KEEP | REPORT | OUTCOME_REJECTED << OUTCOME_SHIFT;
        event[REJECTION] = event_of(rejection);
    }

  private:
    constexpr void store(unsigned index, const Effect& effect) noexcept {
        keep[index] = effect.keep;
        take[index] = effect.take;
        set[index] = effect.set;
        keep_val[index] = effect.keep_val;
        tally[index] = effect.tally;
        noted[index] = effect.noted;
        event[index] = event_of(effect);
    }
};

template <Protocol P>
struct RulesOf {
    static constexpr Rules rules = Rules(P);
};

}  // namespace acker
