// Unit tests of the headers, bottom up: rules that have a name, edge cases, and what the fuzz body cannot reach. The
// fuzz body covers streams of messages. One program of one translation unit: what takes the compiler's time is the
// headers, and so it reads them once.
#include "headers/arena.cpp"
#include "headers/arena_size.cpp"
#include "headers/batches.cpp"
#include "headers/chosen_roots.cpp"
#include "headers/combine.cpp"
#include "headers/encoded_id.cpp"
#include "headers/gups.cpp"
#include "headers/hash.cpp"
#include "headers/memory.cpp"
#include "headers/oldest.cpp"
#include "headers/probe.cpp"
#include "headers/protocol.cpp"
#include "headers/recent_ids.cpp"
#include "headers/snapshot.cpp"
#include "headers/step_mark.cpp"
#include "headers/sweep.cpp"
#include "headers/threads.cpp"

extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }

int main(int count, char** arguments) { return acker::testing::run_tests(count, arguments); }
