// Threads that stand ready to do the parts of a job at once. A batch takes a fraction of a millisecond, so what counts
// is how fast a job is handed over: by atomics to threads that still look for it, and they look for some microseconds
// before they go to sleep. None of these threads ever calls Python.
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
constexpr std::chrono::microseconds LOOKS_FOR{50};

// Tells the processor that this is a loop that waits.
inline void pause() noexcept {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(_M_ARM64)
    __yield();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// A number that one thread changes and one other waits for.
class alignas(APART_BYTES) Signal {
  public:
    explicit Signal(std::chrono::microseconds looks_for) noexcept : looks_for_(looks_for) {}

    // The release and the acquire of `number_` order what both threads do before and after. That nobody sleeps through
    // a change takes more: of the setter's load of `asleep_` and the waiter's last load of `number_`, one sees the
    // store.
    void set(uint64_t number) noexcept {
        number_.store(number, std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_seq_cst)) {
            std::lock_guard<std::mutex> lock(mutex_);
            changed_.notify_one();
        }
    }

    // Returns the number as soon as it is not `seen` any more.
    uint64_t wait_past(uint64_t seen) noexcept {
        if (!changes_soon(seen)) {
            std::unique_lock<std::mutex> lock(mutex_);
            asleep_.store(true, std::memory_order_seq_cst);
            while (number_.load(std::memory_order_seq_cst) == seen) changed_.wait(lock);
            asleep_.store(false, std::memory_order_relaxed);
        }
        return number_.load(std::memory_order_acquire);
    }

  private:
    bool changes_soon(uint64_t seen) const noexcept {
        constexpr int LOOKS = 64;  // between two looks at the clock
        for (auto end = std::chrono::steady_clock::now() + looks_for_; std::chrono::steady_clock::now() < end;) {
            for (int look = 0; look < LOOKS; ++look) {
                if (number_.load(std::memory_order_acquire) != seen) return true;
                pause();
            }
        }
        return false;
    }

    std::chrono::microseconds looks_for_;
    std::atomic<uint64_t> number_{0};
    std::atomic<bool> asleep_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

// A caller and its helpers do the parts of one job after the other. Used by one thread at a time, not always the same.
//
// A part that no helper has begun when the caller is through with its own is done by the caller: a helper that the
// system wakes late holds nobody up, and where there are fewer helpers than parts, since the system gives no more
// threads, it only takes longer. Helpers are started when they are first needed, and anew in a forked child, where
// there are none: those of the parent are left alone, since nobody knows what their locks were doing.
class Workers {
  public:
    // 1 <= parts <= PARTS_MAX; who waits looks for so long before going to sleep.
    explicit Workers(unsigned parts, std::chrono::microseconds looks_for = LOOKS_FOR) noexcept
        : parts_(parts), looks_for_(looks_for) {}
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    ~Workers() {
        if (process_ != this_process()) return;
        for (unsigned helper = 0; helper < helpers_; ++helper) seats_[helper]->ordered.set(STOP);
        for (unsigned helper = 0; helper < helpers_; ++helper) {
            seats_[helper]->thread.join();
            leave_seat(helper);
        }
    }

    unsigned parts() const noexcept { return parts_; }
    unsigned helpers() const noexcept { return helpers_; }

    // Calls part(0) to part(parts() - 1), each once, on several threads; returns when all have returned.
    template <typename Part>
    void run(const Part& part) noexcept {
        if (parts_ > 1 && process_ != this_process()) start();
        call_ = [](const void* job, unsigned number) { (*static_cast<const Part*>(job))(number); };
        job_ = &part;
        uint64_t ticket = ++ticket_;
        for (unsigned helper = 0; helper < helpers_; ++helper) seats_[helper]->ordered.set(ticket);
        part(0);
        for (unsigned number = helpers_ + 1; number < parts_; ++number) part(number);
        bool taken[PARTS_MAX];
        for (unsigned helper = 0; helper < helpers_; ++helper) {
            taken[helper] = seats_[helper]->take(ticket);
            if (taken[helper]) part(helper + 1);
        }
        for (unsigned helper = 0; helper < helpers_; ++helper)
            if (!taken[helper]) seats_[helper]->wait_for(ticket);
    }

  private:
    static constexpr uint64_t STOP = UINT64_MAX;

    struct Seat {
        explicit Seat(std::chrono::microseconds looks_for) noexcept : ordered(looks_for), done(looks_for) {}

        Signal ordered;  // the last ticket for this seat's part
        Signal done;     // the last ticket of which the helper has done it
        alignas(APART_BYTES) std::atomic<uint64_t> taken{0};
        std::thread thread;

        // Whether the part of this ticket falls to who asks: to the first of the two.
        bool take(uint64_t ticket) noexcept {
            uint64_t before = ticket - 1;
            return taken.compare_exchange_strong(before, ticket, std::memory_order_acq_rel);
        }

        void wait_for(uint64_t ticket) noexcept {
            uint64_t seen = last_done;
            while (seen != ticket) seen = done.wait_past(seen);
            last_done = seen;
        }

        uint64_t last_done = 0;  // as the caller has seen it
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

    // False: the system has no memory or no thread for it.
    bool start_helper() noexcept {
        void* memory = acquire_aligned(whole(sizeof(Seat)), APART_BYTES);
        if (memory == nullptr) return false;
        seats_[helpers_] = new (memory) Seat(looks_for_);
        try {
            SignalsBlocked blocked;
            seats_[helpers_]->thread = std::thread(&Workers::help, this, seats_[helpers_], helpers_ + 1);
        } catch (const std::system_error&) {
            leave_seat(helpers_);
            return false;
        }
        return true;
    }

    void leave_seat(unsigned helper) noexcept {
        seats_[helper]->~Seat();
        release(seats_[helper]);
    }

    void help(Seat* seat, unsigned part) noexcept {
        for (uint64_t ticket = 0;;) {
            ticket = seat->ordered.wait_past(ticket);
            if (ticket == STOP) return;
            if (!seat->take(ticket)) continue;  // the caller has done it, and may be gone
            call_(job_, part);
            seat->done.set(ticket);
        }
    }

    // A signal to the process belongs to a thread of the program's own. Those that tell of a fault stay with who made
    // it.
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
    std::chrono::microseconds looks_for_;
    unsigned helpers_ = 0;
    int64_t process_ = -1;  // the one that the helpers run in
    uint64_t ticket_ = 0;
    void (*call_)(const void*, unsigned) = nullptr;
    const void* job_ = nullptr;
    Seat* seats_[PARTS_MAX - 1] = {};
};

}  // namespace acker
