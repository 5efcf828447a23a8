// snapshot.h: what is written is read again, and what is wrong is refused.
#include "unit.h"

using namespace acker;
using namespace acker::testing;

namespace {

TEST(a_restored_acker_goes_on_as_the_first_would) {
    for (Protocol protocol : PROTOCOLS) {
        Checked acker(protocol, 5);
        for (uint64_t round = 0; round < 8; ++round) {
            acker.ingest(stream(2000, 900, round), static_cast<int64_t>(round * 100));
            acker.rotate(static_cast<int64_t>(round * 100));
        }
        auto make = [&] { return std::make_unique<AckerCore>(protocol, 5, -1, SEED + 1, false); };
        auto again = std::move(restored({&acker.core}, 1, make, true)[0]);
        CHECK(again->arena.count() > 0);
        again->counters = acker.core.counters;
        Columns more(stream(2000, 900, 99));
        CHECK(ingest(again.get(), more, 1000) == ingest(&acker.core, more, 1000));
        for (int turn = 0; turn < 5; ++turn) CHECK(rotate(again.get(), 2000) == rotate(&acker.core, 2000));
    }
}

// An acker with so many tracked entries, none of whose ack vals is 0.
std::unique_ptr<AckerCore> filled(int64_t entries, Protocol protocol = Protocol::storm) {
    auto core = std::make_unique<AckerCore>(protocol, 3, -1, SEED, true);
    std::vector<Message> messages;
    for (int64_t root = 0; root < entries; ++root) messages.push_back({TRACK, root, root + 1, 7, -root});
    ingest(core.get(), Columns(messages), 5);
    return core;
}

TEST(blocks_are_full_but_the_last_and_depend_on_what_stands_before_them) {
    constexpr auto FULL = static_cast<int64_t>(BLOCK_ENTRIES);
    for (int64_t entries : {int64_t{0}, int64_t{1}, FULL - 1, FULL, FULL + 1, 2 * FULL}) {
        auto core = filled(entries);
        Snapshot snapshot({core.get()});  // checks how full they are
        CHECK(snapshot.blocks.size() == (static_cast<size_t>(entries) + BLOCK_ENTRIES - 1) / BLOCK_ENTRIES);
        std::vector<bool> seen(static_cast<size_t>(entries));
        snapshot.each([&](const BlockColumns<const uint8_t>& columns, size_t row) {
            int64_t root = load<int64_t>(columns.root_id, row);
            CHECK(!seen[static_cast<size_t>(root)]);
            seen[static_cast<size_t>(root)] = true;
            CHECK(load<int64_t>(columns.ack_val, row) == root + 1 && load<int64_t>(columns.message_id, row) == -root);
        });
    }
    auto core = filled(2 * FULL);
    auto make = [] { return filled(0); };
    size_t entry = 0;
    Snapshot swapped({core.get()});
    std::swap(swapped.blocks[0], swapped.blocks[1]);
    CHECK(swapped.read_into({make().get()}, 0, &entry) == CHECKSUM_WRONG);
    Snapshot repeated({core.get()});
    repeated.blocks[1] = repeated.blocks[0];
    CHECK(repeated.read_into({make().get()}, 0, &entry) == CHECKSUM_WRONG && entry == BLOCK_ENTRIES);
}

// A number in a column of a block, which becomes 0 but for its first and its last byte.
struct Change {
    size_t column;
    size_t size_bytes;
    uint8_t first_byte;
    uint8_t last_byte;
};

// Changes one entry, or some, with a checksum that fits; the fault is that of the first of them and no other.
Fault fault_of(Protocol protocol, const std::vector<Change>& changes, const std::vector<size_t>& wrong = {700}) {
    constexpr size_t ENTRIES = 1000;
    auto core = filled(ENTRIES, protocol), fresh = std::make_unique<AckerCore>(protocol, 3, -1, SEED, true);
    Snapshot snapshot({core.get()});
    std::vector<uint8_t>& block = snapshot.blocks[0];
    for (const Change& change : changes) {
        for (size_t row : wrong) {
            uint8_t* number = block.data() + change.column * ENTRIES + row * change.size_bytes;
            std::memset(number, 0, change.size_bytes);
            number[0] = change.first_byte;
            number[change.size_bytes - 1] |= change.last_byte;
        }
    }
    uint64_t checksum = xxh64::of_bytes(block.data(), ENTRIES * ENTRY_BYTES, Snapshot::CHECKSUM);
    store(block.data() + ENTRIES * ENTRY_BYTES, 0, checksum);
    size_t entry = 0;
    Fault fault = snapshot.read_into({fresh.get()}, ENTRIES, &entry);
    CHECK(fault == NO_FAULT || entry == wrong[0]);
    CHECK(fault == NO_FAULT || fresh->arena.count() == 0 || fault == ROOT_TWICE);
    return fault;
}

Fault fault_of(Protocol protocol, size_t column, size_t size_bytes, uint8_t first_byte, uint8_t last_byte) {
    return fault_of(protocol, {Change{column, size_bytes, first_byte, last_byte}});
}

TEST(every_check_of_an_entry_finds_what_it_is_for) {
    constexpr size_t ROOT = 0, ACK_VAL = 8, MESSAGE = 16, TASK = 24, STATE = 32, AGE = 33;
    for (Protocol protocol : {Protocol::storm, Protocol::storm_09}) {
        CHECK(fault_of(protocol, ACK_VAL, 8, 0, 0) == FINISHED_ALREADY);
        CHECK(fault_of(protocol, ACK_VAL, 8, 0, 1) == NO_FAULT);
    }
    CHECK(fault_of(Protocol::fsshelter, ACK_VAL, 8, 0, 0) == NO_FAULT);
    CHECK(fault_of(Protocol::storm, STATE, 1, 3, 0) == STATE_UNKNOWN);
    CHECK(fault_of(Protocol::storm, STATE, 1, 255, 0) == STATE_UNKNOWN);
    CHECK(fault_of(Protocol::storm, AGE, 1, 3, 0) == AGE_TOO_HIGH);
    CHECK(fault_of(Protocol::storm, AGE, 1, 2, 0) == NO_FAULT);
    CHECK(fault_of(Protocol::storm, {{AGE, 1, 3, 0}}, {0, 700, 999}) == AGE_TOO_HIGH);
    CHECK(fault_of(Protocol::storm, TASK, 4, 0, 0x80) == TASK_NEGATIVE);
    CHECK(fault_of(Protocol::storm, TASK, 4, 1, 0) == NO_FAULT);
    CHECK(fault_of(Protocol::storm, MESSAGE, 8, 0, 0x80) == NO_FAULT);
    for (uint8_t state : {ENTRY_UNTRACKED, ENTRY_FAILED})
        CHECK(fault_of(Protocol::storm, STATE, 1, state, 0) == TASK_WITHOUT_TRACK);
    // What has no TRACK and no ids either.
    constexpr Change NO_TASK{TASK, 4, 0, 0}, NO_MESSAGE{MESSAGE, 8, 0, 0};
    for (Protocol protocol : PROTOCOLS) {
        bool needs_track = protocol == Protocol::fsshelter;
        CHECK(fault_of(protocol, {NO_TASK, NO_MESSAGE, {STATE, 1, 3, 0}}) == STATE_UNKNOWN);
        for (uint8_t state : {ENTRY_UNTRACKED, ENTRY_FAILED}) {
            const Change untracked{STATE, 1, state, 0};
            CHECK(fault_of(protocol, {NO_TASK, NO_MESSAGE, untracked}) == (needs_track ? TRACK_MISSING : NO_FAULT));
            CHECK(fault_of(protocol, {NO_TASK, {MESSAGE, 8, 0, 0x80}, untracked}) == MESSAGE_WITHOUT_TRACK);
            CHECK(fault_of(protocol, {{TASK, 4, 0, 0x40}, NO_MESSAGE, untracked}) == TASK_WITHOUT_TRACK);
        }
    }
    CHECK(fault_of(Protocol::storm, ROOT, 8, 0xFF, 0xFF) == NO_FAULT);
    Fault fault = NO_FAULT;
    for (uint8_t root = 0; root < 2 && fault == NO_FAULT; ++root) fault = fault_of(Protocol::storm, ROOT, 8, root, 0);
    CHECK(fault == ROOT_TWICE);
}

TEST(chosen_root_ids_of_a_snapshot_do_not_make_an_arena_grow) {
    for (size_t shards : {size_t{1}, size_t{3}}) {
        for (bool with_room : {true, false}) {
            auto core = std::make_unique<AckerCore>(Protocol::storm, 3, -1, SEED + 1, true);
            std::vector<Message> messages = chosen(1000, SEED);
            ingest(core.get(), Columns(messages), 5);
            auto parts = restored({core.get()}, shards, [] { return filled(0); }, with_room);
            size_t bytes = 0;
            for (const auto& part : parts) bytes += part->arena.bytes();
            CHECK(bytes <= bytes_allowed(1000));
            for (const Message& message : messages) {
                Arena& arena = parts[ShardOf(shards)(message.root_id)]->arena;
                Ref ref = arena.find(arena.hash(static_cast<uint64_t>(message.root_id)));
                CHECK(ref && ref.val() == 6 && arena.cold(ref)->message_id == message.message_id);
            }
        }
    }
}

TEST(room_is_made_for_what_was_read_and_not_for_what_is_claimed) {
    auto core = filled(BLOCK_ENTRIES), fresh = filled(0), honest = filled(0);
    Snapshot snapshot({core.get()});
    size_t entry = 0;
    CHECK(snapshot.read_into({honest.get()}, snapshot.entries, &entry) == NO_FAULT);
    CHECK(snapshot.read_into({fresh.get()}, 64 * BLOCK_ENTRIES, &entry) == NO_FAULT);
    CHECK(fresh->arena.bytes() <= 8 * honest->arena.bytes());
    auto untouched = filled(0);
    snapshot.blocks[0][5] ^= 1;
    CHECK(snapshot.read_into({untouched.get()}, 64 * BLOCK_ENTRIES, &entry) == CHECKSUM_WRONG);
    CHECK(untouched->arena.bytes() == 0);
}

TEST(shards_write_and_read_one_snapshot) {
    auto make = [] { return filled(0); };
    auto core = make();
    std::vector<Message> messages;
    for (int64_t root = -15000; root < 15000; ++root) messages.push_back({TRACK, root, 2 * root + 1, 7, -root});
    ingest(core.get(), Columns(messages), 5);
    for (size_t shards : {size_t{1}, size_t{2}, size_t{7}}) {
        auto parts = restored({core.get()}, shards, make, true);
        int64_t open = 0;
        for (size_t shard = 0; shard < shards; ++shard) {
            open += parts[shard]->open();
            Snapshot({parts[shard].get()}).each([&](const BlockColumns<const uint8_t>& columns, size_t row) {
                CHECK(ShardOf(shards)(load<int64_t>(columns.root_id, row)) == shard);
            });
        }
        CHECK(open == 30000);
        auto whole = std::move(restored(pointers_to(parts), 1, make, true)[0]);
        CHECK(whole->arena.count() == 30000 && whole->open() == 30000);
        Snapshot({whole.get()}).each([&](const BlockColumns<const uint8_t>& columns, size_t row) {
            CHECK(load<int64_t>(columns.ack_val, row) == 2 * load<int64_t>(columns.root_id, row) + 1);
            CHECK(load<int64_t>(columns.message_id, row) == -load<int64_t>(columns.root_id, row));
        });
    }
}

TEST(a_snapshot_is_refused_at_every_failing_allocation) {
    auto core = filled(40000);
    Snapshot snapshot({core.get()});
    for (size_t room : {size_t{0}, snapshot.entries}) {
        size_t failures = 0;
        for (int64_t budget = 0;; ++budget, ++failures) {
            auto fresh = filled(0);
            Allocations allocations(budget);
            size_t entry = 0;
            Fault fault = snapshot.read_into({fresh.get()}, room, &entry);
            CHECK(fresh->arena.check_invariants());
            if (fault == NO_FAULT) break;
            CHECK(fault == NO_MEMORY);
        }
        CHECK(failures >= 5);
    }
}

}  // namespace
