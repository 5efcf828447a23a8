"""What all programs do with the parts of an order."""

import os

# A byte for each item goes there, where that is to be counted and not read.
_done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND) if "DONE" in os.environ else None


def pack(item: str) -> None:
    """Pack an item; there is no sofa."""
    if item == "sofa":
        raise LookupError("no sofa is left")
    if _done is None:
        print("packed", item, flush=True)
    else:
        os.write(_done, b".")
