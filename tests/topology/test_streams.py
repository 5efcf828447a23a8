"""Streams: fields, names, and the errors of wrong ones."""

import pytest

from acker.topology import Stream, TopologyError


def test_a_stream_has_fields_a_name_and_may_be_direct():
    stream = Stream(["word", "count"], name="counts", direct=True)
    assert (stream.fields, stream.name, stream.direct) == (("word", "count"), "counts", True)
    assert (Stream().fields, Stream().name, Stream().direct) == ((), "default", False)
    assert Stream(("a",)) == Stream(["a"]) != Stream(["b"])
    assert len({Stream(["a"]), Stream(["a"])}) == 1
    assert Stream(["a"]) != "a"
    assert repr(stream) == "Stream(['word', 'count'], name='counts', direct=True)"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"fields": "word"}, r"stream 'default': fields are a list of str such as \['word'\], got 'word'"),
        ({"fields": [1]}, "stream 'default': a field is named by a str that is not empty, got 1"),
        ({"fields": [""]}, "a field is named by a str that is not empty"),
        ({"fields": ["a", "b", "a"], "name": "s"}, "stream 's': field 'a' is there twice; rename or remove one"),
        ({"name": ""}, "stream: the name is a str that is not empty, got ''"),
        ({"name": None}, "stream: the name is a str that is not empty, got None"),
        ({"direct": "yes"}, "stream 'default': direct is True or False, got 'yes'"),
    ],
)
def test_a_wrong_stream_says_what_mends_it(arguments, text):
    with pytest.raises(TopologyError, match=text):
        Stream(**arguments)
