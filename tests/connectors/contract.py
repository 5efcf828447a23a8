"""The conformance kit for sources on real servers: what `make test` runs of it, and what `make test-slow`."""

from __future__ import annotations

import pytest

from acker.testing.connectors import SCENARIOS, SourceContract
from acker.testing.connectors.contract import method_for

# One scenario for each promise of docs/promises.md that a broker has a part in. Not for leases that are renewed in
# time: there the broker's clock decides, and a machine that stands still for seconds loses them.
ONE_OF_EACH_PROMISE = {
    "a_close_gives_back_what_is_not_done",
    "a_commit_never_passes_an_open_message",
    "a_dead_letter_is_confirmed_before_the_ack",
    "a_forked_process_leaves_a_publisher_to_its_parent",
    "a_message_is_acked_when_its_last_descendant_is_done",
    "a_mistake_ends_the_consumer_with_an_error",
    "a_publisher_connects_again",
    "a_rebalance_commits_what_is_done_and_forgets_the_rest",
    "a_refused_message_has_an_error",
    "an_open_message_survives_the_end_of_its_consumer",
    "bodies_arrive_unchanged",
    "no_commit_passes_a_failed_message",
    "no_secret_is_shown",
    "nothing_is_lost_when_the_broker_restarts",
    "open_messages_are_bounded",
    "outcomes_of_a_lost_connection_settle_no_other_message",
    "outcomes_of_a_lost_lease_are_dropped",
    "the_brokers_own_place_keeps_dead_letters",
    "threads_share_a_publisher",
    "two_consumers_share_a_queue",
    "what_a_publisher_confirms_arrives",
}


class ServerContract(SourceContract):
    """The scenarios as tests of a source on a real server: all but one of each promise are slow."""


for _scenario in SCENARIOS:
    if _scenario.__name__ not in ONE_OF_EACH_PROMISE:
        setattr(ServerContract, f"test_{_scenario.__name__}", pytest.mark.slow(method_for(_scenario)))
