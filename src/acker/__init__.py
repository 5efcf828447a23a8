"""Know when everything derived from a message is finished."""
