"""The example of docs/sqs.md, on the server of moto."""

from __future__ import annotations

import boto3.session

from tests.connectors.running_page import programs_of, run_consumer


def test_the_consumer_of_the_page(sqs, monkeypatch):
    (block,) = programs_of("sqs.md", "tests/connectors/test_sqs_page.py")
    monkeypatch.setenv("AWS_ENDPOINT_URL", sqs.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    client = boto3.session.Session().client("sqs", region_name="eu-central-1")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.create_queue(QueueName="orders-dead")
    for order in ("lamp desk", "rug"):
        client.send_message(QueueUrl=url, MessageBody=order)

    def is_done() -> bool:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return not any(map(int, counts.values()))

    replacements = {"https://sqs.eu-central-1.amazonaws.com/123456789012/orders": url}
    assert sorted(run_consumer(block, replacements, is_done)) == ["packed desk", "packed lamp", "packed rug"]
    client.close()
