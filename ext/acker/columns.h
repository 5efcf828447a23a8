// Pointers to columns of one length, as Python hands them to the native tables: messages, partials and completions.
// The creator of such a struct owns the memory behind it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace acker {

// Checked messages. A null task_id or message_id column reads 0. With a selection the messages are the rows it lists,
// and `rows` is its length. event_ms is set only where a table gathers by cohort.
struct Messages {
    const int8_t* kind;
    const int64_t* root_id;
    const int64_t* value;
    const int32_t* task_id;
    const int64_t* message_id;
    size_t rows;
    const uint32_t* selection = nullptr;
    const int64_t* event_ms = nullptr;
};

// Messages combined by root, or with event times by root and cohort.
template <class Long, class Int, class Byte>
struct PartialColumns {
    Long* root_id;
    Long* value;
    Byte* flags;  // MessageFlag
    Long* track_value;
    Int* task_id;
    Long* message_id;
    size_t rows;
    Long* event_ms = nullptr;
};
using Partials = PartialColumns<const int64_t, const int32_t, const uint8_t>;
using PartialsOut = PartialColumns<int64_t, int32_t, uint8_t>;

// Room for completions, and how many have been written.
struct Completions {
    int64_t* root_id;
    int64_t* message_id;
    int32_t* task_id;
    int8_t* outcome;
    int64_t* elapsed_ms;
    size_t rows;
};

}  // namespace acker
