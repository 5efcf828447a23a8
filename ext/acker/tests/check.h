// All that the native tests need of a test framework: a check that says where it failed, and a list of test functions.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace acker::testing {

// What is being run, for the message of a check that fails: the name of a test, or the seed of a fuzz run.
inline std::string& now_running() {
    static std::string label;
    return label;
}

[[noreturn]] inline void fail(const char* file, int line, const char* condition) {
    std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    std::abort();
}

struct Test {
    const char* name;
    void (*run)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registered {
    Registered(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

}  // namespace acker::testing

#define CHECK(condition) ((condition) ? static_cast<void>(0) : acker::testing::fail(__FILE__, __LINE__, #condition))

#define TEST(name)                                                  \
    static void name();                                             \
    static const acker::testing::Registered name##_at(#name, name); \
    static void name()
