// A pool of threads that run the parts of one job at a time. A batch takes a fraction of a millisecond, so handing a
// job over must be fast: helpers watch an atomic for some microseconds before they sleep. They never call Python.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#if defined(_WIN32)
#include <intrin.h>
#else
#include <unistd.h>
#include <csignal>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#endif

#include "memory.h"

namespace acker {

constexpr size_t APART_BYTES = 2 * LINE_BYTES;  // processors fetch lines in pairs
constexpr unsigned PARTS_MAX = 256;
constexpr std::chrono::microseconds SPIN_TIME{50};

// Tells the processor that this loop only waits.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(_M_ARM64)
    __yield();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// A number that one thread sets and one other thread waits for.
class alignas(APART_BYTES) Signal {
  public:
    explicit Signal(std::chrono::microseconds spin_time) noexcept : spin_time_(spin_time) {}

    // Release and acquire of `number_` order what both threads do before and after. Sequential consistency makes sure
    // that no change is slept through: either the setter's load of `asleep_` or the waiter's last load of `number_`
    // sees the other thread's store.
    void set(uint64_t number) noexcept {
        number_.store(number, std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_seq_cst)) {
            std::lock_guard<std::mutex> lock(mutex_);
            changed_.notify_one();
        }
    }

    // Waits until the number is no longer `seen`, and returns it.
    uint64_t wait_past(uint64_t seen) noexcept {
        if (!spin_past(seen)) {
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_.store(true, std::memory_order_seq_cst);
            while (number_.load(std::memory_order_seq_cst) == seen) changed_.wait(lock);
            asleep_.store(false, std::memory_order_relaxed);
        }
        return number_.load(std::memory_order_acquire);
    }

  private:
    bool spin_past(uint64_t seen) const noexcept {
        constexpr int LOOKS = 64;  // between two looks at the clock
        for (auto end = std::chrono::steady_clock::now() + spin_time_; std::chrono::steady_clock::now() < end;) {
            for (int look = 0; look < LOOKS; ++look) {
                if (number_.load(std::memory_order_acquire) != seen) return true;
                pause();
            }
        }
        return false;
    }

    std::chrono::microseconds spin_time_;
    std::atomic<uint64_t> number_{0};
    std::atomic<bool> asleep_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

// A caller and its helpers, who run the parts of one job after another. One thread at a time may use it.
//
// The caller also runs every part that no helper has begun by then. So a helper that wakes up late delays nobody, and
// if the system grants fewer threads than there are parts, the job only takes longer. Helpers start when they are first
// needed, and again in a forked child, which has none: it abandons the parent's, whose locks may be taken.
class Workers {
  public:
    // 1 <= parts <= PARTS_MAX. Waiting threads spin for `spin_time` before they sleep.
    explicit Workers(unsigned parts, std::chrono::microseconds spin_time = SPIN_TIME) noexcept
        : parts_(parts), spin_time_(spin_time) {}
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    ~Workers() {
        if (process_ != this_process()) return;
        for (unsigned helper = 0; helper < helpers_; ++helper) slots_[helper]->requested.set(STOP);
        for (unsigned helper = 0; helper < helpers_; ++helper) {
            slots_[helper]->thread.join();
            destroy(helper);
        }
    }

    unsigned parts() const noexcept { return parts_; }
    unsigned helpers() const noexcept { return helpers_; }

    // Calls part(0) to part(parts() - 1) once each, on several threads; returns when all have returned.
    template <typename Part>
    void run(const Part& part) noexcept {
        if (parts_ > 1 && process_ != this_process()) start();
        call_ = [](const void* job, unsigned number) { (*static_cast<const Part*>(job))(number); };
        job_ = &part;
        uint64_t ticket = ++ticket_;
        for (unsigned helper = 0; helper < helpers_; ++helper) slots_[helper]->requested.set(ticket);
        part(0);
        for (unsigned number = helpers_ + 1; number < parts_; ++number) part(number);
        bool claimed[PARTS_MAX];
        for (unsigned helper = 0; helper < helpers_; ++helper) {
            claimed[helper] = slots_[helper]->claim(ticket);
            if (claimed[helper]) part(helper + 1);
        }
        for (unsigned helper = 0; helper < helpers_; ++helper)
            if (!claimed[helper]) slots_[helper]->wait_for(ticket);
    }

  private:
    static constexpr uint64_t STOP = UINT64_MAX;

    struct Helper {
        explicit Helper(std::chrono::microseconds spin_time) noexcept : requested(spin_time), done(spin_time) {}

        Signal requested;  // the last ticket for this helper's part
        Signal done;       // the last ticket whose part the helper has run
        alignas(APART_BYTES) std::atomic<uint64_t> claimed{0};
        std::thread thread;

        // Whether the calling thread gets to run the part of this ticket: the first to ask does.
        bool claim(uint64_t ticket) noexcept {
            uint64_t before = ticket - 1;
            return claimed.compare_exchange_strong(before, ticket, std::memory_order_acq_rel);
        }

        void wait_for(uint64_t ticket) noexcept {
            uint64_t seen = last_done;
            while (seen != ticket) seen = done.wait_past(seen);
            last_done = seen;
        }

        uint64_t last_done = 0;  // as seen by the caller
    };

#if defined(_WIN32)
    static int64_t this_process() noexcept { return 0; }
#else
    static int64_t this_process() noexcept { return getpid(); }
#endif

    void start() noexcept {
        helpers_ = 0;
        ticket_ = 0;
        process_ = this_process();
        while (helpers_ + 1 < parts_ && start_helper()) ++helpers_;
    }

    // False: no memory, or the system grants no thread.
    bool start_helper() noexcept {
        void* memory = acquire_aligned(whole(sizeof(Helper)), APART_BYTES);
        if (memory == nullptr) return false;
        slots_[helpers_] = new (memory) Helper(spin_time_);
        try {
            SignalsBlocked blocked;
            slots_[helpers_]->thread = std::thread(&Workers::help, this, slots_[helpers_], helpers_ + 1);
        } catch (const std::system_error&) {
            destroy(helpers_);
            return false;
        }
        return true;
    }

    void destroy(unsigned helper) noexcept {
        slots_[helper]->~Helper();
        release(slots_[helper]);
    }

    void help(Helper* self, unsigned part) noexcept {
        for (uint64_t ticket = 0;;) {
            ticket = self->requested.wait_past(ticket);
            if (ticket == STOP) return;
            if (!self->claim(ticket)) continue;  // the caller has run it, and may have returned
            call_(job_, part);
            self->done.set(ticket);
        }
    }

    // Blocks signals in helpers, so that the program's own threads get them; signals of faults stay with the thread
    // that caused them.
    class SignalsBlocked {
#if defined(_WIN32)
      public:
        SignalsBlocked() noexcept {}
#else
      public:
        SignalsBlocked() noexcept {
            sigset_t all;
            sigfillset(&all);
            for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
            pthread_sigmask(SIG_SETMASK, &all, &before_);
        }
        ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

      private:
        sigset_t before_;
#endif
    };

    static constexpr size_t whole(size_t bytes) noexcept {
        return (bytes + APART_BYTES - 1) / APART_BYTES * APART_BYTES;
    }

    unsigned parts_;
    std::chrono::microseconds spin_time_;
    unsigned helpers_ = 0;
    int64_t process_ = -1;  // in which the helpers run
    uint64_t ticket_ = 0;
    void (*call_)(const void*, unsigned) = nullptr;
    const void* job_ = nullptr;
    Helper* slots_[PARTS_MAX - 1] = {};
};

}  // namespace acker
