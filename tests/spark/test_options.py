"""Options of completions: checked once, each by itself, and against a batch or a stream."""

import inspect
from fractions import Fraction

import pytest

import acker.spark as aspark
from acker._engine.combiner import Cohorts
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.options import CompletionKeywords, CompletionOptions, check_options, check_source_options

WITH_OPTIONS = ("completions", "completions_from_files", "completions_from_blocks", "completions_of")


def test_what_is_left_out_is_none_and_has_a_default():
    options = check_options()
    assert options == CompletionOptions()
    assert (options.bucket_count, options.delay, options.observation) == (3, "0 seconds", "acker")
    assert options.timeout_ms is None and options.cohorts is None
    options.refuse_stream_options()
    options.refuse_batch_options()


def test_a_timeout_is_exact_by_the_clock_and_whole_milliseconds_by_event_time():
    assert check_options(timeout=0.0004).timeout_ms == Fraction(2, 5)
    assert check_options(timeout="1.5 minutes").timeout_ms == 90_000
    by_event_time = check_options(timeout=0.0016, event_time="at", buckets=5)
    assert by_event_time.timeout_ms == 2 and by_event_time.cohorts == Cohorts(2, 5)
    assert check_options(event_time="at").cohorts == Cohorts(0, 3)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"buckets": 1}, ArgumentValueError, r"^buckets: expected an integer from 2 to 15, got 1$"),
        ({"high_water": -1}, ArgumentValueError, r"^high_water: expected an integer from 0 "),
        ({"event_time": 5}, ArgumentTypeError, r"^event_time: expected the name of a column, got int$"),
        ({"watermark_delay": 5}, ArgumentTypeError, r"^watermark_delay: expected a duration such as .*, got int$"),
        ({"name": ""}, ArgumentValueError, r"^name: expected the name of an observation, got ''$"),
        (
            {"timeout": 0.0001, "event_time": "at"},
            ArgumentValueError,
            r"^timeout: by event time expected 1 millisecond",
        ),
    ],
)
def test_a_wrong_option_is_named(options, error, text):
    with pytest.raises(error, match=text):
        check_options(**options)


def test_options_of_the_source_have_the_spelling_of_spark():
    source = check_source_options(source_options={"MAXFILEAGE": "7d"}, max_files_per_trigger=3, skip_foreign_files=True)
    assert source.spark_options == {"maxFileAge": "7d", "maxFilesPerTrigger": 3} and source.skip_foreign_files


@pytest.mark.parametrize("function", [aspark.completions, aspark.Tracked.completions], ids=["function", "method"])
def test_an_unknown_option_is_a_type_error_that_suggests_a_known_one(function):
    text = r"^completions\(\) got an unexpected keyword argument 'bucket'; did you mean 'buckets'\?$"
    with pytest.raises(TypeError, match=text):
        function(None, bucket=3)


def test_help_names_each_option_with_its_default():
    """The functions take them as one TypedDict, and `help` would show ``**options`` alone."""
    shown = {name: inspect.signature(getattr(aspark, name)).parameters for name in WITH_OPTIONS}
    keywords = {"shards", *CompletionKeywords.__annotations__}
    for name, parameters in shown.items():
        assert keywords - parameters.keys() == ({"shards"} if name == "completions_of" else set())
        assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    assert {name: shown["completions"][name].default for name in keywords} == vars(CompletionOptions())
    assert str(shown["completions"]["buckets"]) == "buckets: int | None = None"
    assert "pipelines" in shown["completions_of"] and "streaming" in shown["completions_from_files"]
