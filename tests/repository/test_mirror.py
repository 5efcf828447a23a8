"""The tests mirror the sources: each module has a test file of its name in the folder of its name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).resolve().parents[2]

# Modules that have none, below the file that tests them together with their neighbours.
TESTED_WITH_OTHERS = {
    "connectors/test_kafka.py": [
        "connectors/kafka_assignments",
        "connectors/kafka_client",
        "connectors/kafka_membership",
    ],
    "engine/test_acker.py": ["_engine/completions"],
    "engine/test_acker_threads.py": ["_engine/single_entry"],
    "engine/test_plain.py": ["_engine/plain/checks", "_engine/plain/combine", "_engine/plain/sharded"],
    "engine/test_open_trees.py": ["_engine/plain/cohorts", "_engine/plain/open_trees"],
    "engine/test_protocol.py": ["_engine/reference", "_engine/rules"],
    "native/test_codes.py": ["_engine/codes"],
    "connectors/test_consumer.py": [
        "connectors/attempts",
        "connectors/open_messages",
        "connectors/options",
        "connectors/settlement",
        "connectors/source",
        "connectors/trees",
    ],
    "connectors/test_bolt.py": ["connectors/publisher"],
    "connectors/test_rabbitmq.py": ["connectors/rabbitmq_link"],
    "spark/streams/test_checkpoint.py": ["cli/state"],
    "local/test_exporters.py": ["local/otel", "local/prometheus", "local/observe/metric_names"],
    "local/test_flow.py": ["local/queues"],
    "local/test_lifecycle.py": ["local/shutdown", "local/topology_run", "local/wiring"],
    "local/test_run.py": ["local/until"],
    "local/test_runtime.py": ["local/executors/acker", "local/executors/base", "local/executors/bolt"],
    "local/test_states.py": ["local/executors/state_gate"],
    "local/test_scenarios.py": ["local/executors/spout"],
    "local/observe/test_live_view.py": [
        "local/observe/actions",
        "local/observe/components_view",
        "local/observe/failures",
        "local/observe/live_page",
        "local/observe/open_trees",
    ],
    "local/observe/test_metrics.py": ["local/observe/readings"],
    "local/observe/test_tracing.py": ["local/observe/sampling"],
    "testing/test_clock.py": ["local/clock"],
    "testing/test_connectors.py": [
        "testing/connectors/broker",
        "testing/connectors/publisher",
        "testing/connectors/source",
    ],
    "testing/test_connectors_kit.py": [
        "testing/connectors/consumer_run",
        "testing/connectors/harness",
        "testing/connectors/scenarios/acks",
        "testing/connectors/scenarios/contract",
        "testing/connectors/scenarios/failures",
        "testing/connectors/scenarios/losses",
        "testing/connectors/scenarios/publishers",
        "testing/connectors/scenarios/registry",
        "testing/connectors/watched",
    ],
    "testing/test_kit.py": ["testing/bolts", "testing/complete", "testing/components"],
    "testing/test_scheduler.py": ["testing/turns"],
    "topology/test_component.py": ["topology/bolt", "topology/collector", "topology/reasons"],
    "topology/test_graph.py": ["topology/checks", "topology/definition", "topology/specs", "topology/suggestions"],
    "topology/test_spout.py": ["topology/backoff", "topology/replays"],
    "ui/test_server.py": ["ui/app", "ui/feed", "ui/guard", "ui/history", "ui/opening", "ui/source"],
    "test_streamparse.py": [
        "topology/dsl/component",
        "topology/dsl/stream",
        "topology/dsl/topology",
        "topology/storm/bolt",
        "topology/storm/component",
        "topology/storm/spout",
    ],
    "spark/topologies/test_broker_spouts.py": ["connectors/journaled_spout"],
    "spark/topologies/test_kills.py": ["spark/topologies/outcome_feed"],
    "spark/topologies/test_stage_worker.py": ["spark/topologies/microbatch_plan"],
    "spark/topologies/test_alike.py": [
        "spark/topologies/micro_batches",
        "spark/topologies/microbatch_job",
        "spark/topologies/spark_executor",
        "spark/topologies/spout_tuples",
    ],
    "torture/test_shipping.py": ["spark/shipping"],
    "spark/test_entries.py": ["spark/user_frames"],
    "spark/pipelines/test_stages.py": ["spark/pipelines/collector", "spark/pipelines/transforms"],
    "spark/pipelines/test_tracked.py": [
        "spark/pipelines/counters",
        "spark/pipelines/pipeline_plan",
        "spark/pipelines/row_schemas",
        "spark/pipelines/settlement",
    ],
    "spark/streams/test_microbatch.py": ["spark/streams/shard_rules"],
    "spark/streams/test_plan.py": ["spark/event_columns", "spark/streams/operator"],
    "spark/streams/test_listener.py": ["spark/streams/reports", "spark/streams/streams_view"],
    "spark/streams/test_replay_ledger.py": ["spark/folders"],
}


def has_namesake(module: str) -> bool:
    """Return whether there is a test file of that name, or one that adds a subject to it."""
    folder, _, name = module.replace("_engine/", "engine/").rpartition("/")
    place = ROOT / "tests" / folder
    return (place / f"test_{name}.py").is_file() or any(place.glob(f"test_{name}_*.py"))


def test_each_module_has_a_test_of_its_name_or_a_file_that_tests_it() -> None:
    command = ["git", "-C", str(ROOT / "src/acker"), "ls-files", "-z", "--", "*.py"]
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    modules = {
        name.removesuffix(".py")
        for name in names
        if name and not name.endswith(("__init__.py", "__main__.py")) and (ROOT / "src/acker" / name).is_file()
    }
    assert len(modules) > 100
    listed = [module for tested in TESTED_WITH_OTHERS.values() for module in tested]
    assert len(listed) == len(set(listed))
    without = {module for module in modules if not has_namesake(module)}
    assert without == set(listed), "name a test file for the module, or take its name off the list"


def test_the_files_that_test_several_modules_exist() -> None:
    missing = [name for name in TESTED_WITH_OTHERS if not (ROOT / "tests" / name).is_file()]
    assert not missing
