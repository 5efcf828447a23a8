"""The plan of a batch of rows: Spark SQL from end to end."""

import pytest

from acker.spark import completions

DDL = "kind tinyint, root_id bigint, value bigint, task_id int, message_id bigint"


@pytest.mark.spark
def test_the_plan_is_one_exchange_between_two_hash_aggregates(spark):
    plan = completions(spark.createDataFrame([], DDL))._jdf.queryExecution().executedPlan().toString()
    aggregates = [line.strip("+-: ") for line in plan.splitlines() if "Aggregate" in line]
    assert len(aggregates) == 2
    assert all(line.startswith("HashAggregate") for line in aggregates)
    assert plan.count("Exchange") == 1
    assert "Python" not in plan and "Arrow" not in plan
