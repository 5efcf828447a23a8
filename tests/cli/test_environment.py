"""What a command needs from the machine, and the sentence that says what is missing."""

from __future__ import annotations

import pytest

from acker.cli import environment


@pytest.mark.spark
def test_without_a_jdk_one_sentence_says_what_to_do(machine, invoke, tmp_path) -> None:
    machine()
    answer = invoke("state", "inspect", str(tmp_path))
    sentence = (
        "acker: Spark needs a JDK 17 or newer, and there is none: install one (such as openjdk-17-jre-headless) or set "
        "JAVA_HOME"
    )
    assert answer.exit_code == 4 and answer.output.splitlines()[-1] == sentence
    homes = machine(old="11.0.2", broken=None)
    with pytest.raises(environment.SetupError, match=f"and {homes['old']} is Java 11: install one"):
        environment.find_jdk()
