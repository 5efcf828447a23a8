// The guard that lets one thread into an acker at a time, and the stats that any thread may read meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(_WIN32)
#include <process.h>
#else
#include <pthread.h>
#include <unistd.h>
#endif

#include "codes.h"

namespace acker {

// The id of this process, cached: every call needs it, and it changes only in a forked child.
class Process {
  public:
    static int64_t id() noexcept { return here().load(std::memory_order_relaxed); }

  private:
    static int64_t current() noexcept {
#if defined(_WIN32)
        return _getpid();
#else
        return getpid();
#endif
    }

    static std::atomic<int64_t>& here() noexcept {
        static std::atomic<int64_t> id{begin()};
        return id;
    }

    static int64_t begin() noexcept {
#if !defined(_WIN32)
        pthread_atfork(nullptr, nullptr, [] { here().store(current(), std::memory_order_relaxed); });
#endif
        return current();
    }
};

class SingleEntry {
  public:
    bool enter() noexcept {
        int64_t nobody = 0;
        return holder_.compare_exchange_strong(nobody, Process::id(), std::memory_order_acquire,
                                               std::memory_order_relaxed);
    }
    void leave() noexcept { holder_.store(0, std::memory_order_release); }

    // The process of the thread inside; 0: none. If it is not this process, this one was forked while a thread was
    // inside: here that thread never leaves, and its work may be half done.
    int64_t holder() const noexcept { return holder_.load(std::memory_order_relaxed); }

  private:
    std::atomic<int64_t> holder_{0};
};

// The stats of an acker for any thread to read: always those that one call left, never half of the next call's. One
// thread writes at a time. A fork could leave a lock taken, so there is none: a write goes beside the last one.
class PublishedStats {
  public:
    void write(const Stats& stats) noexcept {
        int64_t numbers[NUMBERS];
        std::memcpy(numbers, &stats, sizeof(Stats));
        uint64_t turn = turn_.load(std::memory_order_relaxed) + 1;
        for (size_t i = 0; i < NUMBERS; ++i) numbers_[turn % 2][i].store(numbers[i], std::memory_order_release);
        turn_.store(turn, std::memory_order_release);
    }

    // Reads again if a write ended meanwhile: the next one may have begun to overwrite these numbers. The acquire of
    // each number pairs with its release, so a reader that sees a number of the next write sees the new turn as well.
    Stats read() const noexcept {
        int64_t numbers[NUMBERS];
        uint64_t turn;
        do {
            turn = turn_.load(std::memory_order_acquire);
            for (size_t i = 0; i < NUMBERS; ++i) numbers[i] = numbers_[turn % 2][i].load(std::memory_order_acquire);
        } while (turn_.load(std::memory_order_relaxed) != turn);
        Stats stats;
        std::memcpy(static_cast<void*>(&stats), numbers, sizeof(Stats));
        return stats;
    }

  private:
    static constexpr size_t NUMBERS = sizeof(Stats) / sizeof(int64_t);

    std::atomic<uint64_t> turn_{0};
    std::atomic<int64_t> numbers_[2][NUMBERS] = {};
};

}  // namespace acker
